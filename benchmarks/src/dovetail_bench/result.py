"""What a benchmark found, and its JSON form.

A ratio is always written so that above 1 is good for Dovetail: the rival's time, memory or bytes
over ours, or our rate over the rival's. Its label is `rival/setting`. A ratio that could not be
measured stays in the result, with n = 0 and no numbers; what went wrong is under `failures`, and
`ok` is false.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import ArgumentError


@dataclass(frozen=True)
class Spread:
    """The middle and the ends of some measurements; None for all three when there are none."""

    median: float | None
    min: float | None
    max: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        found = list(values)
        if not found:
            return cls(None, None, None, 0)
        return cls(statistics.median(found), min(found), max(found), len(found))

    def to_dict(self) -> dict[str, float | int | None]:
        return {
            "median": significant(self.median),
            "min": significant(self.min),
            "max": significant(self.max),
            "n": self.n,
        }


@dataclass(frozen=True)
class Failure:
    """A run that did not come to its end, or came to a wrong one."""

    contender: str
    repetition: int | None  #: counted from 1; None when it was no repetition of anything
    error: str

    def to_dict(self) -> dict[str, Any]:
        return {"contender": self.contender, "repetition": self.repetition, "error": self.error}


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome. `machine`, `command` and `seed` are filled in by `registry.run`."""

    name: str
    ratios: Mapping[str, Spread] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    seed: int = 0

    @property
    def ok(self) -> bool:
        """Whether every run came to its end with the right result; says nothing of speed."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "ratios": {label: spread.to_dict() for label, spread in self.ratios.items()},
            "facts": dict(self.facts),
            "machine": dict(self.machine),
            "command": self.command,
            "seed": self.seed,
            "failures": [failure.to_dict() for failure in self.failures],
        }

    def to_json(self) -> str:
        # a NaN would make it something other than JSON: better to fail here than in a reader
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, origin: str) -> "Result":
        """A saved result; `origin` names it in the complaint about one that is damaged."""
        try:
            saved = json.loads(text)
            return cls(
                name=saved["name"],
                ratios={label: Spread(**found) for label, found in saved["ratios"].items()},
                facts=saved["facts"],
                failures=tuple(Failure(**failure) for failure in saved["failures"]),
                machine=saved["machine"],
                command=saved["command"],
                seed=saved["seed"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"{origin} is not a saved benchmark result ({error!r}); run the benchmark again, "
                "or delete the file"
            ) from error


def goal(wanted: float, reached: float | None, *, at_most: bool = False) -> dict[str, Any]:
    """How a number stands to what was aimed at, an entry of `facts["goals"]`."""
    met = reached is not None and (reached <= wanted if at_most else reached >= wanted)
    return {"goal": wanted, "reached": significant(reached), "met": met}


def goals(
    ratios: Mapping[str, Spread], wanted: Mapping[str, tuple[float, tuple[str, ...]]]
) -> dict[str, dict[str, Any]]:
    """How the ratios stand to what was aimed at, for `facts["goals"]`.

    A goal is a number and the labels of which the best has to reach it.
    """
    found = {}
    for name, (aim, labels) in wanted.items():
        medians = [ratios[label].median for label in labels if label in ratios]
        found[name] = goal(aim, max((one for one in medians if one is not None), default=None))
    return found


def significant(value: float | None, digits: int = 4) -> float | None:
    """As many digits as a measurement can bear."""
    return None if value is None else float(f"{value:.{digits}g}")
