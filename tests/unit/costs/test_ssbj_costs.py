"""SSBJ's cost model: the cache inequality value by value, and its tuning against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.costs import meshjoin
from dovetail.costs.meshjoin import MeshFactors, MeshModel, Workload
from dovetail.costs.ssbj import (
    SsbjFactors,
    SsbjModel,
    SsbjState,
    Stream,
    best_rate,
    least_memory,
    zipf,
)
from dovetail.costs.storage import DISK_7200, Storage
from dovetail.errors import ArgumentError, MemoryBudgetError

# 12 pages of 10 rows; five values, of which one matches nothing and one never comes
WORK = Workload(
    table_rows=120, table_row_bytes=100, page_bytes=1000, stream_row_bytes=20, fudge=1.5
)
FACTORS = SsbjFactors(expire=1e-4, receive=2e-4, add=3e-4, probe=4e-4, output=5e-4, switch=6e-4)
STREAM = Stream.of([0.5, 0.3, 0.15, 0.05, 0.0], [10, 2, 4, 0, 3])
MODEL = SsbjModel(WORK, FACTORS, Storage("slow", 0.01, 1e5), STREAM)
PAPER = SsbjModel(
    Workload(200_000, 120, 8192, 20, pointer_bytes=4),
    SsbjFactors(expire=1e-6, receive=1e-6, add=2e-6, probe=1e-6, output=2e-6, switch=1e-7),
    DISK_7200,
    Stream.of(zipf(200_000, 1)),
)


def costs(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most).map(lambda value: value + most / 1000)


@st.composite
def models(draw: st.DrawFn) -> SsbjModel:
    weights = np.array(draw(st.lists(st.integers(0, 50), min_size=1, max_size=10)), dtype=float)
    weights[0] += 1
    several = st.lists(st.integers(0, 10), min_size=len(weights), max_size=len(weights))
    matches = np.array(draw(several), dtype=float)
    work = Workload(
        table_rows=int(matches.sum()) + draw(st.integers(1, 100)),
        table_row_bytes=draw(st.integers(10, 200)),
        page_bytes=draw(st.integers(200, 1000)),
        stream_row_bytes=draw(st.integers(1, 100)),
        pointer_bytes=draw(st.sampled_from([0, 4, 8])),
        fudge=draw(st.floats(1, 2)),
    )
    factors = SsbjFactors(*(draw(costs(1e-3)) for _ in range(5)), switch=draw(costs(1e-3)))
    storage = Storage("any", draw(costs(0.05)), draw(costs(1e6)))
    model = SsbjModel(
        work, factors, storage, Stream(weights / weights.sum(), matches),
        key_bytes=draw(st.sampled_from([0, 8])),
    )  # fmt: skip
    eager = draw(st.sampled_from([None, 0.1, 0.5, 1.0]))
    return replace(model, switching=eager and eager * model.balanced_switching)


rates = st.floats(0, 0.95)  #: as a share of what no memory exceeds
budgets = st.floats(1, 30)  #: as a multiple of the least


def thresholds(model: SsbjModel) -> list[float]:
    """The windows at which a value changes its place."""
    return model._ladder.threshold.tolist()


def grid(model: SsbjModel) -> list[SsbjState]:
    """Settings of all kinds, among them those next to which the cache changes."""
    edges = np.array([edge * near for edge in thresholds(model) for near in (0.999, 1, 1.001)])
    found: list[SsbjState] = []
    for pages in range(1, model.workload.table_pages + 1):
        loops = math.ceil(model.workload.table_pages / pages)
        batches = np.unique([*np.geomspace(1, 1e5, 25), *(edges / loops)])
        found += [model.steady_state(rows, pages) for rows in batches[batches >= 1].tolist()]
    return found


def least_bytes(model: SsbjModel) -> float:
    """The memory of one row a batch, with any number of pages."""
    everything = range(1, model.workload.table_pages + 1)
    return min(model.steady_state(1, pages).memory_bytes for pages in everything)


# --- the equations -----------------------------------------------------------------------------


def test_cache_when_the_switching_factor_is_1_then_follows_the_inequality_of_theorem_2() -> None:
    model = replace(MODEL, switching=1.0)
    # n v_S > m v_R: 20 n > 100 m, or the key's 8 bytes; the last value never comes
    for window, wanted in [
        (20, [False, False, False, True, False]),  # n = 10, 6, 3, 1, 0
        (40, [False, True, False, True, False]),  # n = 20, 12, 6, 2, 0
        (101, [True, True, False, True, False]),  # n = 50.5, 30, 15, 5, 0
        (134, [True, True, True, True, False]),  # n = 67, 40, 20.1, 6.7, 0
    ]:
        assert model.is_cached(window).tolist() == wanted


def test_cache_when_both_places_take_the_same_then_the_value_stays_in_the_window() -> None:
    model = replace(MODEL, switching=1.0, stream=Stream.of([0.5, 0.5], [5, 1]))
    assert model.is_cached(10.0).tolist() == [False, False]
    assert model.is_cached(10.1).tolist() == [False, True]


@given(models(), st.floats(1, 1e5))
def test_cache_when_balanced_then_each_value_takes_the_less_of_what_equation_1_counts(
    model: SsbjModel, window: float
) -> None:
    model = replace(model, switching=None)
    work = model.workload
    bytes_in_cache = work.fudge * np.where(
        model.stream.matches > 0, model.stream.matches * work.table_row_bytes, model.key_bytes
    )
    row_bytes = work.pointer_bytes + work.fudge * work.stream_row_bytes
    bytes_in_window = window * model.stream.probability * row_bytes
    clear = ~np.isclose(bytes_in_cache, bytes_in_window)
    assert (model.is_cached(window) == (bytes_in_window > bytes_in_cache))[clear].all()
    # Theorem 1
    state = model.steady_state(window, work.table_pages)
    buffers = work.table_pages * work.page_bytes + window * work.stream_row_bytes
    assert state.memory_bytes == pytest.approx(
        buffers + np.minimum(bytes_in_cache, bytes_in_window).sum()
    )


@given(models(), st.floats(1, 1e4), st.integers(1, 100))
def test_steady_state_when_computed_value_by_value_then_is_equations_1_to_3(
    model: SsbjModel, batch_rows: float, any_pages: int
) -> None:
    work, factors = model.workload, model.factors
    pages = 1 + any_pages % work.table_pages
    loops = math.ceil(work.table_pages / pages)
    edges = np.array(thresholds(model))
    assume(not np.isclose(edges, batch_rows * loops).any())
    cached = model.is_cached(batch_rows * loops)
    disk_rows = batch_rows * model.stream.probability[~cached].sum()
    cache_rows = batch_rows * model.stream.probability[cached].sum()
    table_rows = model.stream.matches[cached].sum()
    keys = (model.stream.matches[cached] == 0).sum()

    state = model.steady_state(batch_rows, pages)
    assert state.cached_values == cached.sum()
    assert state.cached_table_rows == table_rows
    assert state.batch_rows * state.disk_share == pytest.approx(disk_rows, abs=1e-9)
    assert state.batch_rows * (1 - state.disk_share) == pytest.approx(cache_rows, abs=1e-9)
    assert state.memory_bytes == pytest.approx(
        pages * work.page_bytes
        + work.fudge * (table_rows * work.table_row_bytes + keys * model.key_bytes)
        + disk_rows * loops * (work.pointer_bytes + work.fudge * work.stream_row_bytes)
        + batch_rows * work.stream_row_bytes
    )
    read_rows = pages * work.page_bytes / work.table_row_bytes
    output = (model.stream.probability * model.stream.matches).sum() * factors.output
    loop = (
        model.storage.read_seconds(1, float(pages * work.page_bytes))
        + read_rows * (factors.probe + factors.switch)
        + cache_rows * (factors.receive + factors.probe + output)
        + disk_rows
        * (factors.expire + factors.receive + factors.add + factors.probe + output)
    )  # fmt: skip
    assert state.loop_seconds == pytest.approx(loop)
    assert state.rate == pytest.approx(batch_rows / loop)
    assert state.wait_seconds >= 2 * state.loop_seconds


def test_values_when_they_match_nothing_then_cost_their_key_only() -> None:
    stream = Stream.of([0.5, 0.5], [0, 0])
    state = replace(MODEL, stream=stream).steady_state(100, 12)
    assert state.cached_values == 2
    assert state.cached_table_rows == 0
    assert state.batch_rows * state.disk_share == 0
    assert state.memory_bytes == 12 * 1000 + 100 * 20 + 1.5 * 2 * 8
    free = replace(MODEL, stream=stream, key_bytes=0)
    assert free.is_cached(1e-9).all()  # the paper's inequality, 0 < n v_S
    assert free.main_memory_bytes == 0


def test_values_when_they_never_come_then_are_never_cached() -> None:
    for model in (MODEL, replace(MODEL, key_bytes=0)):
        assert not model.is_cached(1e12)[4]
        assert model.steady_state(1e9, 12).cached_table_rows == 10 + 2 + 4


def test_memory_when_nothing_is_cached_then_is_that_of_mesh_join() -> None:
    mesh = MeshModel(WORK, FACTORS, MODEL.storage)
    model = replace(MODEL, stream=Stream.of(np.full(10, 0.1), 10), switching=1e9)
    for batch_rows, pages in [(1, 1), (7, 3), (1000, 5)]:
        state = model.steady_state(batch_rows, pages)
        assert state.disk_share == 1
        assert state.memory_bytes == pytest.approx(mesh.memory_bytes(batch_rows, float(pages)))


@given(models(), rates, st.floats(0.1, 10))
def test_tuning_when_the_unit_of_time_changes_then_memory_does_not(
    model: SsbjModel, share: float, scale: float
) -> None:
    factors = SsbjFactors(**{name: value * scale for name, value in vars(model.factors).items()})
    disk = model.storage
    storage = Storage("any", disk.seek_seconds * scale, disk.bytes_per_second / scale)
    other = replace(model, factors=factors, storage=storage)
    rate = share * model.rate_limit
    before, after = least_memory(model, rate), least_memory(other, rate / scale)
    assert after.memory_bytes == pytest.approx(before.memory_bytes)


@given(models(), budgets)
def test_equation_6_when_read_as_rows_a_second_then_gives_the_tuned_rate(
    model: SsbjModel, multiple: float
) -> None:
    budget = multiple * least_bytes(model)
    state = best_rate(model, budget)
    work, loops = model.workload, math.ceil(model.workload.table_pages / state.pages)
    cached = model.is_cached(state.batch_rows * loops)
    assume(cached.sum() == state.cached_values)  # but for rounding at a threshold
    keys = (model.stream.matches[cached] == 0).sum() * model.key_bytes
    spoken_for = state.pages * work.page_bytes + work.fudge * (
        state.cached_table_rows * work.table_row_bytes + keys
    )
    row_bytes = work.stream_row_bytes + state.disk_share * loops * (
        work.pointer_bytes + work.fudge * work.stream_row_bytes
    )
    rows = (state.memory_bytes - spoken_for) / row_bytes
    assert rows / state.loop_seconds == pytest.approx(state.rate, rel=1e-6)


# --- tuning ------------------------------------------------------------------------------------


@given(models(), rates)
def test_least_memory_when_compared_with_many_settings_then_none_is_smaller(
    model: SsbjModel, share: float
) -> None:
    rate = share * model.rate_limit
    found = least_memory(model, rate)
    assert found.rate >= rate * (1 - 1e-9)
    assert found.batch_rows >= 1
    good = [state.memory_bytes for state in grid(model) if state.rate >= rate]
    assert found.memory_bytes <= min(good, default=math.inf) * (1 + 1e-9)


@given(models(), budgets)
def test_best_rate_when_compared_with_many_settings_then_none_is_higher(
    model: SsbjModel, multiple: float
) -> None:
    budget = multiple * least_bytes(model)
    found = best_rate(model, budget)
    assert found.memory_bytes <= budget * (1 + 1e-9)
    assert found.batch_rows >= 1
    good = [state.rate for state in grid(model) if state.memory_bytes <= budget]
    assert found.rate >= max(good, default=0) * (1 - 1e-9)


@given(models(), rates, rates)
def test_least_memory_when_the_rate_is_higher_then_is_never_less(
    model: SsbjModel, one: float, other: float
) -> None:
    slow, fast = (least_memory(model, share * model.rate_limit) for share in sorted((one, other)))
    assert slow.memory_bytes <= fast.memory_bytes * (1 + 1e-9)


@given(models(), budgets, budgets)
def test_best_rate_when_there_is_more_memory_then_is_never_lower(
    model: SsbjModel, one: float, other: float
) -> None:
    least = least_bytes(model)
    small, large = (best_rate(model, multiple * least) for multiple in sorted((one, other)))
    assert small.rate <= large.rate * (1 + 1e-9)


@given(models(), rates)
def test_tuning_when_the_least_memory_is_the_budget_then_the_rate_is_reached_again(
    model: SsbjModel, share: float
) -> None:
    found = least_memory(model, share * model.rate_limit)
    assert best_rate(model, found.memory_bytes * (1 + 1e-9)).rate >= found.rate * (1 - 1e-6)


@given(models(), st.floats(1, 5), rates, budgets)
def test_tuning_when_the_cache_is_hesitant_then_bounds_are_still_kept(
    model: SsbjModel, hesitation: float, share: float, multiple: float
) -> None:
    model = replace(model, switching=hesitation * model.balanced_switching)
    rate = share * model.rate_limit
    assert least_memory(model, rate).rate >= rate * (1 - 1e-9)
    budget = multiple * least_bytes(model)
    assert best_rate(model, budget).memory_bytes <= budget * (1 + 1e-9)


def test_best_rate_when_the_cache_is_hesitant_but_the_table_fits_then_caches_it() -> None:
    model = replace(PAPER, switching=1.0, stream=Stream.of(zipf(200_000, 0)))
    # just before they are cached, the values take more than the budget
    threshold = thresholds(model)[-1]
    budget = 1.1 * model.main_memory_bytes
    assert model.memory_bytes(threshold * 0.999, float(model.workload.table_pages)) > budget
    assert best_rate(model, budget).cached_table_rows == model.workload.table_rows


@given(models(), rates, st.floats(0.05, 20))
def test_least_memory_when_balanced_then_no_other_switching_factor_takes_less(
    model: SsbjModel, share: float, factor: float
) -> None:
    rate = share * model.rate_limit
    balanced = replace(model, switching=None)
    pages = float(least_memory(balanced, rate).pages)
    other = replace(model, switching=factor * model.balanced_switching)
    for batch_rows in (1.0, 10.0, 1000.0):  # Theorem 1 is about one window
        least = balanced.memory_bytes(batch_rows, pages)
        assert least <= other.memory_bytes(batch_rows, pages) * (1 + 1e-9)


def mesh_model(model: SsbjModel) -> MeshModel:
    """The same join without a cache."""
    factors = {name: cost for name, cost in vars(model.factors).items() if name != "switch"}
    work = replace(model.workload, results_per_row=model.stream.mean_matches)
    return MeshModel(work, MeshFactors(**factors), model.storage)


@given(models(), rates)
def test_memory_when_looking_in_the_cache_is_free_then_is_never_more_than_mesh_join_needs(
    model: SsbjModel, share: float
) -> None:
    model = replace(model, switching=None, factors=replace(model.factors, probe=0.0, switch=0.0))
    mesh = mesh_model(model)
    rate = share / mesh.seconds_per_row
    least = meshjoin.least_memory(mesh, rate).memory_bytes
    assert least_memory(model, rate).memory_bytes <= least * (1 + 1e-9)


def test_memory_when_the_stream_is_skewed_then_is_less_than_half_of_what_mesh_join_needs() -> None:
    mesh = meshjoin.least_memory(mesh_model(PAPER), 100_000)
    assert least_memory(PAPER, 100_000).memory_bytes < mesh.memory_bytes / 2


def test_memory_when_skew_grows_then_falls() -> None:
    models = [replace(PAPER, stream=Stream.of(zipf(200_000, skew))) for skew in (0.0, 0.5, 1, 1.5)]
    memory = [least_memory(model, 50_000).memory_bytes for model in models]
    assert memory == sorted(memory, reverse=True)


# --- Theorem 3 ---------------------------------------------------------------------------------


@given(models())
def test_theorem_3_when_the_rate_is_above_its_bound_then_everything_is_cached(
    model: SsbjModel,
) -> None:
    comes = model.stream.probability > 0
    everything = model.stream.matches[comes].sum()
    for pages in {1, model.workload.table_pages}:
        bound = model.main_memory_rate(pages)
        assert bound < model.rate_limit
        rate = (bound + model.rate_limit) / 2
        idle = 1 / rate - 1 / model.rate_limit
        batch_rows = model._fixed_seconds(float(pages)) / idle
        state = model.steady_state(batch_rows, pages)
        assert state.rate == pytest.approx(rate)
        assert state.cached_values == comes.sum()
        assert state.cached_table_rows == everything
        assert state.batch_rows * state.disk_share == 0
        buffers = pages * model.workload.page_bytes + batch_rows * model.workload.stream_row_bytes
        assert state.memory_bytes == pytest.approx(model.main_memory_bytes + buffers)


def test_theorem_3_when_the_rate_nears_the_limit_then_tuning_ends_in_a_main_memory_join() -> None:
    work = PAPER.workload
    whole = work.table_rows * work.table_row_bytes
    rate = 0.995 * PAPER.rate_limit
    state = least_memory(PAPER, rate)
    assert state.cached_table_rows == work.table_rows
    assert state.disk_share == 0
    assert PAPER.main_memory_bytes == whole
    buffers = state.pages * work.page_bytes + state.batch_rows * work.stream_row_bytes
    assert state.memory_bytes == pytest.approx(whole + buffers)
    assert meshjoin.try_least_memory(mesh_model(PAPER), rate) is None  # in no memory at all
    # between the two lies what is neither
    part = least_memory(PAPER, 0.9 * PAPER.rate_limit)
    assert 0 < part.cached_table_rows < work.table_rows
    assert part.memory_bytes < whole


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_theorem_3_when_only_reading_costs_then_a_fast_stream_takes_no_more_than_the_table(
    skew: float,
) -> None:
    model = replace(
        PAPER, factors=SsbjFactors(0, 0, 0, 0, 0, switch=0), stream=Stream.of(zipf(200_000, skew))
    )
    assert model.rate_limit == math.inf
    work, whole = model.workload, model.main_memory_bytes
    for rate in (1e3, 1e5, 1e6, 1e7, 1e8):
        state = least_memory(model, rate)
        mesh = meshjoin.least_memory(mesh_model(model), rate)
        assert state.rate >= rate * (1 - 1e-9)
        assert state.memory_bytes <= mesh.memory_bytes
        buffers = state.pages * work.page_bytes + state.batch_rows * work.stream_row_bytes
        assert state.memory_bytes - buffers <= whole * (1 + 1e-9)  # (b)
    assert mesh.memory_bytes > whole  # (a)
    assert state.cached_table_rows == work.table_rows  # (c)


def test_least_memory_when_the_rate_rises_then_the_cache_grows_and_the_window_gives_way() -> None:
    shares = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99)
    states = [least_memory(PAPER, share * PAPER.rate_limit) for share in shares]
    cached = [state.cached_table_rows for state in states]
    assert cached == sorted(cached)
    assert cached[0] < 0.05 * PAPER.workload.table_rows
    assert [state.disk_share for state in states] == sorted(
        (state.disk_share for state in states), reverse=True
    )


# --- what is refused ---------------------------------------------------------------------------


def test_least_memory_when_rows_cost_too_much_then_names_the_limit() -> None:
    with pytest.raises(ArgumentError, match=f"below {MODEL.rate_limit:,.0f}"):
        least_memory(MODEL, MODEL.rate_limit)


def test_least_memory_when_nothing_arrives_then_is_that_of_one_row() -> None:
    assert least_memory(MODEL, 0).memory_bytes == pytest.approx(least_bytes(MODEL))


def test_best_rate_when_memory_is_too_small_then_names_the_least() -> None:
    least = math.ceil(least_bytes(MODEL))
    with pytest.raises(MemoryBudgetError, match=f"{least:,} bytes"):
        best_rate(MODEL, least - 1)
    assert best_rate(MODEL, least).batch_rows == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("probability", "matches"),
    [([0.5, 0.4], 1), ([1.5, -0.5], 1), ([0.5, 0.5], [1, -1]), ([[1.0]], 1)],
)
def test_stream_when_it_makes_no_sense_then_raises(probability: list[float], matches: int) -> None:
    with pytest.raises(ArgumentError):
        Stream.of(probability, matches)


def test_model_when_more_rows_match_than_there_are_then_raises() -> None:
    with pytest.raises(ArgumentError, match="only 120"):
        replace(MODEL, stream=Stream.of([0.5, 0.5], 61))


def test_model_when_the_switching_factor_is_0_then_raises() -> None:
    with pytest.raises(ArgumentError, match="switching"):
        replace(MODEL, switching=0.0)


@given(st.integers(1, 1000), st.floats(0, 2))
def test_zipf_when_made_then_adds_up_to_1_and_falls(values: int, exponent: float) -> None:
    shares = zipf(values, exponent)
    assert shares.sum() == pytest.approx(1)
    assert (np.diff(shares) <= 0).all()
    assert shares[0] / shares[-1] == pytest.approx(values**exponent)
