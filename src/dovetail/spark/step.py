"""What one task does: a partition's part of a micro-batch.

    load version M < N -> push the rows -> deferred work, if no row came -> snapshot
      -> results to the outbox -> commit version N -> emit the outbox

The order is what makes it exactly once; `state` says why. A task that finds version N committed
emits that version's outbox and does nothing else.

Time. While rows come, a step only joins them. A step that was woken by a tick and got no row works
on what was deferred for a slice of time, which doubles with every silent step, so that new rows do
not wait for long and a long silence is used well. Inputs that are silent for long count as ended
until their next row (`endings` has both), or if nothing else is left to do: Cleanup does in one go
what the Reactive phase would do piece by piece.

Load. A step of an enrichment may leave rows out before they are pushed, and may go on working so
that rows do not wait too long; `overload` says when. What it left out is published between the
commit and the results (see `shedding`).

A worker keeps the operator it used last, and takes it up again if the version it needs next is the
very one that this operator committed. It never keeps more than one.
"""

import itertools
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from dovetail.costs.retune import Tuned
from dovetail.errors import DovetailError, StateMismatchError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget, use_frugal_allocator
from dovetail.kernel.protocol import Context, Counters, Operator, Snapshot, Status
from dovetail.spark import faults
from dovetail.spark.endings import MAX_SLICE_MS, Handing, Silence
from dovetail.spark.jobs.overload import Watch, watch_over
from dovetail.spark.jobs.shedding import publish
from dovetail.spark.layout import UnionLayout, are_last_rows, partition_in
from dovetail.spark.state import Manifest, Outbox, PartitionState, Totals, claim, replay
from dovetail.spark.state.metrics import append_record
from dovetail.spark.worker_errors import with_plain_errors
from dovetail.specs import JobSpec

_FUEL = 1 << 14  # rows between two looks at the clock

Batches = Iterator[pa.RecordBatch]


@dataclass
class Cached:
    """The operator that this worker used last, and the version that it stands at."""

    directory: Path
    token: str
    operator: Operator
    spec: JobSpec


_cached: Cached | None = None
_handing = Handing()


def streaming_step(
    spec: JobSpec, layout: UnionLayout, *, keep_operator: bool
) -> Callable[[Batches], Batches]:
    """The function that Spark maps over the partitions of every micro-batch."""
    plan = uuid.uuid4().hex

    def step(batches: Batches) -> Batches:
        use_frugal_allocator()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        batch_id, query_id, run_id = _batch_query_and_run()
        at = (batch_id, query_id)
        task = StreamingTask(spec, layout, partition_in(first), at, keep_operator)
        task.made_by = (run_id, plan)
        yield from task.run(itertools.chain([first], batches))

    return with_plain_errors(step)


def batch_step(spec: JobSpec, layout: UnionLayout) -> Callable[[Batches], Batches]:
    """The function that Spark maps over the partitions of a batch join."""

    def step(batches: Batches) -> Batches:
        use_frugal_allocator()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        directory = Path(tempfile.mkdtemp(prefix="dovetail-join-", dir=local))
        operator = None
        try:
            operator = _operator(spec, partition_in(first), directory, "batch", None)
            for batch in itertools.chain([first], batches):
                for side, _, rows in layout.split(batch, spec.inputs):
                    yield from operator.push(side, rows)
            _finish(operator, spec)
            while operator.status() is not Status.DONE:
                yield from operator.poll(_FUEL)
        finally:
            if operator is not None:
                operator.ctx.store.close()
                spec.release(operator)
            shutil.rmtree(directory, ignore_errors=True)

    return with_plain_errors(step)


class StreamingTask:
    """One partition in one micro-batch."""

    def __init__(
        self, spec: JobSpec, layout: UnionLayout, partition: int, at: tuple[int, str], keep: bool
    ) -> None:
        assert spec.state is not None
        self.spec = spec
        self.layout = layout
        self.batch_id, self.query_id = at
        self.keep_operator = keep
        self.state = PartitionState(spec.state, partition, self.query_id)
        self.output_schema = spec.output
        self.made_by: tuple[str | None, str] = (None, "")  # the run of the query, and the plan
        self.now: Callable[[], float] = time.time  # of a clock that all workers have
        self._attempted = ""  # what this step's own files are named after
        self._held: Operator | None = None  # what to release when the step ends
        self._watch = Watch()
        self._began = 0.0  # the attempt, by `now`
        self._tuned: dict[str, Any] | None = None  # what is remembered of settings that change
        self._join_seconds = 0.0  # of the operator alone
        self._copies = [0] * len(spec.inputs)  # of rows that count in another partition
        self._last_rows = False  # the query ends with the rows that it has
        self._worked: float | None = None  # until when

    def run(self, batches: Batches) -> Batches:
        claim(self.state.root, self.spec.identity(), self.query_id, self.batch_id)
        winner = self.state.committed(self.batch_id)
        if winner is None:
            winner = self._compute(batches)
        self._check_plan(winner)
        own = winner.attempt == self._attempted
        for _ in batches:  # Spark wants its input read to the end
            pass
        self._publish(winner, ended=False)
        for number, out in enumerate(
            replay(self.state.directory, winner.outbox, self.output_schema, own=own)
        ):
            yield out
            if number == 0:
                faults.fault_point("mid-emit")
        if self._worked is not None:
            _handing.note(winner.outbox.nbytes, time.monotonic() - self._worked)
        faults.fault_point("after-emit")

    def _compute(self, batches: Batches) -> Manifest:
        faults.fault_point("before-load")
        parent = self.state.parent_of(self.batch_id)
        if parent is not None:
            self._check_plan(parent)
            self._publish(parent, ended=True)  # before what is to be published is deleted
        self._attempted = attempt = self.state.begin(self.batch_id, parent)
        try:
            return self._attempt(batches, parent, attempt)
        except BaseException:
            self.state.discard(self.batch_id, attempt)
            raise
        finally:
            self._let_go()

    def _check_plan(self, version: Manifest) -> None:
        """Refuse what another join of the same query made: one would emit the other's results."""
        run, plan = version.made_by
        if run is not None and run == self.made_by[0] and plan != self.made_by[1]:
            raise StateMismatchError(
                f"two joins of this query share the state directory {self.state.root}. Give each a "
                "state= of its own, and start over with a new checkpoint."
            )

    def _publish(self, version: Manifest, *, ended: bool) -> None:
        share = self.spec.partition_bytes
        working = sys.maxsize if share is None else share // 16  # a part of what a step works in
        schema = self.spec.inputs[0]
        publish(self.state, version, schema, self.query_id, working, ended=ended)

    def _attempt(self, batches: Batches, parent: Manifest | None, attempt: str) -> Manifest:
        started = time.perf_counter()
        self._began, self._join_seconds = self.now(), 0.0
        self._tuned = parent.tuned.facts() if parent and parent.tuned else None
        self._watch = watch = watch_over(self.spec, self.state, parent, attempt, self._began)
        operator, was_cached = self._load(parent, attempt)
        outbox = Outbox(self.state.directory, attempt, self.output_schema)
        try:
            faults.fault_point("after-load")
            if self.spec.outdated(operator):
                operator = self._renewed(operator, attempt, outbox)
                watch.drained(self.now())
            watch.begin(operator)
            totals = parent.totals if parent else Totals()
            silence = (parent.silence if parent else Silence()).among(len(self.spec.inputs))
            for side in silence.fallen_silent(sum(totals.rows_in)):
                operator.finish(side)
            rows = self._push(operator, batches, outbox)
            faults.fault_point("after-push")
            silence = silence.then(rows)
            self._defer(operator, silence, outbox)
            self._worked = time.monotonic()
            faults.fault_point("after-poll")
            snapshot, files = _durable_snapshot(operator)
            faults.fault_point("after-snapshot")
            sealed = outbox.seal()
            seconds = time.perf_counter() - started
            watched = watch.seal(operator, seconds, self.now())
            faults.fault_point("after-outbox")
        finally:
            outbox.close()
            watch.close()
            operator.ctx.store.close()  # a worker lives long, and open files keep their space
        context, pending = operator.ctx, operator.pending()
        manifest = Manifest(
            version=self.batch_id,
            partition=self.state.partition,
            query=self.query_id,
            attempt=attempt,
            parent=parent.version if parent else -1,
            snapshot=snapshot,
            files=tuple(files),
            outbox=sealed,
            pending=pending,
            phase="arriving" if any(rows) else "deferred" if pending else "idle",
            silence=silence,
            totals=totals.after(
                context.counters,
                context.budget,
                seconds,
                self._join_seconds,
                self._copies,
                watch.wait or 0.0,
            ),
            tuned=Tuned.of(self._tuned),
            budget_bytes=self.spec.memory_bytes,
            made_by=self.made_by,
            **watched,
        )
        winner = self.state.commit(manifest)
        if winner.attempt == attempt:
            self._record(operator, manifest, seconds, was_cached)
            # an operator that has outlived most of its files is better read anew
            if self.keep_operator and len(context.store.files) <= 4 * len(files) + 64:
                _keep(Cached(self.state.directory, attempt, operator, self.spec))
                self._held = None
        return winner

    def _load(self, parent: Manifest | None, attempt: str) -> tuple[Operator, bool]:
        cached = _take_cached()
        if (
            cached is not None
            and parent is not None
            and (cached.directory, cached.token) == (self.state.directory, parent.attempt)
            and cached.operator.ctx.budget.total_bytes == self.spec.partition_bytes
        ):
            operator = self._held = cached.operator
            operator.ctx.counters = Counters()
            operator.ctx.store.begin(attempt, operator.ctx.counters)
            operator.ctx.budget.reset_peaks()
            return operator, True
        if cached is not None:
            cached.spec.release(cached.operator)
        del cached  # before the next one takes its memory
        self._held = _operator(
            self.spec, self.state.partition, self.state.directory, attempt, parent
        )
        return self._held, False

    def _renewed(self, operator: Operator, attempt: str, outbox: Outbox) -> Operator:
        """Let an operator finish what it has begun, and make a new one in its place."""
        _finish(operator, self.spec)
        while operator.status() is not Status.DONE:
            for out in operator.poll(_FUEL):
                outbox.put(out)
        counters, store = operator.ctx.counters, operator.ctx.store
        context = Context(_budget(self.spec), store, counters=counters)
        self._let_go()
        self._held = self.spec.operator(context, self.state.partition, None)
        return self._held

    def _let_go(self) -> None:
        if self._held is not None:
            self.spec.release(self._held)
            self._held = None

    def _push(self, operator: Operator, batches: Batches, outbox: Outbox) -> list[int]:
        """Take the rows in; returns how many came of each input."""
        counts = [0] * len(self.spec.inputs)
        for batch in batches:
            self._last_rows |= are_last_rows(batch)
            for side, copies, rows in self.layout.split(batch, self.spec.inputs):
                counts[side] += rows.num_rows
                self._copies[side] += copies
                self._tuned = self.spec.retune(operator, self._tuned, rows.num_rows, self._began)
                with self._watch.admitted(operator, rows, outbox.put) as kept:
                    for out in self._timed(operator.push(side, kept)):
                        outbox.put(out)
        return counts

    def _defer(self, operator: Operator, silence: Silence, outbox: Outbox) -> None:
        """Deferred work: after rows, if it is due at once, or in a silence."""
        if silence.steps:
            self._tuned = self.spec.retune(operator, self._tuned, 0, self._began)
            if silence.ends_all(self.spec.slice_ms, last_rows=self._last_rows):
                _finish(operator, self.spec)
            self._work_off(operator, silence.slice_ms(self.spec.slice_ms), outbox)
        elif self.spec.eager:
            self._work_off(operator, MAX_SLICE_MS, outbox)

    def _work_off(self, operator: Operator, slice_ms: int, outbox: Outbox) -> None:
        """Deferred work, for about this long, or for as long as rows would else wait too long."""
        deadline = time.monotonic() + self._watch.slice_ms(slice_ms) / 1000
        while time.monotonic() + _handing.seconds(
            outbox.nbytes
        ) < deadline or not self._watch.on_pace(operator):
            for out in self._timed(operator.poll(_FUEL)):
                outbox.put(out)
            if operator.status() is Status.IDLE:
                _finish(operator, self.spec)
            if operator.status() is Status.DONE:
                return

    def _timed(self, results: Batches) -> Batches:
        """The same, while it is noted how long the operator takes for them."""
        while True:
            started = time.perf_counter()
            out = next(results, None)
            self._join_seconds += time.perf_counter() - started
            if out is None:
                return
            yield out

    def _record(
        self, operator: Operator, manifest: Manifest, seconds: float, was_cached: bool
    ) -> None:
        counters, budget = operator.ctx.counters, operator.ctx.budget
        append_record(
            self.state.directory,
            {
                "batch": self.batch_id,
                "partition": self.state.partition,
                "phase": manifest.phase,
                "rows_in": counters.rows_in,
                "copies": self._copies,
                "rows_out": counters.rows_out,
                "rows_cached": counters.rows_cached,
                "memory": {**budget.components, "total": budget.used_bytes},
                "memory_peak": budget.peak_bytes,
                "budget": budget.total_bytes,
                "flushed_bytes": counters.flushed_bytes,
                "bytes_read": counters.bytes_read,
                "pending": manifest.pending,
                "resident_bytes": _resident_bytes(),
                "seconds": round(seconds, 4),
                "join_seconds": round(self._join_seconds, 6),
                "predicted": self.spec.predicted,
                "tuned": self._tuned,
                "cached": was_cached,
                **self._watch.record(operator.ctx, self.now()),
            },
        )


def _operator(
    spec: JobSpec, partition: int, directory: Path, stem: str, parent: Manifest | None
) -> Operator:
    if parent is not None and spec.expendable(parent.snapshot, parent.pending):
        parent = None
    files = parent.files if parent else ()
    store = BlockStore(directory, spec.kept, stem, files)
    context = Context(_budget(spec), store)
    try:
        return spec.operator(context, partition, parent.snapshot if parent else None)
    except BaseException:
        store.close()
        raise


def _budget(spec: JobSpec) -> Budget:
    """One partition's share of the memory."""
    return Budget(spec.partition_bytes, shares=spec.partitions)


def _finish(operator: Operator, spec: JobSpec) -> None:
    """All inputs have ended, as far as is known."""
    for side in range(len(spec.inputs)):
        operator.finish(side)


def _durable_snapshot(operator: Operator) -> tuple[Snapshot, list[str]]:
    """A snapshot that is on stable storage, and the names of all files that it needs.

    The files of the blocks come first, and the blocks are renumbered after them.
    """
    snapshot = operator.snapshot()
    store = operator.ctx.store
    store.sync()
    blocks, files = store.in_use(snapshot.blocks)
    return Snapshot(snapshot.meta, blocks, snapshot.files), [*files, *snapshot.files]


def _resident_bytes() -> int | None:
    """What the worker's process holds in memory, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _batch_query_and_run() -> tuple[int, str, str | None]:
    task = TaskContext.get()
    batch_id = task.getLocalProperty("streaming.sql.batchId") if task else None
    query_id = task.getLocalProperty("sql.streaming.queryId") if task else None
    run_id = task.getLocalProperty("spark.jobGroup.id") if task else None
    if batch_id is None or query_id is None:
        raise DovetailError(
            "this plan was made for a streaming query but runs outside one: Spark gave the task no "
            "batch id. Start it with writeStream."
        )
    return int(batch_id), query_id, run_id


def _take_cached() -> Cached | None:
    global _cached
    taken, _cached = _cached, None
    return taken


def _keep(cached: Cached) -> None:
    global _cached  # noqa: PLW0603
    _cached = cached
