"""The schedule of plans: which plan holds for an interval, and how a new one is agreed on.

A plan holds from an interval on, the same at all sites. To change it, the planner sends `PREPARE`
with the new plan and its first interval; a site that is not that far yet answers `READY`, and goes
no further than that interval until it hears more; one that is says which interval it has reached.
When all are ready, `COMMIT` makes the plan hold; if one was too far, `COMMIT` with nothing lets the
others go on and the planner tries a later interval. So no interval is ever joined by two plans, and
no row is lost or met twice, however long messages take.

Rows on their way finish by the plan of their interval; copies that only an old plan needs are kept
until its last interval is over.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dovetail.multisite.messages import PLANNER, Kind, Message, column
from dovetail.multisite.plan import Plan
from dovetail.multisite.snapshots import Kept

Reply = Callable[[Kind, int, int, dict[str, pa.RecordBatch]], None]


class Schedule(Kept):
    """The plans of a site, by their first interval."""

    def __init__(self, plan: Plan, first_interval: int) -> None:
        self._plans: list[tuple[int, Plan]] = [(first_interval, plan)]
        self._offered: tuple[int, Plan] | None = None

    def snapshot(self) -> dict[str, Any]:
        plans = [[first, plan.to_json()] for first, plan in self._plans]
        offered = self._offered and [self._offered[0], self._offered[1].to_json()]
        return {"plans": plans, "offered": offered}

    def restore(self, data: Mapping[str, Any]) -> Self:
        query = self.newest.query
        self._plans = [(first, Plan.from_json(query, text)) for first, text in data["plans"]]
        offered = data["offered"]
        self._offered = offered and (offered[0], Plan.from_json(query, offered[1]))
        return self

    def knows(self, interval: int) -> bool:
        """Whether the plan of an interval has not been given up."""
        return interval >= self._plans[0][0]

    def at(self, interval: int) -> Plan:
        """The plan of an interval that is known."""
        return next(plan for first, plan in reversed(self._plans) if first <= interval)

    @property
    def newest(self) -> Plan:
        return self._plans[-1][1]

    def between(self, first: int, last: int) -> Iterator[Plan]:
        """The plans of the intervals from `first` to `last`."""
        for index, (begin, plan) in enumerate(self._plans):
            following = self._plans[index + 1][0] if index + 1 < len(self._plans) else last + 1
            if begin <= last and following > first:
                yield plan

    def forget(self, settled: int) -> None:
        """Give up the plans of intervals that are all over."""
        while len(self._plans) > 1 and self._plans[1][0] <= settled:
            del self._plans[0]

    def may_tick(self, interval: int) -> bool:
        return self._offered is None or interval < self._offered[0]

    def receive(self, message: Message, reached: int, reply: Reply) -> None:
        """Take part in a change of plan; `reached` is the last interval that has been taken in."""
        header = message.header
        if header.kind == Kind.PREPARE:
            ready = reached < header.interval
            if ready:
                plan = Plan.from_json(self.newest.query, message.parts["plan"][0][0].as_py())
                self._offered = (header.interval, plan)
            parts = {} if ready else {"reached": column(np.array([reached]))}
            reply(Kind.READY, PLANNER, header.interval, parts)
        elif header.kind == Kind.COMMIT and self._offered is not None:
            if header.accepted:
                self._plans.append(self._offered)
            self._offered = None
