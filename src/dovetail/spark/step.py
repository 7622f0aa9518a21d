"""A task's step: one partition's part of a micro-batch, from version to version.

    load version M < N -> push the rows -> deferred work, if no row came -> snapshot
      -> results to the outbox -> commit version N -> emit the outbox

The order is what makes it exactly once; `state` says why. A task that finds version N committed
emits that version's outbox and does nothing else.

What the operator does in between is its job's `course`. What an enrichment left out is published
between the commit and the results (see `jobs.shedding`).

A worker keeps the operator it used last, and takes it up again if the version it needs next is the
very one that this operator committed. It never keeps more than one.
"""

import contextlib
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

import pyarrow as pa
from pyspark import TaskContext

from dovetail.errors import DovetailError, StateMismatchError
from dovetail.kernel.memory import use_frugal_allocator
from dovetail.kernel.protocol import Counters, Operator, Snapshot, Status
from dovetail.spark import faults
from dovetail.spark.endings import Silence
from dovetail.spark.jobs.course import FUEL, Course, Leg, Loaded, Told, handoff
from dovetail.spark.jobs.job import Job
from dovetail.spark.jobs.shedding import publish
from dovetail.spark.layout import UnionLayout, partition_in
from dovetail.spark.state import Manifest, Outbox, PartitionState, Totals, claim, replay
from dovetail.spark.state.metrics import append_record
from dovetail.spark.worker_errors import with_plain_errors

Batches = Iterator[pa.RecordBatch]


@dataclass
class Cached:
    """The operator that this worker used last, and the version that it stands at."""

    directory: Path
    attempt: str
    loaded: Loaded

    @property
    def operator(self) -> Operator:
        return self.loaded.operator


_cached: Cached | None = None


def streaming_step(
    job: Job, layout: UnionLayout, *, keep_operator: bool
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
        task = StreamingTask(job, layout, partition_in(first), at, keep_operator)
        task.made_by = (run_id, plan)
        yield from task.run(itertools.chain([first], batches))

    return with_plain_errors(step)


def batch_step(job: Job, layout: UnionLayout) -> Callable[[Batches], Batches]:
    """The function that Spark maps over the partitions of a batch join."""

    def step(batches: Batches) -> Batches:
        use_frugal_allocator()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        directory = Path(tempfile.mkdtemp(prefix="dovetail-join-", dir=local))
        with contextlib.ExitStack() as open_:
            open_.callback(shutil.rmtree, directory, ignore_errors=True)
            loaded = job.load(directory, partition_in(first), "batch", None)
            operator = loaded.operator
            open_.callback(loaded.resources.close)
            open_.callback(operator.ctx.store.close)
            for batch in itertools.chain([first], batches):
                for side, _, rows in layout.split(batch, job.spec.inputs):
                    yield from operator.push(side, rows)
            for side in range(len(job.spec.inputs)):
                operator.finish(side)
            while operator.status() is not Status.DONE:
                yield from operator.poll(FUEL)

    return with_plain_errors(step)


class StreamingTask:
    """One partition in one micro-batch."""

    def __init__(
        self, job: Job, layout: UnionLayout, partition: int, at: tuple[int, str], keep: bool
    ) -> None:
        assert job.spec.state is not None
        self.job = job
        self.spec = job.spec
        self.layout = layout
        self.batch_id, self.query_id = at
        self.keep_operator = keep
        self.state = PartitionState(job.spec.state, partition, self.query_id)
        self.output_schema = job.spec.output
        self.made_by: tuple[str | None, str] = (None, "")  # the run of the query, and the plan
        self.now: Callable[[], float] = time.time  # of a clock that all workers have
        self._attempted = ""  # what this step's own files are named after
        self._held: Loaded | None = None  # what to release when the step ends
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
            handoff.note(winner.outbox.nbytes, time.monotonic() - self._worked)
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
            if self._held is not None:
                self._held.resources.close()
                self._held = None

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
        started, began = time.perf_counter(), self.now()
        loaded, was_cached = self._load(parent, attempt)
        outbox = Outbox(self.state.directory, attempt, self.output_schema)
        leg = Leg(self.state, parent, attempt, outbox, self.now, began)
        course = self.job.course(leg, loaded)
        try:
            faults.fault_point("after-load")
            totals = parent.totals if parent else Totals()
            silence = (parent.silence if parent else Silence()).among(len(self.spec.inputs))
            for side in silence.fallen_silent(sum(totals.rows_in)):
                course.operator.finish(side)
            course.take(batches, self.layout)
            faults.fault_point("after-push")
            silence = silence.then(course.rows)
            course.defer(silence)
            self._worked = time.monotonic()
            faults.fault_point("after-poll")
            snapshot, files = _durable_snapshot(course.operator)
            faults.fault_point("after-snapshot")
            sealed = outbox.seal()
            seconds = time.perf_counter() - started
            told = course.seal(seconds)
            faults.fault_point("after-outbox")
        finally:
            outbox.close()
            course.close()  # a worker lives long, and open files keep their space
            self._held = course.loaded  # which may be another one by now
        context, pending = course.operator.ctx, course.operator.pending()
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
            phase="arriving" if any(course.rows) else "deferred" if pending else "idle",
            silence=silence,
            totals=totals.after(
                context.counters, context.budget, seconds, course.join_seconds, course.copies,
                told.wait_s,
            ),
            budget_bytes=self.spec.memory_bytes,
            made_by=self.made_by,
            tuned=told.tuned,
            load=told.load,
            waits=told.waits,
            shed=told.shed,
        )  # fmt: skip
        winner = self.state.commit(manifest)
        if winner.attempt == attempt:
            self._record(course, manifest, told, seconds, was_cached)
            # an operator that has outlived most of its files is better read anew
            if self.keep_operator and len(context.store.files) <= 4 * len(files) + 64:
                _keep(Cached(self.state.directory, attempt, course.loaded))
                self._held = None
        return winner

    def _load(self, parent: Manifest | None, attempt: str) -> tuple[Loaded, bool]:
        cached = _take_cached()
        if (
            cached is not None
            and parent is not None
            and (cached.directory, cached.attempt) == (self.state.directory, parent.attempt)
            and cached.operator.ctx.budget.total_bytes == self.spec.partition_bytes
        ):
            self._held = cached.loaded
            context = cached.operator.ctx
            context.counters = Counters()
            context.store.begin(attempt, context.counters)
            context.budget.reset_peaks()
            return cached.loaded, True
        if cached is not None:
            cached.loaded.resources.close()
        del cached  # before the next one takes its memory
        self._held = self.job.load(self.state.directory, self.state.partition, attempt, parent)
        return self._held, False

    def _record(
        self, course: Course, manifest: Manifest, told: Told, seconds: float, was_cached: bool
    ) -> None:
        counters, budget = course.operator.ctx.counters, course.operator.ctx.budget
        append_record(
            self.state.directory,
            {
                "batch": self.batch_id,
                "partition": self.state.partition,
                "phase": manifest.phase,
                "rows_in": counters.rows_in,
                "copies": course.copies,
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
                "join_seconds": round(course.join_seconds, 6),
                "cached": was_cached,
                **told.record,
            },
        )


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
    """The resident bytes of the worker's process; None where the system does not tell."""
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
