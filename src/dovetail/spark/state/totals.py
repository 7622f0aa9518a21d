"""Totals of a partition since its state was new: part of each manifest, and so exact."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Counters

_COUNTED = (
    "rows_shed", "rows_cached", "rows_unmatched_key", "flushed_rows", "flushed_bytes", "bytes_read",
)  # fmt: skip
_WAIT = "longest_wait"  # as it is called on disk


@dataclass(frozen=True)
class Totals:
    """Sums over all steps, and the largest of what cannot be added up."""

    rows_in: tuple[int, ...] = (0, 0)  #: copies among them
    copies: tuple[int, ...] = (0, 0)  #: rows that count in another partition
    rows_shed: int = 0
    longest_wait_s: float = 0.0
    rows_out: Mapping[str, int] = field(default_factory=dict)  #: by phase
    rows_cached: int = 0
    rows_unmatched_key: int = 0
    flushed_rows: int = 0
    flushed_bytes: int = 0
    bytes_read: int = 0
    steps: int = 0
    seconds: float = 0.0
    join_seconds: float = 0.0  #: of these, spent in the operator
    memory_peak: Mapping[str, int] = field(default_factory=dict)  #: by component

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """From what `facts` gave, or an earlier version of it, which knew of fewer."""
        known = {one.name: facts[one.name] for one in fields(cls) if one.name in facts}
        known["longest_wait_s"] = facts.get(_WAIT, 0.0)
        known["rows_in"], known["copies"] = tuple(facts["rows_in"]), tuple(facts.get("copies", ()))
        return cls(**known)

    def facts(self) -> dict[str, Any]:
        """JSON, as it is on disk."""
        facts = asdict(self)
        facts[_WAIT] = facts.pop("longest_wait_s")
        return facts

    @property
    def own_rows(self) -> list[int]:
        """Rows of each input that count in no other partition."""
        return added(self.rows_in, [-copies for copies in self.copies])

    def after(
        self,
        counters: Counters,
        budget: Budget,
        seconds: float,
        join_seconds: float = 0.0,
        copies: Sequence[int] = (),
        wait_s: float = 0.0,
    ) -> Self:
        """With one more step, in which the longest wait that ended was `wait_s`."""
        peaks = dict(self.memory_peak)
        for component, nbytes in {**budget.peaks, "total": budget.peak_bytes}.items():
            peaks[component] = max(peaks.get(component, 0), nbytes)
        return type(self)(
            rows_in=tuple(added(self.rows_in, counters.rows_in)),
            copies=tuple(added(self.copies, copies)),
            longest_wait_s=max(self.longest_wait_s, wait_s),
            rows_out=summed([self.rows_out, counters.rows_out]),
            steps=self.steps + 1,
            seconds=self.seconds + seconds,
            join_seconds=self.join_seconds + join_seconds,
            memory_peak=peaks,
            **{name: getattr(self, name) + getattr(counters, name) for name in _COUNTED},
        )


def added(*rows: Sequence[int]) -> list[int]:
    """Sums by input; a shorter one counts as 0 for inputs that it has not seen yet."""
    return [sum(some) for some in itertools.zip_longest(*rows, fillvalue=0)]


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums by name."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def own_rows(record: Mapping[str, Any]) -> list[int]:
    """Rows of each input without copies, of a step's record; older ones do not tell apart."""
    return added(record["rows_in"], [-copies for copies in record.get("copies", ())])
