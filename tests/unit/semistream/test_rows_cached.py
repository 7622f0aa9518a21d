"""Rows that a cache settles are counted as such, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.semistream import Bench


@pytest.mark.parametrize(("algorithm", "caches"), [("seek", True), ("seek-uncached", False)])
def test_counters_when_values_come_again_then_count_the_rows_of_the_cached(
    tmp_path: Path, algorithm: str, caches: bool
) -> None:
    bench = Bench(tmp_path, algorithm, range(100))
    bench.feed([1, 2, 200])
    bench.work(1 << 20)
    assert bench.operator.ctx.counters.rows_cached == 0, "nothing was cached yet"
    assert bench.operator.pending() == 0
    at_once = bench.feed([2, 2, 200, 3])
    # 200 is in no row of the table: that is cached too, but makes no result
    assert bench.operator.ctx.counters.rows_cached == (3 if caches else 0)
    assert len(at_once) == (2 if caches else 0)
    bench.assert_exactly_once()


def test_counters_when_ssbj_caches_then_are_what_its_cache_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ssbj", range(64), options={"w": 50, "b": 4})
    for _ in range(40):
        bench.feed([1, 2, 3] * 20)
    operator = bench.operator
    assert 0 < operator.ctx.counters.rows_cached == operator.cache.found  # type: ignore[attr-defined]
    bench.assert_exactly_once()
