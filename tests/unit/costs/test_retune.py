"""AMESHJOIN's settings from step to step, in numbers and in an operator that is working."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from dovetail.costs.meshjoin import MeshFactors, MeshModel, Workload, best_rate
from dovetail.costs.retune import Tuned, Tuner
from dovetail.costs.storage import DISK_7200
from dovetail.spark.jobs.course import Leg, Loaded
from dovetail.spark.jobs.enrich_course import EnrichCourse
from dovetail.spark.state import Outbox, PartitionState
from dovetail.specs import EnrichSpec
from support.semistream import Bench

FACTORS = MeshFactors(1e-8, 4e-8, 2e-8, 5e-10, 8e-8, lookup=8e-8, call=1e-4, chunk=5e-5)
WORK = Workload(1_000_000, 8, 8 * 500, 40, results_per_row=1.0, pointer_bytes=33, chunk_pages=16)
TUNER = Tuner(MeshModel(WORK, FACTORS, DISK_7200), 4_000_000)
FASTEST = best_rate(TUNER.model, TUNER.memory_bytes)


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
    return EnrichCourse(spec, leg, loaded, lambda *_: loaded, tuner, None)


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
