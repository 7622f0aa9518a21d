"""Lakehouse tables: one snapshot of a table, read by its own library inside Spark's tasks.

Motivation. An Iceberg or Delta table is a log of snapshots. Its folder also holds files of earlier
snapshots, rows that were deleted, and columns under other names than the table's, so Spark's
Parquet reader must not be pointed at it. The libraries `pyiceberg` and `deltalake` know what is
alive, and need no JVM package.

Vocabulary. A `Snapshot` is a table as it was when it was opened, and stays so whatever is committed
later. A *piece* is what can be read alone: a data file with its deletes, or the whole snapshot
where the library can only read that.

The pieces are dealt out to Spark's tasks, and each task reads its share as a stream of record
batches: in parallel, with no copy on disk, and in memory that is bounded by one data file (of
Iceberg; less of Delta). So the package has to be installed where Spark's Python workers run, too.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from dovetail.errors import ArgumentError, DovetailError, TableUnreadableError

_TASK_BYTES = 128 << 20  # of data files, as much as Spark gives a task of its own file scans
_BATCH_ROWS = 8192  # what is handed to the JVM at a time
_DASHES = (8, 13, 18, 23)  # in the text of a UUID

Batches = Iterator[pa.RecordBatch]
Reader = Callable[[Sequence[Any]], Batches]


@dataclass(frozen=True)
class Piece:
    """A part of a snapshot that is read by one task; the payload is for the snapshot's reader."""

    payload: Any
    nbytes: int


class Snapshot(ABC):
    """One snapshot of a table."""

    what: str  #: for messages, such as `version 3 of the Delta table '/data/t'`
    identity: list[str]  #: equal for the same snapshot of the same table only
    schema: pa.Schema  #: as the library has it

    @abstractmethod
    def rows(self) -> int | None:
        """The number of rows, if known without reading any; deleted ones may be counted."""

    @abstractmethod
    def pieces(self) -> list[Piece]:
        """The pieces of the snapshot, which together have all its rows."""

    @abstractmethod
    def reader(self, names: Sequence[str]) -> Reader:
        """Reads these columns of some pieces' payloads, in this order; goes to the workers."""


def spark_schema(snapshot: Snapshot) -> StructType:
    """The types that Spark's own connectors give to the same table; any column may have nulls."""
    schema = StructType()
    for field in snapshot.schema:
        try:
            type_ = StringType() if _is_uuid(field.type) else from_arrow_type(field.type)
        except PySparkException as error:
            raise ArgumentError(
                f"the column {field.name!r} of {snapshot.what} has the type {field.type}, which "
                "Spark has no counterpart for. Drop it, or hand over a copy without it."
            ) from error
        schema.add(StructField(field.name, type_))
    return schema


def snapshot_frame(
    session: SparkSession, snapshot: Snapshot, names: Sequence[str] | None = None
) -> DataFrame:
    """The rows of a snapshot; only these columns, in this order."""
    every = spark_schema(snapshot)
    schema = every if names is None else StructType([every[name] for name in names])
    with reading(snapshot.what):
        groups = _groups(snapshot.pieces(), session.sparkContext.defaultParallelism)
    if not groups:
        return session.createDataFrame([], schema)
    work = pa.table({"task": pa.array(range(len(groups)), pa.int32())})
    spread = session.createDataFrame(work).repartitionById(len(groups), F.col("task"))
    target = to_arrow_schema(schema, timezone="UTC")
    read = _read(snapshot.reader(schema.names), groups, target, snapshot.what)
    return spread.mapInArrow(read, schema)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Whatever a library raises while it reads a table becomes an error that names the table."""
    try:
        yield
    except DovetailError:
        raise
    except Exception as error:
        raise TableUnreadableError(
            f"{what} cannot be read: {first_line(error)}. Check it with its own tools. If "
            "snapshots are expired or vacuumed while they are read, keep them longer."
        ) from error


def first_line(error: BaseException) -> str:
    """The message of an error, without the backtrace that Rust adds."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('. ')}" if lines else type(error).__name__


def missing_package(package: str, extra: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"{what} is read with the package {package}, which is not installed; install it, where "
        f'Spark\'s workers run too, with: pip install "dovetail[{extra}]"'
    )


def _groups(pieces: list[Piece], parallelism: int) -> list[list[Any]]:
    """The payloads of each task: about equal in bytes, and enough tasks for all cores."""
    wanted = max(parallelism, -(-sum(piece.nbytes for piece in pieces) // _TASK_BYTES))
    count = min(len(pieces), wanted)
    by_size = sorted(pieces, key=lambda piece: piece.nbytes, reverse=True)
    return [[piece.payload for piece in by_size[start::count]] for start in range(count)]


def _read(
    reader: Reader, groups: list[list[Any]], target: pa.Schema, what: str
) -> Callable[[Batches], Batches]:
    """Goes to the workers with the pieces of all tasks; Spark broadcasts it if it is large."""

    def read(work: Iterable[pa.RecordBatch]) -> Batches:
        for batch in work:
            for task in batch.column("task").to_pylist():
                with reading(what):
                    for rows in reader(groups[task]):
                        yield from as_spark(rows, target)

    return read


def as_spark(rows: pa.RecordBatch, target: pa.Schema) -> Batches:
    """The rows in the types that Spark exchanges, a few at a time.

    (A few, because the texts of a large batch need not fit into Spark's 32-bit offsets.)
    """
    for start in range(0, rows.num_rows, _BATCH_ROWS):
        some = rows.slice(start, _BATCH_ROWS)
        columns = [
            _as_type(column, field.type) for column, field in zip(some.columns, target, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def _as_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if column.type == type_:
        return column
    return uuid_text(column) if _is_uuid(column.type) else column.cast(type_)


def _is_uuid(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.BaseExtensionType) and type_.extension_name == "arrow.uuid"


def uuid_text(column: pa.Array) -> pa.Array:
    """UUIDs in their usual form, as Iceberg's connector for Spark gives them."""
    storage = column.storage.fill_null(bytes(16))
    start = storage.offset * 16
    octets = np.frombuffer(storage.buffers()[1], np.uint8)[start : start + len(storage) * 16]
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.full((len(storage), 36), ord("-"), np.uint8)
    text[:, [n for n in range(36) if n not in _DASHES]] = digits[
        np.stack([octets >> 4, octets & 15], axis=1).reshape(len(storage), 32)
    ]
    offsets = np.arange(len(storage) + 1, dtype=np.int32) * 36
    texts = pa.StringArray.from_buffers(len(storage), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))
