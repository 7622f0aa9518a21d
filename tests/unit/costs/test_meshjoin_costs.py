"""MESHJOIN's cost model: its equations by hand, and its tuning against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.costs.meshjoin import (
    MeshFactors,
    MeshModel,
    Workload,
    best_rate,
    least_memory,
    try_least_memory,
)
from dovetail.costs.storage import DISK_7200, Storage
from dovetail.errors import ArgumentError, MemoryBudgetError

# 12 pages of 10 rows
WORK = Workload(
    table_rows=120,
    table_row_bytes=100,
    page_bytes=1000,
    stream_row_bytes=20,
    selectivity=0.5,
    fudge=1.5,
)
FACTORS = MeshFactors(expire=1e-4, receive=2e-4, add=3e-4, probe=4e-4, output=5e-4)
STORAGE = Storage("slow", seek_seconds=0.01, bytes_per_second=1e5)
MODEL = MeshModel(WORK, FACTORS, STORAGE)
# as in the paper's experiments; 50,400 pages, a number with many divisors
PAPER = MeshModel(
    Workload(3_440_640, 120, 8192, 20, results_per_row=1),
    MeshFactors(expire=1e-6, receive=1e-6, add=2e-6, probe=1e-6, output=2e-6),
    DISK_7200,
)

GRID_ROWS = 3000  # of a batch, in brute force


def costs(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most).map(lambda value: value + most / 1000)


@st.composite
def models(draw: st.DrawFn) -> MeshModel:
    work = Workload(
        table_rows=draw(st.integers(1, 120)),
        table_row_bytes=draw(st.integers(10, 200)),
        page_bytes=draw(st.integers(200, 1000)),
        stream_row_bytes=draw(st.integers(1, 100)),
        selectivity=draw(st.floats(0, 3)),
        results_per_row=draw(st.floats(0, 3)),
        pointer_bytes=draw(st.sampled_from([0, 4, 8])),
        fudge=draw(st.floats(1, 2)),
        chunk_pages=draw(st.sampled_from([0, 1, 3])),
    )
    factors = MeshFactors(*(draw(costs(1e-3)) for _ in range(8)))
    return MeshModel(work, factors, Storage("any", draw(costs(0.05)), draw(costs(1e6))))


rates = st.floats(0, 0.9)  #: as a share of what no memory exceeds
budgets = st.floats(1, 30)  #: as a multiple of the least


def limit(model: MeshModel) -> float:
    return 1 / model.seconds_per_row


def least_bytes(model: MeshModel) -> int:
    """The memory of one row a batch, with any number of pages."""
    everything = range(1, model.workload.table_pages + 1)
    return min(model.plan(1, pages).memory_bytes for pages in everything)


def grid(model: MeshModel) -> tuple[np.ndarray, np.ndarray]:
    pages = np.arange(1.0, model.workload.table_pages + 1)
    batch_rows = np.arange(1.0, GRID_ROWS + 1)
    shape = (len(pages), len(batch_rows))
    return np.broadcast_to(batch_rows, shape), np.broadcast_to(pages[:, None], shape)


# --- the equations -----------------------------------------------------------------------------


def test_memory_when_pages_divide_the_table_then_is_equation_1() -> None:
    w, b, n_r, v_s, v_p, ptr, f = 7, 3, 12, 20, 1000, 8, 1.5
    by_hand = b * v_p + w * v_s + w * (n_r / b) * ptr + w * f * (n_r / b) * v_s
    assert MODEL.memory_bytes(7.0, 3.0) == pytest.approx(by_hand)


def test_loop_when_computed_then_is_equation_2() -> None:
    w, b, rows = 7, 3, 3 * 10
    read = 0.01 + b * 1000 / 1e5
    by_hand = read + w * (1e-4 + 2e-4 + 3e-4) + rows * 4e-4 + 0.5 * rows * 5e-4
    assert MODEL.loop_seconds(7.0, 3.0) == pytest.approx(by_hand)


def test_loop_when_results_are_of_stream_rows_then_they_grow_with_the_batch() -> None:
    model = replace(MODEL, workload=replace(WORK, selectivity=0, results_per_row=2))
    more = model.loop_seconds(8.0, 3.0) - model.loop_seconds(7.0, 3.0)
    assert more == pytest.approx(6e-4 + 2 * 5e-4)


def test_rate_and_reads_when_computed_then_are_equations_3_and_4() -> None:
    loop = MODEL.loop_seconds(7.0, 3.0)
    assert MODEL.rate(7.0, 3.0) == pytest.approx(7 / loop)
    assert MODEL.page_reads_per_row(7.0, 3.0) == pytest.approx(3 / 7)
    assert MODEL.page_reads_per_second(7.0, 3.0) == pytest.approx(3 / loop)
    # rows a second times pages a row are pages a second
    assert MODEL.page_reads_per_second(7.0, 3.0) == pytest.approx(
        MODEL.rate(7.0, 3.0) * MODEL.page_reads_per_row(7.0, 3.0)
    )


@pytest.mark.parametrize("pages", [1, 5, 6, 8, 12, 16, 20, 30, 48, 240])
def test_chunks_when_reads_divide_the_table_then_are_those_that_they_lie_in(pages: int) -> None:
    work = Workload(240, 1, 1, 1, chunk_pages=16)
    first = np.arange(0, 240, pages)
    lie_in = (first + pages - 1) // 16 - first // 16 + 1
    assert work.chunks(float(pages)) == pytest.approx(lie_in.mean())
    assert work.chunks(np.array([7.0, float(pages)])) == pytest.approx([1 + 6 / 16, lie_in.mean()])


def test_cycle_when_pages_do_not_divide_the_table_then_the_last_loop_counts() -> None:
    # the loop during which a row arrives, and three
    assert MODEL.wait_seconds(7.0, 5.0) == pytest.approx(4 * MODEL.loop_seconds(7.0, 5.0))
    w, b, loops = 7, 5, 3
    assert MODEL.memory_bytes(7.0, 5.0) == pytest.approx(
        b * 1000 + w * 20 + w * loops * (8 + 1.5 * 20)
    )


@given(models(), st.integers(1, 1000), st.floats(0.1, 10))
def test_model_when_the_unit_of_time_changes_then_only_times_and_rates_do(
    model: MeshModel, batch_rows: int, scale: float
) -> None:
    factors = MeshFactors(**{name: value * scale for name, value in vars(model.factors).items()})
    disk = model.storage
    storage = Storage("any", disk.seek_seconds * scale, disk.bytes_per_second / scale)
    before, after = (
        each.plan(batch_rows, 1) for each in (model, MeshModel(model.workload, factors, storage))
    )
    assert after.memory_bytes == before.memory_bytes
    assert after.rate * scale == pytest.approx(before.rate)
    assert after.wait_seconds == pytest.approx(before.wait_seconds * scale)


@given(models(), st.integers(1, 1000), st.integers(2, 10))
def test_model_when_the_unit_of_size_changes_then_only_memory_does(
    model: MeshModel, batch_rows: int, scale: int
) -> None:
    work, disk = model.workload, model.storage
    larger = replace(
        work,
        table_row_bytes=work.table_row_bytes * scale,
        page_bytes=work.page_bytes * scale,
        stream_row_bytes=work.stream_row_bytes * scale,
        pointer_bytes=work.pointer_bytes * scale,
    )
    assume(larger.table_pages == work.table_pages)
    storage = Storage("any", disk.seek_seconds, disk.bytes_per_second * scale)
    other = MeshModel(larger, model.factors, storage)
    setting = float(batch_rows), 1.0
    assert other.rate(*setting) == pytest.approx(model.rate(*setting))
    assert other.memory_bytes(*setting) == pytest.approx(model.memory_bytes(*setting) * scale)


@given(st.integers(1, 5000))
def test_page_choices_when_compared_with_all_then_have_the_least_for_each_number_of_loops(
    pages: int,
) -> None:
    work = Workload(table_rows=pages, table_row_bytes=8, page_bytes=8, stream_row_bytes=8)
    assert work.table_pages == pages
    wanted = {math.ceil(pages / loops) for loops in range(1, pages + 1)}
    choices = work.page_choices().tolist()
    assert wanted <= set(choices)
    assert choices == sorted(set(choices))
    assert choices[0] == 1
    assert choices[-1] == pages
    assert len(choices) <= 2 * math.isqrt(pages) + 2


# --- tuning ------------------------------------------------------------------------------------


@given(models(), rates)
def test_least_memory_when_compared_with_brute_force_then_none_is_smaller(
    model: MeshModel, share: float
) -> None:
    rate = share * limit(model)
    plan = least_memory(model, rate)
    assert plan.rate >= rate * (1 - 1e-12)
    batch_rows, pages = grid(model)
    memory = np.where(
        model.rate(batch_rows, pages) >= rate, model.memory_bytes(batch_rows, pages), np.inf
    )
    # beyond the grid a batch alone is larger than this
    assume(plan.memory_bytes < GRID_ROWS * model.workload.stream_row_bytes)
    assert plan.memory_bytes == math.ceil(memory.min())


@given(models(), budgets)
def test_best_rate_when_compared_with_brute_force_then_none_is_higher(
    model: MeshModel, multiple: float
) -> None:
    budget = multiple * least_bytes(model)
    assume(budget < GRID_ROWS * model.workload.stream_row_bytes)
    plan = best_rate(model, budget)
    assert plan.memory_bytes <= math.ceil(budget)
    batch_rows, pages = grid(model)
    fits = model.memory_bytes(batch_rows, pages) <= budget
    assert plan.rate == np.where(fits, model.rate(batch_rows, pages), 0).max()


@given(models(), rates, st.floats(0.1, 3))
def test_least_memory_when_latency_is_bounded_then_is_the_least_that_keeps_it(
    model: MeshModel, share: float, looseness: float
) -> None:
    rate = share * limit(model)
    latency = looseness * least_memory(model, rate).wait_seconds
    batch_rows, pages = grid(model)
    good = (model.rate(batch_rows, pages) >= rate) & (
        model.wait_seconds(batch_rows, pages) <= latency
    )
    memory = np.where(good, model.memory_bytes(batch_rows, pages), np.inf)
    plan = try_least_memory(model, rate, latency)
    if plan is None:
        assert memory.min() == np.inf
        with pytest.raises(ArgumentError, match="latency"):
            least_memory(model, rate, latency)
        return
    assert plan.wait_seconds <= latency
    assert plan.memory_bytes >= least_memory(model, rate).memory_bytes
    assume(plan.memory_bytes < GRID_ROWS * model.workload.stream_row_bytes)
    assert plan.memory_bytes == math.ceil(memory.min())


@given(models(), budgets, st.floats(0.1, 1.5))
def test_best_rate_when_latency_is_bounded_then_is_the_highest_that_keeps_it(
    model: MeshModel, multiple: float, looseness: float
) -> None:
    budget = multiple * least_bytes(model)
    assume(budget < GRID_ROWS * model.workload.stream_row_bytes)
    free = best_rate(model, budget)
    latency = looseness * free.wait_seconds
    batch_rows, pages = grid(model)
    good = (model.memory_bytes(batch_rows, pages) <= budget) & (
        model.wait_seconds(batch_rows, pages) <= latency
    )
    if not good.any():
        with pytest.raises((ArgumentError, MemoryBudgetError)):
            best_rate(model, budget, latency)
        return
    plan = best_rate(model, budget, latency)
    assert plan.wait_seconds <= latency
    assert plan.rate <= free.rate
    assert plan.rate == np.where(good, model.rate(batch_rows, pages), 0).max()


@given(models(), rates, rates)
def test_least_memory_when_the_rate_is_higher_then_is_never_less(
    model: MeshModel, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    slow, fast = (least_memory(model, share * limit(model)) for share in (low, high))
    assert slow.memory_bytes <= fast.memory_bytes


@given(models(), budgets, budgets)
def test_best_rate_when_there_is_more_memory_then_is_never_lower(
    model: MeshModel, one: float, other: float
) -> None:
    small, large = sorted((one, other))
    least = least_bytes(model)
    assert best_rate(model, small * least).rate <= best_rate(model, large * least).rate


@given(models(), rates)
def test_tuning_when_the_least_memory_is_the_budget_then_the_rate_is_reached_again(
    model: MeshModel, share: float
) -> None:
    rate = share * limit(model)
    plan = least_memory(model, rate)
    assert best_rate(model, plan.memory_bytes).rate >= plan.rate


def test_memory_when_drawn_over_pages_then_falls_and_rises_as_in_figure_5a() -> None:
    rate = 10_000
    total = PAPER.workload.table_pages
    pages = np.array([b for b in range(1, total + 1) if total % b == 0], dtype=np.float64)
    idle = 1 - rate * PAPER.seconds_per_row
    batch_rows = rate * PAPER.loop_seconds(np.zeros_like(pages), pages) / idle
    steps = np.sign(np.diff(PAPER.memory_bytes(batch_rows, pages)))
    turn = int(np.argmax(steps > 0))
    assert 0 < turn < len(steps) - 1
    assert (steps[:turn] < 0).all()
    assert (steps[turn:] > 0).all()
    assert pages[turn - 1] <= least_memory(PAPER, rate).pages <= pages[turn + 1]


def test_rate_when_drawn_over_pages_then_rises_and_falls_as_in_figure_5b() -> None:
    budget = 20e6
    work = PAPER.workload
    pages = np.array([b for b in range(1, 2400) if work.table_pages % b == 0], dtype=np.float64)
    per_row = work.stream_row_bytes + work.loops(pages) * work.window_row_bytes
    rate = PAPER.rate((budget - pages * work.page_bytes) / per_row, pages)
    steps = np.sign(np.diff(rate))
    turn = int(np.argmax(steps < 0))
    assert 0 < turn < len(steps) - 1
    assert (steps[:turn] > 0).all()
    assert (steps[turn:] < 0).all()


def test_tuning_when_the_table_is_huge_then_looks_at_few_settings() -> None:
    work = replace(PAPER.workload, table_rows=10**11)
    model = replace(PAPER, workload=work)
    assert len(work.page_choices()) < 100_000 < work.table_pages
    plan = least_memory(model, 1000)
    neighbours = [model.plan(plan.batch_rows, plan.pages + step) for step in (-1, 1)]
    assert all(other.memory_bytes >= plan.memory_bytes or other.rate < 1000 for other in neighbours)


def test_least_memory_when_nothing_arrives_then_is_that_of_one_row() -> None:
    plan = least_memory(MODEL, 0)
    assert plan.batch_rows == 1
    assert plan.memory_bytes == least_bytes(MODEL)


def test_least_memory_when_rows_cost_too_much_then_names_the_limit() -> None:
    with pytest.raises(ArgumentError, match=r"1,667"):
        least_memory(MODEL, 1_700)


def test_best_rate_when_memory_is_too_small_then_names_the_least() -> None:
    least = least_bytes(MODEL)
    with pytest.raises(MemoryBudgetError, match=f"{least:,} bytes"):
        best_rate(MODEL, least - 1)
    assert best_rate(MODEL, least).batch_rows == 1


def test_best_rate_when_memory_is_too_small_for_the_wait_then_names_what_would_do() -> None:
    quick = min((MODEL.plan(1, pages) for pages in range(1, 13)), key=lambda p: p.wait_seconds)
    assert quick.memory_bytes > least_bytes(MODEL)
    with pytest.raises(MemoryBudgetError, match=f"{quick.memory_bytes:,} bytes"):
        best_rate(MODEL, least_bytes(MODEL), latency=quick.wait_seconds)
    with pytest.raises(ArgumentError, match="however much memory"):
        best_rate(MODEL, 1e9, latency=quick.wait_seconds * 0.99)


@pytest.mark.parametrize("name", ["expire", "receive", "add", "probe", "output"])
def test_factors_when_negative_then_raises(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        replace(FACTORS, **{name: -1e-9})


@pytest.mark.parametrize("name", ["table_rows", "page_bytes", "fudge"])
def test_workload_when_empty_then_raises(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        replace(WORK, **{name: 0})


@pytest.mark.parametrize("rate", [-1.0, math.inf, math.nan])
def test_least_memory_when_the_rate_makes_no_sense_then_raises(rate: float) -> None:
    with pytest.raises(ArgumentError, match="rate="):
        least_memory(MODEL, rate)
