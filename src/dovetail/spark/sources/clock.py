"""The clock: a streaming source that ticks only while some partition has work to do.

Spark runs a micro-batch only when a source has something new. A join has work of its own while its
inputs are silent (Reactive, Cleanup), so its plan also reads this source. Its offset advances when
a partition's newest manifest says that work is pending, and each advance wakes the partitions that
have some, with one row each. In an `availableNow` query a tick also tells that no other rows will
come.

The offset also advances when a version has been committed, without waking anybody: that writes the
version's number into Spark's log, beside the offsets of the inputs (`newest` says what for). While
rows come, it travels with their batch; after the last rows it takes an empty micro-batch. Then the
offset stands still: no micro-batch runs, an `availableNow` query ends, and as Spark has logged a
batch behind the last results, these are deleted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dovetail.spark.state import prepare
from dovetail.spark.state.newest import (
    Newest,
    NewestVersions,
    check_known,
    check_unused,
    check_woken,
)
from dovetail.spark.worker_errors import plain_errors

NAME = "dovetail-clock"
SCHEMA = "partition int, ends boolean"

Offset = dict[str, Any]


class Wake(InputPartition):
    """The partitions that one tick wakes, and whether the query ends with the rows it has."""

    def __init__(self, partitions: list[int], ends: bool) -> None:
        super().__init__(partitions)
        self.partitions = partitions
        self.ends = ends


class ClockReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets `{"tick": n, "wake": [partition, ...], "known": [version, ...]}`.

    A replayed tick wakes the same partitions. `known` is the newest version of each partition when
    the batch was planned. With `"ends": true` if the query is an `availableNow` one.
    """

    def __init__(self, root: Path, partitions: int) -> None:
        self._root = root
        self._partitions = partitions
        self._newest = NewestVersions(root, partitions)
        self._ends = False
        self._is_new = False  # the checkpoint is
        self._at_rest: list[Newest] = []

    @plain_errors()
    def initialOffset(self) -> Offset:
        """Spark asks for this when a query has no checkpoint yet: its state begins here too."""
        prepare(self._root, self._partitions)
        self._is_new = True
        return {"tick": 0, "wake": [], "known": [-1] * self._partitions}

    def getDefaultReadLimit(self) -> ReadAllAvailable:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to fix in advance: a tick that leaves work behind makes the next one due."""
        self._ends = True

    def reportLatestOffset(self) -> None:
        return None

    @plain_errors()
    def latestOffset(self, start: Offset, limit: object) -> Offset:
        newest = self._checked(start)
        check_woken(self._root, start, newest)
        wake = [number for number, found in enumerate(newest) if found.pending]
        known = [found.version for found in newest]
        if wake:
            ending = {"ends": True} if self._ends else {}
            return {"tick": start["tick"] + 1, "wake": wake, "known": known, **ending}
        if known != start["known"]:
            return {"tick": start["tick"], "wake": [], "known": known}
        if newest != self._at_rest:
            self._newest.forget_outboxes(newest)
            self._at_rest = newest
        return start

    @plain_errors()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        self._checked(end)  # a batch may be replayed before anything else is asked for
        if end["tick"] == start["tick"]:
            return []
        return [Wake(end["wake"], end.get("ends", False))]

    def _checked(self, offset: Offset) -> list[Newest]:
        """The newest versions, if they are those that this offset was followed by."""
        newest = self._newest()
        if self._is_new:
            check_unused(self._root, newest)
            self._is_new = False
        check_known(self._root, offset["known"], newest)
        return newest

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bool]]:
        assert isinstance(partition, Wake)
        return iter([(number, partition.ends) for number in partition.partitions])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for old ticks."""


class Clock(DataSource):
    """Registered with a session under `NAME`; options: the state directory, the partitions."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> ClockReader:
        return ClockReader(Path(self.options["state"]), int(self.options["partitions"]))
