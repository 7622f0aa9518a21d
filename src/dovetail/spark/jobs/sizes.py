"""How many rows a batch has without reading it, and how many files a stream takes at once."""

import sys
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame


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
    """How many files a micro-batch of a stream brings at most; None if it is not of files alone."""
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
    """How many rows Spark's optimizer expects, and whether that is more than a guess."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()  # no public call tells
    facts = plan.stats()
    counted = facts.rowCount()
    if counted.isDefined():
        return int(str(counted.get())), True
    return int(int(str(facts.sizeInBytes())) / max(1.0, row_bytes)), False
