"""All copies of one window at other sites, as the window's owner keeps them up.

A copy begins when a plan first asks for it, with the rows that come from then on, and ends when no
plan whose intervals are still on their way does; the holder is told so (`DROP`). In between, the
holder hears of an interval what has changed (`UPDATE`), or of every interval, where sites go by
what they hear (`pace`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from dovetail.multisite.copies import Outlet
from dovetail.multisite.messages import MOST_OPEN, Header, Kind, Message
from dovetail.multisite.plan import LinkNeeds, Plan
from dovetail.multisite.query import Query
from dovetail.multisite.rows import RowStore
from dovetail.multisite.schedule import Schedule
from dovetail.multisite.snapshots import Kept


class Outlets(Kept):
    """The outlets of a stream's window, by the site that holds the copy."""

    def __init__(
        self, query: Query, owner: str, window: RowStore, schedule: Schedule, *, always: bool
    ) -> None:
        self._query = query
        self._owner = owner
        self._window = window
        self._schedule = schedule
        self._always = always  # an update for every interval, also one that says nothing
        self._outlets: dict[str, Outlet] = {}

    def of(self, holder: str) -> Outlet | None:
        return self._outlets.get(holder)

    @property
    def nbytes(self) -> int:
        return sum(outlet.nbytes for outlet in self._outlets.values())

    def update(self, interval: int, settled: int, start: int, first: int) -> list[Message]:
        """What to tell the holders when an interval has ended.

        settled: the last interval that is over. start: the number of the interval's first row.
        first: of the rows that stay in the window.
        """
        needs = self._needs(self._schedule.at(interval), {})
        draining: dict[str, LinkNeeds] = {}
        for plan in self._schedule.between(settled + 1, interval - 1):
            self._needs(plan, draining)
        messages = []
        for holder in [n for n in self._outlets if n not in needs and n not in draining]:
            del self._outlets[holder]
            messages.append(Message(self._header(Kind.DROP, holder, interval), {}))
        for holder in [name for name in needs if name not in self._outlets]:
            self._outlets[holder] = self._new(start)
        for holder, outlet in self._outlets.items():
            wanted, old = (n.get(holder, LinkNeeds()) for n in (needs, draining))
            parts, facts = outlet.update(wanted, old, start, first)
            if parts or facts.get("expired") or facts.get("trimmed") or self._always:
                open_ = min(interval - settled, MOST_OPEN)
                header = self._header(Kind.UPDATE, holder, interval)
                header = replace(header, step=open_, **facts)  # type: ignore[arg-type]
                messages.append(Message(header, parts))
        return messages

    def snapshot(self) -> dict[str, Any]:
        return {holder: outlet.snapshot() for holder, outlet in self._outlets.items()}

    def restore(self, data: Mapping[str, Any]) -> Self:
        """Make new ones what they were; the window has been restored."""
        first = self._window.first
        self._outlets = {holder: self._new(first).restore(kept) for holder, kept in data.items()}
        return self

    def _new(self, next_number: int) -> Outlet:
        window = self._query.stream(self._owner).window
        return Outlet(self._window, window, next_number, self._query.compact)

    def _needs(self, plan: Plan, needs: dict[str, LinkNeeds]) -> dict[str, LinkNeeds]:
        """Add to `needs` what each other site needs of this window by a plan."""
        for (owner, holder), wanted in plan.needs.items():
            if owner == self._owner:
                needs[holder] = needs.get(holder, LinkNeeds()) | wanted
        return needs

    def _header(self, kind: Kind, holder: str, interval: int) -> Header:
        rank = self._query.rank
        return Header(kind, rank(self._owner), rank(holder), interval=interval)
