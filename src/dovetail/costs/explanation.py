"""The `Explanation` of a plan: its words, and the numbers in them as fields.

`Planned` has what there is to know of any job, and the words that all jobs share.
"""

import datetime as dt
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dovetail.costs.widths import RowWidth, columns_of
from dovetail.kernel.memory import format_bytes

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

    def __str__(self) -> str:
        text: list[str] = []
        for title, lines in self.sections:
            text.append(title)
            for line in lines:
                text += _WRAPPER.wrap(line)
        return "\n".join(text)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A job as it would run, and how its settings came about."""

    algorithm: str
    asked_algorithm: str
    memory_bytes: int | None
    partitions: int
    asked_partitions: int | None
    streaming: bool
    batch_rows: int = 10_000  #: that Spark hands over in one Arrow batch, at most
    memory_words: str = ""  #: how the budget came about, if it was not asked for
    state: Path | None = None
    state_note: str = ""

    @property
    def memory(self) -> MemoryShare:
        return MemoryShare(self.memory_bytes, self.partitions, self.memory_words)

    def explained(
        self,
        sections: Sequence[tuple[str, Sequence[str]]],
        reasons: Sequence[str],
        predictions: "Sequence[Prediction | Expected | Cost]",
        wait_seconds: float | None = None,
    ) -> Explanation:
        """The explanation that has these sections."""
        return Explanation(
            self.algorithm,
            tuple(predictions),
            self.memory,
            None if wait_seconds is None else dt.timedelta(seconds=wait_seconds),
            tuple(reasons),
            tuple((title, tuple(lines)) for title, lines in sections),
        )

    def partition_words(self, at_most: str = "") -> str:
        """How many partitions there are, and why."""
        why = "as asked" if self.asked_partitions else "the parallelism of the Spark session"
        fixed = "; fixed for the life of the state directory" if self.streaming else ""
        return f"{self.partitions}{at_most}, {why}{fixed}"

    def budget_lines(self, relation: str = "") -> list[str]:
        """The budget, and one partition's share of it; there has to be one."""
        assert self.memory_bytes is not None
        share = format_bytes(self.memory_bytes // self.partitions)
        return [
            *([self.memory_words] if self.memory_words else []),
            f"{format_bytes(self.memory_bytes)} in all{relation}, {share} for each partition",
        ]

    def batch_lines(self, widths: Sequence[RowWidth], room: int) -> list[str]:
        """An input batch, of which at most half of the room counts as memory of the join."""
        batch = self.batch_bytes(widths)
        limit = f"an input batch has up to {self.batch_rows:,} rows ({format_bytes(batch)})"
        lines = [f"{limit}: spark.sql.execution.arrow.maxRecordsPerBatch"]
        if batch > room // 2:
            beyond = f"{format_bytes(batch - room // 2)} of it come on top of memory"
            lines.append(
                f"{beyond}, while it is taken in: spark.sql.execution.arrow.maxBytesPerBatch "
                "bounds them"
            )
        return lines

    def batch_bytes(self, widths: Sequence[RowWidth]) -> int:
        """The bytes of the largest input batch."""
        return int(max(width.nbytes for width in widths) * self.batch_rows)

    def state_lines(self) -> list[str]:
        """The state directory of a join, and the note on it."""
        if not self.streaming:
            return ["none: a batch join keeps nothing"]
        return [*([str(self.state)] if self.state else []), self.state_note]


def input_lines(
    names: Sequence[str], schemas: Sequence[pa.Schema], widths: Sequence[RowWidth]
) -> list[str]:
    """The columns of each input, and how wide its rows are."""
    lines = []
    for name, schema, width in zip(names, schemas, widths, strict=True):
        lines.append(f"{name}: {columns_of(schema)}")
        lines.append(f"  about {width.nbytes:.0f} bytes a row, {width.source}")
    return lines


def about(number: float) -> str:
    """To three digits: more would promise too much."""
    return f"{int(float(f'{number:.3g}')):,}"
