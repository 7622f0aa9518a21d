"""The course of a step: rows into the operator, deferred work, results to the outbox.

While rows come, a step only joins them. A step that was woken by a tick and got no row works on
what was deferred for a slice of time, which doubles with every silent step, so that new rows do not
wait for long and a long silence is used well. Inputs that are silent for long count as ended until
their next row (`endings` has both), or if nothing else is left to do: Cleanup does in one go what
the Reactive phase would do piece by piece.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dovetail.costs.tuned import Tuned
from dovetail.kernel.protocol import Operator, Status
from dovetail.semistream.overload import Load, Waits
from dovetail.spark.endings import HandoffEstimate, Silence
from dovetail.spark.layout import UnionLayout, are_last_rows
from dovetail.spark.state import Manifest, Outbox, PartitionState, SealedShed
from dovetail.specs import JobSpec

FUEL = 1 << 14  #: rows between two looks at the clock

Batches = Iterator[pa.RecordBatch]

handoff = HandoffEstimate()  #: of this process


@dataclass(frozen=True)
class Loaded:
    """An operator, and what is open for it besides its block store."""

    operator: Operator
    resources: contextlib.ExitStack  #: to close when the operator is used no more


@dataclass(frozen=True)
class Leg:
    """The inputs of a step's course: its partition, the parent version, its outbox, the clock."""

    state: PartitionState
    parent: Manifest | None
    attempt: str
    outbox: Outbox
    now: Callable[[], float]  #: of a clock that all workers have
    began: float  #: by that clock


@dataclass(frozen=True)
class Told:
    """The facts of a step that only some jobs have, for its manifest and its record."""

    tuned: Tuned | None = None
    load: Load | None = None
    waits: Waits | None = None
    shed: SealedShed | None = None
    wait_s: float = 0.0  #: the longest that ended in this step
    record: Mapping[str, Any] = field(default_factory=dict)


class Course:
    """One step of an operator; `close` ends it, also after a failure."""

    def __init__(self, spec: JobSpec, leg: Leg, loaded: Loaded) -> None:
        inputs = len(spec.inputs)
        self.spec = spec
        self.leg = leg
        self.loaded = loaded
        self.rows = [0] * inputs  #: that came
        self.copies = [0] * inputs  #: of these, which count in another partition
        self.join_seconds = 0.0  #: of the operator alone
        self.last_rows = False  #: the query ends with the rows that it has

    @property
    def operator(self) -> Operator:
        return self.loaded.operator

    def take(self, batches: Batches, layout: UnionLayout) -> None:
        """Take the rows of all inputs in."""
        for batch in batches:
            self.last_rows |= are_last_rows(batch)
            for side, copies, rows in layout.split(batch, self.spec.inputs):
                self.rows[side] += rows.num_rows
                self.copies[side] += copies
                self.push(side, rows)

    def push(self, side: int, rows: pa.RecordBatch) -> None:
        """Join a batch of rows of one input."""
        self.put(self.operator.push(side, rows))

    def defer(self, silence: Silence) -> None:
        """Deferred work, if no rows came."""
        slice_ms = self.spec.slice_ms
        if silence.steps:
            if silence.ends_all(slice_ms, last_rows=self.last_rows):
                self.finish()
            self.work_off(silence.slice_ms(slice_ms))

    def work_off(self, slice_ms: int) -> None:
        """Deferred work, for about this long."""
        deadline = time.monotonic() + slice_ms / 1000
        while not self.is_over(deadline):
            self.put(self.operator.poll(FUEL))
            if self.operator.status() is Status.IDLE:
                self.finish()
            if self.operator.status() is Status.DONE:
                return

    def is_over(self, deadline: float) -> bool:
        """Whether the time is up, with what it takes to hand the results over."""
        return time.monotonic() + handoff.seconds(self.leg.outbox.nbytes) >= deadline

    def finish(self) -> None:
        """Declare all inputs ended, as far as is known."""
        for side in range(len(self.spec.inputs)):
            self.operator.finish(side)

    def seal(self, seconds: float) -> Told:
        """End a step that was busy for so many seconds, and return the job's own facts."""
        return Told()

    def close(self) -> None:
        """Close the files that are open; the operator may be used again."""
        self.operator.ctx.store.close()

    def put(self, results: Batches) -> None:
        """Have an operator's results in the outbox, and note how long it takes for them."""
        while True:
            started = time.perf_counter()
            out = next(results, None)
            self.join_seconds += time.perf_counter() - started
            if out is None:
                return
            self.leg.outbox.put(out)
