"""A network and a clock inside one process: the same run every time, every byte counted.

`VirtualNetwork` gives each message a delay and keeps the messages of a link in order. `Simulation`
drives sites over it: it cuts streams into intervals, calls the sites when their time has come, and
collects what they emit.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.multisite.arrivals import Arrivals
from dovetail.multisite.messages import PLANNER, Kind, Message, decode, encode
from dovetail.multisite.plan import Plan
from dovetail.multisite.query import Query, times_of
from dovetail.multisite.replanning import Planner
from dovetail.multisite.site import Site

Latency = Callable[[Message], int]
Link = tuple[str, str]  #: hosts, from and to


@dataclass
class Usage:
    """The traffic of a link."""

    messages: int = 0
    nbytes: int = 0
    rows: int = 0  #: full rows, also of several streams joined

    def add(self, message: Message) -> None:
        self.messages += 1
        self.nbytes += message.nbytes
        self.rows += sum(message.parts[n].num_rows for n in ("rows", "probe") if n in message.parts)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))


def shaped(latency: int, bandwidth: float) -> Latency:
    """Delays of `S(x) = latency + x / bandwidth` for a message of `x` bytes."""
    return lambda message: latency + round(message.nbytes / bandwidth)


class VirtualNetwork:
    """Delivers messages after a delay of their own, in order on each link.

    Messages between streams of one host take no time and are not counted (footnote 2 of the
    paper). `on_wire`: every message is encoded and decoded, as on a real one.
    """

    def __init__(self, query: Query, latency: Latency, *, on_wire: bool = False) -> None:
        self.now = 0
        self.usage: dict[Link, Usage] = {}
        self.kinds: dict[Kind, Usage] = {}
        self.log: Callable[[Message], None] | None = None  #: sees every message that is counted
        self._hosts = {rank: stream.site for rank, stream in enumerate(query.streams)}
        self._latency = latency
        self._on_wire = on_wire
        self._queue: list[tuple[int, int, Message]] = []
        self._order = itertools.count()
        self._latest: dict[tuple[int, int], int] = {}

    def send(self, message: Message) -> None:
        header = message.header
        ends = (header.sender, header.receiver)
        hosts = (self._hosts.get(ends[0], "planner"), self._hosts.get(ends[1], "planner"))
        arrival = self.now
        if hosts[0] != hosts[1]:
            delay = self._latency(message)
            if delay < 0:
                raise ArgumentError(f"a latency of {delay} on the link {hosts[0]} to {hosts[1]}")
            arrival = max(self.now + delay, self._latest.get(ends, 0))
            self._latest[ends] = arrival
            self.usage.setdefault(hosts, Usage()).add(message)
            self.kinds.setdefault(header.kind, Usage()).add(message)
            if self.log is not None:
                self.log(message)
            if self._on_wire:
                message = decode(encode(message))
        heapq.heappush(self._queue, (arrival, next(self._order), message))

    def next_arrival(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def take(self) -> Message:
        """The message that arrives next."""
        return heapq.heappop(self._queue)[2]

    @property
    def total(self) -> Usage:
        return sum(self.usage.values(), Usage())


class Simulation:
    """Sites on a virtual network."""

    def __init__(
        self, plan: Plan, latency: Latency | None = None, *, heartbeats: bool = False,
        on_wire: bool = False, first_interval: int = 1, statistics_every: int = 0,
    ) -> None:  # fmt: skip
        self.query = plan.query
        self.network = VirtualNetwork(self.query, latency or (lambda _: 0), on_wire=on_wire)
        self.results: dict[int, list[pa.RecordBatch]] = {}
        self.last_result: dict[int, int] = {}  #: by interval, how long after its end
        self.sites = {
            name: Site(
                name, plan, self.network, self._emit, heartbeats=heartbeats,
                first_interval=first_interval, statistics_every=statistics_every,
            )
            for name in self.query.names
        }  # fmt: skip
        self._arrivals = {
            name: Arrivals(self.query.stream(name), self.query, first_interval)
            for name in self.query.names
        }
        self.planner: Planner | None = None  #: hears statistics and changes the plan
        self._next = first_interval

    def _emit(self, interval: int, rows: pa.RecordBatch) -> None:
        self.results.setdefault(interval, []).append(rows)
        self.last_result[interval] = self.network.now - self.query.boundary(interval)

    def table(self, interval: int) -> pa.Table:
        """The results of an interval."""
        return pa.Table.from_batches(self.results.get(interval, []), self.query.result_schema)

    def offer(self, rows: Mapping[str, pa.RecordBatch]) -> None:
        """Rows that arrive before the next interval is over."""
        for name, batch in rows.items():
            self._arrivals[name].push(batch)

    def step(self) -> int:
        """Go on until the next interval's end, and through it; returns the interval."""
        interval = self._next
        self._run_until(self.query.tick_time(interval))
        for name, site in self.sites.items():
            site.tick(interval, self._arrivals[name].take(interval), self.network.now)
        self._next += 1
        return interval

    def run(self, streams: Mapping[str, pa.RecordBatch], intervals: int) -> None:
        """Take whole streams through so many intervals, and wait for the last results."""
        last = self._next + intervals
        cut = {name: self._cut(name, rows, last) for name, rows in streams.items()}
        for number in range(intervals):
            self.offer({name: slices[number] for name, slices in cut.items()})
            self.step()
        self.drain()

    def _cut(self, name: str, rows: pa.RecordBatch, last: int) -> list[pa.RecordBatch]:
        """A stream's rows for each of the next intervals before `last`."""
        times = times_of(rows.column(self.query.stream(name).time))
        intervals = self.query.interval_of(times)
        if (np.diff(intervals) < 0).any():
            order = np.argsort(intervals, kind="stable")
            rows, intervals = rows.take(pa.array(order)), intervals[order]
        ends = np.searchsorted(intervals, np.arange(self._next + 1, last + 1))
        starts = [0, *ends[:-1]]
        return [rows.slice(a, b - a) for a, b in zip(starts, ends, strict=True)]

    def drain(self) -> None:
        """Let everything that is under way come to its end."""
        self._run_until(None)
        stuck = [name for name, site in self.sites.items() if not site.idle]
        late = any(site.late for site in self.sites.values())
        assert late or not stuck, f"something waits at {stuck} for what will not come"

    def _run_until(self, end: int | None) -> None:
        """Deliver messages, then let time pass, until just before `end`."""
        network = self.network
        while True:
            arrival = network.next_arrival()
            dues = [due for site in self.sites.values() if (due := site.due()) is not None]
            moment = min((t for t in (arrival, *dues) if t is not None), default=None)
            if moment is None or (end is not None and moment >= end):
                break
            network.now = max(network.now, moment)
            if arrival is not None and arrival <= network.now:
                self.deliver(network.take())
            else:
                for site in self.sites.values():
                    site.advance(network.now)
        if end is not None:
            network.now = max(network.now, end)

    def deliver(self, message: Message) -> None:
        if message.header.receiver == PLANNER:
            if self.planner is not None:
                self.planner.receive(message, self.network.now)
            return
        receiver = self.query.names[message.header.receiver]
        self.sites[receiver].receive(message, self.network.now)
