"""The hosts of a query in one process: machines as they are at real sites, on a virtual network.

A machine gets its events in the order in which a driver lets them happen: at one moment the ends of
intervals, then messages, then what waits for the time. All that a driver adds is left out, so a run
of a few hundred rows takes milliseconds. Hosts look at the clock every `grain` units, so that they
do several things late and at once, as real ones do. With `kills`, a host is now and then made anew
from its last snapshot and the events since, and has to send and emit the very same.
"""

import heapq
import io
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.kept import read_tree, write_tree
from dovetail.multisite.live.machine import Machine, Outputs, rows_bytes
from dovetail.multisite.messages import decode
from dovetail.multisite.plan import PAPER, Algorithm, Plan, Step
from dovetail.multisite.query import Query
from dovetail.multisite.site import Site
from dovetail.multisite.tree import TreeJoin, TreePlan
from support.sites import counted

_MOST_ROUNDS = 100_000


class VirtualHosts:
    """All machines of a deployment whose intervals the wall clock ends, and a clock for them."""

    def __init__(
        self, deployment: Deployment, latency: Callable[[], int], *, grain: int = 1,
        kills: np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        self.deployment = deployment
        self.machines = {host: Machine(deployment, host) for host in deployment.hosts}
        self.results: dict[int, Counter[tuple[Any, ...]]] = {}
        self.killed = 0
        self.now = 0
        self._latency = latency
        self._grain = grain
        self._kills = kills
        self._journals: dict[str, tuple[bytes, list[Event]]] = {}
        self._queue: list[tuple[int, int, str, Event]] = []
        self._order = itertools.count()
        self._latest: dict[tuple[str, str], int] = {}
        for host in deployment.hosts:
            self._snapshot(host)

    def run(self, streams: Mapping[str, pa.RecordBatch], intervals: int) -> None:
        """Take whole streams in, and go on until all results of so many intervals are there."""
        for name, rows in streams.items():
            host = self.deployment.query.stream(name).site
            self._happen(host, Event(What.INPUT, self.now, {"stream": name}, rows_bytes(rows)))
        for _ in range(_MOST_ROUNDS):
            if min(site.settled for site in self.sites()) >= intervals:
                return
            self._round()
        raise AssertionError(f"no end after {_MOST_ROUNDS} rounds, at {self.now}")

    def sites(self) -> list[Site]:
        return [site for machine in self.machines.values() for site in machine.sites.values()]

    def _round(self) -> None:
        """All that is to happen at the next moment."""
        times = [machine.next_time(self.now) for machine in self.machines.values()]
        times.append(self._queue[0][0] if self._queue else None)
        if any(m.next_tick(self.now, halted=False) for m in self.machines.values()):
            times.append(self.now)  # a host was too far ahead until just now
        known = [time for time in times if time is not None]
        assert known, f"all hosts wait for each other, at {self.now}"
        self.now = max(self.now, -(-min(known) // self._grain) * self._grain)
        for host in self.machines:
            while (found := self.machines[host].next_tick(self.now, halted=False)) is not None:
                self._happen(host, Event(What.TICK, found[1], {"stream": found[0]}))
        while self._queue and self._queue[0][0] <= self.now:
            _, _, host, event = heapq.heappop(self._queue)
            self._happen(host, Event(event.what, self.now, event.facts, event.body))
        for host, machine in self.machines.items():
            if machine.is_due(self.now):
                self._happen(host, Event(What.ADVANCE, self.now))

    def _happen(self, host: str, event: Event) -> None:
        self._journals[host][1].append(event)
        if event.what is What.MESSAGE:
            self.machines[host].check_message(event.facts["peer"], decode(event.body))
        self.machines[host].apply(event)
        outputs = self.machines[host].take()
        self._send(host, outputs)
        for _, interval, rows in outputs.results:
            found = counted(pa.Table.from_batches([rows]))
            self.results.setdefault(interval, Counter()).update(found)
        if self._kills is not None and self._kills.random() < 0.05:
            self._kill(host, outputs)

    def _send(self, host: str, outputs: Outputs) -> None:
        for peer, seq, body in outputs.messages:
            link = (host, peer)
            arrival = max(self.now + self._latency(), self._latest.get(link, 0))
            self._latest[link] = arrival
            event = Event(What.MESSAGE, arrival, {"peer": host, "seq": seq}, body)
            heapq.heappush(self._queue, (arrival, next(self._order), peer, event))

    def _snapshot(self, host: str) -> None:
        self._journals[host] = (snapshot_of(self.machines[host]), [])

    def _kill(self, host: str, last: Outputs) -> None:
        """The machine as a restart makes it; what came out last has to come out again."""
        snapshot, events = self._journals[host]
        before, machine = self.machines[host], restored(self.deployment, host, snapshot)
        for event in events:
            machine.apply(event)
            again = machine.take()
        assert again.messages == last.messages, f"{host} sends other messages after a restart"
        assert [(n, i, r.to_pydict()) for n, i, r in again.results] == [
            (n, i, r.to_pydict()) for n, i, r in last.results
        ], f"{host} emits other results after a restart"
        assert machine.outputs == before.outputs
        self.machines[host] = machine
        self.killed += 1
        if self.killed % 2:
            self._snapshot(host)


def snapshot_of(machine: Machine) -> bytes:
    """All that a machine knows, as it is in a file."""
    file = io.BytesIO()
    write_tree(file, machine.snapshot())
    return file.getvalue()


def restored(deployment: Deployment, host: str, snapshot: bytes) -> Machine:
    """A machine that goes on from a snapshot."""
    machine = Machine(deployment, host)
    machine.restore(read_tree(io.BytesIO(snapshot), len(snapshot)))
    return machine


def random_tree(
    query: Query, rng: np.random.Generator, algorithms: Sequence[Algorithm] = PAPER
) -> TreePlan:
    """A tree of any order and any algorithms that go together."""
    pairs = [(a, b) for a in algorithms for b in algorithms if a.at_source != b.at_source]
    first = str(rng.choice(query.names))
    joins: list[TreeJoin] = []
    while len(joins) + 1 < len(query.names):
        done = {first, *(join.stream for join in joins)}
        open_ = [n for n in query.names if n not in done and query.key(done, n)]
        joins.append(TreeJoin(str(rng.choice(open_)), *pairs[rng.integers(len(pairs))]))
    return TreePlan(query, first, joins)


def random_plan(
    query: Query, rng: np.random.Generator, algorithms: Sequence[Algorithm] = PAPER
) -> Plan:
    """Sequences of any order and any of these algorithms."""
    sequences = {}
    for head in query.names:
        done, steps = [head], []
        while len(done) < len(query.names):
            open_ = [n for n in query.names if n not in done and query.key(done, n)]
            name = str(rng.choice(open_))
            steps.append(Step(name, algorithms[int(rng.integers(len(algorithms)))]))
            done.append(name)
        sequences[head] = steps
    return Plan(query, sequences)
