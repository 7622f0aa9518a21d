"""What sites report to the owners of windows: which steps are done with which intervals.

An owner lets rows leave its window when every step that probes it is past them (`pace.Heartbeats`).
A report is a row of numbers, one for a step and an interval: `interval << 16 | head << 8 | place`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Self

import numpy as np

from dovetail.multisite.messages import Header, Kind, Message, column
from dovetail.multisite.pace import Passed
from dovetail.multisite.plan import PlacedStep
from dovetail.multisite.query import Query
from dovetail.multisite.snapshots import Kept


class Reports(Kept):
    """What a site is to tell the owners of other windows."""

    def __init__(self, query: Query, name: str) -> None:
        self._query = query
        self._name = name
        self._codes: dict[str, list[int]] = {}

    def add(self, step: PlacedStep, interval: int) -> None:
        """A step that probes another's window is done with an interval."""
        code = (interval << 16) | (self._query.rank(step.head) << 8) | step.index
        self._codes.setdefault(step.stream, []).append(code)

    def take(self, interval: int) -> list[Message]:
        """The messages that say so, one to each owner; `interval` is the newest one here."""
        codes, self._codes = self._codes, {}
        rank = self._query.rank
        return [
            Message(
                Header(Kind.PASSED, rank(self._name), rank(owner), interval=interval),
                {"passed": column(np.array(passed, dtype=np.int64))},
            )
            for owner, passed in codes.items()
        ]

    def heard(self, codes: Iterable[int]) -> Iterator[tuple[Passed, int]]:
        """The steps and intervals that another site's report is of."""
        for code in np.asarray(codes).tolist():
            yield (self._query.names[(code >> 8) & 0xFF], code & 0xFF), code >> 16

    def snapshot(self) -> dict[str, list[int]]:
        return self._codes

    def restore(self, data: Mapping[str, list[int]]) -> Self:
        self._codes = dict(data)
        return self
