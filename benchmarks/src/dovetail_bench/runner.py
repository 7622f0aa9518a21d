"""One way through a figure: every setting or point, in every repetition, and what goes wrong kept.

`side_by_side` is for what is timed, by wall or virtual clock: the contenders of a setting run
interleaved (see `measure`). `over_points` is for what is only counted: each point is measured as
often as its group is to be repeated, here or by as many processes as there are cores.
"""

import multiprocessing
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from dovetail_bench.machine import available_cores
from dovetail_bench.measure import Contender, Measured, Runs, interleaved
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config, describe
from dovetail_bench.result import Failure, Result, Spread

Setting = TypeVar("Setting")
Point = TypeVar("Point", bound=Hashable)
Outcome = TypeVar("Outcome")


def numbered(name: str, measure: Callable[[int], Measured]) -> Contender:
    """A contender that is told the number of its run, from 1: for another stream each time."""
    number = 0

    def run() -> Measured:
        nonlocal number
        number += 1
        return measure(number)

    return Contender(name, run)


def side_by_side(
    settings: Iterable[Setting],
    contenders: Callable[[Setting], Sequence[Contender]],
    repetitions: int,
    reporter: Reporter,
) -> Runs:
    """The contenders of one setting after the other, in all repetitions."""
    runs = Runs()
    for setting in settings:
        runs.take(interleaved(contenders(setting), repetitions, reporter))
    return runs


@dataclass
class Found(Generic[Point, Outcome]):
    """What was found at each point that was wanted, by repetition, and what failed."""

    at: dict[Point, list[Outcome]]
    failures: list[Failure] = field(default_factory=list)

    def result(self, name: str, ratios: dict[str, Spread], facts: dict[str, Any]) -> Result:
        return Result(name, ratios, facts, tuple(self.failures))


@dataclass(frozen=True)
class Points(Generic[Point]):
    """The points of a figure."""

    every: Sequence[Point]
    label: Callable[[Point], str] = str
    #: the group that asks for a point and says how often it is measured; None is asked for always
    group: Callable[[Point], str | None] | None = None
    times: Callable[[Point], int] | None = None  #: how often, if a group does not say that

    def wanted(self, config: Config) -> list[Point]:
        return [one for one in self.every if (of := self._group(one)) is None or config.wants(of)]

    def repetitions(self, point: Point, config: Config) -> int:
        if self.times is not None:
            return self.times(point)
        group = self._group(point)
        return config.repetitions if group is None else config.repetitions_of(group)

    def _group(self, point: Point) -> str | None:
        return (self.group or self.label)(point)


def over_points(
    points: Points[Point],
    once: Callable[[Point, int], Outcome],
    config: Config,
    reporter: Reporter,
    *,
    tell: Callable[[Outcome], str] | None = None,
    processes: bool = False,
) -> Found[Point, Outcome]:
    """What `once` finds at every wanted point, in every repetition; numbers count from 1.

    tell: an outcome in a line, for those who watch.
    processes: share the work among the cores; `once` and the points have to be picklable.
    """
    wanted = points.wanted(config)
    jobs = [(p, n) for p in wanted for n in range(1, points.repetitions(p, config) + 1)]
    reporter.plan(len(jobs))
    done: dict[tuple[Point, int], Outcome] = {}
    failures = []
    for (point, number), attempt in _attempts(jobs, once, reporter, points.label, processes):
        what = f"{points.label(point)}, repetition {number}"
        try:
            outcome = done[point, number] = attempt()
        except Exception as error:  # noqa: BLE001  a run that failed is shown as failed
            failures.append(Failure(points.label(point), number, describe(error)))
            reporter.end(f"{what}: FAILED, {describe(error)[:300]}")
        else:
            reporter.end(f"{what}: {tell(outcome)}" if tell else what)
    # in order, also if other processes finished in another one
    at = {one: [done[job] for job in jobs if job[0] == one and job in done] for one in wanted}
    return Found(at, failures)


def _attempts(
    jobs: Sequence[tuple[Point, int]],
    once: Callable[[Point, int], Outcome],
    reporter: Reporter,
    label: Callable[[Point], str],
    processes: bool,
) -> Iterator[tuple[tuple[Point, int], Callable[[], Outcome]]]:
    """Each job, and what gives its outcome or raises its error: done then, or by now."""
    workers = min(len(jobs), available_cores()) if processes else 1
    if workers < 2:
        for point, number in jobs:
            reporter.begin(f"{label(point)}, repetition {number}")
            yield (point, number), partial(once, point, number)
        return
    spawning = multiprocessing.get_context("spawn")  # forking would copy the threads of Arrow
    with ProcessPoolExecutor(workers, mp_context=spawning) as pool:
        todo = {pool.submit(once, *job): job for job in jobs}
        for future in as_completed(todo):
            yield todo[future], future.result
