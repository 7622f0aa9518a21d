"""Sizes of inputs and speed of storage, known before anything is read or written."""

import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from dovetail.costs.storage import Storage, storage_of
from dovetail.errors import StorageError


def rows_of_files(frame: DataFrame) -> int | None:
    """The rows of a DataFrame's files, if all of them are local Parquet files."""
    urls = [urlparse(uri) for uri in frame.inputFiles()]
    local = all(u.scheme in ("", "file") and u.path.endswith(".parquet") for u in urls)
    if not urls or not local:
        return None
    try:
        return sum(int(pq.read_metadata(unquote(url.path)).num_rows) for url in urls)
    except (OSError, pa.ArrowInvalid):
        return None


def files_in_a_batch(frame: DataFrame) -> int | None:
    """The most files in a micro-batch of a stream; None if it is not of files alone."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()  # no public call tells
    if not frame.isStreaming or leaves.size() != 1:
        return None
    source = leaves.apply(0)
    if source.nodeName() != "StreamingRelation":
        return None
    options = source.dataSource().options()
    keys = options.keysIterator()
    found = {}
    while keys.hasNext():
        key = keys.next()
        found[str(key).lower()] = str(options.apply(key))
    if "path" not in found or "maxbytespertrigger" in found:
        return None
    return int(found.get("maxfilespertrigger", sys.maxsize))


def rows_by_statistics(frame: DataFrame, row_bytes: float) -> tuple[int, bool]:
    """The rows that Spark's optimizer expects, and whether that is more than a guess."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()  # no public call tells
    facts = plan.stats()
    counted = facts.rowCount()
    if counted.isDefined():
        return int(str(counted.get())), True
    return int(int(str(facts.sizeInBytes())) / max(1.0, row_bytes)), False


def storage_near(state: Path | None) -> Storage:
    """The storage where a state directory is or will be, measured.

    One too full to be measured may still have room for the state.
    """
    there = Path(tempfile.gettempdir())
    if state is not None:
        there = next(place for place in (state, *state.parents) if place.is_dir())
    try:
        return storage_of(there)
    except StorageError:
        return storage_of(tempfile.gettempdir())
