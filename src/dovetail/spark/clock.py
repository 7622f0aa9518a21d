"""The clock: a streaming source that ticks only while some partition has work to do.

Spark runs a micro-batch only when a source has something new. A join has work of its own while its
inputs are silent (Reactive, Cleanup), so its plan also reads this source. Its offset advances when
a partition's newest manifest says that work is pending, and each advance wakes the partitions that
have some, with one row each. With nothing pending the offset stands still: no micro-batch runs,
and an `availableNow` query ends. Of such a query the ticks tell, for all of its rows are in sight.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dovetail.spark.state import damaged_manifest, prepare

NAME = "dovetail-clock"
SCHEMA = "partition int, ends boolean"
_SETTLED_NS = 2_000_000_000  # a directory changed longer ago than this shows all its changes


class PendingWork:
    """Which partitions have work pending, read from the newest manifest of each.

    Asked every few milliseconds while a stream is silent, so an unchanged partition costs one
    `stat`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: dict[str, tuple[int, int]] = {}

    def __call__(self) -> dict[int, int]:
        """Pending rows by partition, those with none left out."""
        try:
            names = [entry.name for entry in os.scandir(self._root) if entry.name[0] == "p"]
        except FileNotFoundError:
            return {}
        work = {int(name[1:]): self._pending(name) for name in names}
        return {partition: rows for partition, rows in sorted(work.items()) if rows}

    def _pending(self, name: str) -> int:
        directory = self._root / name
        changed = directory.stat().st_mtime_ns
        known = self._seen.get(name)
        if known is not None and known[0] == changed:
            return known[1]
        versions = [file for file in os.listdir(directory) if file.startswith("v")]
        pending = read_pending(directory / max(versions)) if versions else 0
        if time.time_ns() - changed > _SETTLED_NS:  # the clock of a directory is coarse
            self._seen[name] = (changed, pending)
        return pending


def read_pending(manifest: Path) -> int:
    """The pending rows of a version, from the first bytes of its manifest."""
    try:
        with manifest.open("rb") as handle:
            size = int(handle.readline().split(b" ")[2])
            return int(json.loads(handle.read(size))["pending"])
    except (ValueError, LookupError):
        raise damaged_manifest(manifest) from None


class Wake(InputPartition):
    """The partitions that one tick wakes, and whether the query ends with the rows it has."""

    def __init__(self, partitions: list[int], ends: bool) -> None:
        super().__init__(partitions)
        self.partitions = partitions
        self.ends = ends


class ClockReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets `{"tick": n, "wake": [partition, ...]}`, so that a replayed tick wakes the same.

    With `"ends": true` if the query is an `availableNow` one.
    """

    def __init__(self, root: Path, partitions: int) -> None:
        self._root = root
        self._partitions = partitions
        self._pending = PendingWork(root)
        self._ends = False

    def initialOffset(self) -> dict[str, Any]:
        """Spark asks for this when a query has no checkpoint yet: its state begins here too."""
        prepare(self._root, self._partitions)
        return {"tick": 0, "wake": []}

    def getDefaultReadLimit(self) -> ReadAllAvailable:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to fix in advance: a tick that leaves work behind makes the next one due."""
        self._ends = True

    def reportLatestOffset(self) -> None:
        return None

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        wake = list(self._pending())
        if not wake:
            return start
        ending = {"ends": True} if self._ends else {}
        return {"tick": start["tick"] + 1, "wake": wake, **ending}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if end["tick"] == start["tick"]:
            return []
        return [Wake(end["wake"], end.get("ends", False))]

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
