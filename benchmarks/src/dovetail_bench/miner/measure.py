"""Runs the points of the MINER figures, all contenders of a repetition on the same inputs.

No wall time counts, so repetitions run beside each other, one a core.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dovetail.multiway.holding import WORKING_SHARE
from dovetail_bench.diner.simulate import Costs
from dovetail_bench.diner.streams import TUPLE_BYTES, Rng
from dovetail_bench.measure import WrongResultError
from dovetail_bench.miner.bound import share_online
from dovetail_bench.miner.runs import PAPER_ROWS, Found, Inputs, Setting, run
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config, describe
from dovetail_bench.result import Failure, Spread, significant
from dovetail_bench.runner import Points, over_points

OURS, PAPER, RIVAL = "miner", "miner-paper", "mjoin"
_FINER = (16, 64)


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
    bounded: bool = False  #: whether `bound` knows this join


@dataclass
class Repetition:
    """What was found in one drawing of a point's inputs."""

    number: int
    rows: int  #: of all inputs
    whole: int
    budget_bytes: int
    most_waiting: int
    found: dict[str, Found] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    #: the share of the results that can be found online: if the budget held rows and nothing
    #: else, and with as many rows as our join held
    bounds: tuple[float, float] | None = None


Measured = dict[Point, list[Repetition]]
Value = Callable[[Found], float]


def measure(
    points: Sequence[Point], config: Config, reporter: Reporter
) -> tuple[Measured, list[Failure]]:
    """Every contender on the same inputs, one drawing for each repetition."""
    # by their places: that of a point is part of its seed, and other processes know no identities
    places = Points(range(len(points)), label=lambda place: points[place].label)
    once = partial(_once, tuple(points), config.seed, config.rows)
    done = over_points(places, once, config, reporter, tell=_told, processes=True)
    measured = {points[place]: runs for place, runs in done.at.items() if runs}
    failures = [failure for runs in measured.values() for one in runs for failure in one.failures]
    return measured, done.failures + failures


def _told(one: Repetition) -> str:
    told = ", ".join(f"{name} {found.results:,}" for name, found in one.found.items())
    return f"of {one.whole:,}: {told}" + "".join(
        f"; FAILED {failure.error[:300]}" for failure in one.failures
    )


def _once(points: Sequence[Point], seed: int, rows: int, place: int, number: int) -> Repetition:
    return repeat(points[place], number, [seed, number, place], rows)


def repeat(point: Point, number: int, seed: list[int], rows: int) -> Repetition:
    """One repetition: draw the inputs, and let each contender take them in."""
    inputs = point.draw(np.random.default_rng(seed), rows)
    budget_bytes = inputs.budget(point.share)
    setting = Setting(budget_bytes, point.costs, point.complete)
    one = Repetition(number, inputs.rows, inputs.whole, budget_bytes, setting.most_waiting(inputs))
    for name in point.contenders:
        try:
            counts = _buckets(name, inputs)
            variants = [_checked(name, inputs, setting, count) for count in counts]
            best = one.found[name] = max(variants, key=lambda found: found.results)
            if len(counts) > 1:
                best.by_buckets = {
                    str(count or "its own"): found.results
                    for count, found in zip(counts, variants, strict=True)
                }
        except Exception as error:  # noqa: BLE001  a run that failed is shown as failed
            one.failures.append(Failure(f"{name}/{point.label}", number, describe(error)))
    if point.bounded and OURS in one.found:
        held = one.found[OURS].rows_in_memory
        one.bounds = (
            share_online(inputs, budget_bytes // TUPLE_BYTES), share_online(inputs, held)
        )  # fmt: skip
    return one


def _buckets(name: str, inputs: Inputs) -> tuple[int | None, ...]:
    """Numbers of buckets to try, besides a contender's own; the best one counts."""
    return (None, *_FINER) if name == RIVAL and inputs.spec.joins_one_attribute else (None,)


def _checked(name: str, inputs: Inputs, setting: Setting, buckets: int | None) -> Found:
    found = run(name, inputs, setting, buckets)
    total = sum(found.by_phase.values())
    if total > inputs.whole or (setting.complete and total != inputs.whole):
        raise WrongResultError(f"{name}: {total:,} of {inputs.whole:,} results")
    if found.peak_bytes > setting.budget_bytes:
        raise WrongResultError(f"{name}: {found.peak_bytes:,} of {setting.budget_bytes:,} bytes")
    return found


# -- what was measured, in numbers ----------------------------------------------------------


def results(found: Found) -> float:
    return max(1, found.results)


def ratios(measured: Measured, value: Value, *, less_is_better: bool = False) -> dict[str, Spread]:
    """Ours and each rival's, paired by repetition."""
    known = {}
    for point, runs in measured.items():
        for rival in point.contenders[1:]:
            pairs = [
                (value(one.found[OURS]), value(one.found[rival]))
                for one in runs
                if {OURS, rival} <= one.found.keys()
            ]
            known[f"{rival}/{point.label}"] = Spread.of(
                theirs / ours if less_is_better else ours / theirs for ours, theirs in pairs
            )
    return known


def _median(runs: Sequence[Repetition], name: str, value: Value) -> float | None:
    found = [value(one.found[name]) for one in runs if name in one.found]
    return statistics.median(found) if found else None


_VALUES: dict[str, Value] = {
    "results_online": lambda one: one.results,
    "results_in_reactive_phase": lambda one: one.by_phase.get("reactive", 0),
    "peak_bytes": lambda one: one.peak_bytes,
    "rows_in_memory": lambda one: one.rows_in_memory,
    "index_bytes": lambda one: one.index_bytes,
    "bytes_beside_rows": lambda one: one.bytes_beside_rows,
    "flushed_rows": lambda one: one.flushed_rows,
    "blocks_read": lambda one: one.blocks_read,
    "cpu_seconds": lambda one: one.cpu_seconds,
    "largest_input_buffer": lambda one: max(one.buffers, default=0),
    "mean_input_buffer": lambda one: statistics.fmean(one.buffers or [0]),
}


def facts(measured: Measured, config: Config) -> dict[str, Any]:
    """The raw numbers: medians over the repetitions."""
    return {
        "rows": config.rows,
        "of_the_paper's_size": significant(config.rows / PAPER_ROWS),
        "tuple_bytes": TUPLE_BYTES,
        "points": {point.label: _facts_of(point, runs) for point, runs in measured.items()},
    }


def _facts_of(point: Point, runs: Sequence[Repetition]) -> dict[str, Any]:
    whole = statistics.median(one.whole for one in runs)
    rows = statistics.median(one.rows for one in runs)
    known: dict[str, Any] = {"rows_in": rows, "whole_join": whole}
    budget = known["budget_bytes"] = runs[0].budget_bytes
    for title, value in _VALUES.items():
        known[title] = {name: _median(runs, name, value) for name in point.contenders}
    shares = {
        name: [one.found[name].results / max(1, one.whole) for one in runs if name in one.found]
        for name in point.contenders
    }
    known["share_online"] = {
        name: significant(statistics.median(found)) if found else None
        for name, found in shares.items()
    }
    variants = [one.found[RIVAL].by_buckets for one in runs if RIVAL in one.found]
    if variants and variants[0]:
        known["results_online_of_mjoin_by_buckets"] = {
            count: statistics.median(some[count] for some in variants) for count in variants[0]
        }
    bounds = [one.bounds for one in runs if one.bounds is not None]
    if bounds:
        whole_budget, held = (statistics.median(some) for some in zip(*bounds, strict=True))
        known["share_online_at_most"] = {
            "if_the_budget_held_rows_only": significant(whole_budget),
            "with_the_rows_held": significant(held),
        }
        known["share_of_bound"] = significant(
            statistics.median(
                one.found[OURS].results / max(1, one.whole) / one.bounds[1]
                for one in runs
                if one.bounds is not None
            )
        )
    known["cpu_us_per_row"] = {
        name: significant(1e6 * seconds / rows)
        for name, seconds in known["cpu_seconds"].items()
        if seconds is not None
    }
    known["share_of_budget"] = {
        name: {
            "rows": significant(known["rows_in_memory"][name] * TUPLE_BYTES / budget),
            "beside_rows": significant(known["bytes_beside_rows"][name] / budget),
            "working_memory": WORKING_SHARE,
        }
        for name in point.contenders
        if known["rows_in_memory"][name] is not None
    }
    return known
