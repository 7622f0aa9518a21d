"""`semi-bound`: bytes that a one-way join sends, against the least that it could.

The least, for two sites: every row that has a match, once, and one key with it; of the rows of the
one stream or of the other, whichever are fewer bytes. `ours` is what the cost model picks where
bytes are all that counts. Ratios: the fewer bytes of the two simple joins over ours, and the least
over ours, which 1 would be perfect for.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.multisite.formulas import KEY_BYTES
from dovetail.sites import Algorithm, CostModel, LinkPrice, Prices
from dovetail_bench.measure import expect_rows
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, significant
from dovetail_bench.runner import Points, over_points
from dovetail_bench.semi.oneway import OURS, one_way, pairs_of
from dovetail_bench.semi.runs import (
    Feed,
    Net,
    Span,
    Streams,
    draw,
    make_query,
    ship,
    statistics_of,
    times_and_keys,
)

COUNTED = 30  #: intervals: three seconds
LEAST = "lower bound"
WHY_MORE = (
    "besides the rows that match, the keys of those that do not have to be told, or a filter of "
    "them, and every message has a header. Where one row in hundreds matches, that is nearly all"
)
WHY_LESS = (
    "the bound has a key with every row, and simple joins, where all rows match, send none. Also, "
    "a row of S2 may be sent before the intervals that count and be met in them; the bound looks "
    "at rows one window earlier, which is the same in the mean but not in every run"
)
_SIMPLE = (Algorithm.SP_S, Algorithm.SP_D)


@dataclass(frozen=True)
class Case:
    """Two streams."""

    label: str
    first: Feed
    second: Feed

    @property
    def feeds(self) -> dict[str, Feed]:
        return {"S1": self.first, "S2": self.second}


def _wide(keys: int, first_key: int = 0) -> Feed:
    return Feed(300, 1250, keys, 3000, first_key)


CASES = (
    Case("all match", _wide(10), _wide(10)),
    Case("a fifth of S2 matches", _wide(10), _wide(50)),
    Case("half of 2,000 keys shared", _wide(2000), _wide(2000, 1000)),
    Case("5% of 20,000 keys shared", _wide(20_000), _wide(20_000, 19_000)),
    Case(
        "narrow rows, a fifth of 50,000 keys shared",
        Feed(20_000, 32, 50_000, 1000),
        Feed(20_000, 32, 50_000, 1000, 40_000),
    ),
)


def partners(
    mine: tuple[NDArray[np.int64], NDArray[np.int64]],
    others: tuple[NDArray[np.int64], NDArray[np.int64]],
    before: int,
    after: int,
) -> NDArray[np.int64]:
    """For each row, how many of the others have its key, so long before or after it at most.

    A time and a key are put into one number, so that a row's partners are a range of the sorted.
    """
    base = int(max(mine[0].max(initial=0), others[0].max(initial=0))) + before + after + 2
    ordered = np.sort(others[1] * base + others[0])
    codes = mine[1] * base + mine[0]
    low = np.searchsorted(ordered, np.maximum(codes - before, mine[1] * base), "left")
    high = np.searchsorted(ordered, codes + after, "right")
    found: NDArray[np.int64] = np.maximum(high - low, 0)
    return found


def least_bytes(case: Case, streams: Streams, span: Span) -> float:
    """The rows that have a match and a key each, in a second, of the stream where it is less.

    Of S2, rows are looked at one window earlier, so that all have had their time to be met.
    """
    first, second = (times_and_keys(rows) for rows in streams.values())
    size = case.second.window
    heads = (partners(first, second, size, -1) > 0) & (first[0] >= span.begin)
    stored = partners(second, first, -1, size) > 0
    stored &= (second[0] >= span.begin - size) & (second[0] < span.end - size)
    found = [
        np.count_nonzero(rows) * (feed.row_bytes + KEY_BYTES)
        for rows, feed in ((heads, case.first), (stored, case.second))
    ]
    return float(min(found)) / span.seconds


def run_case(case: Case, seed: list[int], counted: int) -> dict[str, float]:
    """By algorithm, the bytes sent in a second; and the least."""
    net = Net()
    query = make_query(case.feeds, "chain", net)
    model = CostModel(query, statistics_of(query, case.feeds), Prices(LinkPrice(0.0, 1.0)))
    picked = min(Algorithm, key=lambda a: model.step(("S1",), "S1", "S2", a).time)
    span = Span.of(query, counted)
    streams = draw(case.feeds, np.random.default_rng(seed), span.end)
    expected = pairs_of(case.feeds, streams, span) if case.first.keys < 100 else None
    sizes = {name: feed.row_bytes for name, feed in case.feeds.items()}
    found = {}
    for algorithm in Algorithm:
        shipped = ship(one_way(query, algorithm), streams, sizes, net, span, results=True)
        expected = shipped.results if expected is None else expected
        expect_rows(shipped.results, expected)
        found[algorithm.value] = shipped.nbytes
    return {**found, OURS: found[picked.value], LEAST: least_bytes(case, streams, span)}


def run_bound(config: Config, reporter: Reporter) -> Result:
    """What semijoins save, and what they leave to be saved."""

    def once(case: Case, repetition: int) -> dict[str, float]:
        return run_case(case, [config.seed, repetition], config.rows)

    found = over_points(Points(CASES, label=lambda case: case.label), once, config, reporter)
    by_label = {case.label: some for case, some in found.at.items()}
    ratios = {}
    for label, some in by_label.items():
        ratios[f"simple/{label}"] = Spread.of(
            min(one[a] for a in _SIMPLE) / one[OURS] for one in some
        )
        ratios[f"{LEAST}/{label}"] = Spread.of(one[LEAST] / one[OURS] for one in some)
    facts = {
        "intervals that count": config.rows,
        "why more than the bound": WHY_MORE,
        "why less than the bound in some runs": WHY_LESS,
        "KB sent in a second of arrivals": {
            label: _medians(some) for label, some in by_label.items()
        },
    }
    return found.result("semi-bound", ratios, facts)


def _medians(runs: list[Mapping[str, float]] | list[dict[str, float]]) -> dict[str, Any]:
    names = runs[0] if runs else ()
    return {n: significant(statistics.median(one[n] for one in runs) / 1000) for n in names}


BENCHMARK = Benchmark(
    "semi-bound",
    "bytes that one-way joins between two sites send, against the least there could be",
    COUNTED,
    "intervals of 100 ms that count",
    tuple(case.label for case in CASES),
    run_bound,
)
