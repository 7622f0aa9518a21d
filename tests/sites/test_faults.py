"""Sites that are killed, stopped, cut off or sent rubbish: exact results, or a clear error."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import SiteError, SiteRefusedError, SiteUnavailableError
from dovetail.multisite.live.deployment import Deployment, Shape
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.faults import asking
from dovetail.multisite.live.host import Host
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.machine import Machine
from dovetail.multisite.live.server import SiteServer
from dovetail.multisite.live.wire import MESSAGES, PUT, call, envelopes, packed
from dovetail.sites import PAPER
from support.sites import counted
from support.waiting import until_true

LAST = {"first": 1, "last": 1}  # what a host says of its messages
SEED = 1  # a query of three streams at two hosts


def test_sites_when_a_link_is_cut_for_ten_intervals_then_results_are_exact(fleet, run) -> None:
    running = run(fleet, 3, intervals=18)
    a, b = running.deployment.hosts[:2]
    running.feed(1, 4)
    # not that intervals are settled: a site may report only as the next one ends
    until_true(lambda: running.clients[a].status(running.name).links[b].acknowledged > 0)
    for one, other in ((a, b), (b, a)):
        running.clients[one].shape(running.name, other, Shape(cut=True))
    running.feed(5, 14)
    assert running.clients[a].status(running.name).links[b].waiting_bytes > 0
    assert running.settled() < 6
    for one, other in ((a, b), (b, a)):
        running.clients[one].shape(running.name, other, Shape())
    running.feed(15, 18)
    running.drain()
    assert running.check() > 0


def test_sites_when_links_are_slow_and_narrow_then_results_are_exact(fleet, run) -> None:
    hosts = fleet.hosts
    shapes = {(a, b): Shape(0.02, 50_000) for a in hosts for b in hosts if a != b}
    # SP-S: nobody may go on before having heard what others are done with
    running = run(fleet, 4, (PAPER[0],), shapes=shapes, ahead=2)
    running.feed(1, running.intervals)
    running.drain()
    assert running.check() > 0
    status = running.clients[hosts[0]].status(running.name)
    assert all(link.delay >= 0.02 for link in status.links.values())
    assert status.measured_delta >= 20


def test_site_when_killed_and_started_again_then_results_are_exact(own_fleet, run) -> None:
    running = run(own_fleet, SEED, intervals=40, rows=20)
    first, second = running.deployment.hosts
    before: dict[Any, Any] = {}
    for start, kill_at, host in ((1, 12, first), (14, 26, second)):
        running.feed(start, kill_at)
        before |= running.results()
        own_fleet.kill(host)
        # the others go on meanwhile; and whoever has heard no answer says it again
        running.feed(kill_at + 1, kill_at + 1, without=host)
        for stream in running.deployment.query.streams:
            if stream.site == host:
                ack = running.put(stream.name, kill_at)
                assert ack.duplicate
        running.feed(kill_at + 1, kill_at + 1)
    running.feed(28, 40)
    running.drain()
    assert running.check() > 1000
    after = running.results()
    assert {key: after[key][1].to_pydict() for key in before} == {
        key: rows.to_pydict() for key, (_, rows) in before.items()
    }
    folders = [own_fleet.directory / host / running.name for host in (first, second)]
    assert any(list(folder.glob("snapshot-*.bin")) for folder in folders), "no snapshot was made"
    assert all(len(list(folder.glob("events-*.log"))) == 1 for folder in folders)


def test_site_when_it_stands_still_for_a_while_then_results_are_exact(own_fleet, run) -> None:
    running = run(own_fleet, SEED, intervals=12, ahead=4)
    slow = running.deployment.hosts[1]
    running.feed(1, 3)
    process = own_fleet.processes[slow]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        running.feed(4, 12, without=slow)
        time.sleep(0.3)
        first = running.clients[running.deployment.hosts[0]].status(running.name)
        # it does not run ahead of the one that stands still
        assert max(stream.ticked for stream in first.streams.values()) <= 3 + 4
    finally:
        os.kill(process.pid, signal.SIGCONT)
    running.feed(4, 12)
    running.drain()
    assert running.check() > 0


def messages_of(machine: Machine, running: Any) -> list[tuple[int, bytes]]:
    """What a host sends if nobody answers."""
    for interval in range(1, running.intervals + 1):
        for name in machine.names:
            rows = running.rows_of(name, interval)
            machine.apply(Event(What.INPUT, 0, {"stream": name}), rows)
            machine.apply(Event(What.TICK, 0, {"stream": name}))
    return [(seq, body) for _, seq, body in machine.take().messages]


def send(running: Any, peer: str, to: str, messages: list[tuple[int, bytes]], last: int) -> int:
    """Send as if we were that host."""
    deployment = running.deployment
    facts = {**of_peer(deployment, peer), "first": 1, "last": last}
    body = packed(facts, *envelopes(messages))
    with (
        asking("it", running.sites.access),
        running.sites.access.connect(deployment.addresses[to]) as client,
    ):
        answer = call(client, running.sites.access, MESSAGES, body, 20)
    return int(answer["through"])


def of_peer(deployment: Deployment, peer: str) -> dict[str, Any]:
    """What a host says of itself with its messages."""
    return {"query": deployment.name, "digest": deployment.digest, "peer": peer, **LAST}


def found(results: Iterable[tuple[int, pa.RecordBatch]]) -> dict[int, Counter[Any]]:
    """Results by interval."""
    answer: dict[int, Counter[Any]] = {}
    for interval, rows in results:
        answer.setdefault(interval, Counter()).update(counted(pa.Table.from_batches([rows])))
    return answer


def test_messages_when_repeated_and_out_of_order_then_count_once_and_in_order(fleet, run) -> None:
    # SP-S: a site joins its own rows with copies
    running = run(fleet, 20, (PAPER[0],), hosts=("h0", "h1"))
    here, there = running.deployment.hosts
    running.clients[here].stop(running.name, forget=True)  # we are this one
    messages = messages_of(Machine(running.deployment, here), running)
    last = len(messages)
    assert last > 8
    alone = Machine(running.deployment, there)
    messages_of(alone, running)
    for seq, body in messages:
        alone.apply(Event(What.MESSAGE, 0, {"peer": here, "seq": seq}, body))
    expected = found((interval, rows) for _, interval, rows in alone.take().results)
    running.feed(1, running.intervals, without=here)
    mixed = [messages[i] for i in np.random.default_rng(2).permutation(last) if i != 3]
    throughs = [send(running, here, there, mixed[at : at + 3], last) for at in range(0, last, 3)]
    assert throughs[-1] == 3, "the fourth is missing"
    assert send(running, here, there, messages[2:5], last) == last
    assert send(running, here, there, messages, last) == last
    client = running.clients[there]
    assert client.status(running.name).links[here].repeated == last + 2
    assert found((r.interval, r.rows) for r in client.results(running.name)) == expected
    assert sum(counter.total() for counter in expected.values()) > 10


@pytest.mark.parametrize("lost", ["here", "there"])
def test_messages_when_a_journal_was_lost_then_are_refused(lost, fleet, run) -> None:
    running = run(fleet, 50)
    here, there = running.deployment.hosts[:2]
    until_true(lambda: running.clients[here].status(running.name).links[there].connected)
    deployment = running.deployment
    facts = {"first": 9, "last": 12} if lost == "there" else {"first": 1, "last": -1}
    body = packed({**of_peer(deployment, here), **facts})
    said = "are lost" if lost == "there" else "its journal is damaged"
    client = fleet.access.connect(deployment.addresses[there])
    with client, pytest.raises(SiteRefusedError, match=said), asking("it", fleet.access):
        call(client, fleet.access, MESSAGES, body, 20)


@pytest.mark.parametrize(
    ("name", "facts", "said"),
    [
        (MESSAGES, {"digest": "0123456789abcdef"}, "runs another query"),
        (MESSAGES, {"peer": "h7"}, "no other host 'h7'"),
        (MESSAGES, {"query": "other"}, "does not run a query 'other'"),
        (PUT, {"query": "other"}, "does not run a query 'other'"),
        (PUT, {"stream": "S9"}, "no stream 'S9'"),
        ("nothing", {}, "no action 'nothing'; actions are put, messages, start"),
    ],
)
def test_put_when_addressed_wrongly_then_says_so(name, facts, said, fleet, run) -> None:
    running = run(fleet, 50)
    there = running.deployment.addresses["h1"]
    right = {**of_peer(running.deployment, "h0"), "stream": "S0", "producer": "p"}
    body = packed({**right, "batch": 0, "part": 0, **facts})
    client = fleet.access.connect(there)
    with client, pytest.raises(SiteError, match=said), asking(there, fleet.access):
        call(client, fleet.access, name, body, 9)


def test_put_when_the_schema_is_another_then_says_both(fleet, run) -> None:
    running = run(fleet, 5)
    client = running.client_of("S0")
    for rows in (
        pa.record_batch({"ts": [1], "a": ["text"], "b": ["x"], "id": [1]}),
        pa.record_batch({"ts": [1], "key": [1]}),
    ):
        with pytest.raises(SiteRefusedError, match="'S0' has columns ts: int64, a: int64, b: str"):
            client.put(running.name, "S0", rows, producer="p", batch=1)
    rows = running.rows_of("S0", 1)
    null = pa.RecordBatch.from_arrays(
        [pa.nulls(rows.num_rows, pa.int64()), *rows.columns[1:]], schema=rows.schema
    )
    with pytest.raises(SiteRefusedError, match="without a time"):
        client.put(running.name, "S0", null, producer="p", batch=1)
    assert client.status(running.name).streams["S0"].rows == 0


def test_messages_when_the_schema_is_another_then_are_refused(fleet, run) -> None:
    running = run(fleet, 5, (PAPER[0],))
    here, there = running.deployment.hosts[:2]
    machine = Machine(running.deployment, here)
    messages = messages_of(machine, running)
    rubbish = [(1, b"\xff" * 80)]
    # a message of S0 whose rows are said to be of another stream
    swapped = [(1, body.replace(b"S0.", b"X0.")) for _, body in messages if b"S0.ts" in body][:1]
    assert swapped
    with running.sites.access.connect(running.deployment.addresses[there]) as client:
        for pieces, said in (
            (envelopes(rubbish)[:1], "messages that are cut off"),
            (envelopes(rubbish), "not a message between sites"),
            (envelopes(swapped), "but stream 'S0' has"),
        ):
            body = packed(of_peer(running.deployment, here), *pieces)
            with pytest.raises(SiteRefusedError, match=said), asking("it", fleet.access):
                call(client, fleet.access, MESSAGES, body, 20)
    assert running.clients[there].status(running.name).error is None


def test_put_when_it_is_oversized_then_says_the_limit_and_takes_nothing(fleet, run) -> None:
    running = run(fleet, 50)
    client = running.client_of("S0")
    limit = client.describe(running.name).max_put_bytes
    rows = running.rows_of("S0", 1).slice(0, 1)
    text = pa.array(["x" * (limit + 1)])
    large = pa.RecordBatch.from_arrays(
        [rows.column(0), rows.column(1), text, rows.column(3)], schema=rows.schema
    )
    with pytest.raises(SiteRefusedError, match=f"more than {limit:,} bytes .*several parts"):
        client.put(running.name, "S0", large, producer="p", batch=1)
    assert client.status(running.name).streams["S0"].rows == 0


def test_message_when_it_is_oversized_then_stops_until_the_limit_is_raised(
    tmp_path, fleet, run
) -> None:
    running = run(fleet, 6, (PAPER[0],), rows=30)
    deployment = running.deployment
    host = deployment.hosts[0]
    name = deployment.streams_of(host)[0]
    rows = running.streams[name]
    facts = {"producer": "p", "batch": 0, "part": 0, "until": deployment.query.boundary(4)}
    driver = Driver(deployment, host, tmp_path, Limits(message_bytes=400, durable=False))
    driver.start()
    with pytest.raises(SiteError, match="more than the 400 of the limit"):
        driver.put(name, rows, facts, 20)
    with pytest.raises(SiteError, match="more than the 400 of the limit"):
        driver.put(name, None, {"until": 9}, 20)
    driver.stop()
    again = Driver(deployment, host, tmp_path, Limits(durable=False))
    again.start()
    assert again.put(name, rows, facts, 20) == (True, 0)
    assert all(box.last > 0 for box in again.outboxes.values())
    assert again.status()["error"] is None
    again.stop()


def test_message_when_it_is_larger_than_the_other_end_takes_then_is_refused(
    tmp_path, fleet, run
) -> None:
    running = run(fleet, 6, (PAPER[0],), rows=30)
    here, there = running.deployment.hosts[:2]
    messages = messages_of(Machine(running.deployment, here), running)
    large = [(1, body) for _, body in messages if len(body) > 400][:1]
    assert large
    host = Host(there, tmp_path, fleet.access, Limits(message_bytes=400, durable=False))
    with SiteServer(host, "grpc://127.0.0.1:0", fleet.access) as server:
        host.start(running.deployment)
        with fleet.access.connect(f"grpc://127.0.0.1:{server.port}") as client:
            for messages in (large, [(1, bytes(1000))]):
                said = pytest.raises(SiteRefusedError, match=r"takes at most 400|in one call")
                body = packed(of_peer(running.deployment, here), *envelopes(messages))
                with said, asking("it", fleet.access):
                    call(client, fleet.access, MESSAGES, body, 20)
        status = host.part(running.name).status()
        assert status["error"] is None
        assert status["links"][here]["repeated"] == 0
        host.close()


def test_inputs_when_an_outbox_is_full_then_wait(tmp_path, fleet, run) -> None:
    running = run(fleet, 6, (PAPER[0],), rows=30)
    deployment = running.deployment
    host = deployment.hosts[0]
    name = deployment.streams_of(host)[0]
    limits = Limits(outbox_bytes=3000, input_bytes=1500, durable=False)
    driver = Driver(deployment, host, tmp_path, limits)  # without links: nothing is acknowledged
    driver.start()
    batches = [running.rows_of(name, interval) for interval in range(1, 9)]

    def put_all() -> None:
        for interval, rows in enumerate(batches, 1):
            put_one(interval, rows, 0.5)

    def put_one(interval: int, rows: pa.RecordBatch, seconds: float) -> tuple[bool, int]:
        facts = {"producer": "p", "batch": interval, "part": 0}
        facts["until"] = deployment.query.boundary(interval)
        return driver.put(name, rows, facts, seconds)

    with pytest.raises(SiteUnavailableError, match="is behind"):
        put_all()
    held = max(box.nbytes for box in driver.outboxes.values())
    assert 3000 < held < 12000
    peer = next(iter(driver.outboxes))
    driver.outboxes[peer].refusal = "the token is wrong"  # as its link would have it
    with pytest.raises(SiteUnavailableError, match=f"cannot send to '{peer}': the token is wrong"):
        put_one(9, batches[0], 0.1)
    for box in driver.outboxes.values():
        box.acknowledge(box.last)
    driver.wake()
    assert put_one(9, batches[0].slice(0, 0), 20) == (False, 0)
    assert put_one(10, batches[0], 20)[0] is False
    driver.stop()
