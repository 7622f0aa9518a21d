"""The operator protocol, and the context that an operator works with.

An operator is built from a frozen spec and a `Context`, and from nothing else: no global, no wall
clock, no disk except through the context's block store. So the same object runs under a virtual
clock in a test, in a benchmark, and in a Spark task.

`push` and `poll` are generators: the results leave batch by batch while the work goes on, so that
a skewed key cannot blow up memory. A caller drains one before it calls anything else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dovetail.kernel.blocks import BlockStore
    from dovetail.kernel.memory import Budget

LEFT, RIGHT = 0, 1
SIDES = (LEFT, RIGHT)
SIDE_NAMES = ("left", "right")


class Status(Enum):
    """The result of the last `poll`."""

    IDLE = "idle"  #: nothing to do until more rows come or an input ends
    MORE = "more"  #: the fuel ran out before the work did
    DONE = "done"  #: every input has ended and every pair has been emitted


class LogicalClock:
    """Counts insertions, flushes and probes of disk blocks.

    ATS and DTS are ticks of this clock, so a run can be repeated exactly. Two rows were together
    in memory, and so were joined there, exactly when their `[ATS, DTS)` intervals overlap.
    """

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def tick(self) -> int:
        self.now += 1
        return self.now


@dataclass
class Counters:
    """Counts of an operator's work since it was made or restored; the runtime adds them up."""

    rows_in: list[int] = field(default_factory=lambda: [0, 0])
    rows_shed: int = 0  #: rows that were left out before they came in
    rows_cached: int = 0  #: rows that a cache settled
    rows_unmatched_key: int = 0  #: rows whose key can match nothing (null; NaN in a band join)
    rows_out: dict[str, int] = field(default_factory=dict)  #: by phase
    flushed_rows: int = 0
    flushed_bytes: int = 0
    blocks_written: int = 0
    blocks_read: int = 0
    bytes_read: int = 0

    def emit(self, phase: str, rows: int) -> None:
        self.rows_out[phase] = self.rows_out.get(phase, 0) + rows


@dataclass
class Context:
    """Everything an operator may touch besides its spec and its input."""

    budget: "Budget"
    store: "BlockStore"
    clock: LogicalClock = field(default_factory=LogicalClock)
    counters: Counters = field(default_factory=Counters)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.store.counters = self.counters


@dataclass(frozen=True)
class Snapshot:
    """An operator's state: small facts, and the blocks that hold its rows.

    Every block named here is already in the block store; blocks never change, so a snapshot
    shares all but the newest of them with the one before.
    """

    meta: dict[str, Any]
    blocks: "NDArray[np.void]"
    files: tuple[str, ...] = ()  #: that are needed besides those of the blocks


class Operator(Protocol):
    """The protocol of every join algorithm."""

    ctx: Context

    def push(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch in, and emit what it joins with at once. Re-opens a finished side."""

    def poll(self, fuel: int) -> Iterator[pa.RecordBatch]:
        """Do deferred work until about `fuel` rows have been read or emitted; see `status`."""

    def status(self) -> Status:
        """Whether the last `poll` left anything to do."""

    def finish(self, side: int) -> None:
        """Declare an input ended, as far as is known: a later `push` re-opens it."""

    def pending(self) -> int:
        """An estimate of the deferred work in rows; 0 exactly when there is none."""

    def snapshot(self) -> Snapshot:
        """The state as it is now. Writes new rows and blocks only."""

    def check(self) -> None:
        """Assert the operator's invariants."""
