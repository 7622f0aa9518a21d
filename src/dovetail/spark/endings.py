"""Ends of inputs, told by silence, and the time slices of deferred work.

A stream never says that it ends, so an input counts as ended after a silence.

All inputs end after some steps without any row, which by then are long (`ends_all`). For an
`availableNow` query all rows are in sight, so one step without rows is enough.

One input ends while others go on: DINER then keeps its memory for the ended input and flushes the
others (footnote 1 of its paper). An input has fallen silent if it brought no row in `SILENT_STEPS`
steps with rows of the others, and these were an eighth of all rows up to then. However often that
is wrong, it costs no more than a few times the cost of taking the rows in.

An input that counts as ended is re-opened by its next row, so a mistake costs time, not results.

Slices. Deferred work is done in slices of time, which double with every silent step. Rows that come
meanwhile wait until the micro-batch is over, so the time for handing the results to Spark counts,
too: work ends when the handoff would use up the rest of the slice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

MAX_SLICE_MS = 2000  #: the longest micro-batch of deferred work
WORK_MS = 1500  #: of which the work and its results may take so long; the rest is Spark's
SILENT_STEPS = 4
SILENT_SHARE = 1 / 8
_MANY_BYTES = 1 << 20


@dataclass(frozen=True)
class Silence:
    """The silence of a partition's inputs after a step: counts of steps without rows."""

    steps: int = 0  #: in a row, without any row
    #: of each, the steps since its last row, and the rows of the others in them
    unheard: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """From what `facts` gave, or an earlier version of it, which knew of no single inputs."""
        return cls(facts["silent"], tuple((s, r) for s, r in facts.get("unheard", ())))

    def facts(self) -> dict[str, Any]:
        """JSON, as a manifest has it."""
        return {"silent": self.steps, "unheard": [list(pair) for pair in self.unheard]}

    def among(self, inputs: int) -> Self:
        """With as many inputs, all of them heard of just now if nothing is known of them."""
        return replace(self, unheard=self.unheard or ((0, 0),) * inputs)

    def then(self, rows: Sequence[int]) -> Self:
        """After one more step, with so many rows of each input."""
        came = sum(rows)
        if not came:
            return replace(self, steps=self.steps + 1)
        unheard = [
            (0, 0) if mine else (steps + 1, others + came)
            for (steps, others), mine in zip(self.unheard, rows, strict=True)
        ]
        return replace(self, steps=0, unheard=tuple(unheard))

    def fallen_silent(self, rows_so_far: int) -> list[int]:
        """The inputs that count as ended although others go on."""
        return [
            number
            for number, (steps, rows) in enumerate(self.unheard)
            if steps >= SILENT_STEPS and rows >= SILENT_SHARE * rows_so_far
        ]

    def slice_ms(self, first_ms: int) -> int:
        """The time slice of deferred work: twice as long with every silent step."""
        return min(first_ms << min(self.steps - 1, 16), WORK_MS)

    def ends_all(self, first_ms: int, *, last_rows: bool) -> bool:
        """Whether all inputs count as ended; `last_rows`: of a query that ends with its rows."""
        return (last_rows and self.steps > 1) or self.slice_ms(first_ms) >= MAX_SLICE_MS // 2


class HandoffEstimate:
    """Estimates the time from the end of a step's work until Spark has the results."""

    def __init__(self) -> None:
        self._seconds_per_byte = 0.0

    def note(self, nbytes: int, seconds: float) -> None:
        """After a step; small outputs are ignored, as they are too noisy."""
        if nbytes >= _MANY_BYTES:
            self._seconds_per_byte = seconds / nbytes

    def seconds(self, nbytes: int) -> float:
        """About how long so many bytes of results would take."""
        return nbytes * self._seconds_per_byte
