"""Iceberg tables, read with `pyiceberg`.

A table is given by its folder, by one of its metadata files, or by its name in a catalogue that
pyiceberg is configured for. In a folder the metadata file with the highest number is the newest;
where two writers have left the same number, the folder does not tell which one was committed.

The snapshot's data files are planned once, with the position deletes or deletion vectors that
belong to each, and every file is read by itself. Equality deletes are beyond pyiceberg, and it says
so. Columns are found by their ids, so renamed, added and widened ones are right in old files.

Files that Spark wrote before they were added to a table may hold INT96 timestamps. pyiceberg
decodes them as nanoseconds, and a date such as 9999-12-31 comes out as another one. So such files
are looked through first, and refused if they hold one that nanoseconds do not reach.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail.errors import ArgumentError, TableUnreadableError
from dovetail.spark.sources.lakehouse import (
    Batches,
    Piece,
    Reader,
    Snapshot,
    first_line,
    missing_package,
    reading,
)

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

METADATA = ".metadata.json"
_NANOSECONDS_REACH = 2**63 // 1000  # microseconds
_NUMBER = re.compile(
    r"v?(\d+)\b.*\.metadata\.json$"
)  # v3.metadata.json, 00003-<uuid>.metadata.json
_LEAST_PARTS = 3  # catalogue, namespace, table
_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


class IcebergSnapshot(Snapshot):
    """The current snapshot of a table; one without any is an empty table."""

    def __init__(self, table: "Table", what: str) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        with reading(what):
            current = table.current_snapshot()
            self.schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
            self.identity = [
                f"iceberg {table.metadata.table_uuid}",
                "no snapshot" if current is None else f"snapshot {current.snapshot_id}",
            ]
        self.what = what if current is None else f"snapshot {current.snapshot_id} of {what}"
        self._table = table

    def rows(self) -> int | None:
        current = self._table.current_snapshot()
        if current is None:
            return 0
        known = None if current.summary is None else current.summary.get("total-records")
        return None if known is None else int(known)

    def pieces(self) -> list[Piece]:
        tasks = self._table.scan().plan_files()
        return [Piece(task, task.file.file_size_in_bytes) for task in tasks]

    def reader(self, names: Sequence[str]) -> Reader:
        from pyiceberg.schema import Schema

        schema = self._table.schema()
        by_name = {field.name: field for field in schema.fields}
        # what the workers need of it, without the history
        metadata = self._table.metadata.model_copy(
            update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "statistics": []}
        )
        wanted = Schema(*(by_name[name] for name in names), schema_id=schema.schema_id)
        return _Reader(metadata, self._table.io, wanted)


@dataclass(frozen=True)
class _Reader:
    metadata: "TableMetadata"
    io: "FileIO"
    wanted: "Schema"

    def __call__(self, payloads: Sequence[Any]) -> Batches:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files

        scan = ArrowScan(self.metadata, self.io, self.wanted, AlwaysTrue())
        for task in payloads:
            _check_int96(self.io, task.file)
            # the public way to read a task holds all of its rows at once
            deletes = _read_all_delete_files(self.io, [task])
            yield from scan._record_batches_from_scan_tasks_and_deletes([task], deletes)


def _check_int96(io: "FileIO", file: "DataFile") -> None:
    """Refuse a file whose timestamps pyiceberg would get wrong."""
    if file.file_format.value != "PARQUET":
        return
    with io.new_input(file.file_path).open() as handle:
        parquet = pq.ParquetFile(handle, coerce_int96_timestamp_unit="us")
        columns = parquet.schema
        names = [columns.column(n).path for n in range(len(columns.names))]
        old = [name for n, name in enumerate(names) if columns.column(n).physical_type == "INT96"]
        for batch in parquet.iter_batches(columns=old) if old else ():
            for column in batch.columns:
                if not pa.types.is_timestamp(column.type) or _beyond_nanoseconds(column):
                    raise TableUnreadableError(
                        f"{file.file_path} has INT96 timestamps in {', '.join(old)} that pyiceberg "
                        "does not read as they are. Rewrite the table's data files "
                        "(rewrite_data_files), or read it with Spark and hand over the DataFrame."
                    )


def _beyond_nanoseconds(column: pa.Array) -> bool:
    furthest = pc.max(pc.abs(column.cast(pa.int64())))
    return bool(furthest.is_valid and furthest.as_py() >= _NANOSECONDS_REACH)


def from_metadata(location: str) -> IcebergSnapshot:
    """The table that a metadata file describes."""
    what = f"the Iceberg table {location!r}"
    try:
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise missing_package("pyiceberg", "iceberg", what) from error
    with reading(what):
        table = StaticTable.from_metadata(location)
    return IcebergSnapshot(table, what)


def newest_metadata(folder: str, names: list[str], hint: str | None) -> str:
    """Which metadata file of a table's folder is the newest; `hint` is its version-hint.text."""
    numbers = {name: int(found[1]) for name in names if (found := _NUMBER.match(name))}
    if not numbers:
        raise ArgumentError(
            f"table={folder!r} looks like an Iceberg table, but no metadata file of it has a "
            "number in its name. Give the path of the one to read."
        )
    newest = max(numbers.values())
    latest = sorted(name for name, number in numbers.items() if number == newest)
    if len(latest) > 1:
        hinted = [name for name in latest if hint and name in (hint, hint + METADATA)]
        if len(hinted) != 1:
            raise ArgumentError(
                f"table={folder!r} has several metadata files of the highest number: "
                f"{', '.join(latest)}. Only its catalogue knows which one counts: give the table's "
                "name there (catalog.namespace.table), or the path of the metadata file."
            )
        latest = hinted
    return latest[0]


def is_installed() -> bool:
    try:
        import pyiceberg  # noqa: F401
    except ImportError:
        return False
    return True


def from_catalogue(name: str) -> IcebergSnapshot | None:
    """The table `catalog.namespace.table` of a catalogue that pyiceberg is configured for.

    None if it is not configured for this one. If it is, the catalogue has to answer and to have
    the table.
    """
    parts = name_parts(name)
    if len(parts) < _LEAST_PARTS or not is_installed():
        return None
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.utils.config import Config

    catalogue, *identifier = parts
    config = Config().get_catalog_config(catalogue)
    if config is None:
        return None
    what = f"the Iceberg table {name!r}"
    with reading(what):
        try:
            options = {key: str(value) for key, value in config.items()}
            table = load_catalog(catalogue, **options).load_table(tuple(identifier))
        except (NoSuchNamespaceError, NoSuchTableError) as error:
            raise ArgumentError(
                f"table={name!r}: neither this session nor the catalogue {catalogue!r}, which "
                f"pyiceberg is configured for, has such a table: {first_line(error)}"
            ) from error
    return IcebergSnapshot(table, what)


def name_parts(name: str) -> list[str]:
    """The parts of a dotted name, each of which may stand in backticks."""
    return [quoted.replace("``", "`") or plain for quoted, plain in _NAME_PART.findall(name)]
