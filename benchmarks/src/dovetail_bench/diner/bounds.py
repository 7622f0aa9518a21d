"""`diner-bound`: what share of the clairvoyant bound each policy reaches.

All points of all figures, at a smaller size: what a join found while rows arrived, over the most
that any policy could have (`clairvoyant`). A ratio is DINER's share, so 1 is the most that it can
be. The rows that fit in memory are counted without any waste, as if the input had no batches, the
index no slack and the catalogue no entries; the bound knows of none of that. The smaller the
memory, the more of it that waste is, so shares are lower here than at the figures' own sizes: see
`share_of_bound` in their results.
"""

import dataclasses
import statistics
from typing import Any

from dovetail_bench.diner import real, synthetic, timed
from dovetail_bench.diner.figure import OURS, Figure, Measured, measure, scale_facts
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Failure, Result, Spread, significant

NAME = "diner-bound"
ROWS = 4_000  #: so that all points are done within minutes
FIGURES = (*synthetic.FIGURES, real.WEATHER, real.BAND, *timed.FIGURES)
NOTES = {
    "rows that are held": "the bound has its memory full of rows. A join has less: the batch that "
    "comes, the catalogue, and what a flush gives up at once take their part, so none can reach 1",
}


def short(figure: Figure) -> str:
    """A figure's name among the labels."""
    return figure.name.removeprefix("diner-")


def run(config: Config, reporter: Reporter) -> Result:
    """All figures, or the one that is asked for."""
    ratios: dict[str, Spread] = {}
    shares: dict[str, dict[str, float | None]] = {}
    failures: list[Failure] = []
    for figure in FIGURES:
        if not config.wants(short(figure)):
            continue
        repetitions = config.repetitions_of(short(figure))
        own = dataclasses.replace(config, only=None, repetitions=repetitions, group_repetitions={})
        measured, failed = measure(figure, own, reporter)
        failures += [
            dataclasses.replace(one, contender=f"{short(figure)}: {one.contender}")
            for one in failed
        ]
        for label, by_name in shares_of(figure, measured).items():
            ratios[f"bound/{label}"] = by_name.pop(OURS, Spread.of([]))
            shares[label] = {OURS: significant(ratios[f"bound/{label}"].median)}
            shares[label] |= {name: significant(found.median) for name, found in by_name.items()}
    facts = {**scale_facts(config), **NOTES, "shares": shares, "charts": [_chart(shares)]}
    facts["mean_shares"] = _means(shares)
    facts["points_in_mean"] = {name: len(_known(shares, name)) for name in facts["mean_shares"]}
    return Result(NAME, ratios, facts, tuple(failures))


def shares_of(figure: Figure, measured: Measured) -> dict[str, dict[str, Spread]]:
    """By point and contender, its share of the bound over the repetitions."""
    return {
        f"{short(figure)},{point.label}": {
            name: Spread.of(one.share_of_bound(name) for one in runs if name in one.found)
            for name in figure.contenders
        }
        for point, runs in measured.items()
    }


def _means(shares: dict[str, dict[str, float | None]]) -> dict[str, float | None]:
    """A policy's share over all points at which it could be measured, which are not the same."""
    names = sorted({name for found in shares.values() for name in found})
    known = {name: _known(shares, name) for name in names}
    return {
        name: significant(statistics.fmean(values)) if values else None
        for name, values in known.items()
    }


def _known(shares: dict[str, dict[str, float | None]], name: str) -> list[float]:
    values = [found.get(name) for found in shares.values()]
    return [value for value in values if value is not None]


def _chart(shares: dict[str, dict[str, float | None]]) -> dict[str, Any]:
    names = dict.fromkeys(name for found in shares.values() for name in found)
    lines: dict[str, list[list[float]]] = {}
    for name in names:
        drawn = [
            (place, 100 * value)
            for place, found in enumerate(shares.values())
            if (value := found.get(name)) is not None
        ]
        lines[name] = [[x for x, _ in drawn], [significant(y) or 0.0 for _, y in drawn]]
    return {
        "title": "results found while rows arrived",
        "x": "",
        "ticks": {label: place for place, label in enumerate(shares)},
        "y": "% of the clairvoyant bound",
        "lines": lines,
        "points": True,
    }


BENCHMARKS = (
    Benchmark(
        NAME,
        "the share of the clairvoyant bound that DINER's policy reaches, and others'",
        rows=ROWS,
        rows_mean="rows a side",
        groups=tuple(short(figure) for figure in FIGURES),
        function=run,
    ),
)
