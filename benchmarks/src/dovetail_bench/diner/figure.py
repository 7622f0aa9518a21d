"""A figure of the DINER paper: points on an axis, and what each join finds online at each.

A ratio is DINER's results over the rival's within one repetition, which is one drawing of the
streams; of a rival's variants the best one counts. A rival that found nothing counts as having
found one result. Every number of results is checked against the clairvoyant bound.

Repetitions share the cores of the machine, which changes nothing but the time: what is drawn hangs
on the seed and the number of the repetition alone. So points have the same luck, too.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from dovetail.errors import MemoryBudgetError
from dovetail_bench.diner.clairvoyant import most_online_results
from dovetail_bench.diner.rivals import HISTORY, JOINS
from dovetail_bench.diner.simulate import (
    BATCH_ROWS,
    PAGE_BYTES,
    SILENCE_MS,
    Costs,
    Online,
    Setting,
    budget,
    contenders,
    run_online,
    variants,
)
from dovetail_bench.diner.streams import (
    PAPER_ROWS,
    TUPLE_BYTES,
    Rng,
    Streams,
    batches,
    in_order,
)
from dovetail_bench.measure import WrongResultError
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config, describe
from dovetail_bench.result import Failure, Result, Spread, significant
from dovetail_bench.runner import Points, over_points

OURS = "diner"
MEMORY_SHARE = 0.05
ROWS = 10_000  #: a side, a tenth of the paper's
FIGURES_ARE_IN = ("synthetic", "real", "timed")  #: modules that have a tuple `FIGURES`
_LEAST_ROWS_TO_SHARE = 2_000  # a repetition of fewer is done before another process is there

Draw = Callable[[Rng, int], Streams]


@dataclass(frozen=True)
class Point:
    """One value on the axis."""

    label: str
    x: float
    draw: Draw
    share: float = MEMORY_SHARE  #: of the input that is the budget
    of_full_input: bool = False  #: of two relations of full size, whatever their size is

    def setting(self, streams: Streams, rows: int, figure: "Figure") -> Setting:
        share = self.share * (2 * rows / streams.rows if self.of_full_input else 1)
        costs = Costs() if figure.timed else None
        return Setting(budget(streams, share), costs, figure.horizon)


@dataclass(frozen=True)
class Figure:
    """What is varied."""

    name: str
    title: str
    axis: str
    points: tuple[Point, ...]
    band: bool = False
    timed: bool = False  #: work takes time, and silences are for deferred work
    with_variants: bool = False  #: DINER's own
    besides: tuple[str, ...] = (HISTORY,)  #: contenders that the library has not
    horizon: float = 1.0
    #: What the paper has, and why it is otherwise here, if it is. No numbers of ours: these are
    #: worked out from what was measured (`findings`), so that they cannot contradict it.
    notes: Mapping[str, str] = field(default_factory=dict)
    findings: "Callable[[Measured], Mapping[str, Any]]" = lambda _: {}

    @property
    def contenders(self) -> tuple[str, ...]:
        return (*contenders(band=self.band, variants=self.with_variants), *self.besides)


@dataclass
class Repetition:
    """What was found in one drawing of a point's streams."""

    whole: int
    bound: int
    setting: Setting
    end: float  #: when the last row came
    found: dict[str, Online] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)  #: partitions of the best variant
    tried: dict[str, dict[str, int]] = field(default_factory=dict)  #: results of every variant
    #: variants that the budget was too small for
    refused: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def share_of_bound(self, name: str) -> float:
        return self.found[name].by_phase.get("arriving", 0) / max(1, self.bound)


Measured = dict[Point, list[Repetition]]


def measure(figure: Figure, config: Config, reporter: Reporter) -> tuple[Measured, list[Failure]]:
    """Every contender on the same streams, one drawing for each repetition."""
    known = {point.label: point for point in figure.points}
    shared = config.rows >= _LEAST_ROWS_TO_SHARE

    def here(label: str, number: int) -> Repetition:
        return _repetition(figure, known[label], number, config)

    once = partial(_named, figure.name, config) if shared else here
    tell = partial(_told, figure.contenders)
    done = over_points(Points(tuple(known)), once, config, reporter, tell=tell, processes=shared)
    measured = {known[label]: runs for label, runs in done.at.items() if runs}
    failures = [failure for runs in measured.values() for one in runs for failure in one.failures]
    return measured, done.failures + failures


def _told(names: Sequence[str], one: Repetition) -> str:
    failed = {failure.contender.partition("/")[0]: failure.error for failure in one.failures}
    told = (
        f"{name} FAILED, {failed[name][:300]}"
        if name in failed
        else f"{name} found {one.found[name].results:,}"
        for name in names
    )
    return "; ".join(told)


def _named(figure_name: str, config: Config, label: str, number: int) -> Repetition:
    """In a process of its own: functions that draw streams cannot be handed over."""
    modules = [import_module(f"{__package__}.{module}") for module in FIGURES_ARE_IN]
    every: list[Figure] = [figure for module in modules for figure in module.FIGURES]
    figure = next(one for one in every if one.name == figure_name)
    point = next(one for one in figure.points if one.label == label)
    return _repetition(figure, point, number, config)


def draw(point: Point, number: int, config: Config) -> Streams:
    """The streams of a repetition."""
    return point.draw(np.random.default_rng([config.seed, number]), config.rows)


def _repetition(figure: Figure, point: Point, number: int, config: Config) -> Repetition:
    streams = draw(point, number, config)
    setting = point.setting(streams, config.rows, figure)
    one = Repetition(streams.whole, _bound(streams, setting), setting, streams.end)
    for name in figure.contenders:
        try:
            _try_variants(name, streams, one)
        except Exception as error:  # noqa: BLE001  a contender that failed is shown as failed
            one.failures.append(Failure(f"{name}/{point.label}", number, describe(error)))
    return one


def _bound(streams: Streams, setting: Setting) -> int:
    handed_over = batches(streams, BATCH_ROWS, SILENCE_MS)
    arrivals = in_order(streams, handed_over)
    return most_online_results(arrivals, setting.capacity_rows, loads_ended=True)


def _try_variants(name: str, streams: Streams, one: Repetition) -> None:
    """Keep the best of a contender's variants; it is an error if none had enough memory."""
    refusal: MemoryBudgetError | None = None
    for partitions in variants(name):
        try:
            online = run_online(name, streams, one.setting, partitions)
        except MemoryBudgetError as error:
            refusal = error
            one.refused[f"{name}, {partitions or 'its own number of'} partitions"] = str(error)
            continue
        _check(name, online, one)
        variant = str(partitions or "own")
        one.tried.setdefault(name, {})[variant] = online.results
        if name not in one.found or online.results > one.found[name].results:
            one.found[name], one.chosen[name] = online, variant
    if refusal is not None and name not in one.found:
        raise refusal


def _check(name: str, online: Online, one: Repetition) -> None:
    total, arriving = sum(online.by_phase.values()), online.by_phase.get("arriving", 0)
    if total > one.whole:
        raise WrongResultError(f"{name}: {total:,} results, but the join has {one.whole:,}")
    if arriving > one.bound:
        raise WrongResultError(
            f"{name}: {arriving:,} results while rows arrived, but no policy can find more than "
            f"{one.bound:,} with {one.setting.capacity_rows:,} rows in memory"
        )
    if online.peak_bytes > one.setting.budget_bytes:
        raise WrongResultError(
            f"{name}: {online.peak_bytes:,} bytes of a budget of {one.setting.budget_bytes:,}"
        )


def advantage(ours: int, theirs: int) -> float:
    """Our results over a rival's."""
    return ours / max(1, theirs)


def spread(repetitions: Sequence[Repetition], rival: str, time: float = 1.0) -> Spread:
    """DINER's results over a rival's, by that part of the time until the last row came."""
    return Spread.of(
        advantage(*(one.found[name].curve.until(time * one.end) for name in (OURS, rival)))
        for one in repetitions
        if OURS in one.found and rival in one.found
    )


def median_of(
    repetitions: Sequence[Repetition], name: str, value: Callable[[Online], float]
) -> float | None:
    found = [value(one.found[name]) for one in repetitions if name in one.found]
    return statistics.median(found) if found else None


def point_facts(repetitions: Sequence[Repetition], names: Sequence[str]) -> dict[str, Any]:
    """The raw numbers of a point: medians over the repetitions."""
    values: Mapping[str, Callable[[Online], float]] = {
        "results_online": lambda one: one.results,
        "results_in_reactive_phase": lambda one: one.by_phase.get("reactive", 0),
        "peak_bytes": lambda one: one.peak_bytes,
        "flushed_rows": lambda one: one.flushed_rows,
        "blocks_read": lambda one: one.blocks_read,
        "blocks_written": lambda one: one.blocks_written,
        "largest_input_buffer": lambda one: one.largest_buffer,
    }
    first = repetitions[0]
    facts: dict[str, Any] = {
        "whole_join": statistics.median(one.whole for one in repetitions),
        "bound": statistics.median(one.bound for one in repetitions),
        "budget_bytes": first.setting.budget_bytes,
        "rows_that_fit": first.setting.capacity_rows,
        "partitions": {
            name: [one.chosen[name] for one in repetitions if name in one.chosen]
            for name in names
            if len(variants(name)) > 1
        },
        "results_by_partitions": {
            name: _by_partitions(repetitions, name) for name in names if len(variants(name)) > 1
        },
        "refused": {name: why[:200] for one in repetitions for name, why in one.refused.items()},
    }
    for title, value in values.items():
        facts[title] = {name: median_of(repetitions, name, value) for name in names}
    facts["share_of_bound"] = {
        name: significant(
            Spread.of(one.share_of_bound(name) for one in repetitions if name in one.found).median
        )
        for name in names
    }
    return facts


def _by_partitions(repetitions: Sequence[Repetition], name: str) -> dict[str, float]:
    """The median of each number of partitions that had enough memory."""
    tried = [one.tried.get(name, {}) for one in repetitions]
    known = dict.fromkeys(variant for found in tried for variant in found)
    return {
        variant: statistics.median(found[variant] for found in tried if variant in found)
        for variant in known
    }


def repetitions_behind(measured: Measured, rivals: Sequence[str]) -> dict[str, str]:
    """Where a rival found more than DINER, in how many of the drawings, and DINER's worst."""
    found = {}
    for rival in rivals:
        for point, runs in measured.items():
            values = [ratio for one in runs if (ratio := spread([one], rival).min) is not None]
            behind = [ratio for ratio in values if ratio < 1]
            if behind:
                worst = significant(min(behind))
                found[f"{rival}/{point.label}"] = f"{len(behind)} of {len(values)}, worst {worst}"
    return found


def scale_facts(config: Config) -> dict[str, Any]:
    """The size and the parameters that all figures share."""
    return {
        "rows_a_side": config.rows,
        "of_the_paper's_size": significant(config.rows / PAPER_ROWS),
        "tuple_bytes": TUPLE_BYTES,
        "page_bytes": PAGE_BYTES,
        "rows_handed_over_at_once": BATCH_ROWS,
    }


def chart_of(figure: Figure, measured: Measured) -> dict[str, Any]:
    """As the paper draws it: each rival's results online in percent of DINER's."""
    lines: dict[str, list[list[float]]] = {}
    for name in figure.contenders:
        if name == OURS:
            continue
        found = [(point.x, spread(runs, name).median) for point, runs in measured.items()]
        drawn = [(x, 100 / ratio) for x, ratio in found if ratio]
        lines[name] = [[x for x, _ in drawn], [significant(y) or 0.0 for _, y in drawn]]
    return {
        "title": figure.title,
        "x": figure.axis,
        "y": "results online, % of DINER's",
        "lines": lines,
    }


def result_of(
    figure: Figure, measured: Measured, failures: Sequence[Failure], config: Config
) -> Result:
    rivals = [name for name in figure.contenders if name != OURS]
    ratios = {
        f"{rival}/{point.label}": spread(runs, rival)
        for rival in rivals
        for point, runs in measured.items()
    }
    points = {p.label: point_facts(runs, figure.contenders) for p, runs in measured.items()}
    facts = {**scale_facts(config), **figure.notes, **figure.findings(measured)}
    facts["repetitions_behind"] = repetitions_behind(measured, rivals)
    facts["points"] = points
    facts["charts"] = [chart_of(figure, measured)]
    facts["contenders_besides"] = {name: JOINS[name].__doc__ for name in figure.besides}
    if figure.timed:
        facts["milliseconds"] = vars(Costs()) | {"silence": SILENCE_MS}
    return Result(figure.name, ratios, facts, tuple(failures))


def run(figure: Figure, config: Config, reporter: Reporter) -> Result:
    """All points, or the one that is asked for."""
    measured, failures = measure(figure, config, reporter)
    return result_of(figure, measured, failures, config)


def benchmark(
    figure: Figure,
    rows: int = ROWS,
    rows_mean: str = "rows a side",
    compares: str = "DINER's results online against other joins'",
    function: Callable[[Config, Reporter], Result] | None = None,
) -> Benchmark:
    return Benchmark(
        figure.name,
        f"{figure.title}: {compares}",
        rows=rows,
        rows_mean=rows_mean,
        groups=tuple(point.label for point in figure.points),
        function=function or (lambda config, reporter: run(figure, config, reporter)),
    )
