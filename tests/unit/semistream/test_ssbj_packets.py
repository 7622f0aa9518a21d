"""SSBJ's packets inside a budget: `w` follows the cache, and no row is lost or repeated by that."""

from collections.abc import Callable

import numpy as np

from dovetail.semistream.scan.phases import Incrementing, PhaseOut, Switching
from dovetail.semistream.scan.ssbj import Ssbj
from support.semistream import Bench

MakeBench = Callable[..., Bench]

KEYS = 2_000
HOT = list(range(20))
COLD = range(KEYS, 2 * KEYS)  # not in the table


def ssbj(bench: Bench) -> Ssbj:
    assert isinstance(bench.operator, Ssbj)
    return bench.operator


def open_ssbj(make_bench: MakeBench) -> Bench:
    """A table of 50 iterations: many times as many rows come at a time as a packet has."""
    options = {"b": 2}
    return make_bench(
        "ssbj", range(KEYS), page_rows=20, how="left", budget_bytes=270_000, options=options
    )


def admit(bench: Bench, keys: range, hits: int) -> None:
    """Put values into the cache, whatever the inequality says."""
    codes = np.arange(keys.start, keys.stop)
    rows = bench.operator.table.take(codes)
    ssbj(bench).cache.admit(codes, np.ones_like(codes), np.full_like(codes, hits), rows)


def scan_until(bench: Bench, cycle: int, pages_left: int) -> None:
    """Bring the scan near the end of a cycle; a row at a time keeps it going."""
    operator, cold = ssbj(bench), iter(COLD)
    while operator.cycle < cycle or operator.page + pages_left < operator.table.pages:
        if not operator.pending():
            bench.feed([next(cold)])
        bench.work()
    assert operator.cycle == cycle


def drift(bench: Bench, cycle: int) -> tuple[int, int]:
    """Rows that all hit, and at the end of the cycle some that all miss; `w` before and after."""
    operator = ssbj(bench)
    scan_until(bench, cycle, operator.table.pages)
    for _ in range(8):
        bench.feed(HOT * 10)
    scan_until(bench, cycle, 4)
    before = operator.w
    misses = COLD[-270:]
    assert len(misses) > 2 * before
    bench.feed(misses)
    assert operator.cycle == cycle + 1
    return before, operator.w


def test_w_when_an_eviction_makes_it_grow_within_a_batch_then_no_row_comes_twice(
    make_bench: MakeBench,
) -> None:
    bench = open_ssbj(make_bench)
    scan_until(bench, 8, 4)
    admit(bench, range(1_000), 0)
    before, after = drift(bench, 9)
    assert after > before
    assert 0 < len(ssbj(bench).cache) < 1_000
    bench.assert_exactly_once()


def test_w_when_a_switch_makes_it_shrink_within_a_batch_then_no_row_is_lost(
    make_bench: MakeBench,
) -> None:
    bench = open_ssbj(make_bench)
    admit(bench, range(20), 1_000)
    operator = ssbj(bench)
    scan_until(bench, 3, operator.table.pages)
    assert isinstance(operator.phase, PhaseOut)
    while not isinstance(operator.phase, Incrementing):
        bench.feed([*range(1_000, 1_100)] * 3)
    scan_until(bench, 5, operator.table.pages)
    assert isinstance(operator.phase, Switching)
    before, after = drift(bench, 5)
    assert after < before
    assert len(operator.cache) > 50
    bench.assert_exactly_once()


def test_miss_share_when_the_cache_has_lost_everything_then_follows_the_rows(
    make_bench: MakeBench,
) -> None:
    """Else rows would be taken in as if most of them were still cached."""
    bench = open_ssbj(make_bench)
    admit(bench, range(20), 1_000)
    for _ in range(8):
        bench.feed(HOT * 10)
    operator = ssbj(bench)
    assert operator._miss_share < 0.1
    operator.cache.evict([np.zeros(20, dtype=np.bool_)])
    for _ in range(8):
        bench.feed(HOT * 10)
    assert operator._miss_share > 0.9
    bench.assert_exactly_once()
