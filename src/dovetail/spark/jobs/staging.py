"""Staging: a table written once, as hash partitions of sorted pages.

    state/table/
      current                the name of the version that new rows are joined with
      v000001/staged.json    what was staged; written last, so it says that the version is whole
      v000001/p00000/        one staged table for each partition (see `semistream.table`)

A Spark job computes the code of every row, shuffles the rows as the stream's rows are shuffled,
sorts each partition by code and writes it. Every attempt of a task writes a directory of its own
and renames it into place; the first to do so wins. A version without `staged.json` is one whose
staging was interrupted, and is staged again.

A table may change while it is read. Spark reads the files that it listed at the start, so if names,
sizes or times of these differ afterwards the staged rows are of no one version: staging starts
over, and gives up after a few times. (A snapshot of a lakehouse table does not change.)
"""

import contextlib
import fcntl
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from dovetail.errors import (
    StateError,
    StateMissingError,
    StorageError,
    TableChangedError,
)
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.keytypes import number_type
from dovetail.semistream.base import check_budget
from dovetail.semistream.table.reading import StagedTable, chunk_pages, page_bytes_for
from dovetail.semistream.table.writing import TableWriter
from dovetail.spark.jobs.staging_shown import shown
from dovetail.spark.layout import keys_of, partition_of, with_keys
from dovetail.spark.sources.tables import OpenTable
from dovetail.spark.state import PartitionState, make_directory
from dovetail.spark.state.durable import replace_durably, storing
from dovetail.spark.state.identity import other_setting
from dovetail.spark.state.staged import CURRENT, TABLES, staged_version
from dovetail.spark.worker_errors import own_errors
from dovetail.specs import EnrichSpec

STAGED = "staged.json"
_CODE, _PART = "__dovetail_code", "__dovetail_partition"
_ATTEMPTS = 3

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Shape:
    """The shape of a staged table, whatever rows are in it."""

    schema: pa.Schema
    keys: tuple[str, ...]
    partitions: int
    page_bytes: int
    compared: tuple[pa.DataType, ...]  #: what the keys are compared as

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec(self.compared)

    @property
    def key_columns(self) -> list[int]:
        return [self.schema.get_field_index(key) for key in self.keys]

    def facts(self) -> dict[str, Any]:
        return {
            "partitions": self.partitions,
            "columns": {field.name: str(field.type) for field in self.schema},
            "keys": list(self.keys),
            "compared": [str(type_) for type_ in self.compared],
        }


def shape_as_staged(schema: pa.Schema, facts: dict[str, Any]) -> Shape:
    """That of a version, from what is known of it and the columns that it has."""
    keys = tuple(facts["keys"])
    compared = tuple(
        number_type(text) or schema.field(key).type
        for key, text in zip(keys, facts["compared"], strict=True)
    )
    return Shape(schema, keys, facts["partitions"], facts["page_bytes"], compared)


def shape_of(spec: EnrichSpec) -> Shape:
    table = spec.semistream
    return Shape(
        table.table,
        table.table_keys,
        spec.partitions,
        page_bytes_for(spec.partition_bytes),
        table.codec.types,
    )


def ensure_staged(table: OpenTable, spec: EnrichSpec) -> str:
    """The version in use; stages the table if the state directory has none yet."""
    assert spec.state is not None
    shape = shape_of(spec)
    with alone(spec.state / TABLES):
        if (spec.state / TABLES / CURRENT).exists():
            version = staged_version(spec.state)
            check_staged(spec.state / TABLES / version, shape)
            return version
        with shown(spec.state / TABLES):
            return stage(table, shape, spec.state)


def check_staged_budget(spec: EnrichSpec) -> None:
    """Refuse a budget now that the operators would refuse later."""
    assert spec.state is not None
    directory = spec.state / TABLES / staged_version(spec.state)
    for number in range(spec.partitions):
        part = StagedTable(directory / f"p{number:05d}", spec.semistream.table)
        with contextlib.closing(part) as table:
            check_budget(spec.partition_bytes, table)


def stage(table: OpenTable, shape: Shape, state: Path) -> str:
    """Stage the table as it is now as a new version, and make that the one in use."""
    root = state / TABLES
    version = _next_version(root, referred_to(state, shape.partitions))
    for _ in range(_ATTEMPTS):
        before = table.version()
        rows = _run(table, shape, root / version)
        if table.version() == before:
            facts = {
                "rows": rows,
                "source": table.source,
                "page_bytes": shape.page_bytes,
                "fingerprint": before,
                "plan": table.plan(),
                **shape.facts(),
            }
            _seal(root, version, facts)
            return version
        shutil.rmtree(root / version, ignore_errors=True)
    raise TableChangedError(
        f"the table's files changed while it was being staged, {_ATTEMPTS} times in a row; nothing "
        "was staged. Stage it while nobody writes to it, or read it from a fixed snapshot."
    )


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Lock a directory, so that one thread or process at a time stages below it."""
    with storing(root, "write to"):
        make_directory(root)
        lock = (root / "lock").open("w")
    with lock:
        with contextlib.suppress(OSError):  # some file systems do not lock
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(table: OpenTable, shape: Shape, directory: Path) -> int:
    """The staging job; returns how many rows it wrote."""
    shutil.rmtree(directory, ignore_errors=True)
    # plain names on the way, whatever the table calls its columns
    needed = table.read(shape.schema.names).toDF(*(f"c{n}" for n in range(len(shape.schema))))
    names = [f"c{index}" for index in shape.key_columns]
    target = partition_of(*keys_of(needed, names, shape.compared), shape.partitions)
    tagged = with_keys(needed, names).select("*", target.alias(_PART))
    with_code = StructType([*tagged.schema.fields, StructField(_CODE, LongType(), nullable=False)])
    coded = tagged.mapInArrow(_add_codes(shape), with_code)
    placed = coded.repartitionById(shape.partitions, F.col(_PART)).sortWithinPartitions(_CODE)
    with storing(directory, "write to"), own_errors():
        directory.mkdir(parents=True)
        counts = placed.mapInArrow(_write(shape, directory), "rows long").collect()
        for number in range(shape.partitions):
            if not (directory / f"p{number:05d}").exists():
                TableWriter(directory / f"p{number:05d}", shape.schema).finish()
    for left_over in directory.glob("attempt-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    return sum(int(row["rows"]) for row in counts)


def _add_codes(shape: Shape) -> Callable[[Batches], Batches]:
    def add(batches: Batches) -> Batches:
        for batch in batches:
            rows = _staged_columns(batch, shape)
            codes, _ = shape.codec.encode([rows.column(index) for index in shape.key_columns])
            fields = [*batch.schema, pa.field(_CODE, pa.int64(), nullable=False)]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(codes)], schema=pa.schema(fields)
            )

    return add


def _write(shape: Shape, directory: Path) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        mine = directory / f"attempt-{uuid.uuid4().hex}"
        writer: TableWriter | None = None
        number, rows = 0, 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                number = int(batch.column(_PART)[0].as_py())
                writer = TableWriter(
                    mine, shape.schema, shape.page_bytes, chunk_pages(shape.page_bytes)
                )
            writer.append(np.asarray(batch.column(_CODE)), _staged_columns(batch, shape))
            rows += batch.num_rows
        if writer is not None:
            writer.finish()
            with contextlib.suppress(OSError):  # another attempt was faster, with the same rows
                mine.rename(directory / f"p{number:05d}")
            if not (directory / f"p{number:05d}").exists():
                raise StorageError(f"cannot rename {mine} to its place in {directory}")
        yield pa.RecordBatch.from_arrays([pa.array([rows])], names=["rows"])

    return write


def _staged_columns(batch: pa.RecordBatch, shape: Shape) -> pa.RecordBatch:
    columns = []
    for index, field in enumerate(shape.schema):
        column = batch.column(index)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=shape.schema)


def _next_version(root: Path, taken: set[str]) -> str:
    whole = {path.parent.name for path in root.glob(f"v*/{STAGED}")}
    numbers = [int(name[1:]) for name in whole | taken if name[1:].isdecimal()]
    return f"v{max(numbers, default=0) + 1:06d}"


def _seal(root: Path, version: str, facts: dict[str, Any]) -> None:
    with storing(root, "write to"):
        replace_durably(root / version / STAGED, json.dumps(facts).encode())
        replace_durably(root / CURRENT, version.encode())


def staged_facts(directory: Path) -> dict[str, Any]:
    """The facts of a staged version."""
    try:
        facts: dict[str, Any] = json.loads((directory / STAGED).read_text())
        # once, keys were always compared as what they are
        facts.setdefault("compared", [facts["columns"][key] for key in facts["keys"]])
        return facts
    except (OSError, ValueError, LookupError):
        raise StateMissingError(
            f"{directory / STAGED} is gone or damaged: it says what was staged. Restore it from a "
            "backup, or start over with a new state directory and a new checkpoint."
        ) from None


def check_staged(directory: Path, shape: Shape) -> None:
    facts = staged_facts(directory)
    for name, value in shape.facts().items():
        if facts.get(name) != value:
            what = f"the table staged in {directory} has"
            raise other_setting(what, name, facts.get(name), value)


def referred_to(state: Path, partitions: int) -> set[str]:
    """The versions that committed state refers to."""
    found: set[str] = set()
    for number in range(partitions):
        part = PartitionState(state, number)
        for version in part.versions():
            with contextlib.suppress(FileNotFoundError, StateError):
                manifest = part.committed(version)
                if manifest is not None:
                    found.add(manifest.snapshot.meta["table"])
    return found
