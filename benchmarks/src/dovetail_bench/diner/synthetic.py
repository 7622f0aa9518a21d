"""Figures 10 to 12, 14, 15 and 18 of the DINER paper: made-up keys at a steady rate.

The values on the axes are not in the paper's text, but for the skews of Fig. 10; here they span
what its text describes. In Fig. 14 each relation's intervals are in an order of its own, so that
with few of them equal keys seldom come at about the same time: joins that keep what came last find
next to nothing, and the ratios are large and uncertain.
"""

from collections.abc import Callable, Sequence

from dovetail_bench.diner.figure import Draw, Figure, Point, benchmark
from dovetail_bench.diner.findings import drift_findings
from dovetail_bench.diner.streams import (
    Rng,
    Streams,
    drifting,
    normal,
    partly_sorted,
    steady,
    two_sources,
    zipf,
)

MEAN, VARIANCE = 500.0, 50.0
ZIPF_NOTES = {
    "the paper": "benefits larger than on the real data, of which it has up to 2.5 times the "
    "results of RPJ and HMJ; its text has no other numbers",
    "why less with more skew": "a hashing join cannot tell a frequent value from a rare one of the "
    "same partition, and flushes partitions whole; DINER flushes the rare values, a block at a "
    "time. With a high skew most rows have the value 1, so there is little to choose: what is left "
    "is that a flush of the partition with that value empties most of a rival's memory",
    "partitions": "of RPJ, which chooses among them, the best number counts",
}
DRIFT_NOTES = {
    "the paper": "up to 3 times as many results online as RPJ and HMJ, the more the faster the "
    "mean moves; its text does not tell the shifts",
    "RPJ by history": "the more the faster holds against an RPJ that estimates arrivals from all "
    "rows so far (rpj-history), the more so the finer its partitions are, see "
    "diner_over_rpj_history_by_partitions. That RPJ takes old values for frequent ones, and "
    "flushes what is new. With its own few partitions each has old and new values, and the "
    "estimate does little. The best number of partitions is what the ratios have",
    "why not 3 against the others": "the library's RPJ ages its estimate, so that it follows the "
    "mean, and XJoin and HMJ have no estimate that could mislead them. None of these is so far "
    "from the clairvoyant bound that there is much more to gain: see shares_of_bound, and "
    "most_times_ahead, which is what a policy that reached the bound would be ahead of them at "
    "most",
}


def _zipf(skew: float) -> Draw:
    return lambda rng, rows: two_sources(rng, rows, lambda g, n: zipf(g, n, skew))


def _second_normal(mean: float, variance: float) -> Draw:
    """The first relation has the paper's mean and variance, the second one these."""

    def draw(rng: Rng, rows: int) -> Streams:
        keys = normal(rng, rows, MEAN, VARIANCE), normal(rng, rows, mean, variance)
        return Streams(keys, (steady(rng, rows), steady(rng, rows)))

    return draw


def _intervals(count: int) -> Draw:
    return lambda rng, rows: two_sources(
        rng, rows, lambda g, n: partly_sorted(g, zipf(g, n, 1.0), count)
    )


def _shift(shift: float) -> Draw:
    return lambda rng, rows: two_sources(rng, rows, lambda g, n: drifting(g, n, shift))


def _smaller(share: float) -> Draw:
    """The second relation has fewer rows, which come at the same rate, so it ends sooner."""

    def draw(rng: Rng, rows: int) -> Streams:
        few = max(1, round(share * rows))
        keys = zipf(rng, rows, 1.0), zipf(rng, few, 1.0)
        return Streams(keys, (steady(rng, rows), steady(rng, few)))

    return draw


def _along(values: Sequence[int], draw: Callable[[int], Draw]) -> tuple[Point, ...]:
    return tuple(Point(f"{value}", value, draw(value)) for value in values)


ZIPF = Figure(
    "diner-zipf",
    "Fig. 10: Zipfian keys from 1 to 999",
    "skew",
    _along((1, 2, 3, 4, 5), _zipf),
    notes=ZIPF_NOTES,
)
MEANS = Figure(
    "diner-mean",
    "Fig. 11: normal keys with means 500 and 500 + x",
    "x",
    _along((0, 5, 10, 15, 20), lambda x: _second_normal(MEAN + x, VARIANCE)),
)
VARIANCES = Figure(
    "diner-variance",
    "Fig. 12: normal keys with variances 50 and 50 + x",
    "x",
    _along((0, 50, 150, 350, 750), lambda x: _second_normal(MEAN, VARIANCE + x)),
)
SORTED = Figure(
    "diner-sorted",
    "Fig. 14: Zipfian keys of skew 1, sorted within intervals",
    "intervals",
    _along((5, 10, 20, 50, 100), _intervals),
)
DRIFT = Figure(
    "diner-drift",
    "Fig. 15: normal keys with a mean that moves in every tenth of the time",
    "shift",
    _along((1, 2, 4, 8, 16), _shift),
    notes=DRIFT_NOTES,
    findings=drift_findings,
)
SIZES = Figure(
    "diner-sizes",
    "Fig. 18: one relation is smaller; Zipfian keys of skew 1",
    "rows of the smaller relation, % of the other's",
    tuple(
        Point(f"{share}%", share, _smaller(share / 100), of_full_input=True)
        for share in (10, 25, 50, 75, 100)
    ),
)
FIGURES = (ZIPF, MEANS, VARIANCES, SORTED, DRIFT, SIZES)
BENCHMARKS = tuple(benchmark(figure) for figure in FIGURES)
