"""Drives `StreamingTask` without Spark: one partition, any batch, any attempt.

As a script:

    protocol.py race ROOT SEED ORDER           one of two processes that work on the same partition
                                               at once: for every number of a batch on standard
                                               input it runs the batch, with the rows in an order of
                                               its own, and answers with a checksum of its output
    protocol.py die ROOT SEED ALGORITHM KILLS  go through batches in workers that are killed one
                                               after the other, until KILLS have been
"""

import itertools
import os
import pickle
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dovetail.multiway import ALGORITHMS as MULTIWAY
from dovetail.spark.jobs.enrich import EnrichJob
from dovetail.spark.jobs.job import Job
from dovetail.spark.jobs.join import JoinJob
from dovetail.spark.jobs.join_all import JoinAllJob
from dovetail.spark.layout import CLOCK, UnionLayout, union_layout
from dovetail.spark.state import prepare
from dovetail.spark.state.staged import CURRENT, TABLES
from dovetail.spark.step import StreamingTask
from dovetail.specs import (
    EnrichOptions,
    EnrichSpec,
    JobSpec,
    JoinAllOptions,
    JoinAllSpec,
    JoinOptions,
    JoinSpec,
    Known,
    enrich_spec,
    join_all_spec,
    join_spec,
)
from support.semistream import stage

QUERY = "the-query"


def schema_of(side: str) -> pa.Schema:
    return pa.schema({"k": pa.int64(), f"{side}_id": pa.int64(), f"{side}_text": pa.string()})


class Partition:
    """One partition of a join, and what was put into it."""

    def __init__(
        self, root: Path, memory: str | None = "70KB", algorithm: str = "xjoin",
        number: int = 0, partitions: int = 1,
    ) -> None:  # fmt: skip
        """A name of an algorithm may be followed by `-within-` and the width of a band.

        By one of several inputs, left rows are joined in a chain of three with copies of them
        besides, by number.
        """
        self.number = number
        self.threefold = algorithm in MULTIWAY
        if self.threefold:
            self._join_three(root, memory, algorithm)
            return
        name, _, width = algorithm.partition("-within-")
        self.within = int(width or 0)
        options = JoinOptions(
            "k", within=int(width) if width else None, memory=memory, state=root, algorithm=name,
            slice_ms=1,
        )  # fmt: skip
        left, right = schema_of("left"), schema_of("right")
        self.spec: JobSpec = join_spec(left, right, options, partitions)
        self.layout: UnionLayout = union_layout(from_arrow_schema(left), from_arrow_schema(right))

    def _join_three(self, root: Path, memory: str | None, algorithm: str) -> None:
        third = pa.schema({"third_id": pa.int64(), "third_text": pa.string()})
        inputs = {"left": schema_of("left"), "right": schema_of("right"), "third": third}
        options = JoinAllOptions(
            [("left.k", "right.k"), ("left.left_id", "third.third_id")],
            memory="110KB" if memory else None, state=root, algorithm=algorithm, slice_ms=1,
        )  # fmt: skip
        self.spec = join_all_spec(inputs, options, Known(1))
        self.layout = union_layout(*map(from_arrow_schema, inputs.values()))

    def task(self, batch: int, *, keep: bool) -> StreamingTask:
        return StreamingTask(self.job, self.layout, self.number, (batch, QUERY), keep)

    @property
    def job(self) -> Job:
        if isinstance(self.spec, EnrichSpec):
            return EnrichJob(self.spec, StructType())
        if isinstance(self.spec, JoinAllSpec):
            return JoinAllJob(self.spec)
        assert isinstance(self.spec, JoinSpec)
        return JoinJob(self.spec)

    def run(
        self, batch: int, rows: tuple[pa.Table, pa.Table], order: int, *, keep: bool = False
    ) -> Counter[str]:
        """One attempt of a batch, its rows in the order that `order` seeds."""
        out = list(self.task(batch, keep=keep).run(self.shuffled(rows, order)))
        table = pa.Table.from_batches(out, self.spec.output)
        if self.threefold:
            assert table["left_id"] == table["third_id"]
            assert table["left_text"] == table["third_text"]
            table = table.drop_columns(["right_k", "third_id", "third_text"])
        elif "right_k" in table.column_names:  # a band: the oracle has the left side's key
            apart = pc.abs(pc.subtract(table["left_k"], table["right_k"]))
            assert pc.all(pc.less_equal(apart, self.within)).as_py() is not False
            table = table.drop_columns(["right_k"])
        columns = [column.to_pylist() for column in table.columns]
        return Counter(repr(row) for row in zip(*columns, strict=True))

    def shuffled(self, rows: tuple[pa.Table, pa.Table], order: int) -> Iterator[pa.RecordBatch]:
        """The rows of both sides as they come out of the shuffle; a tick if there are none."""
        parts = [
            pa.table([pa.array(np.full(len(table), side, np.int32)), *table.columns], list("tkiv"))
            for side, table in enumerate(rows)
        ]
        if self.threefold:
            copies = parts[0]["i"].to_numpy() % 3
            left = parts[0].take(pa.array(np.repeat(np.arange(len(copies)), copies)))
            tags = pa.array(np.full(len(left), 2, np.int32))
            keyless = pa.nulls(len(left), pa.int64())
            parts.append(pa.table([tags, left["i"], keyless, left["v"]], list("tkiv")))
        tick = pa.array([CLOCK], pa.int32())
        table = pa.concat_tables(parts)
        if not len(table):
            nulls = [pa.nulls(1, field.type) for field in table.schema]
            yield pa.RecordBatch.from_arrays([tick, *nulls[1:]], schema=table.schema)
            return
        mixed = np.random.default_rng(order).permutation(len(table))
        yield from table.take(pa.array(mixed)).combine_chunks().to_batches(max_chunksize=50)


class LookupPartition(Partition):
    """One partition of an enrichment: the left side streams, the right side is staged."""

    spec: EnrichSpec
    number = 0
    threefold = False

    def __init__(
        self, root: Path, memory: str | None = "300KB", algorithm: str = "auto", **more: Any
    ) -> None:
        options = EnrichOptions(
            "k", how="left", memory=memory, state=root, algorithm=algorithm, slice_ms=1, **more
        )
        left = schema_of("left")
        self.spec = enrich_spec(left, schema_of("right"), options, 1)
        self.layout = union_layout(from_arrow_schema(left), StructType())

    def stage(self, version: int, text: str, keys: int) -> None:
        """Make this the table: a row for each of the keys, with this text in front."""
        assert self.spec.state is not None
        root, name = self.spec.state / TABLES, f"v{version:06d}"
        columns = [
            np.arange(keys), np.arange(keys), [f"{text} {key:<60}" for key in range(keys)]
        ]  # fmt: skip
        rows = pa.record_batch([pa.array(c) for c in columns], schema=schema_of("right"))
        stage(self.spec.semistream, rows, root / name / "p00000", 4 << 10).close()
        (root / CURRENT).write_text(name)

    def shuffled(self, rows: tuple[pa.Table, pa.Table], order: int) -> Iterator[pa.RecordBatch]:
        left, right = rows
        return super().shuffled((left, right.slice(0, 0)), order)


def rows_of(batch: int, seed: int) -> tuple[pa.Table, pa.Table]:
    """The input of a batch: the same for whoever asks. Every fourth batch is a tick."""
    rng = np.random.default_rng([seed, batch])
    tables = []
    for side in ("left", "right"):
        rows = 0 if batch % 4 == 3 else int(rng.integers(0, 160))
        letters = rng.integers(97, 123, (rows, 60), dtype=np.uint8)
        columns = {
            "k": rng.integers(0, 60, rows),
            f"{side}_id": batch * 1000 + np.arange(rows),
            f"{side}_text": [row.tobytes().decode() for row in letters],
        }
        tables.append(pa.table(columns, schema=schema_of(side)))
    return tables[0], tables[1]


def lookup_rows(batch: int, rows: int, keys: int) -> tuple[pa.Table, pa.Table]:
    """Stream rows with keys below `keys`."""
    drawn = np.random.default_rng([batch, rows]).integers(0, keys, rows)
    numbers = batch * 1000 + np.arange(rows)
    texts = pa.array(["x" * 60] * rows, pa.string())
    left = pa.table([drawn, numbers, texts], schema=schema_of("left"))
    return left, schema_of("right").empty_table()


def numbered_keys(rows: tuple[pa.Table, pa.Table]) -> list[tuple[int, int]]:
    """The key and the number of every stream row."""
    columns = (rows[0][name].to_pylist() for name in ("k", "left_id"))
    return list(zip(*columns, strict=True))


def checksum(rows: Counter[str]) -> int:
    return zlib.crc32("\n".join(sorted(rows.elements())).encode())


class Mortals:
    """Workers that go through the batches of one partition, each until it is killed.

    What a batch emitted goes to a file, as a sink would have it: whole, or it is run again. A
    worker is a fork of this process, which has imported all and started no thread: so it lives
    within milliseconds.
    """

    def __init__(self, root: Path, seed: int, algorithm: str) -> None:
        self.root = root
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.partition = Partition(root / "state", algorithm=algorithm)
        self.sink = root / "sink"
        self.sink.mkdir()
        prepare(root / "state", 1)

    def written(self) -> int:
        return sum(path.suffix == ".rows" for path in self.sink.iterdir())

    def live(self, order: int) -> None:
        """Run batch after batch, beginning with the first whose output is not in the sink."""
        for batch in itertools.count(self.written()):
            rows = self.partition.run(batch, rows_of(batch, self.seed), order, keep=True)
            path = self.sink / f"{batch:04d}.tmp"
            path.write_bytes(pickle.dumps(rows))
            path.rename(path.with_suffix(".rows"))

    def kill_one(self, order: int) -> None:
        """A worker dies at a moment of its first, second or third batch."""
        done = self.written()
        last = done + int(self.rng.integers(0, 3))
        worker = os.fork()
        if not worker:
            try:
                self.live(order)
            finally:
                os._exit(1)
        while last > done and not (self.sink / f"{last - 1:04d}.rows").exists():
            if os.waitpid(worker, os.WNOHANG)[0]:
                sys.exit("a worker failed; what it said is above")
            time.sleep(0.005)
        time.sleep(float(self.rng.uniform(0, 0.06)))
        os.kill(worker, signal.SIGKILL)
        _, status = os.waitpid(worker, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit("a worker failed; what it said is above")


def main(mode: str, root: Path, seed: int, *more: str) -> None:
    if mode == "die":
        mortals = Mortals(root, seed, more[0])
        for order in range(int(more[1])):
            mortals.kill_one(order)
        return
    partition = Partition(root)
    for line in sys.stdin:
        number = int(line)
        rows = partition.run(number, rows_of(number, seed), int(more[0]), keep=True)
        print(checksum(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
