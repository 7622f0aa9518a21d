"""The table of `enrich`: opened once, with an identity that tells versions apart.

    a DataFrame                          is what it is
    a folder with `_delta_log`           a Delta table
    a folder with `metadata/*.metadata.json`, or the path of such a file: an Iceberg table
    any other path                       Parquet files
    a name that the session knows        a table of Spark's catalogue
    `catalog.namespace.table`            an Iceberg table, if pyiceberg knows the catalogue

A lakehouse table is opened at its newest snapshot. All reads of it are of that snapshot, and two
versions differ if their snapshots do. Anything else is told apart by the names, sizes and times of
its files.
"""

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail.errors import ArgumentError
from dovetail.spark.layout import quoted
from dovetail.spark.sources import iceberg
from dovetail.spark.sources.delta import DeltaSnapshot
from dovetail.spark.sources.lakehouse import Snapshot, snapshot_frame, spark_schema

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_FILE = re.compile(r"file:(//[^/]*)?(?=/)")
_DELTA_LOG, _METADATA, _HINT = "_delta_log", "metadata", "version-hint.text"

Table = DataFrame | str | Path
Fingerprint = list[list[str | int]]


class OpenTable(ABC):
    """A table that can be read, again and again with the same result if it is a snapshot."""

    source: str | None  #: how to open it again; None if it was given as a DataFrame
    schema: StructType
    streaming = False

    @abstractmethod
    def read(self, names: Sequence[str] | None = None) -> DataFrame:
        """Its rows; only these columns, in this order."""

    @abstractmethod
    def version(self) -> Fingerprint | None:
        """Differs when the rows may; None if nothing tells."""

    @abstractmethod
    def rows(self) -> int | None:
        """The number of rows, where it is known without looking at files."""

    def plan(self) -> int | None:
        """Tells two DataFrames over the same files apart; in another session it may be another."""
        return None


class SparkTable(OpenTable):
    """A DataFrame."""

    def __init__(self, frame: DataFrame, source: str | None) -> None:
        self.source = source
        self.schema = frame.schema
        self.streaming = frame.isStreaming
        self._frame = frame

    def read(self, names: Sequence[str] | None = None) -> DataFrame:
        if names is None:
            return self._frame
        return self._frame.select([self._frame[quoted(name)] for name in names])

    def version(self) -> Fingerprint | None:
        return fingerprint(self._frame)

    def rows(self) -> int | None:
        return None

    def plan(self) -> int | None:
        return self._frame.semanticHash() if self.source is None else None


class LakeTable(OpenTable):
    """A snapshot of a lakehouse table."""

    def __init__(self, session: SparkSession, snapshot: Snapshot, source: str) -> None:
        self.source = source
        self.schema = spark_schema(snapshot)
        self._session = session
        self._snapshot = snapshot

    def read(self, names: Sequence[str] | None = None) -> DataFrame:
        return snapshot_frame(self._session, self._snapshot, names)

    def version(self) -> Fingerprint | None:
        return [[*self._snapshot.identity]]

    def rows(self) -> int | None:
        return self._snapshot.rows()


def open_table(session: SparkSession, table: Table) -> OpenTable:
    """A table given as a DataFrame, by a path, or by a name."""
    if isinstance(table, DataFrame):
        return SparkTable(table, None)
    text = str(table)
    snapshot = _snapshot_at(session, text)
    if snapshot is not None:
        return LakeTable(session, snapshot, text)
    try:
        if Path(text).exists() or "/" in text:
            return SparkTable(session.read.parquet(text), text)
        session.catalog.refreshTable(text)
        return SparkTable(session.table(text), text)
    except AnalysisException as error:
        snapshot = None if "/" in text else iceberg.from_catalogue(text)
        if snapshot is not None:
            return LakeTable(session, snapshot, text)
        reason = next((line for line in str(error).splitlines() if line), "")
        raise ArgumentError(
            f"table={text!r} is neither the path of Parquet files nor the name of a table that "
            f"this session knows: {reason}{_hint(text)}"
        ) from error


def fingerprint(table: DataFrame) -> Fingerprint | None:
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


def _hint(name: str) -> str:
    parts = iceberg.name_parts(name)
    if "/" in name or len(parts) < 3:
        return ""
    if not iceberg.is_installed():
        return ' (For a table of an Iceberg catalogue: pip install "dovetail[iceberg]".)'
    return f" (Nor is pyiceberg configured for a catalogue {parts[0]!r}.)"


def _snapshot_at(session: SparkSession, text: str) -> Snapshot | None:
    """The lakehouse table at a path; None if there is none."""
    place = _local(text) or (text if _URL.match(text) else None)
    if place is None:
        return None
    if place.endswith(iceberg.METADATA):
        return iceberg.from_metadata(place)
    if _names(session, place, _DELTA_LOG) is not None:
        return DeltaSnapshot(place)
    names = [n for n in _names(session, place, _METADATA) or () if n.endswith(iceberg.METADATA)]
    if not names:
        return None
    name = iceberg.newest_metadata(text, names, _version_hint(place))
    return iceberg.from_metadata(f"{place.rstrip('/')}/{_METADATA}/{name}")


def _local(text: str) -> str | None:
    """The absolute path of something on this machine, given as a path or as a `file:` URI.

    A URI may be written as Spark reads it, signs and all, or with percent signs.
    """
    inner = _FILE.sub("", text, count=1)
    for path in (text, inner, unquote(inner) if inner != text else inner):
        if Path(path).exists():
            return str(Path(path).absolute())
    return None


def _names(session: SparkSession, place: str, folder: str) -> list[str] | None:
    """The names in a folder of a table; None if there is no such folder, or it cannot be listed."""
    if not _URL.match(place):
        path = Path(place, folder)
        return [inner.name for inner in path.iterdir()] if path.is_dir() else None
    jvm: Any = session.sparkContext._jvm  # no public call lists a folder
    try:
        path = jvm.org.apache.hadoop.fs.Path(place, folder)
        files = path.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
        return [status.getPath().getName() for status in files.listStatus(path)]
    except Py4JJavaError:  # Spark itself will say what is wrong with the place, if anything
        return None


def _version_hint(place: str) -> str | None:
    with contextlib.suppress(OSError):
        return Path(place, _METADATA, _HINT).read_text().strip()
    return None
