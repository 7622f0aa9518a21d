"""Group `handover` of `spark-diner`: how long rows wait when deferred work is going on.

A query that runs all the time (no `availableNow`) has joined most of its input at 5 % memory and
works off what it has deferred, in slices that grow with the silence up to their limit. Then files
come, one a side at a time, after silences of several lengths, and it is measured how long it takes
from a file's arrival to the end of the micro-batch that took it.

Allowed is the limit of a slice and a typical micro-batch, the median of those that took the files:
`allowed/handover` is that over the longest wait. Only arrivals count before which work was pending;
the first one that finds none is the last, since there is nothing more to wait for.

A fifth of `rows` is joined, with keys that have hundreds of results, so that the work lasts. In
the end the results are counted.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.api import join, progress
from dovetail.errors import StateMissingError
from dovetail.kernel.protocol import SIDE_NAMES, SIDES
from dovetail_bench.data import KEY, Files, Relations, count_pairs, make_relations, write_files
from dovetail_bench.measure import Contender, Measured, expect_rows, interleaved
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Spread
from dovetail_bench.spark.diner_setup import Part, batch_rows, batch_setting, budget_of
from dovetail_bench.spark.runs import PARTITIONS, SparkBed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "handover"
ROWS_SHARE, LEAST_ROWS = 1 / 5, 20_000
ROWS_OF_A_KEY = 200
MEMORY_SHARE = 0.05
#: Seconds of silence before each file. A short one first, then from long to short: the longest
#: slices need a long silence, and much work to begin with.
SILENCES = (0.3, 5.0, 4.4, 3.8, 3.2, 2.5, 1.5, 0.8)
FIRST_FILES = 12
FILES = FIRST_FILES + len(SILENCES)
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 600.0


class HandoverError(Exception):
    """The query did not do what is needed to measure it."""


@dataclass(frozen=True)
class Arrival:
    """Files that came."""

    time: float  #: before the first of them was there
    rows_until: int  #: rows of both sides, with these
    pending: bool  #: whether work was pending then


@dataclass(frozen=True)
class Batch:
    """A micro-batch of the query."""

    start: float
    seconds: float
    rows_in: int


@dataclass(frozen=True)
class Wait:
    """How long the rows of an arrival waited."""

    seconds: float  #: until the end of the micro-batch that took the last of them
    taking: float  #: of which this micro-batch took so long


def handover(config: Config, bed: SparkBed, reporter: Reporter) -> Part:
    from dovetail.spark.endings import MAX_SLICE_MS

    rows = max(LEAST_ROWS, int(config.rows * ROWS_SHARE))
    rng = np.random.default_rng(config.seed)
    relations = make_relations(rows, max(1, rows // ROWS_OF_A_KEY), rng)
    stock = write_files(relations, bed.directory / "handover", FILES)
    budget = budget_of(relations.nbytes, MEMORY_SHARE)
    found: list[list[Wait]] = []

    def measure() -> Measured:
        with _LiveQuery(bed, relations, stock, budget) as live:
            waits = live.waits()
        found.append(waits)
        return measured(waits, MAX_SLICE_MS / 1000)

    runs = interleaved([Contender(NAME, measure)], config.repetitions_of(NAME), reporter)
    done = runs.done[NAME].values()
    ratio = Spread.of(one.seconds["allowed"] / one.seconds["longest wait"] for one in done)
    facts = {
        "rows": f"{rows} + {rows}, of which {FIRST_FILES} in {FILES} before the first silence",
        "result_rows": relations.pairs,
        "budget_bytes": budget,
        "batch_rows": batch_rows(rows),
        "slice_limit_ms": MAX_SLICE_MS,
        "silences_seconds": list(SILENCES),
        "query": "Parquet files, at most one a side in each micro-batch; processingTime 0; noop "
        "sink",
        "waits_seconds": [[round(wait.seconds, 3) for wait in waits] for waits in found],
        "contenders": runs.facts(),
    }
    return Part({f"allowed/{NAME}": ratio}, facts, tuple(runs.failures))


def measured(waits: Sequence[Wait], slice_seconds: float) -> Measured:
    """One run: what was allowed, and how long it took."""
    if not waits:
        raise HandoverError(
            "the deferred work was done before the first rows came; there was nothing to wait "
            "for. Run it with more --rows"
        )
    typical = statistics.median(wait.taking for wait in waits)
    longest = max(wait.seconds for wait in waits)
    clocks = {
        "allowed": slice_seconds + typical,
        "longest wait": longest,
        "median wait": statistics.median(wait.seconds for wait in waits),
        "typical micro-batch": typical,
    }
    return Measured(clocks, {"arrivals_with_work_pending": len(waits)})


def waits_of(arrivals: Sequence[Arrival], batches: Sequence[Batch]) -> list[Wait]:
    """For each arrival with work pending, how long its rows waited.

    Rows are taken in the order in which they come, so that an arrival is taken when as many rows
    have been taken in as had come with it.
    """
    taken = np.cumsum([batch.rows_in for batch in batches])
    found = []
    for arrival in arrivals:
        place = int(np.searchsorted(taken, arrival.rows_until))
        if place == len(batches):
            raise HandoverError(f"only {int(taken[-1]):,} rows were taken in, not all that came")
        batch = batches[place]
        if arrival.pending:
            found.append(Wait(batch.start + batch.seconds - arrival.time, batch.seconds))
    return found


def batch_of(report: dict[str, Any]) -> Batch:
    """A micro-batch from Spark's report of it."""
    files = [one for one in report["sources"] if "FileStream" in one["description"]]
    return Batch(
        start=datetime.fromisoformat(report["timestamp"]).timestamp(),
        seconds=report["durationMs"]["triggerExecution"] / 1000,
        rows_in=sum(one["numInputRows"] for one in files),
    )


class _LiveQuery:
    """A query that runs, its input directories, and the files that are still to come."""

    def __init__(self, bed: SparkBed, relations: Relations, stock: Files, budget: int) -> None:
        self._relations = relations
        self._stock = stock
        self._directory = Path(tempfile.mkdtemp(prefix="run-", dir=bed.directory))
        self._given = 0  # files a side
        for side in SIDES:
            self._inputs(side).mkdir()
        while self._given < FIRST_FILES:
            self._give()
        self._query = self._start(bed, budget)

    def __enter__(self) -> "_LiveQuery":
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def waits(self) -> list[Wait]:
        """Give all files, one after another, and let the query finish its work."""
        arrivals: list[Arrival] = []
        for silence in SILENCES:
            self._until(lambda: self._rows_taken() == 2 * self._rows_given())
            time.sleep(silence)
            pending = progress(self._directory / "state").pending_rows > 0
            came = time.time()
            self._give()
            arrivals.append(Arrival(came, 2 * self._rows_given(), pending))
            if not pending:
                break
        self._query.processAllAvailable()
        reports = [json.loads(report.json) for report in self._query.recentProgress]
        expect_rows(sum(one["sink"]["numOutputRows"] for one in reports), self._pairs_given())
        return waits_of(arrivals, [batch_of(report) for report in reports])

    def _start(self, bed: SparkBed, budget: int) -> "StreamingQuery":
        settings = batch_setting(self._stock.rows)
        for name, value in settings.items():
            bed.session.conf.set(name, value)
        try:
            left, right = (self._stream(bed, side) for side in SIDES)
            joined = join(
                left,
                right,
                on=KEY,
                memory=budget,
                state=self._directory / "state",
                algorithm="diner",
                partitions=PARTITIONS,
            )
            return (
                joined.writeStream.format("noop")
                .option("checkpointLocation", str(self._directory / "checkpoint"))
                .trigger(processingTime="0 seconds")
                .start()
            )
        finally:
            for name in settings:
                bed.session.conf.unset(name)

    def _stream(self, bed: SparkBed, side: int) -> "DataFrame":
        schema = bed.session.read.parquet(self._stock.side(side)).schema
        reader = bed.session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._inputs(side)))

    def _inputs(self, side: int) -> Path:
        return self._directory / SIDE_NAMES[side]

    def _give(self) -> None:
        """Let the next file of each side appear, whole from the first moment."""
        ready = []
        for side in SIDES:
            source = Path(self._stock.side(side)) / f"{self._given:05d}.parquet"
            hidden = self._inputs(side) / f".{source.name}"
            shutil.copyfile(source, hidden)
            ready.append((hidden, hidden.with_name(source.name)))
        for hidden, shown in ready:
            hidden.rename(shown)
        self._given += 1

    def _rows_given(self) -> int:
        """Of a side."""
        return self._stock.rows * self._given // self._stock.files

    def _rows_taken(self) -> int:
        try:
            return sum(progress(self._directory / "state").rows_in)
        except StateMissingError:  # the query has only just started
            return 0

    def _pairs_given(self) -> int:
        keys = [
            table.column(KEY).to_numpy()[: self._rows_given()]
            for table in (self._relations.left, self._relations.right)
        ]
        return count_pairs(keys[0], keys[1], 1 + int(max(one.max() for one in keys)))

    def _until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not reached():
            error = self._query.exception()
            if error is not None:
                raise error
            if time.monotonic() > deadline:
                raise HandoverError(f"rows were not taken in for {_PATIENCE_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
