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

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from dovetail.spark.layout import CLOCK, UnionLayout, union_layout
from dovetail.spark.step import StreamingTask
from dovetail.specs import JoinOptions, JoinSpec, join_spec

QUERY = "the-query"


def schema_of(side: str) -> pa.Schema:
    return pa.schema({"k": pa.int64(), f"{side}_id": pa.int64(), f"{side}_text": pa.string()})


class Partition:
    """One partition of a join, and what was put into it."""

    def __init__(self, root: Path, memory: str | None = "70KB", algorithm: str = "xjoin") -> None:
        options = JoinOptions("k", memory=memory, state=root, algorithm=algorithm, slice_ms=1)
        left, right = schema_of("left"), schema_of("right")
        self.spec: JoinSpec = join_spec(left, right, options, 1)
        self.layout: UnionLayout = union_layout(from_arrow_schema(left), from_arrow_schema(right))

    def task(self, batch: int, *, keep: bool) -> StreamingTask:
        return StreamingTask(self.spec, self.layout, 0, batch, keep)

    def run(
        self, batch: int, rows: tuple[pa.Table, pa.Table], order: int, *, keep: bool = False
    ) -> Counter[str]:
        """One attempt of a batch, its rows in the order that `order` seeds."""
        out = list(self.task(batch, keep=keep).run(self.shuffled(rows, order), QUERY))
        table = pa.Table.from_batches(out, self.spec.twoway.layout.schema)
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


def checksum(rows: Counter[str]) -> int:
    return zlib.crc32("\n".join(sorted(rows.elements())).encode())


if __name__ == "__main__":
    partition, seed, order = Partition(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    for line in sys.stdin:
        number = int(line)
        print(checksum(partition.run(number, rows_of(number, seed), order, keep=True)), flush=True)
