"""How a contender of `spark-enrich` is measured: in turns for its busy time, live for its wait.

A turn. The contender gets a few files more, runs its query until they are done, and the last
micro-batch counts. The others warm up: Spark ends Python workers that had nothing to do for a
minute, and their caches with them, while other contenders had their turns.

Live. Small files come at an even pace, one after the other, while the query runs with Spark's
default trigger, which starts a micro-batch as soon as the last has ended. A row has waited from the
moment its file was there until the end of the micro-batch that emitted it. The first files are not
counted: the query starts while they come.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_bench.measure import Measured, expect_rows
from dovetail_bench.spark.runs import SparkBed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    Plan = Callable[[DataFrame, Path], DataFrame]

PIECES = 10  #: live files that make up a turn's file
TURN_FILES = 4
LIVE_FILES = 80
UNCOUNTED_FILES = 30
_SCHEMA = "key long, id long, amount double"


@dataclass(frozen=True)
class MicroBatch:
    """What Spark reports of one."""

    rows_in: int
    rows_out: int
    seconds: float
    ended: float

    @classmethod
    def of(cls, report: dict[str, Any]) -> "MicroBatch":
        files = [one for one in report["sources"] if "FileStream" in one["description"]]
        seconds = report["durationMs"]["triggerExecution"] / 1000
        began = datetime.fromisoformat(report["timestamp"]).timestamp()
        rows_in = sum(one["numInputRows"] for one in files)
        return cls(rows_in, report["sink"]["numOutputRows"], seconds, began + seconds)


class Turns:
    """One contender: its input directory, its checkpoint, and the query over them."""

    def __init__(
        self,
        name: str,
        bed: SparkBed,
        directory: Path,
        feed: Callable[[int], pa.Table],
        plan: "Plan",
    ) -> None:
        self.name = name
        self._bed = bed
        self._directory = directory
        self._feed = feed
        self._plan = plan
        self._fed = 0
        (directory / "in").mkdir(parents=True)

    def turn(self) -> Measured:
        """The busy time of a micro-batch, for each row."""
        for _ in range(TURN_FILES):
            pq.write_table(self._next(), self._directory / "in" / f"{self._fed:06d}.parquet")
        query = self._start(files=1, availableNow=True)
        query.awaitTermination()
        batches = _micro_batches(query)
        _expect_all(batches)
        last = max(index for index, batch in enumerate(batches) if batch.rows_in)
        busy = sum(batch.seconds for batch in batches[last:])
        settled = len(batches) - last
        return Measured(
            {"busy": busy / batches[last].rows_in}, {"micro_batches_until_settled": settled}
        )

    def live(self, pace: float) -> Measured:
        """How long rows wait if a turn's file of them comes in so many seconds."""
        files = self._live_files()
        query = self._start(files=LIVE_FILES)
        feeder = Feeder(files, self._directory / "in", pace / PIECES)
        feeder.start()
        try:
            feeder.join()
            query.processAllAvailable()
        finally:
            query.stop()
        batches = _micro_batches(query)
        _expect_all(batches)
        waits = _waits(batches, feeder.arrived, pq.read_metadata(feeder.written[0]).num_rows)
        return Measured(waits, {"live_micro_batch": float(np.median([b.seconds for b in batches]))})

    def _live_files(self) -> list[Path]:
        """All files of a live spell, where the query does not see them yet."""
        place = self._directory / "later"
        place.mkdir(exist_ok=True)
        files = []
        for _ in range(LIVE_FILES // PIECES):
            rows = self._next()
            step = rows.num_rows // PIECES
            for piece in range(PIECES):
                files.append(place / f"{self._fed:06d}-{piece}.parquet")
                pq.write_table(rows.slice(piece * step, step), files[-1])
        return files

    def _next(self) -> pa.Table:
        self._fed += 1
        return self._feed(self._fed)

    def _start(self, files: int, **trigger: bool) -> "StreamingQuery":
        reader = self._bed.session.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", files)
        writer = (
            self._plan(reader.parquet(str(self._directory / "in")), self._directory)
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
        )
        return (writer.trigger(**trigger) if trigger else writer).start()


class Feeder(threading.Thread):
    """Moves files into a directory, one every few moments."""

    def __init__(self, files: Sequence[Path], into: Path, interval: float) -> None:
        super().__init__(daemon=True)
        self._files = files
        self._interval = interval
        self.written = [into / file.name for file in files]
        self.arrived: list[float] = []

    def run(self) -> None:
        began = time.time()
        for number, (file, place) in enumerate(zip(self._files, self.written, strict=True)):
            time.sleep(max(0.0, began + number * self._interval - time.time()))
            file.touch()  # Spark takes files in the order of their times
            file.rename(place)
            self.arrived.append(time.time())


def _micro_batches(query: "StreamingQuery") -> list[MicroBatch]:
    return [MicroBatch.of(json.loads(report.json)) for report in query.recentProgress]


def _expect_all(batches: list[MicroBatch]) -> None:
    """Every row of the stream has one match."""
    expect_rows(sum(batch.rows_out for batch in batches), sum(batch.rows_in for batch in batches))


def _waits(batches: list[MicroBatch], arrived: list[float], file_rows: int) -> dict[str, float]:
    """How long the rows of a file waited, the median file and the 95th of a hundred.

    Files are taken in the order in which they came, and rows are emitted in the order of their
    files: all of a file's rows are there once as many rows have been emitted as came up to it.
    """
    emitted = np.cumsum([batch.rows_out for batch in batches])
    ends = np.array([batch.ended for batch in batches])
    whole = file_rows * np.arange(1, len(arrived) + 1)
    waits = (ends[np.searchsorted(emitted, whole)] - np.array(arrived))[UNCOUNTED_FILES:]
    return {"wait50": float(np.quantile(waits, 0.50)), "wait95": float(np.quantile(waits, 0.95))}
