"""How many rows a batch DataFrame has, without reading it."""

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


def rows_by_statistics(frame: DataFrame, row_bytes: float) -> tuple[int, bool]:
    """How many rows Spark's optimizer expects, and whether that is more than a guess."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()  # no public call tells
    facts = plan.stats()
    counted = facts.rowCount()
    if counted.isDefined():
        return int(str(counted.get())), True
    return int(int(str(facts.sizeInBytes())) / max(1.0, row_bytes)), False
