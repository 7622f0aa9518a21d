"""AMESHJOIN's settings from step to step, in numbers and in an operator that is working."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from dovetail.costs.meshjoin import (
    MeshFactors,
    MeshModel,
    MeshPlan,
    Workload,
    best_rate,
    try_least_memory,
)
from dovetail.costs.retune import TOLERANCE, Tuner, averaged
from dovetail.costs.storage import DISK_7200, Storage
from dovetail.costs.tuned import Tuned
from dovetail.spark.jobs.course import Leg, Loaded
from dovetail.spark.jobs.enrich import EnrichJob
from dovetail.spark.jobs.enrich_course import EnrichCourse
from dovetail.spark.state import Outbox, PartitionState
from dovetail.specs import EnrichSpec
from support.semistream import Bench

FACTORS = MeshFactors(1e-8, 4e-8, 2e-8, 5e-10, 8e-8, lookup=8e-8, call=1e-4, chunk=5e-5)
WORK = Workload(1_000_000, 8, 8 * 500, 40, results_per_row=1.0, pointer_bytes=33, chunk_pages=16)
TUNER = Tuner(MeshModel(WORK, FACTORS, DISK_7200), 4_000_000)
FASTEST = best_rate(TUNER.model, TUNER.memory_bytes)
# as in the paper's experiments; with all the time that there is for a batch, so that only the
# average counts
PAPER = Tuner(
    MeshModel(
        Workload(3_440_640, 120, 8192, 20, results_per_row=1),
        MeshFactors(expire=1e-6, receive=1e-6, add=2e-6, probe=1e-6, output=2e-6),
        DISK_7200,
    ),
    40_000_000,
    patience_seconds=math.inf,
)
SMALL = Tuner(  # 12 pages of 10 rows
    MeshModel(
        Workload(120, 100, 1000, 20, selectivity=0.5, fudge=1.5),
        MeshFactors(expire=1e-4, receive=2e-4, add=3e-4, probe=4e-4, output=5e-4),
        Storage("slow", seek_seconds=0.01, bytes_per_second=1e5),
    ),
    20_000,
    patience_seconds=math.inf,
)


def begun(tuner: Tuner, rate: float) -> Tuned:
    """Settings that were made for this rate, as if it had been the average for ever."""
    plan = tuner.settings_for(rate * (1 + TOLERANCE))
    return Tuned(plan.batch_rows, plan.pages, rate, rate, at=0.0)


def observed(tuner: Tuner, tuned: Tuned, rows: int, steps: int) -> Tuned:
    """After some seconds, in each of which so many rows came."""
    for _ in range(steps):
        tuned = tuner.after(tuned, rows, tuned.at + 1)
    return tuned


def plan_of(tuner: Tuner, tuned: Tuned) -> MeshPlan:
    return tuner.model.plan(tuned.w, tuned.b)


def steady(tuned: Tuned | None, rows: int, seconds: float, steps: int) -> Tuned:
    """After some steps, each with so many rows that came in so many seconds."""
    for _ in range(steps):
        now = 0.0 if tuned is None else tuned.at + seconds
        tuned = TUNER.after(tuned, rows, now)
    assert tuned is not None
    return tuned


def test_after_when_nothing_is_known_then_is_as_fast_as_can_be() -> None:
    first = TUNER.after(None, 10, now=100.0)
    assert (first.w, first.b) == (FASTEST.batch_rows, FASTEST.pages)
    assert TUNER.after(first, 10, now=100.0) == first, "rows of the same step say nothing yet"


def test_after_when_rows_come_steadily_then_keeps_up_in_less_memory() -> None:
    slow = steady(None, rows=200, seconds=2.0, steps=50)
    assert slow.rate == 0 or abs(slow.rate / 100 - 1) < 0.1
    plan = TUNER.model.plan(slow.w, slow.b)
    assert plan.rate >= 100
    assert plan.memory_bytes < FASTEST.memory_bytes / 2


def test_after_when_the_rate_grows_then_settings_follow_up_to_the_budget() -> None:
    tuned = None
    reached = []
    for rate in (50, 500, 5_000, 5_000_000):
        tuned = steady(tuned, rows=2 * rate, seconds=2.0, steps=100)
        plan = TUNER.model.plan(tuned.w, tuned.b)
        assert plan.memory_bytes <= TUNER.memory_bytes
        assert plan.rate >= min(rate, FASTEST.rate * 0.999)
        reached.append(plan.memory_bytes)
    assert reached == sorted(reached)
    assert reached[-1] > 2 * reached[0]


def test_after_when_a_burst_follows_a_silence_then_it_is_served_in_time() -> None:
    quiet = steady(None, rows=1, seconds=10.0, steps=100)
    burst = TUNER.after(quiet, 10_000, quiet.at + 1)
    wanted = 10_000 / TUNER.patience_seconds
    assert TUNER.model.plan(quiet.w, quiet.b).rate < wanted / 10
    assert TUNER.model.plan(burst.w, burst.b).rate >= wanted
    after = TUNER.after(burst, 1, burst.at + 10)
    assert TUNER.model.plan(after.w, after.b).rate < wanted, "the burst is over"


def test_after_when_the_clock_was_set_back_then_goes_on() -> None:
    tuned = steady(None, rows=200, seconds=2.0, steps=5)
    assert TUNER.after(tuned, 200, tuned.at - 1_000).rate >= tuned.rate


def test_after_when_the_rate_stays_within_a_fifth_then_the_settings_stay() -> None:
    begin = tuned = begun(PAPER, 10_000)
    for rows in (11_500, 8_500, 10_000, 11_900):
        tuned = observed(PAPER, tuned, rows, 500)
        assert (tuned.w, tuned.b, tuned.tuned_rate) == (begin.w, begin.b, begin.tuned_rate)
        assert plan_of(PAPER, tuned).rate >= tuned.rate


def test_after_when_the_rate_moves_then_the_settings_follow_with_the_least_memory() -> None:
    begin = tuned = begun(PAPER, 10_000)
    for _ in range(500):
        tuned = observed(PAPER, tuned, 20_000, 1)
        assert plan_of(PAPER, tuned).memory_bytes <= PAPER.memory_bytes
    assert tuned.rate == pytest.approx(20_000, rel=0.01)
    plan = plan_of(PAPER, tuned)
    assert plan.rate >= tuned.rate
    assert plan == try_least_memory(PAPER.model, tuned.tuned_rate * 1.2)
    assert plan.memory_bytes > plan_of(PAPER, begin).memory_bytes
    tuned = observed(PAPER, tuned, 1_000, 500)
    assert plan_of(PAPER, tuned).memory_bytes < plan_of(PAPER, begin).memory_bytes


def test_after_when_the_budget_is_too_small_then_is_as_fast_as_it_allows() -> None:
    tuner = replace(PAPER, memory_bytes=2_000_000)
    tuned = begun(tuner, 100)
    assert plan_of(tuner, tuned).rate >= tuned.rate
    for rows in (90_000, 10**9):  # more than the memory allows, more than any would
        tuned = observed(tuner, tuned, rows, 500)
        assert plan_of(tuner, tuned) == best_rate(tuner.model, 2_000_000)
        assert plan_of(tuner, tuned).rate < tuned.rate


def test_after_when_there_is_a_latency_then_every_plan_keeps_it() -> None:
    latency = best_rate(PAPER.model, PAPER.memory_bytes).wait_seconds
    tuner = replace(PAPER, latency=latency)
    tuned = begun(tuner, 10)
    for rows in (10, 100, 10_000, 10**7, 0):
        tuned = observed(tuner, tuned, rows, 200)
        assert plan_of(tuner, tuned).wait_seconds <= latency


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=20), st.floats(1, 1e4))
def test_average_when_the_same_rate_is_observed_in_pieces_then_is_as_in_one(
    pieces: list[float], rate: float
) -> None:
    parts = 500.0
    for seconds in pieces:
        parts = averaged(parts, rate * seconds, seconds)
    whole = averaged(500, rate * sum(pieces), sum(pieces))
    assert parts == pytest.approx(whole)
    assert min(500, rate) * 0.999 <= whole <= max(500, rate) * 1.001


def test_average_when_rows_come_at_once_then_they_count_in_full() -> None:
    at_once, soon = averaged(500, 1_000, 0), averaged(500, 1_000, 1e-6)
    assert at_once == pytest.approx(soon, rel=1e-6)
    assert at_once > 500


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 100)), max_size=30))
def test_after_when_anything_is_observed_then_plans_fit_and_change_only_by_more_than_a_fifth(
    seen: list[tuple[int, float]],
) -> None:
    tuned = begun(SMALL, 100)
    for rows, seconds in seen:
        after = SMALL.after(tuned, rows, tuned.at + seconds)
        plan = plan_of(SMALL, after)
        assert plan.memory_bytes <= SMALL.memory_bytes
        moved = abs(after.rate - tuned.tuned_rate) > 0.2 * tuned.tuned_rate
        if moved:
            assert after.tuned_rate == after.rate
        else:
            assert (after.w, after.b, after.tuned_rate) == (tuned.w, tuned.b, tuned.tuned_rate)
        wanted = try_least_memory(SMALL.model, after.rate)
        fastest = best_rate(SMALL.model, SMALL.memory_bytes)
        assert plan.rate >= after.rate or wanted is None or plan == fastest
        tuned = after


def test_tuned_when_kept_in_a_manifest_then_is_read_back() -> None:
    tuned = steady(None, rows=200, seconds=2.0, steps=3)
    assert Tuned.of(tuned.facts()) == tuned
    assert Tuned.of(None) is None


def course_of(bench: Bench, state: Path, tuner: Tuner | None) -> EnrichCourse:
    """A step of an operator, in which nothing has come yet."""
    spec = EnrichSpec(bench.operator.name, None, 1, state, 250, bench.spec)
    outbox = Outbox(state, "attempt", spec.output)
    leg = Leg(PartitionState(state, 0), None, "attempt", outbox, lambda: 0.0, 0.0)
    loaded = Loaded(bench.operator, ExitStack())
    return EnrichCourse(EnrichJob(spec, StructType(), None, tuner), leg, loaded)


def test_retune_when_rows_wait_then_settings_change_under_them_and_pairs_stay_right(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(7)
    bench = Bench(tmp_path, "ameshjoin", list(rng.integers(0, 500, 800)), page_rows=16)
    work = replace(WORK, table_rows=800, page_bytes=8 * 16, stream_row_bytes=16)
    tuner = Tuner(MeshModel(work, FACTORS, DISK_7200), 60_000)
    course = course_of(bench, tmp_path, tuner)
    now, used, waited = 0.0, Counter(), 0
    for rows, seconds in [(40, 1.0)] * 6 + [(400, 1.0)] * 3 + [(5, 20.0)] * 6:
        now += seconds
        course.leg = replace(course.leg, began=now)
        course._tune(rows)
        known = course.tuned
        assert known is not None
        waited += bench.operator.pending() > 0
        assert bench.operator.w == known.w
        assert bench.operator.b == min(known.b, bench.operator.table.pages)
        used[known.w, known.b] += 1
        bench.feed(rng.integers(0, 600, rows).tolist())
    assert len(used) >= 3, used
    assert waited >= 5, "settings have to change while rows wait"
    bench.assert_exactly_once()


def test_retune_when_the_algorithm_has_no_tuner_then_leaves_it_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "meshjoin", list(range(50)))
    course = course_of(bench, tmp_path, None)
    before = (bench.operator.w, bench.operator.b)
    course._tune(1_000)
    assert course.tuned is None
    assert (bench.operator.w, bench.operator.b) == before
    assert course._record()["predicted"] is None
