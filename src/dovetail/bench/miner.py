"""Figures 20, 21 and 22 of the DINER paper, and how Cleanup grows with the number of inputs.

`miner-inputs`, `miner-buffer` and `miner-star` count results until the last row has come. Above 1
is good for MINER: its results over the rival's, or in `miner-growth` the blocks that the paper's
Cleanup reads over those that ours reads. `miner-paper` is MINER without what goes beyond the paper.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.bench.diner.simulate import Costs
from dovetail.bench.diner.streams import TUPLE_BYTES, Rng
from dovetail.bench.measure import WrongResultError
from dovetail.bench.miner_runs import (
    PAPER_ROWS,
    Found,
    Inputs,
    Setting,
    chain,
    even_chain,
    run,
    star,
)
from dovetail.bench.progress import Reporter
from dovetail.bench.registry import Benchmark, Config, describe
from dovetail.bench.result import Failure, Result, Spread, significant

OURS, PAPER, RIVAL = "miner", "miner-paper", "mjoin"
ROWS = 10_000  #: of R2 and of R3, a tenth of the paper's
SHARES = (5, 10, 15, 20)  #: the budget in percent of the input
PAUSES = (10, 20, 30, 40, 50)
FIG_20 = {"4 inputs,5%": 0.55, "4 inputs,20%": 0.80}  #: shares of the result that the text states
GROWTH_ROWS = 600  #: of each relation
MOST_INPUTS_OF_PAPER = 4  #: beyond, its Cleanup would not end


@dataclass(frozen=True)
class Point:
    """One value on an axis: what is joined, and within which budget."""

    label: str
    x: float
    line: str
    draw: Callable[[Rng, int], Inputs]
    share: float
    contenders: tuple[str, ...] = (OURS, PAPER, RIVAL)
    costs: Costs | None = None
    complete: bool = False


@dataclass
class Repetition:
    """What was found in one drawing of a point's inputs."""

    inputs: Inputs
    budget_bytes: int
    found: dict[str, Found] = field(default_factory=dict)


Measured = dict[Point, list[Repetition]]
Value = Callable[[Found], float]


def _measure(
    points: Sequence[Point], config: Config, reporter: Reporter
) -> tuple[Measured, list[Failure]]:
    """Every contender on the same inputs, one drawing for each repetition."""
    wanted = [point for point in points if config.wants(point.label)]
    counts = {point: config.repetitions_of(point.label) for point in wanted}
    reporter.plan(sum(counts[point] * len(point.contenders) for point in wanted))
    measured: Measured = {}
    failures: list[Failure] = []
    for point in wanted:
        measured[point] = []
        for number in range(1, counts[point] + 1):
            rng = np.random.default_rng([config.seed, number, points.index(point)])
            inputs = point.draw(rng, config.rows)
            one = Repetition(inputs, inputs.budget(point.share))
            measured[point].append(one)
            for name in point.contenders:
                what = f"{point.label}, repetition {number}: {name}"
                reporter.begin(what)
                try:
                    one.found[name] = _checked(name, point, one)
                    reporter.end(f"{what} found {one.found[name].results:,}")
                except Exception as error:  # noqa: BLE001  a run that failed is shown as failed
                    failures.append(Failure(f"{name}/{point.label}", number, describe(error)))
                    reporter.end(f"{what} FAILED, {describe(error)[:300]}")
    return measured, failures


def _checked(name: str, point: Point, one: Repetition) -> Found:
    found = run(name, one.inputs, Setting(one.budget_bytes, point.costs, point.complete))
    total = sum(found.by_phase.values())
    if total > one.inputs.whole or (point.complete and total != one.inputs.whole):
        raise WrongResultError(f"{name}: {total:,} of {one.inputs.whole:,} results")
    if found.peak_bytes > one.budget_bytes:
        raise WrongResultError(f"{name}: {found.peak_bytes:,} of {one.budget_bytes:,} bytes")
    return found


def _median(runs: Sequence[Repetition], name: str, value: Value) -> float | None:
    found = [value(one.found[name]) for one in runs if name in one.found]
    return statistics.median(found) if found else None


def _results(found: Found) -> float:
    return max(1, found.results)


def _ratios(measured: Measured, value: Value, *, less_is_better: bool = False) -> dict[str, Spread]:
    ratios = {}
    for point, runs in measured.items():
        for rival in point.contenders[1:]:
            pairs = [
                (value(one.found[OURS]), value(one.found[rival]))
                for one in runs
                if {OURS, rival} <= one.found.keys()
            ]
            ratios[f"{rival}/{point.label}"] = Spread.of(
                theirs / ours if less_is_better else ours / theirs for ours, theirs in pairs
            )
    return ratios


def _facts(measured: Measured, config: Config) -> dict[str, Any]:
    """The raw numbers: medians over the repetitions."""
    values: dict[str, Value] = {
        "results_online": lambda one: one.results,
        "results_in_reactive_phase": lambda one: one.by_phase.get("reactive", 0),
        "peak_bytes": lambda one: one.peak_bytes,
        "index_bytes": lambda one: one.index_bytes,
        "flushed_rows": lambda one: one.flushed_rows,
        "blocks_read": lambda one: one.blocks_read,
        "largest_input_buffer": lambda one: max(one.buffers, default=0),
        "mean_input_buffer": lambda one: statistics.fmean(one.buffers or [0]),
    }
    points: dict[str, Any] = {}
    for point, runs in measured.items():
        whole = statistics.median(one.inputs.whole for one in runs)
        known: dict[str, Any] = {"whole_join": whole, "budget_bytes": runs[0].budget_bytes}
        for title, value in values.items():
            known[title] = {name: _median(runs, name, value) for name in point.contenders}
        known["share_online"] = {
            name: significant((known["results_online"][name] or 0) / max(1, whole))
            for name in point.contenders
        }
        points[point.label] = known
    return {
        "rows": config.rows,
        "of_the_paper's_size": significant(config.rows / PAPER_ROWS),
        "tuple_bytes": TUPLE_BYTES,
        "points": points,
    }


def _chart(
    title: str, x: str, y: str, lines: dict[str, list[tuple[float, float]]]
) -> dict[str, Any]:
    drawn = {name: [[a for a, _ in line], [b for _, b in line]] for name, line in lines.items()}
    return {"title": title, "x": x, "y": y, "lines": drawn}


def _lines(
    measured: Measured, facts: dict[str, Any], value: str, scale: float = 1.0
) -> dict[str, list[tuple[float, float]]]:
    """A line for each contender and each line of the figure."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in measured:
        for name, number in facts["points"][point.label][value].items():
            if number is not None:
                label = f"{name}, {point.line}" if point.line else name
                lines.setdefault(label, []).append((point.x, scale * number))
    return lines


# -- the figures ----------------------------------------------------------------------------


def _inputs_point(inputs: int, percent: int) -> Point:
    def draw(rng: Rng, rows: int) -> Inputs:
        return chain(rng, rows, inputs)

    return Point(f"{inputs} inputs,{percent}%", percent, f"{inputs} inputs", draw, percent / 100)


def _buffer_point(inputs: int, percent: int) -> Point:
    def draw(rng: Rng, rows: int) -> Inputs:
        return chain(rng, rows, inputs, pause=percent / 100)

    label = f"{inputs} inputs,{percent}%"
    return Point(label, percent, f"{inputs} inputs", draw, 0.05, (OURS, PAPER), Costs())


def _growth_point(inputs: int) -> Point:
    def draw(rng: Rng, rows: int) -> Inputs:
        return even_chain(rng, rows, inputs)

    contenders = (OURS, PAPER) if inputs <= MOST_INPUTS_OF_PAPER else (OURS,)
    return Point(f"{inputs}", inputs, "", draw, 0.3, (*contenders, RIVAL), complete=True)


INPUTS = tuple(_inputs_point(n, percent) for n in (2, 3, 4) for percent in SHARES)
BUFFER = tuple(_buffer_point(n, percent) for n in (2, 3, 4) for percent in PAUSES)
STAR = tuple(Point(f"{percent}%", percent, "", star, percent / 100) for percent in SHARES)
GROWTH = tuple(_growth_point(inputs) for inputs in (2, 3, 4, 5, 6))


def run_inputs(config: Config, reporter: Reporter) -> Result:
    """Fig. 20: the share of the result that is found online, by memory and number of inputs."""
    measured, failures = _measure(INPUTS, config, reporter)
    facts = _facts(measured, config) | {"share_online_in_the_paper": FIG_20}
    lines = _lines(measured, facts, "share_online", 100)
    chart = _chart("Fig. 20", "budget, % of the input", "results online, % of all", lines)
    ratios = _ratios(measured, _results)
    return Result("miner-inputs", ratios, facts | {"charts": [chart]}, tuple(failures))


def run_buffer(config: Config, reporter: Reporter) -> Result:
    """Fig. 21: rows in the input buffer when the Reactive phase hands over."""
    measured, failures = _measure(BUFFER, config, reporter)
    facts = _facts(measured, config)
    facts["rows_that_end_the_reactive_phase"] = {
        point.label: Setting(runs[0].budget_bytes).most_waiting(runs[0].inputs)
        for point, runs in measured.items()
    }
    lines = _lines(measured, facts, "largest_input_buffer")
    chart = _chart("Fig. 21", "pause, % of the time of a tenth", "rows in the input buffer", lines)
    ratios = _ratios(measured, _results)
    return Result("miner-buffer", ratios, facts | {"charts": [chart]}, tuple(failures))


def run_star(config: Config, reporter: Reporter) -> Result:
    """Fig. 22: all inputs on one attribute, where MJoin flushes by bucket."""
    measured, failures = _measure(STAR, config, reporter)
    facts = _facts(measured, config)
    lines = _lines(measured, facts, "share_online", 100)
    chart = _chart("Fig. 22", "budget, % of the input", "results online, % of all", lines)
    ratios = _ratios(measured, _results)
    return Result("miner-star", ratios, facts | {"charts": [chart]}, tuple(failures))


def run_growth(config: Config, reporter: Reporter) -> Result:
    """The blocks that are read until all results are there, by the number of inputs."""
    measured, failures = _measure(GROWTH, config, reporter)
    facts = _facts(measured, config)
    lines = _lines(measured, facts, "blocks_read")
    chart = _chart("Growth with the number of inputs", "inputs", "blocks read", lines)
    ratios = _ratios(measured, lambda one: max(1, one.blocks_read), less_is_better=True)
    return Result("miner-growth", ratios, facts | {"charts": [chart]}, tuple(failures))


def _benchmark(
    name: str, summary: str, points: Sequence[Point],
    function: Callable[[Config, Reporter], Result], rows: int = ROWS,
    rows_mean: str = "rows of the two large relations each",
) -> Benchmark:  # fmt: skip
    groups = tuple(point.label for point in points)
    return Benchmark(name, summary, rows, rows_mean, groups, function)


BENCHMARKS = (
    _benchmark(
        "miner-inputs",
        "Fig. 20: MINER's results online with 2 to 4 inputs, against its paper form and MJoin",
        INPUTS,
        run_inputs,
    ),
    _benchmark(
        "miner-buffer",
        "Fig. 21: rows that wait when MINER's Reactive phase hands over, with pauses",
        BUFFER,
        run_buffer,
    ),
    _benchmark(
        "miner-star",
        "Fig. 22: MINER's results online against MJoin's, all inputs joined on one attribute",
        STAR,
        run_star,
    ),
    _benchmark(
        "miner-growth",
        "blocks that Cleanup reads with 2 to 6 inputs, against the paper's odometer",
        GROWTH,
        run_growth,
        GROWTH_ROWS,
        "rows of each relation",
    ),
)
