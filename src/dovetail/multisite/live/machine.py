"""A host's part of a query: events in, messages and results out.

It does no I/O and reads no clock; whatever it is to know of the time is in its events. So the same
events give the same messages and results, under the same numbers, in whichever process. Between any
two events all that it knows can be had as data (`snapshot`), of which another makes the same.

Messages between streams of one host are delivered within the event that sent them. So are results
of the lower levels of a tree, as rows of the next (`prefixes`), when an interval is complete.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import pyarrow as pa

from dovetail.multisite.arrivals import Arrivals
from dovetail.multisite.encoded import batch_bytes, read_batch
from dovetail.multisite.live.deployment import Deployment, prices_of
from dovetail.multisite.live.ends import Ends
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.holds import Holds
from dovetail.multisite.messages import PLANNER, Message, decode, encode
from dovetail.multisite.plan import Plan
from dovetail.multisite.planner import joint
from dovetail.multisite.prefixes import Prefix
from dovetail.multisite.query import times_of
from dovetail.multisite.replanning import Planner
from dovetail.multisite.site import Site
from dovetail.multisite.snapshots import Kept
from dovetail.multisite.tree import TreePlan
from dovetail.multisite.virtual import Usage

Pair = tuple[int, int]  #: the batch and the part of a put


@dataclass
class Outputs:
    """What has come out since it was last asked for."""

    messages: list[tuple[str, int, bytes]] = field(default_factory=list)  #: host, number, body
    results: list[tuple[int, int, pa.RecordBatch]] = field(default_factory=list)  #: and interval


@dataclass
class Feed(Kept):
    """What a host knows of one of its streams' input."""

    KEPT = ("arrivals", "next_interval", "until", "rows", "producers", "newest")

    arrivals: Arrivals
    next_interval: int
    until: int  #: rows before this time are complete, where rows make the time
    rows: int = 0
    producers: dict[str, Pair] = field(default_factory=dict)  #: the last that each has put
    newest: dict[str, int] = field(default_factory=dict)  #: the time of its newest row

    def restore(self, data: Mapping[str, Any]) -> Self:
        super().restore(data)
        self.producers = {name: (batch, part) for name, (batch, part) in data["producers"].items()}
        return self


@dataclass
class LevelNetwork:
    """The network of the sites of one level."""

    machine: "Machine"
    index: int

    def send(self, message: Message) -> None:
        self.machine.send(self.machine.ends.numbered(message, self.index))


class Machine(Kept):
    """The sites of one host."""

    KEPT = ("received", "sent", "wire_bytes", "delta", "result_count", "result_rows")

    def __init__(self, deployment: Deployment, host: str) -> None:
        self.deployment = deployment
        self.host = host
        query = deployment.query
        first = deployment.first_interval
        self.names = deployment.streams_of(host)
        self.ends = Ends(deployment.levels, deployment.hosts[0])
        self.sites = {
            stream.name: Site(
                stream.name, level.plan, LevelNetwork(self, index), partial(self._joined, index),
                heartbeats=deployment.heartbeats, first_interval=first,
                statistics_every=deployment.replan_every, wait=level.wait,
            )
            for index, level in enumerate(deployment.levels)
            for stream in level.query.streams
            if stream.site == host
        }  # fmt: skip
        self.prefixes = {
            index: Prefix(self.sites[level.home], self.sites[level.name], deployment.heartbeats)
            for index, level in enumerate(deployment.levels[:-1])
            if level.name in self.sites
        }
        self.feeds = {
            name: Feed(Arrivals(query.stream(name), query, first), first, query.boundary(first - 1))
            for name in self.names
        }
        others = [other for other in deployment.hosts if other != host]
        self.received = dict.fromkeys(others, 0)  #: by host, the number of the last message
        self.sent = dict.fromkeys(others, 0)
        self.usage = {other: Usage() for other in others}  #: what was sent, each message once
        self.wire_bytes = dict.fromkeys(others, 0)  #: of the same, as they travel
        self.delta = query.delta  #: the longest delay of a message, as it is known now
        self.result_count = 0
        self.result_rows = 0
        self.planner = self._make_planner() if host == deployment.hosts[0] else None
        self._local: deque[Message] = deque()
        self._outputs = Outputs()

    def _make_planner(self) -> Planner | None:
        deployment = self.deployment
        if not (deployment.replan_every and isinstance(deployment.plan, Plan)):
            return None
        prices = prices_of(deployment.shapes, deployment.units(1.0))
        choose = partial(joint, algorithms=deployment.algorithms)
        return Planner(deployment.plan, self, prices, choose=choose)

    def snapshot(self) -> dict[str, Any]:
        """All that it knows between two events, as data."""
        return {
            **super().snapshot(),
            "usage": {peer: vars(used) for peer, used in self.usage.items()},
            "feeds": {name: feed.snapshot() for name, feed in self.feeds.items()},
            "sites": {name: site.snapshot() for name, site in self.sites.items()},
            "prefixes": [prefix.snapshot() for prefix in self.prefixes.values()],
            "planner": self.planner and self.planner.snapshot(),
        }

    def restore(self, data: Mapping[str, Any]) -> Self:
        self.usage = {peer: Usage(**used) for peer, used in data["usage"].items()}
        for name, feed in self.feeds.items():
            feed.restore(data["feeds"][name])
        for name, site in self.sites.items():
            site.restore(data["sites"][name])
        for prefix, kept in zip(self.prefixes.values(), data["prefixes"], strict=True):
            prefix.restore(kept)
        if self.planner is not None:
            self.planner.restore(data["planner"])
        return super().restore(data)

    # --- what happens ---------------------------------------------------------------------------

    def apply(self, event: Event, decoded: Any = None) -> None:
        """Let an event happen. `decoded`: the message or rows in its body, if they are at hand."""
        facts, now = event.facts, event.now
        match event.what:
            case What.INPUT:
                self._input(facts, rows_of(event.body) if decoded is None else decoded)
            case What.MESSAGE:
                self.received[facts["peer"]] = facts["seq"]
                self._deliver(decode(event.body) if decoded is None else decoded, now)
            case What.TICK:
                feed = self.feeds[facts["stream"]]
                rows = feed.arrivals.take(feed.next_interval)
                feed.next_interval += 1
                self.sites[facts["stream"]].tick(feed.next_interval - 1, rows, now)
            case What.ADVANCE:
                for index, level in enumerate(self.deployment.levels):
                    for site in (self.sites[n] for n in level.query.names if n in self.sites):
                        site.advance(now)
                    self._settle(now, [index])  # for the next to take up
            case What.DELTA:
                self.delta = facts["delta"]
                for site in self.sites.values():
                    site.delta = self.delta
                if self.planner is not None:
                    self.planner.delta = self.delta
        # by delta a level is done with an interval when it has advanced, and not before
        self._settle(now, self.prefixes if self.deployment.heartbeats else ())

    def _settle(self, now: int, levels: Iterable[int]) -> None:
        """Do all that follows here: deliver, hand on what these levels are done with, report."""
        while self._local or self._hand_on(now, levels) or self._report():
            while self._local:
                self._deliver(self._local.popleft(), now)

    def _hand_on(self, now: int, levels: Iterable[int]) -> bool:
        for prefix in (self.prefixes[index] for index in levels if index in self.prefixes):
            held_up = self._held_up(prefix.upper.name, prefix.next_interval)
            if prefix.is_complete(now) and not held_up:
                prefix.hand_on(now)
                return True
        return False

    def _report(self) -> bool:
        """Sites report when an interval ends; those that may let none end do so at once.

        Else they could wait for each other: they may go on when they have heard of others.
        """
        intervals = {name: feed.next_interval for name, feed in self.feeds.items()}
        intervals |= {p.upper.name: p.next_interval for p in self.prefixes.values()}
        held_up = [name for name, interval in intervals.items() if self._held_up(name, interval)]
        return any(self.sites[name].report() for name in held_up)

    def take(self) -> Outputs:
        """What has come out, once."""
        outputs, self._outputs = self._outputs, Outputs()
        return outputs

    @property
    def outputs(self) -> int:
        """How many messages and results have come out in all."""
        return sum(self.sent.values()) + self.result_count

    def _input(self, facts: dict[str, Any], rows: pa.RecordBatch | None) -> None:
        feed = self.feeds[facts["stream"]]
        if rows is not None and rows.num_rows:
            feed.arrivals.push(rows)
            feed.rows += rows.num_rows
        if facts.get("producer") is not None:
            producer = facts["producer"]
            feed.producers[producer] = (facts["batch"], facts["part"])
            if rows is not None and rows.num_rows:
                column = rows.column(self.deployment.query.stream(facts["stream"]).time)
                newest = int(times_of(column).max())
                feed.newest[producer] = max(newest, feed.newest.get(producer, newest))
        if facts.get("until") is not None:
            feed.until = max(feed.until, facts["until"])

    def _deliver(self, message: Message, now: int) -> None:
        receiver = message.header.receiver
        if receiver != PLANNER:
            self.sites[self.ends.stream(receiver).name].receive(self.ends.as_sent(message), now)
        elif self.planner is not None:
            self.planner.receive(message, now)

    def _joined(self, index: int, interval: int, rows: pa.RecordBatch) -> None:
        """Results of a level: of the query, or rows of the level above."""
        plan = self.deployment.plan
        if isinstance(plan, TreePlan):
            rows = plan.rows_of(plan.levels[index], rows)
            if index in self.prefixes:
                self.prefixes[index].take(interval, rows)
                return
            rows = plan.results_of(rows)
        if rows.num_rows:
            self.result_count += 1
            self.result_rows += rows.num_rows
            self._outputs.results.append((self.result_count, interval, rows))

    def send(self, message: Message) -> None:
        """To a stream or the planner, by the numbers of `ends`."""
        host = self.ends.host(message.header.receiver)
        if host == self.host:
            self._local.append(message)
            return
        self.sent[host] += 1
        self.usage[host].add(message)
        body = encode(message)
        self.wire_bytes[host] += len(body)
        self._outputs.messages.append((host, self.sent[host], body))

    # --- what is asked of it --------------------------------------------------------------------

    def next_tick(
        self, now: int, halted: bool, holds: Holds | None = None
    ) -> tuple[str, int] | None:
        """The stream whose next interval is the first to have ended, and the time to tell it.

        `halted`: no interval is to be begun now, as what it would send has no room.
        """
        if halted:
            return None
        for name, feed in sorted(self.feeds.items(), key=lambda item: item[1].next_interval):
            interval = feed.next_interval
            if self._held_up(name, interval):
                continue
            if self.deployment.clock == "wall":
                held = holds and not holds.may_end(name, interval, feed.newest, now)
                if self.is_behind(name, now) and not held:
                    return name, now
            elif feed.until >= self.deployment.query.boundary(interval):
                return name, self.deployment.query.tick_time(interval)
        return None

    def is_behind(self, name: str, now: int) -> bool:
        """Whether an interval of a stream is over, by the wall clock, that has not been ended."""
        return now >= self.sites[name].tick_time(self.feeds[name].next_interval)

    def awaited(self, holds: Holds) -> set[tuple[str, str]]:
        """Streams and producers without whose rows the next interval cannot end."""
        found = set()
        for name, feed in self.feeds.items():
            ended = self.deployment.query.tick_time(feed.next_interval)
            for producer in holds.producers(name):
                behind = feed.newest.get(producer, ended - 1) < ended
                if behind and not self._held_up(name, feed.next_interval):
                    found.add((name, producer))
        return found

    def _held_up(self, name: str, interval: int) -> bool:
        """Whether a stream is too far ahead of what all are done with, also a level above it."""
        if not self.deployment.heartbeats:
            return False
        site = self.sites[name]
        above = (prefix.upper for prefix in self.prefixes.values() if prefix.lower is site)
        return interval - min(s.settled for s in (site, *above)) > self.deployment.ahead

    def next_time(self, after: int) -> int | None:
        """When something will have to happen by the wall clock alone, later than this."""
        times = self._dues()
        if self.deployment.clock == "wall":
            times += [
                self.sites[name].tick_time(feed.next_interval)
                for name, feed in self.feeds.items()
                if not (self._held_up(name, feed.next_interval) or self.is_behind(name, after))
            ]
        return min(times, default=None)

    def is_due(self, now: int) -> bool:
        """Whether a site waits for a time that has come."""
        return any(due <= now for due in self._dues())

    def _dues(self) -> list[int]:
        return [due for one in self._all() if (due := one.due()) is not None]

    def _all(self) -> list[Site | Prefix]:
        return [*self.sites.values(), *self.prefixes.values()]

    def event_time(self) -> int:
        """The time that the streams here have reached, where rows make the time."""
        query = self.deployment.query
        return max(query.tick_time(feed.next_interval - 1) for feed in self.feeds.values())

    @property
    def nbytes(self) -> int:
        """What the sites here keep: rows, what finds them, and what is on its way."""
        return sum(one.nbytes for one in self._all())

    def waiting_bytes(self) -> int:
        """Rows that wait for their interval to end."""
        return sum(feed.arrivals.nbytes for feed in self.feeds.values())

    def check_message(self, peer: str, message: Message) -> None:
        """Refuse what the sites here could not take, before it is in the journal."""
        self.ends.check(peer, self.host, message)

    def facts(self) -> dict[str, Any]:
        """How far it has come, as JSON has it. What a tree has joined is a stream as any other."""
        rows = {name: feed.rows for name, feed in self.feeds.items()}
        rows |= {prefix.upper.name: prefix.rows for prefix in self.prefixes.values()}
        late = {name: feed.arrivals.late for name, feed in self.feeds.items()}
        streams = {
            name: {
                "ticked": site.ticked,
                "settled": site.settled,
                "late": late.get(name, 0),
                "late_messages": site.late,
                "rows": rows[name],
                "window_rows": len(site.window),
                "kept_bytes": site.nbytes,
                "delta": site.delta,
            }
            for name, site in self.sites.items()
        }
        first, plan = self.sites[self.names[0]], self.deployment.plan
        newest = first.schedule.newest if isinstance(plan, Plan) else plan
        return {
            "streams": streams,
            "links": {
                peer: {**vars(used), "wire_bytes": self.wire_bytes[peer]}
                for peer, used in self.usage.items()
            },
            "result_count": self.result_count,
            "result_rows": self.result_rows,
            "plan": newest.to_json(),
            "changes": [n for n, _ in self.planner.changes] if self.planner else [],
        }


def rows_bytes(rows: pa.RecordBatch | None) -> bytes:
    """Rows as an event's body."""
    return b"" if rows is None or not rows.num_rows else batch_bytes(rows)


def rows_of(body: bytes) -> pa.RecordBatch | None:
    """What `rows_bytes` made, validated; anything else is an `ArgumentError`."""
    return read_batch(body, len(body)) if body else None
