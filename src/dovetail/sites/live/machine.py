"""A host's part of a query: events in, messages and results out.

It does no I/O and reads no clock; whatever it is to know of the time is in its events. So the same
events give the same messages and results, under the same numbers, in whichever process. It can be
pickled between any two events, with all that it knows.

Messages between streams of one host are delivered within the event that sent them.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.sites.arrivals import Arrivals
from dovetail.sites.live.deployment import Deployment, prices_of
from dovetail.sites.live.events import Event, What
from dovetail.sites.live.holds import Holds
from dovetail.sites.messages import MOST_OPEN, PLANNER, Kind, Message, decode, encode
from dovetail.sites.planner import joint
from dovetail.sites.query import times_of
from dovetail.sites.replanning import Planner
from dovetail.sites.site import Site
from dovetail.sites.virtual import Usage

# whether a message is of the planner, and whether it is to it; of others it is neither
_PLANNERS_END = {
    Kind.STATISTICS: (False, True), Kind.READY: (False, True),
    Kind.PREPARE: (True, False), Kind.COMMIT: (True, False),
}  # fmt: skip
# of each of these sets of parts, a message must have one
_PARTS = {
    Kind.PROBE: [{"probe", "rows", "refs"}], Kind.KEYS: [{"keys", "bloom"}],
    Kind.PREPARE: [{"plan"}], Kind.PASSED: [{"passed"}],
}  # fmt: skip
Pair = tuple[int, int]  #: the batch and the part of a put


@dataclass
class Outputs:
    """What has come out since it was last asked for."""

    messages: list[tuple[str, int, bytes]] = field(default_factory=list)  #: host, number, body
    results: list[tuple[int, int, pa.RecordBatch]] = field(default_factory=list)  #: and interval


@dataclass
class Feed:
    """What a host knows of one of its streams' input."""

    arrivals: Arrivals
    next_interval: int
    until: int  #: rows before this time are complete, where rows make the time
    rows: int = 0
    producers: dict[str, Pair] = field(default_factory=dict)  #: the last that each has put
    newest: dict[str, int] = field(default_factory=dict)  #: the time of its newest row


class Machine:
    """The sites of one host."""

    def __init__(self, deployment: Deployment, host: str) -> None:
        self.deployment = deployment
        self.host = host
        query = deployment.query
        first = deployment.first_interval
        self.names = deployment.streams_of(host)
        self.sites = {
            name: Site(
                name, deployment.plan, self, self._emit, heartbeats=deployment.heartbeats,
                first_interval=first, statistics_every=deployment.replan_every,
            )
            for name in self.names
        }  # fmt: skip
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
        self._hosts = [stream.site for stream in query.streams]
        self._local: deque[Message] = deque()
        self._outputs = Outputs()

    def _make_planner(self) -> Planner | None:
        deployment = self.deployment
        if not deployment.replan_every:
            return None
        prices = prices_of(deployment.shapes, deployment.units(1.0))
        choose = partial(joint, algorithms=deployment.algorithms)
        return Planner(deployment.plan, self, prices, choose=choose)

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
                for site in self.sites.values():
                    site.advance(now)
            case What.DELTA:
                self.delta = facts["delta"]
                for site in self.sites.values():
                    site.delta = self.delta
                if self.planner is not None:
                    self.planner.delta = self.delta
        while self._local:
            self._deliver(self._local.popleft(), now)

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
        if receiver == PLANNER:
            if self.planner is not None:
                self.planner.receive(message, now)
        else:
            self.sites[self.deployment.query.names[receiver]].receive(message, now)

    def _emit(self, interval: int, rows: pa.RecordBatch) -> None:
        self.result_count += 1
        self.result_rows += rows.num_rows
        self._outputs.results.append((self.result_count, interval, rows))

    def send(self, message: Message) -> None:
        """The network of the sites here."""
        host = self._host_of(message.header.receiver)
        if host == self.host:
            self._local.append(message)
            return
        self.sent[host] += 1
        self.usage[host].add(message)
        body = encode(message)
        self.wire_bytes[host] += len(body)
        self._outputs.messages.append((host, self.sent[host], body))

    def _host_of(self, rank: int) -> str:
        return self._hosts[rank] if rank != PLANNER else self.deployment.hosts[0]

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
        return now >= self.deployment.query.tick_time(self.feeds[name].next_interval)

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
        """Whether a stream is too far ahead of what all are done with."""
        ahead = self.deployment.ahead
        return self.deployment.heartbeats and interval - self.sites[name].settled > ahead

    def next_time(self, after: int) -> int | None:
        """When something will have to happen by the wall clock alone, later than this."""
        times = [due for site in self.sites.values() if (due := site.due()) is not None]
        if self.deployment.clock == "wall":
            times += [
                self.deployment.query.tick_time(feed.next_interval)
                for name, feed in self.feeds.items()
                if not (self._held_up(name, feed.next_interval) or self.is_behind(name, after))
            ]
        return min(times, default=None)

    def is_due(self, now: int) -> bool:
        """Whether a site waits for a time that has come."""
        return any(
            due is not None and due <= now for due in (site.due() for site in self.sites.values())
        )

    def event_time(self) -> int:
        """The time that the streams here have reached, where rows make the time."""
        query = self.deployment.query
        return max(query.tick_time(feed.next_interval - 1) for feed in self.feeds.values())

    @property
    def nbytes(self) -> int:
        """What the sites here keep: rows, what finds them, and what is on its way."""
        return sum(site.nbytes for site in self.sites.values())

    def waiting_bytes(self) -> int:
        """Rows that wait for their interval to end."""
        return sum(feed.arrivals.nbytes for feed in self.feeds.values())

    def check_message(self, peer: str, message: Message) -> None:
        """Refuse what the sites here could not take, before it is in the journal."""
        header = message.header
        count = len(self._hosts)
        if not (PLANNER <= header.sender < count and PLANNER <= header.receiver < count):
            raise ArgumentError(f"a message between streams that are not there: {header}")
        if self._host_of(header.receiver) != self.host or self._host_of(header.sender) != peer:
            raise ArgumentError(
                f"a message of {peer!r} to {self.host!r} is between streams elsewhere: {header}"
            )
        ends = header.sender == PLANNER, header.receiver == PLANNER
        if ends != _PLANNERS_END.get(header.kind, (False, False)):
            raise ArgumentError(f"a message of a kind that does not go this way: {header}")
        if missing := [n for n in _PARTS.get(header.kind, ()) if not n & set(message.parts)]:
            raise ArgumentError(f"a message without {' or '.join(sorted(missing[0]))}: {header}")
        steps = MOST_OPEN + 1 if header.kind == Kind.UPDATE else max(1, count - 1)
        if not (0 <= header.head < count and 0 <= header.step < steps):
            raise ArgumentError(f"a message of a step that no plan has: {header}")
        if "rows" in message.parts:
            self._check_columns(message.parts["rows"].schema, {header.sender})
        if "probe" in message.parts:
            found = message.parts["probe"].schema
            names = self.deployment.query.names
            parts = {name.partition(".")[0] for name in found.names}
            joined = {rank for rank, name in enumerate(names) if name in parts}
            if header.head not in joined or len(joined) != header.step + 1:
                raise ArgumentError(
                    f"a message with rows of {', '.join(sorted(parts))} for step {header.step} of "
                    f"{names[header.head]!r}"
                )
            self._check_columns(found, joined)

    def _check_columns(self, found: pa.Schema, ranks: set[int]) -> None:
        """Rows must have the columns of these streams, in whichever order the streams are."""
        streams = [self.deployment.query.streams[rank] for rank in ranks if rank != PLANNER]
        wanted = pa.schema([field for stream in streams for field in stream.qualified])
        fields = ({(field.name, field.type) for field in schema} for schema in (wanted, found))
        if len(found) != len(wanted) or next(fields) != next(fields):
            raise ArgumentError(
                f"a message with rows of {found.names} ({found.types}), but stream "
                f"{' and '.join(repr(s.name) for s in streams)} has {wanted.names} ({wanted.types})"
            )

    def facts(self) -> dict[str, Any]:
        """How far it has come, as JSON has it."""
        streams = {
            name: {
                "ticked": site.ticked,
                "settled": site.settled,
                "late": self.feeds[name].arrivals.late,
                "late_messages": site.late,
                "rows": self.feeds[name].rows,
                "window_rows": len(site.window),
                "kept_bytes": site.nbytes,
                "delta": site.delta,
            }
            for name, site in self.sites.items()
        }
        first = self.sites[self.names[0]]
        return {
            "streams": streams,
            "links": {
                peer: {**vars(used), "wire_bytes": self.wire_bytes[peer]}
                for peer, used in self.usage.items()
            },
            "result_count": self.result_count,
            "result_rows": self.result_rows,
            "plan": first.schedule.newest.to_json(),
            "changes": [n for n, _ in self.planner.changes] if self.planner else [],
        }


def rows_bytes(rows: pa.RecordBatch | None) -> bytes:
    """Rows as an event's body."""
    if rows is None or not rows.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


def rows_of(body: bytes) -> pa.RecordBatch | None:
    if not body:
        return None
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_next_batch()
