"""SSBJ: its states, the inequality, what is cached and evicted, and that no result is lost by it.

`step` is one iteration with the rows that it is given; with `b` of all pages, that is one cycle of
the scan. A key with many table rows, the *carrier*, is never worth caching, so a row of it keeps
the scan going.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dovetail.semistream.cache.parts import KEY_BYTES
from dovetail.semistream.scan.phases import Incrementing, PhaseOut, Switching
from dovetail.semistream.scan.ssbj import Ssbj
from support.semistream import Bench, Result

MakeBench = Callable[..., Bench]

CARRIER = 0
TABLE = [CARRIER] * 40 + [10] * 4 + [20] * 3 + [30] * 2  # 49 rows
ROW_BYTES = 36.0  # v_S of a stream row of two numbers: 16 bytes, and 20 for its index


@pytest.fixture(autouse=True)
def the_papers_inequality(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cost of an entry, and without a margin: examples can be worked by hand."""
    monkeypatch.setattr(Ssbj, "key_bytes", 0)
    monkeypatch.setattr(Ssbj, "noise", 0.0)


def ssbj(bench: Bench) -> Ssbj:
    assert isinstance(bench.operator, Ssbj)
    return bench.operator


def being_switched(bench: Bench) -> list[list[int]]:
    """The values that are being switched, with their m and n; empty if there are none."""
    phase = ssbj(bench).phase
    if not isinstance(phase, Switching) or not len(phase.keys):
        return []
    return [column.tolist() for column in (phase.keys, phase.m, phase.n)]


def open_ssbj(
    make_bench: MakeBench, table: Sequence[int] = TABLE, *, b: int = 1_000, factor: float = 1.0,
    row_bytes: float = ROW_BYTES, budget_bytes: int | None = None, how: str = "inner",
) -> Bench:  # fmt: skip
    """An operator whose table rows take as much as its stream rows, unless told otherwise."""
    bench = make_bench(
        "ssbj", table, how=how, budget_bytes=budget_bytes,
        options={"w": 1_000_000, "b": b, "switching_factor": factor},
    )  # fmt: skip
    bench.operator.table.row_bytes = row_bytes
    return bench


def cached(bench: Bench) -> dict[int, int]:
    """The cached keys, whose codes are themselves, and the number of their table rows."""
    return {
        int(key): int(rows)
        for part in ssbj(bench).cache.parts
        for key, rows in zip(part.keys, np.diff(part.starts), strict=True)
    }


def waiting(bench: Bench) -> set[int]:
    """The numbers of the rows in the disk phase."""
    return {n for packet in ssbj(bench).packets for n in packet.run.rows["left_id"].to_pylist()}


def step(bench: Bench, keys: Sequence[int]) -> list[Result]:
    """An iteration with a packet of these rows, less those that are cached."""
    return bench.feed(keys) + bench.work()


def cycle(bench: Bench, keys: Sequence[int], carrier: int = CARRIER) -> list[Result]:
    """One cycle of the scan: these rows come at its start, and the carrier keeps it going."""
    at = ssbj(bench).cycle
    found = step(bench, [*keys, carrier])
    while ssbj(bench).cycle == at:
        found += step(bench, [carrier])
    assert ssbj(bench).cycle == at + 1
    return found


# -- the states ---------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [1, 3, 1_000])
def test_state_when_cycles_pass_then_the_three_take_turns(make_bench: MakeBench, b: int) -> None:
    bench = open_ssbj(make_bench, b=b)
    states = [type(ssbj(bench).phase)]
    for _ in range(7):
        cycle(bench, [])
        states.append(type(ssbj(bench).phase))
    assert states == [Incrementing, Switching, PhaseOut] * 2 + [Incrementing, Switching]
    assert cached(bench) == {}
    bench.assert_exactly_once()


def test_eviction_when_cycles_pass_then_is_in_every_tenth(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_ssbj(make_bench)
    evictions: list[int] = []
    monkeypatch.setattr(ssbj(bench), "_evict", lambda: evictions.append(ssbj(bench).cycle))
    for _ in range(44):
        cycle(bench, [30, 30, 30])
    assert evictions == [10, 20, 30, 40]


# -- the inequality -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "row_bytes", "switched"),
    [
        pytest.param(1.0, ROW_BYTES, {30: 2}, id="as in the paper"),
        pytest.param(1.5, ROW_BYTES, {}, id="30 takes as much either way: 3 = 1.5 * 2"),
        pytest.param(1.49, ROW_BYTES, {30: 2}, id="just below"),
        pytest.param(0.5, ROW_BYTES, {10: 4, 20: 3, 30: 2}, id="a low factor: 3 > 0.5 * 4"),
        pytest.param(1.0, ROW_BYTES / 2, {10: 4, 20: 3, 30: 2}, id="small table rows"),
        pytest.param(1.0, ROW_BYTES * 2, {}, id="large table rows"),
    ],
)
@pytest.mark.parametrize("b", [1, 1_000])
def test_value_when_as_in_figure_3_then_switches_if_it_takes_less_in_the_cache(
    make_bench: MakeBench, factor: float, row_bytes: float, switched: dict[int, int], b: int
) -> None:
    """Part 10: 3 rows wait, 4 suppliers, stays. Part 30: 3 rows wait, 2 suppliers, switches.

    Part 20 has as many suppliers as rows that wait: nothing is gained, so it stays.
    """
    bench = open_ssbj(make_bench, factor=factor, row_bytes=row_bytes, b=b)
    requests = [10, 20, 30] * 3
    cycle(bench, requests)
    assert isinstance(ssbj(bench).phase, Switching)
    chosen = being_switched(bench)
    codes, *counts = chosen or [[], [], []]
    assert codes == sorted(switched)
    assert counts == [[switched[code] for code in codes], [3] * len(codes)]
    assert cached(bench) == {}
    cycle(bench, requests)
    assert isinstance(ssbj(bench).phase, PhaseOut)
    assert cached(bench) == switched
    cycle(bench, requests)
    bench.assert_exactly_once()


def test_n_when_rows_come_in_several_packets_of_a_cycle_then_is_their_sum(
    make_bench: MakeBench,
) -> None:
    """One row of part 30 in each of three packets is no different from three in one."""
    bench = open_ssbj(make_bench, b=1)
    while not isinstance(ssbj(bench).phase, PhaseOut):
        step(bench, [CARRIER])
    for keys in ([CARRIER], [30], [30], [CARRIER], [30]):
        step(bench, keys)  # from the second page on, so they leave in the next cycle
    while not isinstance(ssbj(bench).phase, Switching):
        step(bench, [CARRIER])
    chosen = being_switched(bench)
    assert chosen == [[30], [2], [3]]


def test_value_when_it_waits_in_another_state_then_is_not_noted(make_bench: MakeBench) -> None:
    bench = open_ssbj(make_bench)
    cycle(bench, [])
    assert isinstance(ssbj(bench).phase, Switching)
    cycle(bench, [30] * 9)
    cycle(bench, [30] * 9)
    assert isinstance(ssbj(bench).phase, Incrementing)
    cycle(bench, [])
    assert not being_switched(bench)
    assert cached(bench) == {}


# -- cached values ------------------------------------------------------------------------------


def test_frequent_value_when_phase_out_begins_then_its_rows_come_at_once(
    make_bench: MakeBench,
) -> None:
    """With b of one page an iteration does not reach part 30: only the cache can answer."""
    bench = open_ssbj(make_bench, b=1)
    cycle(bench, [30] * 5)
    before = cycle(bench, [30] * 5)
    assert isinstance(ssbj(bench).phase, PhaseOut)
    assert cached(bench) == {30: 2}
    row = len(bench.keys)
    assert sorted(r for r in step(bench, [30]) if r[0] == row) == [(row, 47), (row, 48)]
    assert row not in waiting(bench)
    # rows that came before the switch finish in the disk phase, and come once
    assert before
    bench.assert_exactly_once()


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_value_without_table_rows_when_it_is_cached_then_its_rows_settle_at_once(
    make_bench: MakeBench, how: str
) -> None:
    bench = open_ssbj(make_bench, b=1, how=how)
    cycle(bench, [25])
    cycle(bench, [])
    assert cached(bench) == {25: 0}
    row = len(bench.keys)
    settled = [(row, None)] if how in ("left", "anti") else []
    assert [result for result in step(bench, [25]) if result[0] == row] == settled
    assert row not in waiting(bench)
    bench.assert_exactly_once()


def test_cached_value_when_results_are_to_be_ordered_then_there_is_none(
    make_bench: MakeBench,
) -> None:
    bench = make_bench("ssbj", TABLE, ordered=True, options={"w": 100, "b": 100})
    for _ in range(6):
        cycle(bench, [30] * 9)
    assert cached(bench) == {}
    rows = [row for row, _ in bench.results()]
    assert rows == sorted(rows)
    bench.assert_exactly_once()


# -- eviction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [2, 1_000])
def test_infrequent_value_when_ten_cycles_have_passed_then_goes_back_to_the_disk_phase(
    make_bench: MakeBench, b: int
) -> None:
    bench = open_ssbj(make_bench, b=b)
    cycle(bench, [30] * 3 + [25])
    cycle(bench, [30] * 3)
    assert cached(bench) == {30: 2, 25: 0}
    while ssbj(bench).cycle < 9:
        cycle(bench, [])
        assert cached(bench) == {30: 2, 25: 0}
    cycle(bench, [])
    # 25 was credited with the row that made it worth caching: no table row is less than that
    assert cached(bench) == {25: 0}
    step(bench, [30])
    row = len(bench.keys) - 1
    assert (row in waiting(bench)) == (b == 2)
    while ssbj(bench).cycle < 20:
        cycle(bench, [])
    assert cached(bench) == {}
    bench.assert_exactly_once()


def test_frequent_value_when_ten_cycles_have_passed_then_stays(make_bench: MakeBench) -> None:
    bench = open_ssbj(make_bench)
    for _ in range(39):
        cycle(bench, [30] * 3)
        assert cached(bench) in ({}, {30: 2})
    assert cached(bench) == {30: 2}
    bench.assert_exactly_once()


@pytest.mark.parametrize("first", range(1, 31, 3))
def test_value_when_it_is_switched_in_any_cycle_then_is_not_evicted_for_being_new(
    make_bench: MakeBench, first: int
) -> None:
    """Also in the thirtieth cycle, which both switches and evicts."""
    bench = open_ssbj(make_bench)
    while ssbj(bench).cycle < first:
        cycle(bench, [])
    for _ in range(12):
        cycle(bench, [30] * 3 + [25])
        if ssbj(bench).cycle >= first + 2:
            assert cached(bench) == {30: 2, 25: 0}, f"cycle {ssbj(bench).cycle}"


# -- Theorem 3 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget_bytes", [None, 2_000_000])
def test_rate_when_it_is_high_enough_then_this_is_a_main_memory_join(
    make_bench: MakeBench, budget_bytes: int | None
) -> None:
    """All of the table is cached, nothing waits, and nothing but the cache takes up memory."""
    keys = 200
    table = np.repeat(np.arange(keys), 3).tolist()
    bench = make_bench(
        "ssbj", table, page_rows=60, budget_bytes=budget_bytes, options={"w": 4_000, "b": 1}
    )
    rng = np.random.default_rng(3)
    for _ in range(60):
        bench.feed(rng.integers(0, keys, 2_000).tolist())
    bench.poll(1 << 30)
    operator = ssbj(bench)
    assert len(operator.cache) == keys
    assert len(bench.feed(rng.integers(0, keys, 2_000).tolist())) == 3 * 2_000
    assert operator.pending() == 0
    main_memory = 16 * len(table) + 40 * keys  # m_m: the rows, and what the cache keeps of a key
    assert operator.cache.nbytes <= main_memory
    budget = operator.ctx.budget
    assert budget.used_bytes <= main_memory + operator.working_bytes + operator.table.nbytes
    read = operator.ctx.counters.bytes_read
    bench.feed(rng.integers(0, keys, 2_000).tolist())
    assert operator.ctx.counters.bytes_read == read
    bench.assert_exactly_once()


def test_memory_when_the_stream_is_skewed_then_is_less_than_that_of_meshjoin(
    make_bench: MakeBench,
) -> None:
    """Theorem 1: the window and the cache together take less than a window alone."""
    table = [CARRIER] * 40 + list(range(1, 41))
    peaks = {}
    for algorithm in ("ameshjoin", "ssbj"):
        bench = make_bench(algorithm, table, page_rows=4, options={"w": 100, "b": 1})
        for _ in range(200):
            step(bench, [1, 2, 3] * 20 + [CARRIER])
        budget = bench.operator.ctx.budget
        peaks[algorithm] = sum(budget.components[name] for name in ("window",))
        peaks[algorithm] += budget.components.get("cache", 0)
    assert peaks["ssbj"] < peaks["ameshjoin"] / 10


# -- on restart ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("feeds", range(0, 48, 3))
def test_restore_when_in_any_state_then_goes_on_as_if_nothing_had_happened(
    make_bench: MakeBench, feeds: int, how: str
) -> None:
    """13 pages, two an iteration: 48 of them see each state twice, and its middle."""
    benches = [open_ssbj(make_bench, b=2, how=how) for _ in range(2)]
    for number in range(feeds):
        for bench in benches:
            step(bench, [30, 30, 25, CARRIER] if number % 2 else [30, 10, CARRIER])
    bench, other = benches
    bench.restore()
    bench.operator.table.row_bytes = ROW_BYTES
    for number in range(24):
        assert (ssbj(bench).cycle, ssbj(bench).page) == (ssbj(other).cycle, ssbj(other).page)
        assert (cached(bench), waiting(bench)) == (cached(other), waiting(other))
        for one in benches:
            step(one, [30, 30, 30, 25, number, CARRIER])
    bench.assert_exactly_once()


def test_restore_when_after_every_push_then_no_result_is_lost(make_bench: MakeBench) -> None:
    bench = open_ssbj(make_bench, b=5)
    for number in range(30):
        step(bench, [30] * 4 + [number])
        bench.restore()
    bench.assert_exactly_once()


def test_values_when_an_operator_is_restored_in_every_step_then_are_learned_and_evicted(
    make_bench: MakeBench,
) -> None:
    """A step of one iteration, and a scan of five: cycles take longer than an operator lives."""
    bench = open_ssbj(make_bench, b=3)
    held = []
    for number in range(100):
        step(bench, [30] * 4 + [CARRIER] if number < 40 else [CARRIER])
        bench.restore()
        bench.operator.table.row_bytes = ROW_BYTES
        held.append(cached(bench))
    assert held[39] == {30: 2}
    assert held[-1] == {}
    bench.assert_exactly_once()


def test_restore_when_the_switching_buffer_finds_no_room_then_is_without_it(
    make_bench: MakeBench,
) -> None:
    bench = open_ssbj(make_bench, b=3, budget_bytes=2_000_000)
    while not being_switched(bench) or not ssbj(bench).phase.rows:  # type: ignore[attr-defined]
        step(bench, [30] * 4 + [10] * 9 + [CARRIER])
    bench.budget_bytes = 270_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ssbj, "_room", lambda _: 100)
        bench.restore()
    assert not being_switched(bench)
    assert isinstance(ssbj(bench).phase, Switching)
    bench.assert_exactly_once()


# -- a skewed stream ----------------------------------------------------------------------------


def test_hit_rate_when_the_stream_is_zipf_then_rises(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    table = rng.permutation(np.repeat(np.arange(1_000), rng.integers(1, 4, 1_000))).tolist()
    bench = make_bench("ssbj", table, page_rows=40, budget_bytes=600_000)
    operator = ssbj(bench)
    operator.tune(w=200, b=4)
    rates = []
    for _ in range(8):
        before = operator.ctx.counters.rows_cached
        for _ in range(20):
            bench.feed(((rng.zipf(1.4, 200) - 1) % 1_000).tolist())
        rates.append((operator.ctx.counters.rows_cached - before) / 4_000)
    assert rates[0] < rates[-1]
    assert rates[-1] > 0.7
    bench.assert_exactly_once()


# -- memory -------------------------------------------------------------------------------------


def test_cache_when_its_limit_is_reached_then_takes_the_best_and_stays_below(
    make_bench: MakeBench,
) -> None:
    """Key k comes k // 20 + 1 times, and has a table row if it is even."""
    table = [CARRIER] * 200 + list(range(2, 200, 2))
    bench = open_ssbj(make_bench, table, row_bytes=17.0, budget_bytes=4_000_000)
    operator = ssbj(bench)
    operator.cache.limit = 3_000
    rows = [key for key in range(1, 200) for _ in range(key // 20 + 1)]
    for _ in range(5):
        cycle(bench, rows)
        assert operator.cache.nbytes <= operator.cache.limit
    assert operator.cache.nbytes > 0.8 * operator.cache.limit
    assert min(cached(bench)) > 60
    assert set(range(181, 200)) <= set(cached(bench))
    bench.assert_exactly_once()


def test_input_when_the_cache_leaves_no_room_for_it_then_the_cache_gives_way(
    make_bench: MakeBench,
) -> None:
    """What fits while the cache is empty has to fit later: the cache is only there to be fast."""
    keys = np.arange(4_000)
    bench = make_bench("ssbj", keys.tolist(), page_rows=100, budget_bytes=400_000)
    operator = ssbj(bench)
    large = list(range(14_000))  # 224 kB, and 100 kB are working memory
    bench.feed(large)
    bench.finish()
    operator.cache.evict(
        [np.zeros(len(part.keys), dtype=np.bool_) for part in operator.cache.parts]
    )
    operator.phase.give_up()
    operator.cache.admit(keys, np.ones_like(keys), keys, operator.table.take(keys))
    assert operator.cache.nbytes > 200_000
    bench.feed(large)  # of which 137 kB count
    assert 0 < operator.cache.nbytes < 163_000
    assert min(cached(bench)) >= 2_000  # those with the fewest hits went
    bench.assert_exactly_once()


def test_values_when_their_rows_are_wider_than_the_mean_then_those_that_fit_are_switched(
    make_bench: MakeBench,
) -> None:
    """The size of a value's rows is known only when they have been read."""
    table = [CARRIER] * 400 + list(range(1, 2_001))
    bench = make_bench("ssbj", table, page_rows=100, budget_bytes=400_000)
    operator = ssbj(bench)
    operator.tune(w=100_000, b=100_000)
    operator.table.row_bytes = 0.5  # as if most of the table were narrow
    operator.cache.limit = 20_000
    for number in range(30):
        first = 1 + 220 * (number % 9)
        step(bench, [key for key in range(first, first + 220) for _ in range(2)])
        assert operator.cache.nbytes <= 20_000
    assert operator.cache.nbytes > 10_000
    assert all(key == CARRIER or count == 1 for key, count in cached(bench).items())
    bench.assert_exactly_once()


def test_value_without_table_rows_when_it_comes_once_a_cycle_then_does_not_pay_for_its_entry(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry takes memory even if the table has nothing for it."""
    monkeypatch.setattr(Ssbj, "key_bytes", KEY_BYTES)
    bench = open_ssbj(make_bench)
    for _ in range(9):
        cycle(bench, [CARRIER, 7] + [9] * 5)
    assert cached(bench) == {9: 0}
    bench.assert_exactly_once()
