"""Makes `foreachBatch` take micro-batches in whole, however little its function reads.

Spark runs a step only where its output is read, and counts a micro-batch as done when the function
returns. A function that skips a batch, or looks at its first rows, would thus lose the rows of the
partitions that it did not read. So after the function has returned, partitions that have not
committed the batch are run: the batch is read once more and thrown away, and partitions that have
committed it emit their outbox again.

Spark has no hook for this, so PySpark's own method is wrapped, once a process; queries without a
join are left as they are. docs/decisions/017-foreach-batch.md has what else was tried.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail.spark.sources.clock import NAME
from dovetail.spark.state import PartitionState

Function = Callable[[DataFrame, int], None]

_MARK = "_dovetail_reads_whole"


def read_batches_whole() -> None:
    """Wrap `DataStreamWriter.foreachBatch`, if that has not been done."""
    original = DataStreamWriter.foreachBatch
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def foreach_batch(self: DataStreamWriter, func: Function) -> DataStreamWriter:
        states = states_in(self._df)
        return original(self, _whole(func, states) if states else func)

    setattr(foreach_batch, _MARK, True)
    DataStreamWriter.foreachBatch = foreach_batch  # type: ignore[method-assign]


def _whole(function: Function, states: list[PartitionState]) -> Function:
    def read_whole(batch: DataFrame, number: int) -> None:
        function(batch, number)
        if not all(state.path(number).exists() for state in states):
            batch.write.format("noop").mode("overwrite").save()

    return read_whole


def states_in(frame: DataFrame) -> list[PartitionState]:
    """The partitions' states of all joins in a streaming plan, found by their clocks."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    found: list[PartitionState] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.nodeName() == "StreamingRelationV2" and leaf.sourceName() == NAME:
            options = leaf.extraOptions()
            root = Path(options.get("state"))
            found += [PartitionState(root, p) for p in range(int(options.get("partitions")))]
    return found
