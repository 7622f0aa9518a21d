"""A step of an enrichment that may be outrun: rates, rows left out, waits, and the pace of scans.

`Overload` accompanies one step. What it learns goes into the step's manifest, and the next step
begins from there; so all of it is as the winning attempt left it (see `state`). The rules are those
of `semistream.overload`; here they meet the clock, the operator and the outboxes.

Memory. A batch that is shed from is held beside the rows that are kept of it, with some words for
each row; that is reserved as "shedding", and the operator gives way to it as it does to input.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import Context, Operator
from dovetail.semistream import SemiStreamJoin
from dovetail.semistream.frequencies import Worth, learn_frequencies
from dovetail.semistream.meshjoin import MeshJoin
from dovetail.semistream.overload import Load, Rates, Shedding, Waits
from dovetail.semistream.shedding import SHEDDERS, WEIGHING, Frequencies
from dovetail.semistream.spec import STREAM
from dovetail.spark.state import Manifest, Outbox, PartitionState, SealedShed
from dovetail.specs import EnrichSpec, JobSpec

_WORDS_BYTES = 64  # of a row that is decided on: its code, its worth, its place, and their order

Emit = Callable[[pa.RecordBatch], None]


class Watch:
    """Watches over a step that cannot be outrun: takes every row, and has nothing to say."""

    wait: float | None = None  #: the longest that ended in this step

    def begin(self, operator: Operator) -> None:
        """Before rows are pushed."""

    def drained(self, now: float) -> None:
        """An operator has finished all its rows, to be replaced."""

    @contextmanager
    def admitted(
        self, operator: Operator, rows: pa.RecordBatch, emit: Emit
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a batch that are kept, for as long as they are being pushed."""
        yield rows

    def slice_ms(self, slice_ms: int) -> int:
        """How long a step may work on what was deferred, when nothing else is said."""
        return slice_ms

    def on_pace(self, operator: Operator) -> bool:
        """Whether a step may end, as far as the rows that wait are concerned."""
        return True

    def seal(self, operator: Operator, busy: float, now: float) -> dict[str, Any]:
        """What the manifest says of all this; makes the rows left out durable."""
        return {}

    def close(self) -> None:
        """Close what is open, also after a failure."""

    def record(self, context: Context, now: float) -> dict[str, Any]:
        """What the record of the step says of it."""
        return {}


def watch_over(
    spec: JobSpec, state: PartitionState, parent: Manifest | None, attempt: str, started: float
) -> Watch:
    """What goes with a step of this job."""
    if isinstance(spec, EnrichSpec):
        return Overload(spec, state, parent, attempt, started)
    return Watch()


class Overload(Watch):
    """One step's part in it."""

    def __init__(
        self, spec: EnrichSpec, state: PartitionState, parent: Manifest | None, attempt: str,
        started: float,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.started = started
        self.load = (parent and parent.load) or Load()
        self.waits = (parent and parent.waits) or Waits()
        self._pending = parent.pending if parent else 0
        self._version = parent.version if parent else -1
        self._partition = state.partition
        self._box: Outbox | None = None
        self.rates: Rates | None = self.load.rates(1)
        if spec.shedding is not None:
            self.rates = spec.shedding.rates or self.load.rates(spec.shedding.turns)
            if spec.shedding.to is not None:
                self._box = Outbox(state.directory, attempt, spec.inputs[STREAM], "shed")
        self._learning = 0.0  # seconds for what is done once, and says nothing of later steps
        self._arrived = 0
        self._first = 0
        self._scanned = 0

    # -- in the course of a step ------------------------------------------------------------

    def begin(self, operator: Operator) -> None:
        self._first = cast("SemiStreamJoin", operator).arrived
        self._scanned = operator.scanned if isinstance(operator, MeshJoin) else 0

    def drained(self, now: float) -> None:
        self.waits, self.wait = self.waits.settled(None, now)

    @contextmanager
    def admitted(
        self, operator: Operator, rows: pa.RecordBatch, emit: Emit
    ) -> Iterator[pa.RecordBatch]:
        keep = rows.num_rows
        self._arrived += keep
        if self.spec.shedding is not None:
            keep, self.load = self.load.share(keep, self._ratio(self.spec.shedding))
        if keep == rows.num_rows:
            yield rows
            return
        join = cast("SemiStreamJoin", operator)
        held = Reservation(operator.ctx.budget, "shedding")
        nbytes = rows.nbytes + _WORDS_BYTES * rows.num_rows
        counted = join.wide.counted_input(nbytes)
        for out in join.make_room_for(held, counted, "an input batch to be shed from"):
            emit(out)
        try:
            kept, dropped = self._divide(join, rows, keep, emit)
            operator.ctx.counters.rows_shed += dropped.num_rows
            if self._box is not None:
                self._box.put(dropped)
            del dropped
            yield kept
        finally:
            held.resize(0)

    def _ratio(self, shedding: Shedding) -> float:
        """How many times as many rows come as are to be kept."""
        if shedding.rates is not None:
            return shedding.rates.ratio
        self.rates = self.load.during(self.started, self._arrived, shedding.turns)
        return 1.0 if self.rates is None else self.rates.relief

    def _divide(
        self, operator: SemiStreamJoin, rows: pa.RecordBatch, keep: int, emit: Emit
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows to keep and the rows to leave out, each in the order in which they came."""
        assert self.spec.shedding is not None
        strategy = self.spec.shedding.strategy
        codes, valid = np.zeros(rows.num_rows, dtype=np.int64), None
        if strategy in WEIGHING:
            started = time.perf_counter()
            for out in learn_frequencies(operator):
                emit(out)
            self._learning += time.perf_counter() - started
            codes, valid = operator.spec.encode(STREAM, rows)
        known = operator.frequencies or Frequencies(codes[:0])
        worth = Worth(known, operator.spec.how, valid)
        chosen = SHEDDERS[strategy].kept(codes, keep, worth, self._rng(operator))
        left = np.ones(rows.num_rows, dtype=np.bool_)
        left[chosen] = False
        return rows.take(pa.array(chosen)), rows.filter(pa.array(left))

    def _rng(self, operator: SemiStreamJoin) -> np.random.Generator:
        """Another one for each batch of rows; a step that is repeated draws the same."""
        counters = operator.ctx.counters
        seen = counters.rows_in[STREAM] + counters.rows_shed
        return np.random.default_rng([self._version + 1, self._partition, seen])

    def slice_ms(self, slice_ms: int) -> int:
        """How long a step may work on what was deferred: new rows wait for it, then for their own.

        (So two steps, for rows that are settled in the one that takes them in.)
        """
        pace = self.spec.pace
        return slice_ms if pace is None else min(slice_ms, int(pace.seconds * 500))

    def on_pace(self, operator: Operator) -> bool:
        if self.spec.pace is None or not operator.pending():
            return True
        if not isinstance(operator, MeshJoin):
            return False  # every other settles its rows within the step
        quota = self.spec.pace.quota(operator.table.pages, self.load.interval)
        return operator.scanned - self._scanned >= quota

    # -- at its end -------------------------------------------------------------------------

    def seal(self, operator: Operator, busy: float, now: float) -> dict[str, Any]:
        counters = operator.ctx.counters
        kept = counters.rows_in[STREAM]
        if kept:
            self.waits = self.waits.joined_by(self._first, self.started)
        oldest = cast("SemiStreamJoin", operator).oldest()
        self.waits, wait = self.waits.settled(oldest, now)
        self.wait = max((w for w in (self.wait, wait) if w is not None), default=None)
        self.load = self.load.after(
            self.started,
            kept + counters.rows_shed,
            kept,
            max(0.0, busy - self._learning),
            rows_waited=self._pending > 0,
        )
        return {"load": self.load, "waits": self.waits, "shed": self._sealed()}

    def _sealed(self) -> SealedShed | None:
        shedding = self.spec.shedding
        if self._box is None or shedding is None or not self._box.rows:
            return None
        return SealedShed(**vars(self._box.seal()), to=str(shedding.to))

    def close(self) -> None:
        if self._box is not None:
            self._box.close()

    def record(self, context: Context, now: float) -> dict[str, Any]:
        rates = self.rates
        return {
            "rows_shed": context.counters.rows_shed,
            "arrival_rate": None if rates is None else round(rates.arrival, 1),
            "service_rate": None if rates is None else round(rates.service, 1),
            "wait_seconds": None if self.wait is None else round(self.wait, 4),
            "oldest_seconds": round(self.waits.age(now), 4),
        }
