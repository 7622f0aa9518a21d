"""The `Explanation` of a plan: its words, and the numbers in them as fields."""

import datetime as dt
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from dovetail.costs.cascade import Cost
    from dovetail.costs.expected import Expected
    from dovetail.costs.predictions import Prediction

_WIDTH = 96  # of a line of text
# a path is never broken, so that it can be copied
_WRAPPER = textwrap.TextWrapper(
    _WIDTH, initial_indent="  ", subsequent_indent="    ",
    break_long_words=False, break_on_hyphens=False,
)  # fmt: skip


@dataclass(frozen=True)
class MemoryShare:
    """The memory budget of a job."""

    total_bytes: int | None  #: over all partitions; None is unbounded
    partitions: int
    words: str = ""  #: how it came about, if it was not asked for

    @property
    def partition_bytes(self) -> int | None:
        """The budget of each partition."""
        return None if self.total_bytes is None else self.total_bytes // self.partitions


@dataclass(frozen=True)
class Explanation:
    """A plan in words: `print` it. Its fields are for programs."""

    algorithm: str  #: that is used
    #: of an enrichment one for each algorithm; of a join what its sample lets expect; of `join_all`
    #: the cost of the one operator, then that of the best cascade; empty if nothing is predicted
    predictions: "tuple[Prediction | Expected | Cost, ...]"
    memory: MemoryShare
    wait: dt.timedelta | None  #: the longest that a row is predicted to wait; None if it is not
    reasons: tuple[str, ...]  #: why it is this algorithm
    sections: tuple[tuple[str, tuple[str, ...]], ...]  #: titled lines

    @classmethod
    def of(
        cls,
        sections: Iterable[tuple[str, Sequence[str]]],
        *,
        algorithm: str,
        predictions: "Sequence[Prediction | Expected | Cost]",
        memory: MemoryShare,
        reasons: Sequence[str],
        wait_seconds: float | None = None,
    ) -> Self:
        """From what was worked out of it."""
        return cls(
            algorithm,
            tuple(predictions),
            memory,
            None if wait_seconds is None else dt.timedelta(seconds=wait_seconds),
            tuple(reasons),
            tuple((title, tuple(lines)) for title, lines in sections),
        )

    def __str__(self) -> str:
        text: list[str] = []
        for title, lines in self.sections:
            text.append(title)
            for line in lines:
                text += _WRAPPER.wrap(line)
        return "\n".join(text)
