"""Drives `StreamingTask` without Spark: one partition, any batch, any attempt.

Run as a script, it is one of two processes that work on the same partition at once: for every line
`batch seed` on standard input it runs the batch with the rows in an order of its own and answers
with a checksum of what it emitted.
"""

import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dovetail.spark.layout import CLOCK, UnionLayout, union_layout
from dovetail.spark.step import StreamingTask
from dovetail.specs import (
    CURRENT,
    TABLES,
    EnrichOptions,
    EnrichSpec,
    JobSpec,
    JoinOptions,
    enrich_spec,
    join_spec,
)
from dovetail.testing.semistream import stage

QUERY = "the-query"


def schema_of(side: str) -> pa.Schema:
    return pa.schema({"k": pa.int64(), f"{side}_id": pa.int64(), f"{side}_text": pa.string()})


class Partition:
    """One partition of a join, and what was put into it."""

    def __init__(self, root: Path, memory: str | None = "70KB", algorithm: str = "xjoin") -> None:
        options = JoinOptions("k", memory=memory, state=root, algorithm=algorithm, slice_ms=1)
        left, right = schema_of("left"), schema_of("right")
        self.spec: JobSpec = join_spec(left, right, options, 1)
        self.layout: UnionLayout = union_layout(from_arrow_schema(left), from_arrow_schema(right))

    def task(self, batch: int, *, keep: bool) -> StreamingTask:
        return StreamingTask(self.spec, self.layout, 0, batch, keep)

    def run(
        self, batch: int, rows: tuple[pa.Table, pa.Table], order: int, *, keep: bool = False
    ) -> Counter[str]:
        """One attempt of a batch, its rows in the order that `order` seeds."""
        out = list(self.task(batch, keep=keep).run(self.shuffled(rows, order), QUERY))
        table = pa.Table.from_batches(out, self.spec.output)
        columns = [column.to_pylist() for column in table.columns]
        return Counter(repr(row) for row in zip(*columns, strict=True))

    def shuffled(self, rows: tuple[pa.Table, pa.Table], order: int) -> Iterator[pa.RecordBatch]:
        """The rows of both sides as they come out of the shuffle; a tick if there are none."""
        parts = [
            pa.table([pa.array(np.full(len(table), side, np.int32)), *table.columns], list("tkiv"))
            for side, table in enumerate(rows)
        ]
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


if __name__ == "__main__":
    partition, seed, order = Partition(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    for line in sys.stdin:
        number = int(line)
        print(checksum(partition.run(number, rows_of(number, seed), order, keep=True)), flush=True)
