"""The results of a level of a tree, as a stream of the next level, at the site where they are.

Both sites are here: the *lower* one, at which the results of the level come out, and the *upper*
one, whose window they become. An interval is handed on when the lower site is done with it
(`Site.complete`), so the upper one ticks like any other, with all rows of the interval. By `delta`
that is a matter of time, and what comes out later is counted as late, there as anywhere.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dovetail.multisite.query import times_of
from dovetail.multisite.site import Site
from dovetail.multisite.snapshots import Kept


class Prefix(Kept):
    """Like a site, it is driven from outside."""

    KEPT = ("rows",)

    def __init__(self, lower: Site, upper: Site, heartbeats: bool) -> None:
        self.lower = lower
        self.upper = upper
        self.rows = 0  #: that have been handed on
        self._heartbeats = heartbeats
        self._waiting: dict[int, list[pa.RecordBatch]] = {}  # by interval

    @property
    def next_interval(self) -> int:
        return self.upper.ticked + 1

    @property
    def nbytes(self) -> int:
        """The rows that wait for their interval to be complete."""
        return sum(int(rows.nbytes) for found in self._waiting.values() for rows in found)

    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "waiting": [list(item) for item in self._waiting.items()]}

    def restore(self, data: Mapping[str, Any]) -> Self:
        self._waiting = {interval: list(found) for interval, found in data["waiting"]}
        return super().restore(data)

    def take(self, interval: int, rows: pa.RecordBatch) -> None:
        """Rows of an interval have come out below."""
        if interval < self.next_interval:
            self.upper.late += 1
        elif rows.num_rows:
            self._waiting.setdefault(interval, []).append(rows)

    def is_complete(self, now: int) -> bool:
        """Whether the next interval may be handed on."""
        return self.lower.complete(now) >= self.next_interval

    def due(self) -> int | None:
        """When the next interval will be complete; None if that depends on messages."""
        if self._heartbeats or self.lower.ticked < self.next_interval:
            return None
        return self.upper.tick_time(self.next_interval) - 1

    def hand_on(self, now: int) -> None:
        """Let the next interval end above."""
        found = self._waiting.pop(self.next_interval, [])
        rows = None
        if found:
            rows = pa.concat_batches(found)
            times = times_of(rows.column(self.upper.stream.time))
            rows = rows.take(pa.array(np.argsort(times, kind="stable")))
            self.rows += rows.num_rows
        self.upper.tick(self.next_interval, rows, now)
