"""The course of an enrichment: renews the operator, tunes it, and sheds rows.

*Renewing.* If another version of the table is in use by now, the operator finishes the rows that it
holds, and the step goes on with a new one.

*Tuning.* Settings that follow the arrivals are set before each batch of rows.

*Load.* A step may leave rows out before they are pushed, and may go on working so that rows do not
wait too long. The rules are those of `semistream.overload`; here they meet the clock, the operator
and the outboxes. What is learned goes into the step's manifest, and the next step begins from
there; so all of it is as the winning attempt left it (see `state`).

Memory. A batch that is shed from is held beside the rows that are kept of it, with some words for
each row; that is reserved as "shedding", and the operator gives way to it as it does to input.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import Status
from dovetail.semistream import SemiStreamJoin
from dovetail.semistream.frequencies import Worth, learn_frequencies
from dovetail.semistream.overload import Load, Shedding, Waits
from dovetail.semistream.scan.meshjoin import AMeshJoin, MeshJoin
from dovetail.semistream.shedding import WEIGHING, Frequencies, rows_to_keep
from dovetail.semistream.spec import STREAM
from dovetail.spark.endings import MAX_SLICE_MS, Silence
from dovetail.spark.jobs.course import FUEL, Batches, Course, Leg, Loaded, Told
from dovetail.spark.layout import UnionLayout
from dovetail.spark.state import Outbox, SealedShed
from dovetail.spark.state.staged import staged_version
from dovetail.specs import EnrichSpec

if TYPE_CHECKING:
    from dovetail.spark.jobs.enrich import EnrichJob

_WORDS_BYTES = 64  # of a row that is decided on: its code, its worth, its place, and their order


class EnrichCourse(Course):
    """One step of a stream that is looked up in a table."""

    spec: EnrichSpec

    def __init__(self, job: "EnrichJob", leg: Leg, loaded: Loaded) -> None:
        super().__init__(job.spec, leg, loaded)
        parent, spec = leg.parent, job.spec
        self.job = job
        self.tuned = parent.tuned if parent and job.tuner else None
        self.load = (parent and parent.load) or Load()
        self.waits = (parent and parent.waits) or Waits()
        self.wait: float | None = None  #: the longest that ended in this step
        self._pending = parent.pending if parent else 0
        self._version = parent.version if parent else -1
        self._box: Outbox | None = None
        self.rates = self.load.rates(1)
        if spec.shedding is not None:
            self.rates = spec.shedding.rates or self.load.rates(spec.shedding.turns)
            if spec.shedding.to is not None:
                self._box = Outbox(leg.state.directory, leg.attempt, spec.inputs[STREAM], "shed")
        self._learning = 0.0  # seconds for what is done once, and says nothing of later steps
        self._arrived = 0
        self._first = 0
        self._scanned = 0

    @property
    def join(self) -> SemiStreamJoin:
        return cast("SemiStreamJoin", self.operator)

    # -- in the course of a step ------------------------------------------------------------

    def take(self, batches: Batches, layout: UnionLayout) -> None:
        assert self.spec.state is not None
        if self.join.table.version != staged_version(self.spec.state):
            self._renew()
        self._first = self.join.arrived
        self._scanned = self.operator.scanned if isinstance(self.operator, MeshJoin) else 0
        super().take(batches, layout)

    def push(self, side: int, rows: pa.RecordBatch) -> None:
        self._tune(rows.num_rows)
        with self._admitted(rows) as kept:
            super().push(side, kept)

    def defer(self, silence: Silence) -> None:
        if silence.steps:
            self._tune(0)
            super().defer(silence)
        else:  # rows are not kept waiting for a silence
            self.work_off(MAX_SLICE_MS)

    def work_off(self, slice_ms: int) -> None:
        """Deferred work; new rows wait for it, then for their own.

        (So two steps, for rows that are settled in the one that takes them in.)
        """
        pace = self.spec.pace
        super().work_off(slice_ms if pace is None else min(slice_ms, int(pace.seconds * 500)))

    def is_over(self, deadline: float) -> bool:
        return super().is_over(deadline) and self._on_pace()

    def _on_pace(self) -> bool:
        """Whether a step may end, as far as the rows that wait are concerned."""
        if self.spec.pace is None or not self.operator.pending():
            return True
        if not isinstance(self.operator, MeshJoin):
            return False  # every other settles its rows within the step
        quota = self.spec.pace.quota(self.operator.table.pages, self.load.interval)
        return self.operator.scanned - self._scanned >= quota

    def _renew(self) -> None:
        """Let the operator finish what it has begun, and go on with a new one in its place."""
        self.finish()
        while self.operator.status() is not Status.DONE:
            for out in self.operator.poll(FUEL):
                self.leg.outbox.put(out)
        context = self.operator.ctx
        self.loaded.resources.close()
        partition = self.leg.state.partition
        self.loaded = self.job.loaded(context.store, context.counters, partition, None)
        self.waits, self.wait = self.waits.settled(None, self.leg.now())

    def _tune(self, rows: int) -> None:
        """Settings for so many rows, which have come by the beginning of the step."""
        if self.job.tuner is not None:
            self.tuned = self.job.tuner.after(self.tuned, rows, self.leg.began)
            cast("AMeshJoin", self.operator).tune(self.tuned.w, self.tuned.b)

    @contextmanager
    def _admitted(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a batch that are kept, for as long as they are being pushed."""
        keep = rows.num_rows
        self._arrived += keep
        if self.spec.shedding is not None:
            keep, self.load = self.load.share(keep, self._ratio(self.spec.shedding))
        if keep == rows.num_rows:
            yield rows
            return
        join = self.join
        held = Reservation(join.ctx.budget, "shedding")
        nbytes = rows.nbytes + _WORDS_BYTES * rows.num_rows
        counted = join.wide.counted_input(nbytes)
        for out in join.make_room_for(held, counted, "an input batch to be shed from"):
            self.leg.outbox.put(out)
        try:
            kept, dropped = self._divide(rows, keep)
            join.ctx.counters.rows_shed += dropped.num_rows
            if self._box is not None:
                self._box.put(dropped)
            del dropped
            yield kept
        finally:
            held.resize(0)

    def _ratio(self, shedding: Shedding) -> float:
        """The ratio of rows that come to rows that are to be kept."""
        if shedding.rates is not None:
            return shedding.rates.ratio
        self.rates = self.load.during(self.leg.began, self._arrived, shedding.turns)
        return 1.0 if self.rates is None else self.rates.relief

    def _divide(self, rows: pa.RecordBatch, keep: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows to keep and the rows to leave out, each in the order in which they came."""
        assert self.spec.shedding is not None
        operator, strategy = self.join, self.spec.shedding.strategy
        codes, valid = np.zeros(rows.num_rows, dtype=np.int64), None
        if strategy in WEIGHING:
            started = time.perf_counter()
            for out in learn_frequencies(operator):
                self.leg.outbox.put(out)
            self._learning += time.perf_counter() - started
            codes, valid = operator.spec.encode(STREAM, rows)
        known = operator.frequencies or Frequencies(codes[:0], codes[:0])
        worth = Worth(known, operator.spec.how, valid)
        chosen = rows_to_keep(strategy, codes, keep, worth, self._rng(operator))
        left = np.ones(rows.num_rows, dtype=np.bool_)
        left[chosen] = False
        return rows.take(pa.array(chosen)), rows.filter(pa.array(left))

    def _rng(self, operator: SemiStreamJoin) -> np.random.Generator:
        """A generator for each batch of rows; a step that is repeated draws the same."""
        counters = operator.ctx.counters
        seen = counters.rows_in[STREAM] + counters.rows_shed
        return np.random.default_rng([self._version + 1, self.leg.state.partition, seen])

    # -- at its end -------------------------------------------------------------------------

    def seal(self, seconds: float) -> Told:
        counters, now = self.operator.ctx.counters, self.leg.now()
        kept = counters.rows_in[STREAM]
        if kept:
            self.waits = self.waits.joined_by(self._first, self.leg.began)
        self.waits, wait = self.waits.settled(self.join.oldest(), now)
        self.wait = max((w for w in (self.wait, wait) if w is not None), default=None)
        self.load = self.load.after(
            self.leg.began,
            kept + counters.rows_shed,
            kept,
            max(0.0, seconds - self._learning),
            rows_waited=self._pending > 0,
        )
        return Told(
            self.tuned, self.load, self.waits, self._sealed(), self.wait or 0.0, self._record()
        )

    def _sealed(self) -> SealedShed | None:
        shedding = self.spec.shedding
        if self._box is None or shedding is None or not self._box.rows:
            return None
        return SealedShed(**vars(self._box.seal()), to=str(shedding.to))

    def _record(self) -> dict[str, Any]:
        rates, recorded = self.rates, self.job.recorded
        return {
            "predicted": recorded and recorded.of_a_partition(),
            "tuned": None if self.tuned is None else self.tuned.facts(),
            "rows_shed": self.operator.ctx.counters.rows_shed,
            "arrival_rate": None if rates is None else round(rates.arrival, 1),
            "service_rate": None if rates is None else round(rates.service, 1),
            "wait_seconds": None if self.wait is None else round(self.wait, 4),
            "oldest_seconds": round(self.waits.age(self.leg.now()), 4),
        }

    def close(self) -> None:
        super().close()
        if self._box is not None:
            self._box.close()
