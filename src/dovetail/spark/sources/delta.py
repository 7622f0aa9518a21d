"""Delta tables, read with `deltalake`.

A plain table is read file by file, each as a fragment of the library's Arrow dataset, which adds
partition columns and fills columns that a file lacks. That dataset knows neither deletion vectors
nor column mapping, and does not always say so, so a table that has either is read as a whole by
the library's query engine, which knows both, in one task.

Spark writes timestamps as INT96, which both readers would decode as nanoseconds: a date such as
9999-12-31 comes out as another one. They are told to use microseconds, as Spark does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.errors import TableUnreadableError
from dovetail.spark.sources.lakehouse import (
    Batches,
    Piece,
    Reader,
    Snapshot,
    missing_package,
    reading,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

_PLAIN_FEATURES = {"timestampNtz"}  # that change nothing in how a file is read
_WHOLE = None  # the payload of the piece that is the whole snapshot
_READAHEAD = {"batch_readahead": 1, "fragment_readahead": 0, "use_threads": False}


class DeltaSnapshot(Snapshot):
    """The newest version of a table."""

    def __init__(self, location: str) -> None:
        self.what = f"the Delta table {location!r}"
        self._table = table = _open(location, None)
        self._location = location
        with reading(self.what):
            self.schema = pa.schema(table.schema().to_arrow())
            self.identity = [f"delta {table.metadata().id}", f"version {table.version()}"]
            self._plain = _is_plain(table)
        self.what = f"version {table.version()} of {self.what}"

    def rows(self) -> int | None:
        counts = pa.table(self._table.get_add_actions())["num_records"]
        return None if counts.null_count else int(pc.sum(counts, min_count=0).as_py())

    def pieces(self) -> list[Piece]:
        files = pa.table(self._table.get_add_actions()).select(["path", "size_bytes"])
        if not files.num_rows:
            return []
        sizes = dict(zip(*(column.to_pylist() for column in files.columns), strict=True))
        # files of a clone lie elsewhere, which the dataset does not find
        if not self._plain or any("://" in path or path.startswith("/") for path in sizes):
            return [Piece(_WHOLE, sum(sizes.values()))]
        paths = _dataset(self._table).files
        if len(paths) != len(sizes):
            raise TableUnreadableError(
                f"{self.what} has {len(sizes)} data files, but the library offers {len(paths)}"
            )
        mean = sum(sizes.values()) // len(sizes)  # a path may be written in another way there
        return [Piece(path, sizes.get(path, mean)) for path in paths]

    def reader(self, names: Sequence[str]) -> Reader:
        return _Reader(
            self._location, self._table.version(), self._table.metadata().id, tuple(names)
        )


@dataclass(frozen=True)
class _Reader:
    location: str
    version: int
    id: Any  #: tells a table from another that has taken its place
    names: tuple[str, ...]

    def __call__(self, payloads: Sequence[Any]) -> Batches:
        table = _open(self.location, self.version)
        if table.metadata().id != self.id:
            raise TableUnreadableError(
                f"the Delta table {self.location!r} was replaced by another while it was being read"
            )
        if _WHOLE in payloads:
            yield from self._query(table)
            return
        dataset = _dataset(table)
        fragments = {fragment.path: fragment for fragment in dataset.get_fragments()}
        columns = {name: ds.field(name) for name in self.names}
        for path in payloads:
            scanner = fragments[path].scanner(schema=dataset.schema, columns=columns, **_READAHEAD)
            yield from scanner.to_batches()

    def _query(self, table: "DeltaTable") -> Batches:
        from deltalake import QueryBuilder

        builder = QueryBuilder({"datafusion.execution.parquet.coerce_int96": "us"})
        columns = ", ".join('"{}"'.format(name.replace('"', '""')) for name in self.names)
        found = builder.register("t", table).execute(f"SELECT {columns} FROM t")
        yield from pa.RecordBatchReader.from_stream(found)


def _open(location: str, version: int | None) -> "DeltaTable":
    what = f"the Delta table {location!r}"
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise missing_package("deltalake", "delta", what) from error
    with reading(what):
        return DeltaTable(location, version=version)


def _is_plain(table: "DeltaTable") -> bool:
    """Whether a data file alone tells its rows."""
    protocol = table.protocol()
    # reader version 2 is column mapping, without saying so among the features
    mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    return not mapped and set(protocol.reader_features or ()) <= _PLAIN_FEATURES


def _dataset(table: "DeltaTable") -> ds.FileSystemDataset:
    options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    return table.to_pyarrow_dataset(parquet_read_options=options)
