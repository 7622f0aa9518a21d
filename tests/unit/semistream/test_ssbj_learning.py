"""What SSBJ learns of a stream: chance is not taken for skew, and learning has to pay."""

from collections.abc import Callable

import numpy as np

from dovetail.semistream.scan.phases import Incrementing
from dovetail.semistream.scan.ssbj import Ssbj
from support.semistream import Bench

MakeBench = Callable[..., Bench]

KEYS = 20_000
HOT = 40


def ssbj(bench: Bench) -> Ssbj:
    assert isinstance(bench.operator, Ssbj)
    return bench.operator


def open_ssbj(make_bench: MakeBench) -> Bench:
    """Every other key is in the table."""
    options = {"w": 2_000, "b": 10}
    return make_bench("ssbj", range(0, KEYS, 2), page_rows=100, how="semi", options=options)


def run(bench: Bench, cycles: int, hot_share: float, seed: int) -> int:
    """Uniform keys, and some that are hot; the most bytes of notes in the last round."""
    rng, operator = np.random.default_rng(seed), ssbj(bench)
    stop, notes = operator.cycle + cycles, 0
    while operator.cycle < stop:
        keys = rng.integers(0, KEYS, 2_000)
        hot = rng.random(len(keys)) < hot_share
        keys[hot] = rng.integers(0, HOT, int(hot.sum()))
        bench.feed(keys.tolist())
        if operator.cycle >= stop - 3 and isinstance(operator.phase, Incrementing):
            notes = max(notes, operator.ctx.budget.components.get("notes", 0))
    return notes


def test_values_when_all_are_as_frequent_then_hardly_any_is_cached_nor_noted(
    make_bench: MakeBench,
) -> None:
    """20,000 rows a cycle: thousands of values come twice or more, which is enough to be cached."""
    bench = open_ssbj(make_bench)
    notes = run(bench, 9, 0.0, seed=1)
    assert len(ssbj(bench).cache) < KEYS / 40
    assert 0 < notes < 16 * KEYS / 8


def test_values_when_some_become_frequent_then_are_noticed_and_cached(
    make_bench: MakeBench,
) -> None:
    """Also while only a part of the values is noted, and by an operator that was restored."""
    bench = open_ssbj(make_bench)
    run(bench, 6, 0.0, seed=1)
    bench.restore()
    assert ssbj(bench)._watched < 16
    run(bench, 18, 0.3, seed=2)
    assert set(range(HOT)) <= {int(key) for part in ssbj(bench).cache.parts for key in part.keys}
