"""Index nested loops: a cache of the hottest pages, and what it saves."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.costs.inl import InlModel, best_rate, least_memory
from dovetail.costs.meshjoin import MeshFactors, MeshModel, Workload
from dovetail.costs.meshjoin import best_rate as best_mesh_rate
from dovetail.costs.storage import DISK_7200
from dovetail.errors import ArgumentError, MemoryBudgetError

WORK = Workload(
    table_rows=40, table_row_bytes=100, page_bytes=1000, stream_row_bytes=20, results_per_row=2
)
FACTORS = MeshFactors(expire=1e-6, receive=2e-6, add=3e-6, probe=4e-6, output=5e-6)
MODEL = InlModel(WORK, FACTORS, DISK_7200, np.array([0.1, 0.4, 0.2, 0.3]))


@st.composite
def models(draw: st.DrawFn) -> InlModel:
    weights = np.array(draw(st.lists(st.integers(0, 100), min_size=1, max_size=12)), dtype=float)
    weights[0] += 1
    return replace(MODEL, page_probability=weights / weights.sum())


def test_reads_when_pages_are_cached_then_are_what_the_hottest_leave_over() -> None:
    misses = [MODEL.page_reads_per_row(pages) for pages in range(6)]
    assert misses == pytest.approx([1, 0.6, 0.3, 0.1, 0, 0])


def test_rate_when_computed_then_is_one_over_computing_and_expected_reading() -> None:
    read = DISK_7200.read_seconds(1, 1000.0)
    computing = 2e-6 + 4e-6 + 2 * 5e-6
    assert MODEL.rate(2) == pytest.approx(1 / (computing + 0.3 * read))
    assert MODEL.rate(4) == pytest.approx(1 / computing)


def test_rate_when_pages_are_used_together_then_share_a_call() -> None:
    factors = replace(FACTORS, call=1.0, chunk=0.5)
    apart = replace(MODEL, factors=factors, batch_rows=4.0)
    needed = apart.page_reads_per_row(0)
    computing = 2e-6 + 4e-6 + 2 * 5e-6
    assert apart.seconds_per_row(4) == pytest.approx(computing + needed)
    together = replace(apart, pages_at_once=2.0)
    assert together.seconds_per_row(4) == pytest.approx(computing + needed / 2)
    read = DISK_7200.read_seconds(1, 1000.0) + 0.5
    assert together.seconds_per_row(0) == pytest.approx(computing + needed * (0.5 + read))
    assert replace(apart, pages_at_once=100.0).seconds_per_row(4) == pytest.approx(computing + 0.25)


def test_rate_when_pages_share_chunks_then_each_is_opened_once_for_those_read_together() -> None:
    factors = replace(FACTORS, chunk=1.0)
    apart = replace(MODEL, factors=factors, batch_rows=1e6, pages_at_once=4.0)
    in_one = replace(apart, chunks=1)
    reads = apart.page_reads_per_row(0)
    assert apart.seconds_per_row(0) - in_one.seconds_per_row(0) == pytest.approx(reads * 3 / 4)
    in_two = replace(apart, chunks=2)  # four pages miss one of two chunks once in sixteen times
    opened = 2 * (1 - 1 / 16)
    assert apart.seconds_per_row(0) - in_two.seconds_per_row(0) == pytest.approx(
        reads * (1 - opened / 4)
    )


@pytest.mark.parametrize("name", ["batch_rows", "pages_at_once"])
def test_model_when_fewer_than_one_come_together_then_raises(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        replace(MODEL, **{name: 0.5})  # type: ignore[arg-type]


def test_plan_when_made_then_reads_a_second_are_rows_a_second_times_reads_a_row() -> None:
    plan = MODEL.plan(1)
    assert plan.page_reads_per_second == pytest.approx(plan.rate * plan.page_reads_per_row)
    assert plan.memory_bytes == 2 * 1000 + 20
    assert MODEL.plan(4).page_reads_per_second == 0


@given(models(), st.floats(0, 1))
def test_least_memory_when_compared_with_every_size_then_is_the_smallest_that_keeps_up(
    model: InlModel, share: float
) -> None:
    everything = range(len(model.page_probability) + 1)
    rate = share * model.rate(everything[-1])
    plan = least_memory(model, rate)
    assert plan.rate >= rate * (1 - 1e-12)
    enough = [pages for pages in everything if rate * model.seconds_per_row(pages) <= 1]
    assert plan.cached_pages == min(enough, default=everything[-1])


@given(models(), st.integers(1020, 20_000), st.integers(1020, 20_000))
def test_best_rate_when_there_is_more_memory_then_is_never_lower_and_fits(
    model: InlModel, one: int, other: int
) -> None:
    small, large = (best_rate(model, budget) for budget in sorted((one, other)))
    assert small.rate <= large.rate
    assert small.memory_bytes <= min(one, other)
    assert large.cached_pages <= len(model.page_probability)


@given(models(), st.integers(0, 12))
def test_hits_when_pages_are_hot_then_no_other_choice_of_pages_has_more(
    model: InlModel, cached: int
) -> None:
    first_come = model.page_probability[:cached].sum()
    assert 1 - model.page_reads_per_row(cached) >= first_come - 1e-12


def test_best_rate_when_no_page_fits_then_names_the_least() -> None:
    with pytest.raises(MemoryBudgetError, match="1,020 bytes"):
        best_rate(MODEL, 1019)
    assert best_rate(MODEL, 1020).cached_pages == 0


def test_least_memory_when_computing_alone_takes_longer_then_raises() -> None:
    with pytest.raises(ArgumentError, match="no memory is enough"):
        least_memory(MODEL, 1.01 * MODEL.rate(4))


def test_least_memory_when_nothing_arrives_then_caches_nothing() -> None:
    assert least_memory(MODEL, 0).cached_pages == 0


@pytest.mark.parametrize("shares", [[0.5, 0.4], [1.5, -0.5], [[1.0]]])
def test_model_when_probabilities_make_no_sense_then_raises(shares: list[float]) -> None:
    with pytest.raises(ArgumentError, match="add up to 1"):
        replace(MODEL, page_probability=np.array(shares))


def test_rate_when_the_table_is_large_and_on_disk_then_mesh_join_is_ten_times_faster() -> None:
    work = Workload(3_500_000, 120, 8192, 20, results_per_row=1)
    uniform = np.full(work.table_pages, 1 / work.table_pages)
    factors = MeshFactors(*(value for value in vars(FACTORS).values()))
    for share in (0.01, 0.05, 0.1):  # of the table, as in Fig. 10b
        budget = math.ceil(share * work.table_rows * work.table_row_bytes)
        mesh = best_mesh_rate(MeshModel(work, factors, DISK_7200), budget)
        nested = best_rate(InlModel(work, factors, DISK_7200, uniform), budget)
        assert mesh.rate > 10 * nested.rate
