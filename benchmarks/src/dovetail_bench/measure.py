"""Contenders side by side: interleaved repetitions, and ratios paired within a repetition.

In every repetition each contender runs once; who begins rotates, so that no contender always has
the machine at its freshest. A ratio compares two runs of one repetition, so that a slow spell of
the machine weighs on both. A run that fails is kept as a failure, and the others go on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail_bench.progress import Reporter
from dovetail_bench.registry import describe
from dovetail_bench.result import Failure, Result, Spread, significant


class WrongResultError(Exception):
    """A contender did not produce the rows that it had to."""


@dataclass(frozen=True)
class Measured:
    """One run: seconds by clock (`whole`, `warm`, ...), and other numbers about it."""

    seconds: Mapping[str, float]
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """Something to measure; `run` raises if it fails or if its result is wrong."""

    name: str
    run: Callable[[], Measured]


@dataclass
class Runs:
    """What was measured, by contender and repetition."""

    done: dict[str, dict[int, Measured]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def ratio(self, rivals: Sequence[str], ours: str, clock: str) -> Spread:
        """A rival's seconds over ours; of several variants of a rival, the fastest counts."""
        values = []
        for repetition, mine in self.done.get(ours, {}).items():
            theirs = [self.done.get(rival, {}).get(repetition) for rival in rivals]
            found = [one.seconds[clock] for one in theirs if one is not None]
            if found:
                values.append(min(found) / mine.seconds[clock])
        return Spread.of(values)

    def take(self, others: "Runs") -> None:
        """Runs of other contenders."""
        self.done.update(others.done)
        self.failures += others.failures

    def median(self, name: str, fact: str) -> float | None:
        """Of a contender's repetitions; None if there are none."""
        return Spread.of(one.facts[fact] for one in self.done.get(name, {}).values()).median

    def result(self, name: str, ratios: Mapping[str, Spread], facts: Mapping[str, Any]) -> Result:
        """What a benchmark of these runs found, with the raw numbers of all contenders."""
        return Result(name, ratios, {**facts, "contenders": self.facts()}, tuple(self.failures))

    def add(self, others: "Runs") -> None:
        """Other clocks and facts of the same repetitions; a run that lacks them is left out."""
        for name, runs in others.done.items():
            self.done[name] = {
                repetition: Measured({**mine.seconds, **more.seconds}, {**mine.facts, **more.facts})
                for repetition, mine in self.done[name].items()
                if (more := runs.get(repetition)) is not None
            }
        self.failures += others.failures

    def rate_ratio(self, rival: str, ours: str, fact: str) -> Spread:
        """Our rate over a rival's, the rates being among the facts."""
        pairs = [
            (mine.facts[fact], self.done[rival][repetition].facts[fact])
            for repetition, mine in self.done.get(ours, {}).items()
            if repetition in self.done.get(rival, {})
        ]
        return Spread.of(mine / theirs for mine, theirs in pairs)

    def facts(self) -> dict[str, dict[str, Any]]:
        """For each contender, the spread of its seconds and the medians of its other numbers."""
        return {name: _summary(list(runs.values())) for name, runs in self.done.items()}


def expect_rows(found: int, expected: int) -> None:
    if found != expected:
        raise WrongResultError(f"{found:,} result rows, but the join has {expected:,}")


def interleaved(contenders: Sequence[Contender], repetitions: int, reporter: Reporter) -> Runs:
    """Run every contender once in every repetition."""
    runs = Runs({contender.name: {} for contender in contenders})
    reporter.plan(repetitions * len(contenders))
    for repetition in range(1, repetitions + 1):
        first = (repetition - 1) % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            _run_one(contender, repetition, f"{repetition}/{repetitions}", runs, reporter)
    return runs


def warm_up(contenders: Iterable[Contender], runs: Runs, reporter: Reporter) -> None:
    """Run each contender once without keeping its time; a failure is kept."""
    for contender in contenders:
        reporter.begin(f"warm-up {contender.name}")
        try:
            contender.run()
        except Exception as error:  # noqa: BLE001  a contender that failed is shown as failed
            runs.failures.append(Failure(contender.name, None, describe(error)))


def _run_one(
    contender: Contender, repetition: int, count: str, runs: Runs, reporter: Reporter
) -> None:
    reporter.begin(f"repetition {count} {contender.name}")
    try:
        measured = contender.run()
    except Exception as error:  # noqa: BLE001  a contender that failed is shown as failed
        runs.failures.append(Failure(contender.name, repetition, describe(error)))
        reporter.end(f"repetition {count}  {contender.name}: FAILED, {describe(error)[:300]}")
        return
    runs.done[contender.name][repetition] = measured
    clocks = ", ".join(f"{seconds:.3g} s {clock}" for clock, seconds in measured.seconds.items())
    reporter.end(f"repetition {count}  {contender.name}: {clocks}")


def _summary(runs: list[Measured]) -> dict[str, Any]:
    clocks = {clock for run in runs for clock in run.seconds}
    names = {name for run in runs for name in run.facts}
    seconds = {
        clock: Spread.of(run.seconds[clock] for run in runs if clock in run.seconds).to_dict()
        for clock in sorted(clocks)
    }
    medians = {
        name: significant(Spread.of(run.facts[name] for run in runs if name in run.facts).median)
        for name in sorted(names)
    }
    return {"seconds": seconds, **medians}
