"""What the semijoin paper says about Fig. 7, held against the times that were measured.

An observation is about the shape of lines, so each is a rule over the lines of a figure; what is
found beside it is the number that decides. Where an observation does not hold, it says why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.sites import PAPER, Algorithm, Query
from dovetail_bench.result import significant
from dovetail_bench.semi.formulas import PaperCosts
from dovetail_bench.semi.runs import Feed, Net

Lines = dict[str, list[tuple[float, float]]]  #: by algorithm, along the axis of a figure
Figures = Mapping[str, Lines]
SOURCE = tuple(a.value for a in PAPER if a.at_source)
DESTINATION = tuple(a.value for a in PAPER if not a.at_source)
CLOSE = 0.05  #: lines that are this near to each other are taken to be the same
_SEMI = ("SM-S1", "SM-S2", "SM-D1", "SM-D2")


def _values(lines: Lines, name: str) -> list[float]:
    return [y for _, y in lines[name]]


def _growth(lines: Lines, name: str) -> float:
    """The last value over the first."""
    values = _values(lines, name)
    return values[-1] / values[0]


def _apart(lines: Lines, left: str, right: str) -> float:
    """How far two lines are from each other at most, as a share."""
    pairs = zip(_values(lines, left), _values(lines, right), strict=True)
    return max(abs(a / b - 1) for a, b in pairs)


def _spread(lines: Lines, names: Sequence[str]) -> float:
    """How far each line is from being flat at most."""
    return max(max(_values(lines, n)) / min(_values(lines, n)) - 1 for n in names)


@dataclass(frozen=True)
class Observation:
    """A sentence of Sect. 5.3.1, the figures it is about, and the number that decides."""

    says: str
    groups: tuple[str, ...]
    number: Callable[[Lines], float]
    holds: Callable[[float], bool]
    worst: Callable[[Sequence[float]], float] = max
    why: str = ""  #: if it does not hold

    def told(self, figures: Figures) -> dict[str, Any] | None:
        numbers = [self.number(figures[group]) for group in self.groups if group in figures]
        if not numbers:
            return None
        number = self.worst(numbers)
        found: dict[str, Any] = {"holds": self.holds(number), "number": significant(number)}
        if not found["holds"] and self.why:
            found["why not"] = self.why
        return found


def _falls(lines: Lines) -> float:
    return max(_growth(lines, name) for name in (*SOURCE, *DESTINATION))


def _rises(lines: Lines) -> float:
    return min(_growth(lines, name) for name in (*SOURCE, *DESTINATION))


def _groups_apart(lines: Lines) -> float:
    """How much more one group grows than the other."""
    means = [sum(_growth(lines, n) for n in names) / len(names) for names in (SOURCE, DESTINATION)]
    return abs(means[0] / means[1] - 1)


def _advantage(lines: Lines) -> float:
    """How much the time of semijoins over that of simple joins grows along the axis."""

    def mean(names: Sequence[str], place: int) -> float:
        return sum(_values(lines, name)[place] for name in names) / len(names)

    first, last = (mean(_SEMI, place) / mean(("SP-S", "SP-D"), place) for place in (0, -1))
    return last / first


def _until_default(lines: Lines) -> float:
    """Growth of the semijoins at the source up to f2 = f1, over that beyond."""
    growths = []
    for name in ("SM-S1", "SM-S2"):
        values = _values(lines, name)
        middle = len(values) // 2
        growths.append((values[middle] / values[0]) / (values[-1] / values[middle]))
    return min(growths)


OBSERVATIONS = (
    Observation(
        "7(a), (b): the source group grows with the size and the rate of S2",
        ("size", "rate"),
        lambda lines: min(_growth(lines, name) for name in SOURCE),
        lambda number: number > 1.5,
        min,
    ),
    Observation(
        "7(a), (b): the destination group stays more or less the same",
        ("size", "rate"),
        lambda lines: _spread(lines, DESTINATION),
        lambda number: number < CLOSE,
    ),
    Observation(
        "7(d) to (g): both groups change to the same degree",
        ("window", "latency", "bandwidth", "interval"),
        _groups_apart,
        lambda number: number < 0.1,
    ),
    Observation(
        "all but 7(c): SP-S and SM-S2 are very close",
        ("size", "rate", "window", "latency", "bandwidth", "interval"),
        lambda lines: _apart(lines, "SM-S2", "SP-S"),
        lambda number: number < CLOSE,
    ),
    Observation(
        "all but 7(c): SP-D and SM-D1 are very close",
        ("size", "rate", "window", "latency", "bandwidth", "interval"),
        lambda lines: _apart(lines, "SM-D1", "SP-D"),
        lambda number: number < CLOSE,
        why="SM-D1 sends V2's changes in a message of their own: few bytes, but a latency in every "
        "interval. The paper's formula has that shipment, too; its text leaves it out",
    ),
    Observation(
        "7(c): the simple joins stay the same",
        ("selectivity",),
        lambda lines: _spread(lines, ("SP-S", "SP-D")),
        lambda number: number < CLOSE,
    ),
    Observation(
        "7(c): SM-S1 and SM-S2 grow until f2 = f1, then are nearly constant",
        ("selectivity",),
        _until_default,
        lambda number: number > 1.5,
    ),
    Observation(
        "7(c): SM-D1 and SM-D2 fall as f2 grows",
        ("selectivity",),
        lambda lines: max(_growth(lines, name) for name in ("SM-D1", "SM-D2")),
        lambda number: number < 0.9,
    ),
    Observation(
        "7(d): all grow with the window",
        ("window",),
        _rises,
        lambda number: number > 1 + CLOSE,
        why="at f1 = f2 every row matches in any window, so what is sent does not depend on it; "
        "what grows in the paper is the scan of a nested loop, and windows are indexed here",
    ),
    Observation("7(e): all grow with the latency", ("latency",), _rises, lambda n: n > 1 + CLOSE),
    Observation("7(f): all fall with the bandwidth", ("bandwidth",), _falls, lambda n: n < 0.5),
    Observation(
        "7(f): semijoins lose their advantage as the bandwidth grows",
        ("bandwidth",),
        _advantage,
        lambda number: number > 1 + CLOSE,
    ),
    Observation("7(g): all fall with the interval", ("interval",), _falls, lambda n: n < 1 - CLOSE),
)


def observations(figures: Figures) -> dict[str, Any]:
    """Which of them hold, with the numbers that decide, as far as they were measured."""
    told = {one.says: one.told(figures) for one in OBSERVATIONS}
    return {says: found for says, found in told.items() if found is not None}


_WHY_AT_SOURCE = (
    "SM-S1 asks for its keys in every interval, and every question has an answer. SM-S2 knows "
    "which keys the window has and asks only for those whose rows it lacks, which is next to none "
    "once they have all been asked for; rows that come later are sent unasked with M2's changes"
)
_WHY_AT_DESTINATION = (
    "SM-D2 sends three messages in an interval, one after the other: keys, those found, rows. "
    "SM-D1 sends two, rows and V2's changes, and the latter are short: a count for each key"
)


@dataclass(frozen=True)
class Verdicts:
    """What was measured at one point, and what is needed to ask the formulas."""

    label: str
    query: Query
    feeds: Mapping[str, Feed]
    net: Net
    seconds: Mapping[Algorithm, float]

    def measured(self, one: Algorithm, two: Algorithm) -> float:
        """The time of two steps over that of one."""
        return self.seconds[two] / self.seconds[one]

    def by_formula(self, one: Algorithm, two: Algorithm, *, empty_ships: bool) -> float:
        costs = PaperCosts(self.query, self.feeds, self.net, empty_ships=empty_ships)
        first, second = self.query.names
        times = [costs.step((first,), first, second, a).time for a in (two, one)]
        return times[0] / times[1]


def verdicts(points: Sequence[Verdicts]) -> dict[str, Any]:
    """One step against two: the text's trend, its explanation, the formulas, and what was measured.

    The trend: SM-S1 is cheaper than SM-S2, SM-D2 cheaper than SM-D1. The explanation, two sentences
    later: SM-S1 and SM-D2 ship more than SM-S2 and SM-D1. What is right is what was measured at
    most points.
    """
    told: dict[str, Any] = {}
    for one, two, trend, why in (
        (Algorithm.SM_S1, Algorithm.SM_S2, "SM-S1", _WHY_AT_SOURCE),
        (Algorithm.SM_D1, Algorithm.SM_D2, "SM-D2", _WHY_AT_DESTINATION),
    ):
        measured = {point.label: point.measured(one, two) for point in points}
        printed, skipped = (
            [point.by_formula(one, two, empty_ships=ships) for point in points]
            for ships in (True, False)
        )
        explained = str(two if trend == one.value else one)
        cheaper = sum(ratio < 1 for ratio in measured.values())
        by_most = str(two if cheaper > len(points) / 2 else one)
        told[f"{two} over {one}"] = {
            "cheaper by the text's trend": trend,
            "cheaper by its explanation": explained,
            "which is right": "its explanation" if by_most == explained else "its trend",
            **({"why": why} if by_most == explained else {}),
            "points at which two steps are cheaper, measured": cheaper,
            "by the formulas": sum(ratio < 1 for ratio in printed),
            "by the formulas, without empty shipments": sum(ratio < 1 for ratio in skipped),
            "of": len(points),
            "measured": {label: significant(ratio) for label, ratio in measured.items()},
        }
    return told
