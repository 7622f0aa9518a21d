"""Streaming queries as contenders: one session, one query at a time, every trace removed after.

Every query reads the same Parquet files, one a side in each micro-batch, and writes to the noop
sink, whose own count of the rows it was given is checked against the exact number: that costs the
same for all. Between two runs, untimed, Spark's state stores are unloaded and the heap is
collected, so that no contender pays for the one before it.

Spark's own join gets what ours gets: the same cores, shuffle partitions, files and sink, no
watermark and no time bound, and a heap large enough that its in-heap store is never short.
"""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api import join, progress
from dovetail.kernel.protocol import SIDES
from dovetail_bench.data import KEY, Files
from dovetail_bench.machine import memory_bytes
from dovetail_bench.measure import Contender, Measured, expect_rows
from dovetail_bench.scratch import scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES = 2
PARTITIONS = 2
_MOST_HEAP_BYTES = 10 << 30
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STORES = "org.apache.spark.sql.execution.streaming.state"
IN_HEAP = {_PROVIDER: f"{_STORES}.HDFSBackedStateStoreProvider"}
ROCKSDB = {
    _PROVIDER: f"{_STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


@dataclass(frozen=True)
class Trigger:
    """One micro-batch."""

    batch: int
    rows_in: int  #: from the files; a micro-batch without any only does deferred work
    rows_out: int
    seconds: float


@dataclass(frozen=True)
class Job:
    """A query: how its plan is made, what it has to produce, under which settings."""

    name: str
    #: left, right, a directory of its own -> what to write
    plan: "Callable[[DataFrame, DataFrame, Path], DataFrame]"
    rows_out: Callable[[Files], int]
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryRun:
    """A query that ran to its end with the right number of rows."""

    seconds: float  #: from start to termination
    triggers: tuple[Trigger, ...]
    facts: dict[str, float]

    @property
    def arriving(self) -> list[Trigger]:
        """The micro-batches with new rows, less the first: that one warms up."""
        return [trigger for trigger in self.triggers if trigger.rows_in and trigger.batch > 0]

    @property
    def warm_seconds(self) -> float:
        """All micro-batches but the first, deferred work and cleanup included."""
        return sum(trigger.seconds for trigger in self.triggers if trigger.batch > 0)


class SparkBed:
    """A local session and a directory for what the queries write."""

    def __init__(self, directory: Path) -> None:
        from dovetail.spark.session import local_session

        self.directory = directory
        settings = {
            "spark.driver.memory": f"{_heap_bytes() >> 20}m",
            "spark.local.dir": str(directory / "spark-local"),
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            # all micro-batches of a run are looked at, not only the last hundred
            "spark.sql.streaming.numRecentProgressUpdates": "100000",
        }
        self.session: SparkSession = local_session("dovetail-bench", CORES, **settings)

    def facts(self) -> dict[str, Any]:
        names = ["spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions"]
        names += ["spark.sql.execution.arrow.maxRecordsPerBatch"]
        return {
            "session": {name: self.session.conf.get(name) for name in names},
            "query": "Parquet files, one a side in each micro-batch; availableNow; noop sink; no "
            "watermark and no time bound for any contender",
            "between runs": "state stores unloaded and heap collected, untimed",
        }

    def contender(self, job: Job, files: Files) -> Contender:
        """A job as something to measure, over the whole and over all but the first batch."""

        def run() -> Measured:
            done = self.run(job, files)
            warm_rows = sum(trigger.rows_in for trigger in done.arriving)
            facts = {
                **done.facts,
                "rows_per_s": 2 * files.rows / done.seconds,
                "warm_rows_per_s": warm_rows / done.warm_seconds,
                "rows_out": sum(trigger.rows_out for trigger in done.triggers),
                "micro_batches": len(done.triggers),
                "first_micro_batch_seconds": done.triggers[0].seconds,
            }
            return Measured({"warm": done.warm_seconds, "whole": done.seconds}, facts)

        return Contender(job.name, run)

    def run(self, job: Job, files: Files) -> QueryRun:
        """Run a job once. Raises if it fails or produces the wrong number of rows."""
        left, right = self.streams(files)
        return self.query(
            lambda directory: job.plan(left, right, directory), job.rows_out(files), job.settings
        )

    def query(
        self,
        plan: "Callable[[Path], DataFrame]",
        rows_out: int,
        settings: Mapping[str, str] | None = None,
    ) -> QueryRun:
        """Run what `plan` makes, in a directory of its own; raises if it gives other rows."""
        directory = Path(tempfile.mkdtemp(prefix="run-", dir=self.directory))
        try:
            with self._settings(settings or {}):
                planned = time.perf_counter()
                frame = plan(directory)
                started = time.perf_counter()
                query = (
                    frame.writeStream.format("noop")
                    .option("checkpointLocation", str(directory / "checkpoint"))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
                seconds = time.perf_counter() - started
            reports = [json.loads(report.json) for report in query.recentProgress]
            triggers = tuple(_trigger(report) for report in reports)
            expect_rows(sum(trigger.rows_out for trigger in triggers), rows_out)
            facts = {
                "planning_seconds": started - planned,
                **_state_store_facts(reports),
                **_dovetail_facts(directory),
                "disk_bytes": _disk_bytes(directory),
            }
            return QueryRun(seconds, triggers, {**facts, **self._heap_facts()})
        finally:
            self._clear()
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        self.session.stop()

    def streams(self, files: Files) -> "list[DataFrame]":
        """Both sides, a file of each in a micro-batch."""
        frames = []
        for side in SIDES:
            schema = self.session.read.parquet(files.side(side)).schema
            reader = self.session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            frames.append(reader.parquet(files.side(side)))
        return frames

    @contextlib.contextmanager
    def _settings(self, settings: Mapping[str, str]) -> Iterator[None]:
        for name, value in settings.items():
            self.session.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self.session.conf.unset(name)

    def _heap_facts(self) -> dict[str, float]:
        """What is alive in the heap while the query's state is still loaded."""
        runtime = self._jvm().java.lang.Runtime.getRuntime()
        runtime.gc()
        return {"live_heap_bytes": runtime.totalMemory() - runtime.freeMemory()}

    def _clear(self) -> None:
        for query in self.session.streams.active:
            query.stop()
        java = self._jvm()
        java.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        java.java.lang.System.gc()

    def _jvm(self) -> Any:
        return self.session.sparkContext._jvm


@contextlib.contextmanager
def spark_bed() -> Iterator[SparkBed]:
    """A session for the time of a benchmark, in a directory that goes away with it."""
    with scratch() as directory:
        bed = SparkBed(directory)
        try:
            yield bed
        finally:
            bed.close()


def spark_job(name: str, settings: Mapping[str, str]) -> Job:
    """Spark's own stream-stream join."""
    return Job(name, lambda left, right, _: left.join(right, KEY), _pairs, settings)


def dovetail_job(name: str, budget_bytes: int | None) -> Job:
    """Our join, its state in the run's own directory."""

    def plan(left: "DataFrame", right: "DataFrame", directory: Path) -> "DataFrame":
        return join(
            left,
            right,
            on=KEY,
            memory=budget_bytes or "unbounded",
            state=directory / "state",
            partitions=PARTITIONS,
        )

    return Job(name, plan, _pairs)


def pass_through_job(name: str) -> Job:
    """Our plan, with a step that hands on the rows that it gets."""

    def plan(left: "DataFrame", right: "DataFrame", directory: Path) -> "DataFrame":
        ours = dovetail_job(name, None).plan(left, right, directory)
        return _with_idle_step(ours)

    return Job(name, plan, lambda files: 2 * files.rows)


def _with_idle_step(joined: "DataFrame") -> "DataFrame":
    """The very plan that a join has, up to its step; the clock is there, but never has to tick.

    The plan is taken from the join itself, not built once more here: so it cannot fall behind.
    """
    from pyspark.sql import DataFrame

    session: Any = joined.sparkSession
    step = joined._jdf.queryExecution().logical()
    if "MapInArrow" not in step.nodeName():
        raise AssertionError(f"the plan of a join ends in {step.nodeName()}, not in its step")
    dataset = session._jvm.org.apache.spark.sql.classic.Dataset
    shuffled = DataFrame(dataset.ofRows(session._jsparkSession, step.child()), session)
    return shuffled.mapInArrow(lambda batches: batches, shuffled.schema)


def _pairs(files: Files) -> int:
    return files.pairs


def _heap_bytes() -> int:
    """The most that either of Spark's stores could use here, but no more than the machine has."""
    memory = memory_bytes()
    return _MOST_HEAP_BYTES if memory is None else min(_MOST_HEAP_BYTES, memory // 2)


def _trigger(report: dict[str, Any]) -> Trigger:
    sources = report["sources"]
    return Trigger(
        batch=report["batchId"],
        rows_in=sum(s["numInputRows"] for s in sources if "FileStream" in s["description"]),
        rows_out=report["sink"]["numOutputRows"],
        seconds=report["durationMs"]["triggerExecution"] / 1000,
    )


def _state_store_facts(reports: list[dict[str, Any]]) -> dict[str, float]:
    operators = [operator for report in reports for operator in report["stateOperators"]]
    if not operators:
        return {}
    used = [sum(one["memoryUsedBytes"] for one in report["stateOperators"]) for report in reports]
    return {"state_memory_bytes": max(used)}


def _dovetail_facts(directory: Path) -> dict[str, float]:
    """What the joins of a query did, whose state directories are in it."""
    from dovetail.spark.state import IDENTITY

    done = [progress(path.parent) for path in sorted(directory.glob(f"*/{IDENTITY}"))]
    if not done:
        return {}
    parts = [part for one in done for part in one.partitions]
    cached = [bool(record["cached"]) for one in done for record in one.records()]
    found: dict[str, float] = {
        "steps_with_cached_operator": sum(cached) / max(len(cached), 1),
        "state_memory_bytes": sum(one.memory.get("total", 0) for one in done),
        "spilled_bytes": sum(one.spilled_bytes for one in done),
        "step_seconds": sum(part.totals.seconds for part in parts),
        "bytes_read_back": sum(part.totals.bytes_read for part in parts),
    }
    for phase, rows in done[-1].rows_out.items():
        found[f"results_{phase}"] = rows
    return found


def _disk_bytes(directory: Path) -> int:
    """What the query's checkpoint and state take up at its end."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
