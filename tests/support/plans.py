"""A planned enrichment for the cost models to predict, without Spark and without a table."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.predictions import Machine, PlannedEnrich, TableSize
from dovetail.costs.storage import Storage
from dovetail.semistream import SemiStreamSpec

STREAM = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
TABLE = pa.schema([("key", pa.int64()), ("name", pa.string()), ("city", pa.string())])
FACTORS = MeshFactors(expire=4e-8, receive=2e-9, add=8e-8, probe=3e-8, output=4e-8)
SSD = Storage("ssd", 1e-4, 2e9)
_PLAN = PlannedEnrich(
    spec=SemiStreamSpec(STREAM, TABLE, ("id",), ("key",), "left"),
    algorithm="seek",
    asked_algorithm="auto",
    memory_bytes=4_000_000,
    partitions=2,
    asked_partitions=None,
    streaming=True,
    table=TableSize(1_000_000, 48.0, 600, "as staged, v000001"),
    machine=Machine(FACTORS, SSD, cores=2),
)


def planned(**changes: Any) -> PlannedEnrich:
    """A million rows in 4 MB on two cores, but for the changes."""
    return replace(_PLAN, **changes)
