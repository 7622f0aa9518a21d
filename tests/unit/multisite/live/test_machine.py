"""A host's sites, driven by events: the same again, in whichever process."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError, SiteError, SiteUnavailableError
from dovetail.multisite.costs import CostModel
from dovetail.multisite.estimates import Statistics, StreamStatistics
from dovetail.multisite.live.deployment import Deployment, prices_of
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.machine import Machine, rows_bytes
from dovetail.multisite.messages import column, decode, encode
from dovetail.multisite.planner import joint
from dovetail.sites import (
    Algorithm,
    CountWindow,
    Header,
    Kind,
    Message,
    Plan,
    Query,
    Step,
    TimeWindow,
)
from support.site_hosts import VirtualHosts, restored, snapshot_of
from support.sites import counted, window_join

INTERVALS = 10
Streams = dict[str, pa.RecordBatch]


def deployed(query: Query, algorithm: Algorithm, **settings: Any) -> Deployment:
    plan = Plan(query, {"A": [Step("B", algorithm)], "B": [Step("A", algorithm)]})
    addresses = {stream.site: "grpc://127.0.0.1:1" for stream in query.streams}
    return Deployment("q", plan, addresses, **({"clock": "rows"} | settings))


class Pair:
    """Two machines without a network: each event is kept, and so is what comes out."""

    def __init__(self, deployment: Deployment, streams: Streams, around: Callable[..., Machine]):
        self.machines = {host: Machine(deployment, host) for host in deployment.hosts}
        self.results: list[tuple[str, int, int, Any]] = []
        self.sent: list[tuple[str, str, int, bytes]] = []
        self._around = around
        query = deployment.query
        for name, rows in streams.items():
            self.happen(name, Event(What.INPUT, 0, {"stream": name}, rows_bytes(rows)))
        for interval in range(1, INTERVALS + 3):
            for name in query.names:
                self.happen(name, Event(What.TICK, query.tick_time(interval), {"stream": name}))

    def happen(self, host: str, event: Event) -> None:
        machine = self.machines[host] = self._around(self.machines[host])
        machine.apply(event)
        outputs = machine.take()
        self.results += [(host, n, i, rows.to_pydict()) for n, i, rows in outputs.results]
        for peer, seq, body in outputs.messages:
            self.sent.append((host, peer, seq, body))
            self.happen(peer, Event(What.MESSAGE, 0, {"peer": host, "seq": seq}, body))


def again(machine: Machine) -> Machine:
    return restored(machine.deployment, machine.host, snapshot_of(machine))


@pytest.mark.parametrize("window", [TimeWindow(25), CountWindow(7)])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_machine_when_restored_before_every_event_then_makes_the_same(
    algorithm: Algorithm, window: Any, make
) -> None:
    query, streams = make((1, range(6), 4, window), (1, range(6), 4, TimeWindow(30)))
    deployment = deployed(query, algorithm, replan_every=3)
    straight = Pair(deployment, streams, lambda machine: machine)
    restarted = Pair(deployment, streams, again)
    assert restarted.results == straight.results
    assert restarted.sent == straight.sent
    assert any(decode(body).header.kind is Kind.STATISTICS for *_, body in straight.sent)
    found: dict[int, Counter[Any]] = {}
    for _, _, interval, columns in straight.results:
        found.setdefault(interval, Counter()).update(counted(pa.table(columns)))
    answer = window_join(query, streams, INTERVALS)
    assert {n: found.get(n, Counter()) for n in answer} == answer
    assert all(m.sites[h].settled >= INTERVALS for h, m in straight.machines.items())


def test_machine_when_streams_share_a_host_then_sends_nothing(
    pair: tuple[Query, Streams],
) -> None:
    query, streams = pair
    both = tuple(type(s)(s.name, s.schema, s.window, s.time, site="here") for s in query.streams)
    shared = Query(both, query.on, query.tau, query.delta)
    machine = Machine(deployed(shared, Algorithm.SM_D2), "here")
    for name, rows in streams.items():
        machine.apply(Event(What.INPUT, 0, {"stream": name, "until": 10**6}), rows)
    while (found := machine.next_tick(0, halted=False)) and machine.feeds["B"].next_interval < 13:
        machine.apply(Event(What.TICK, found[1], {"stream": found[0]}))
    outputs = machine.take()
    assert outputs.messages == []
    rows = Counter()
    for _, interval, batch in outputs.results:
        rows[interval] += batch.num_rows
    answer = window_join(query, streams, INTERVALS)
    assert rows == Counter({n: c.total() for n, c in answer.items() if c})


def test_machine_when_ahead_or_halted_then_begins_no_interval(pair: tuple[Query, Streams]) -> None:
    query, _ = pair
    machine = Machine(deployed(query, Algorithm.SP_S, ahead=3), "A")
    machine.apply(Event(What.INPUT, 0, {"stream": "A", "until": 10**6}))
    assert machine.next_tick(0, halted=True) is None
    while (found := machine.next_tick(0, halted=False)) is not None:
        machine.apply(Event(What.TICK, found[1], {"stream": found[0]}))
    assert machine.sites["A"].ticked == 3


@pytest.mark.parametrize("algorithm", Algorithm)
def test_machines_when_messages_take_longer_than_they_may_be_ahead_then_none_waits_for_ever(
    algorithm: Algorithm, pair: tuple[Query, Streams]
) -> None:
    query, streams = pair
    deployment = deployed(query, algorithm, clock="wall", ahead=2)
    hosts = VirtualHosts(deployment, lambda: 5 * query.tau)
    hosts.run(streams, INTERVALS)
    answer = window_join(query, streams, INTERVALS)
    assert {n: hosts.results.get(n, Counter()) for n in answer} == answer


def test_machine_when_a_message_does_not_fit_the_query_then_refuses_it(
    pair: tuple[Query, Streams],
) -> None:
    query, streams = pair
    machine = Machine(deployed(query, Algorithm.SP_D), "B")
    rows = streams["A"].slice(0, 2)
    a, b = (s.qualified for s in query.streams)
    qualified = pa.RecordBatch.from_arrays(rows.columns, schema=a)
    right = Header(Kind.PROBE, 0, 1, head=0, step=0, interval=1)
    machine.check_message("A", Message(right, {"probe": qualified}))
    narrow = qualified.select(a.names[:2])
    both = pa.RecordBatch.from_arrays([*rows.columns, *rows.columns], schema=pa.schema([*a, *b]))
    for header, probe, said in (
        (right, narrow, "but stream 'A' has"),
        (right, pa.RecordBatch.from_arrays(rows.columns, schema=b), "for step 0 of 'A'"),
        (right, both, "for step 0 of 'A'"),
        (replace(right, head=7), qualified, "a step that no plan has"),
        (replace(right, step=1), qualified, "a step that no plan has"),
        (replace(right, sender=1), qualified, "between streams elsewhere"),
        (replace(right, receiver=5), qualified, "streams that are not there"),
    ):
        with pytest.raises(ArgumentError, match=said):
            machine.check_message("A", Message(header, {"probe": probe}))


def test_machine_when_no_link_is_shaped_then_plans_again_by_bytes(make) -> None:
    query, _ = make(*[(1, range(6), 400, TimeWindow(100))] * 2)
    statistics = Statistics(
        {n: StreamStatistics(1.0, 416, {f"{n}.a": 90.0}) for n in query.names},
        shared={("A.a", "B.a"): 1.0, ("B.a", "A.a"): 1.0},
        matched={("A.a", "B.a"): 0.01, ("B.a", "A.a"): 0.01},
    )
    best = joint(CostModel(query, statistics, prices_of({}, 1.0)))
    wasteful = Plan(query, {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_S)]})
    for plan, changes in ((best, False), (wasteful, True)):
        machine = Machine(replace(deployed(query, Algorithm.SP_S, replan_every=5), plan=plan), "A")
        assert machine.planner is not None
        machine.planner.consider(statistics, 50)
        sent = [decode(body).header.kind for _, _, body in machine.take().messages]
        assert (Kind.PREPARE in sent) == changes, plan


def test_driver_when_links_show_another_delay_then_delta_follows(
    pair: tuple[Query, Streams], tmp_path: Path
) -> None:
    query, _ = pair
    deployment = deployed(query, Algorithm.SP_S, clock="wall", heartbeats=False, unit="s")
    driver = Driver(deployment, "A", tmp_path, Limits(durable=False))
    try:
        assert driver.status()["streams"]["A"]["delta"] == query.delta == 5
        driver.delays.measured("B", 8.0)
        driver._round([])
        assert driver.status()["streams"]["A"]["delta"] == 12
        for _ in range(64):
            driver.delays.measured("B", 6.0)  # a little less: no reason to change
        driver._round([])
        assert driver.status()["streams"]["A"]["delta"] == 12
        for _ in range(64):
            driver.delays.measured("B", 0.5)
        driver._round([])
        assert driver.status()["streams"]["A"]["delta"] == 12  # B may know better
        driver.delays.told({"B": (1.0, 2.0, True)})
        driver._round([])
        assert driver.status()["streams"]["A"]["delta"] == 3
    finally:
        driver.stop()
    again = Driver(deployment, "A", tmp_path, Limits(durable=False))
    assert again.status()["streams"]["A"]["delta"] == 3
    again.stop()


def test_driver_when_a_call_was_given_up_then_its_messages_are_acknowledged_once_they_are_safe(
    pair: tuple[Query, Streams], tmp_path: Path
) -> None:
    deployment = deployed(pair[0], Algorithm.SP_D)
    sender = Machine(deployment, "B")
    sender.apply(Event(What.INPUT, 0, {"stream": "B", "until": 10**6}))
    found = sender.next_tick(0, halted=False)
    assert found is not None
    sender.apply(Event(What.TICK, found[1], {"stream": found[0]}))
    messages = [(seq, body) for _, seq, body in sender.take().messages]
    facts = {"first": 1, "last": messages[-1][0]}
    driver = Driver(deployment, "A", tmp_path, Limits(durable=False))
    for again in (messages, messages, []):  # nothing happens: its thread has not been started
        with pytest.raises(SiteUnavailableError, match="is busy"):
            driver.receive("B", again, facts, 0.1)
    driver._round(driver._jobs.take(driver._seconds_left()))
    assert driver.receive("B", [], facts, 0.1) == messages[-1][0]
    driver.stop()


def test_driver_when_an_answer_is_to_no_question_then_goes_on_and_counts_it(
    pair: tuple[Query, Streams], tmp_path: Path
) -> None:
    deployment = deployed(pair[0], Algorithm.SM_D2)
    message = Message(Header(Kind.FOUND, 1, 0, head=0, step=0, interval=1))
    driver = Driver(deployment, "A", tmp_path, Limits(durable=False))
    driver.start()
    assert driver.receive("B", [(1, encode(message))], {"first": 1, "last": 1}, 5) == 1
    assert driver.status()["streams"]["A"]["late_messages"] == 1
    driver.stop()
    again = Driver(deployment, "A", tmp_path, Limits(durable=False))
    assert again.status()["streams"]["A"]["late_messages"] == 1
    again.stop()


def test_driver_when_a_message_cannot_be_taken_then_stops_but_can_be_started_again(
    pair: tuple[Query, Streams], tmp_path: Path
) -> None:
    deployment = deployed(pair[0], Algorithm.SM_S2)
    parts = {"counts\x1fB.a": column(np.array([1])), "places\x1fB.a": column(np.array([7]))}
    message = Message(Header(Kind.UPDATE, 1, 0, interval=1), parts)
    driver = Driver(deployment, "A", tmp_path, Limits(durable=False))
    driver.start()
    facts = {"first": 1, "last": 1}
    with pytest.raises(SiteError, match=r"message .*'peer': 'B', 'seq': 1.* not in the journal"):
        driver.receive("B", [(1, encode(message))], facts, 5)
    driver.stop()
    again = Driver(deployment, "A", tmp_path, Limits(durable=False))
    again.start()
    update = Message(Header(Kind.UPDATE, 1, 0, interval=1))
    assert again.receive("B", [(1, encode(update))], facts, 5) == 1
    assert again.status()["error"] is None
    again.stop()


def test_machine_when_a_message_goes_the_wrong_way_or_lacks_a_part_then_refuses_it(
    pair: tuple[Query, Streams],
) -> None:
    machine = Machine(deployed(pair[0], Algorithm.SM_D2), "B")
    for kind, said in (
        (Kind.READY, "does not go this way"),
        (Kind.PREPARE, "does not go this way"),
        (Kind.PROBE, "without probe or refs or rows"),
        (Kind.KEYS, "without bloom or keys"),
    ):
        with pytest.raises(ArgumentError, match=said):
            machine.check_message("A", Message(Header(kind, 0, 1, interval=1)))
