"""Records of every step, and the progress that is read from them.

A step appends one line of JSON to its partition's `metrics.jsonl`. Totals are not added up from
these lines: they are part of each manifest, and so as exact as the results are.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.costs.choice import Recorded
from dovetail.errors import StateMissingError
from dovetail.kernel.memory import format_bytes
from dovetail.spark.state.chosen import read_chosen
from dovetail.spark.state.identity import IDENTITY, read_identity
from dovetail.spark.state.staged import CURRENT, TABLES
from dovetail.spark.state.totals import Totals, added, summed
from dovetail.spark.state.versions import PartitionState
from dovetail.specs import state_path

FILE = "metrics.jsonl"
_MAX_BYTES = 1 << 20


def append_record(directory: Path, record: dict[str, Any]) -> None:
    """Add a line; failing to is no reason to fail the step."""
    path = directory / FILE
    with contextlib.suppress(OSError):
        if path.exists() and path.stat().st_size > _MAX_BYTES:
            path.replace(directory / f"{FILE}.1")
        with path.open("a") as handle:
            handle.write(json.dumps({"time": time.time(), **record}) + "\n")


@dataclass(frozen=True)
class PartitionProgress:
    """One partition as of its newest version."""

    partition: int
    version: int
    pending_rows: int
    phase: str
    totals: Totals

    @property
    def rows_in(self) -> list[int]:
        """Rows taken in from each input that count in no other partition."""
        return self.totals.own_rows


@dataclass(frozen=True)
class Cost:
    """Costs of a join of a stream with a table, predicted or measured."""

    rate: float  #: stream rows a second that all partitions together can take, at most
    wait_seconds: float  #: from a row's arrival to its last result, at most
    bytes_per_row: float  #: read of the staged table, besides the rows that matched


@dataclass(frozen=True)
class Progress:
    """A join as of its newest committed versions; `dovetail.progress(state)` makes one."""

    state: Path
    identity: dict[str, Any]
    budget_bytes: int | None
    partitions: list[PartitionProgress] = field(default_factory=list)
    chosen: Recorded | None = None  #: of an enrichment: how its algorithm came about

    @property
    def version(self) -> int:
        """The newest batch that any partition has committed; -1 before the first."""
        return max((part.version for part in self.partitions), default=-1)

    @property
    def rows_in(self) -> tuple[int, ...]:
        """Rows taken in from each input, those with a null key left out; `copies` do not count."""
        return tuple(added([0, 0], *(part.rows_in for part in self.partitions)))

    @property
    def copies(self) -> tuple[int, ...]:
        """Copies of each input's rows to further partitions (`join_all`, and bands)."""
        return tuple(added([0, 0], *(part.totals.copies for part in self.partitions)))

    @property
    def rows_shed(self) -> int:
        """Rows left out because the stream outran the join; `rows_in` does not have them."""
        return sum(part.totals.rows_shed for part in self.partitions)

    @property
    def longest_wait_s(self) -> float:
        """Seconds from the start of the step that took a row in until it was settled, at most.

        Measured for the rows of a stream that are looked up in a table; else 0.
        """
        return max((p.totals.longest_wait_s for p in self.partitions), default=0.0)

    @property
    def rows_cached(self) -> int:
        """Stream rows that a cache of the table settled as they came."""
        return sum(part.totals.rows_cached for part in self.partitions)

    @property
    def predicted(self) -> Cost | None:
        """The costs predicted when the state was new; None if there was no prediction.

        For the join alone: Spark's own time is not part of it.
        """
        told = None if self.chosen is None else self.chosen.choice.predicted
        if told is None or not told.rate:
            return None
        return Cost(told.rate, told.wait_seconds, told.scanned_per_row)

    @property
    def measured(self) -> Cost | None:
        """The costs measured so far; None for two streams, and before the first row.

        The rate is that of the time spent joining; the wait is `longest_wait_s`, so it has Spark's
        own time in it.
        """
        rows = self.rows_in[0]
        seconds = sum(p.totals.join_seconds for p in self.partitions)
        if self.chosen is None or not (rows and seconds):
            return None
        read = sum(part.totals.bytes_read for part in self.partitions)
        rate = rows / seconds * self.chosen.at_once
        return Cost(rate, self.longest_wait_s, read / rows)

    @property
    def rows_out(self) -> dict[str, int]:
        """Results by the phase that produced them."""
        return summed(part.totals.rows_out for part in self.partitions)

    @property
    def pending_rows(self) -> int:
        """The deferred work, in rows still to be read; 0 exactly when nothing is left."""
        return sum(part.pending_rows for part in self.partitions)

    @property
    def spilled_bytes(self) -> int:
        return sum(part.totals.flushed_bytes for part in self.partitions)

    @property
    def memory(self) -> dict[str, int]:
        """The largest use of each component, summed over the partitions."""
        return summed(part.totals.memory_peak for part in self.partitions)

    def records(self) -> Iterator[dict[str, Any]]:
        """The recent steps of all partitions, oldest first."""
        lines: list[dict[str, Any]] = []
        for part in self.partitions:
            path = PartitionState(self.state, part.partition).directory / FILE
            with contextlib.suppress(FileNotFoundError):
                for line in path.read_text().splitlines():
                    with contextlib.suppress(ValueError):  # the last one may be half written
                        lines.append(json.loads(line))
        yield from sorted(lines, key=lambda record: float(record["time"]))

    def __str__(self) -> str:
        enriches = self.identity["job"] == "enrich"
        came = " + ".join(f"{rows:,}" for rows in self.rows_in[: 1 if enriches else None])
        early = self.rows_out.get("arriving", 0)
        out = f"{sum(self.rows_out.values()):,} out"
        out += f" ({early:,} of them as rows came in)" if early else ""
        limit = "unbounded" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        shed = f"{self.rows_shed:,} left out, " if self.rows_shed else ""
        cached = f"{self.rows_cached:,} of them cached, " if self.rows_cached else ""
        return (
            f"{self.identity['algorithm']} after batch {self.version}: "
            f"{came} rows in, {cached}{shed}"
            f"{out}, {self.pending_rows:,} rows pending, "
            f"{format_bytes(self.memory.get('total', 0))} of {limit} used at most, "
            f"{format_bytes(self.spilled_bytes)} spilled"
        )


def progress(state: str | Path) -> Progress:
    """The progress of a join so far, from its state directory; needs no running query.

    A directory that is not there or not Dovetail's is a `StateMissingError`, as is one whose query
    has not taken in a row yet.
    """
    root = state_path(state)
    check_begun(root)
    identity = read_identity(root)
    partitions = []
    budget: int | None = None
    for number in range(int(identity["partitions"])):
        part = PartitionState(root, number)
        manifest = part.newest(part.read)
        if manifest is None:
            continue
        budget = manifest.budget_bytes
        facts = manifest.version, manifest.pending, manifest.phase, manifest.totals
        partitions.append(PartitionProgress(number, *facts))
    chosen = read_chosen(root) if identity.get("job") == "enrich" else None
    return Progress(root, identity, budget, partitions, chosen)


def check_begun(root: Path) -> None:
    """Tell a state whose query has yet to begin from a directory that is no state at all."""
    if (root / IDENTITY).exists():
        return
    staged = (root / TABLES / CURRENT).exists()
    used = any(root.glob("p*/v*"))  # of which the identity was lost
    if not used and (staged or any(root.glob("p*/latest"))):
        raise StateMissingError(
            f"the query of {root} has not run yet: its state is prepared, but no micro-batch has "
            "brought it a row. Start the query, or wait for its first rows."
        )


__all__ = ["IDENTITY", "Cost", "PartitionProgress", "Progress", "progress"]
