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
over, and gives up after a few times.
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from dovetail.errors import StateMismatchError, StorageError, TableChangedError
from dovetail.kernel.blocks import storage_problem
from dovetail.semistream.base import TABLE, SemiStreamSpec
from dovetail.semistream.table import PAGE_BYTES, TableWriter
from dovetail.spark.layout import partition_of
from dovetail.specs import CURRENT, TABLES, EnrichSpec

STAGED = "staged.json"
_CODE, _PART = "__dovetail_code", "__dovetail_partition"
_ATTEMPTS = 3
_LEAST_PAGE_BYTES = 4 << 10

Batches = Iterator[pa.RecordBatch]


def ensure_staged(table: DataFrame, spec: EnrichSpec) -> str:
    """The version in use; stages the table if the state directory has none yet."""
    assert spec.state is not None
    root = spec.state / TABLES
    current = root / CURRENT
    if current.exists():
        version = current.read_text().strip()
        if (root / version / STAGED).exists():
            _check_staged(root / version, spec)
            return version
    return stage(table, spec)


def stage(table: DataFrame, spec: EnrichSpec) -> str:
    """Stage the table as it is now as a new version, and make that the one in use."""
    assert spec.state is not None
    root = spec.state / TABLES
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_problem(error, root, "write to") from error
    version = _next_version(root)
    for _ in range(_ATTEMPTS):
        before = fingerprint(table)
        rows = _run(table, spec, root / version)
        if fingerprint(table) == before:
            _seal(root, version, {"rows": rows, "fingerprint": before, **_shape(spec)})
            return version
        shutil.rmtree(root / version, ignore_errors=True)
    raise TableChangedError(
        f"the table's files changed while it was being staged, {_ATTEMPTS} times in a row; nothing "
        "was staged. Stage it while nobody writes to it, or read it from a fixed snapshot."
    )


def fingerprint(table: DataFrame) -> list[list[str | int]] | None:
    """Names, sizes and times of the files behind a table; None if it is not made of files."""
    files = []
    for uri in sorted(table.inputFiles()):
        url = urlparse(uri)
        entry: list[str | int] = [uri]
        if url.scheme in ("", "file"):
            with contextlib.suppress(OSError):
                facts = Path(unquote(url.path)).stat()
                entry += [facts.st_size, facts.st_mtime_ns]
        files.append(entry)
    return files or None


def _run(table: DataFrame, spec: EnrichSpec, directory: Path) -> int:
    """The staging job; returns how many rows it wrote."""
    shutil.rmtree(directory, ignore_errors=True)
    semistream = spec.semistream
    keys = semistream.table_keys
    # plain names on the way, whatever the table calls its columns
    needed = table.select(
        [table[f"`{name}`"].alias(f"c{n}") for n, name in enumerate(semistream.table.names)]
    )
    names = [f"c{semistream.table.get_field_index(key)}" for key in keys]
    present = reduce(lambda a, b: a & b, (needed[name].isNotNull() for name in names))
    types = [needed.schema[name].dataType for name in names]
    target = partition_of([needed[name] for name in names], types, spec.partitions)
    tagged = needed.where(present).select("*", target.alias(_PART))
    with_code = StructType([*tagged.schema.fields, StructField(_CODE, LongType(), nullable=False)])
    coded = tagged.mapInArrow(_add_codes(semistream), with_code)
    placed = coded.repartitionById(spec.partitions, F.col(_PART)).sortWithinPartitions(_CODE)
    try:
        directory.mkdir(parents=True)
        write = _write(semistream, directory, page_bytes(spec))
        counts = placed.mapInArrow(write, "rows long").collect()
        for number in range(spec.partitions):
            if not (directory / f"p{number:05d}").exists():
                TableWriter(directory / f"p{number:05d}", semistream.table).finish()
    except OSError as error:
        raise storage_problem(error, directory, "write to") from error
    for left_over in directory.glob("attempt-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    return sum(int(row["rows"]) for row in counts)


def _add_codes(spec: SemiStreamSpec) -> Callable[[Batches], Batches]:
    def add(batches: Batches) -> Batches:
        for batch in batches:
            codes, _ = spec.encode(TABLE, _staged_columns(batch, spec))
            fields = [*batch.schema, pa.field(_CODE, pa.int64(), nullable=False)]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(codes)], schema=pa.schema(fields)
            )

    return add


def page_bytes(spec: EnrichSpec) -> int:
    """Pages small enough that several, with what goes with them, fit a partition's memory."""
    share = spec.partition_bytes
    return PAGE_BYTES if share is None else max(_LEAST_PAGE_BYTES, min(PAGE_BYTES, share // 64))


def _write(spec: SemiStreamSpec, directory: Path, page_bytes: int) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        mine = directory / f"attempt-{uuid.uuid4().hex}"
        writer: TableWriter | None = None
        number, rows = 0, 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                number = int(batch.column(_PART)[0].as_py())
                writer = TableWriter(mine, spec.table, page_bytes)
            writer.append(np.asarray(batch.column(_CODE)), _staged_columns(batch, spec))
            rows += batch.num_rows
        if writer is not None:
            writer.finish()
            with contextlib.suppress(OSError):  # another attempt was faster, with the same rows
                mine.rename(directory / f"p{number:05d}")
            if not (directory / f"p{number:05d}").exists():
                raise StorageError(f"cannot rename {mine} to its place in {directory}")
        yield pa.RecordBatch.from_arrays([pa.array([rows])], names=["rows"])

    return write


def _staged_columns(batch: pa.RecordBatch, spec: SemiStreamSpec) -> pa.RecordBatch:
    columns = []
    for index, field in enumerate(spec.table):
        column = batch.column(index)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=spec.table)


def _next_version(root: Path) -> str:
    numbers = [int(path.name[1:]) for path in root.glob("v*") if path.name[1:].isdecimal()]
    whole = [number for number in numbers if (root / f"v{number:06d}" / STAGED).exists()]
    return f"v{max(whole, default=0) + 1:06d}"


def _seal(root: Path, version: str, facts: dict[str, object]) -> None:
    try:
        _replace(root / version / STAGED, json.dumps(facts))
        _replace(root / CURRENT, version)
    except OSError as error:
        raise storage_problem(error, root, "write to") from error


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    with temporary.open("x") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)


def _shape(spec: EnrichSpec) -> dict[str, object]:
    table = spec.semistream.table
    return {
        "partitions": spec.partitions,
        "columns": {field.name: str(field.type) for field in table},
        "keys": list(spec.semistream.table_keys),
    }


def _check_staged(directory: Path, spec: EnrichSpec) -> None:
    facts = json.loads((directory / STAGED).read_text())
    for name, value in _shape(spec).items():
        if facts.get(name) != value:
            raise StateMismatchError(
                f"the table staged in {directory} has {name}={facts.get(name)!r}, but now "
                f"{name}={value!r} is asked for. Go back to the old setting, or start over with a "
                "new state directory and a new checkpoint."
            )
