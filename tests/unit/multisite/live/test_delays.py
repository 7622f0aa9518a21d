"""Delays of all links, known to all hosts."""

import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from dovetail.errors import SiteRefusedError
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.delays import Delays
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.host import Host
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.server import SiteServer
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow

ACCESS = Access("t" * 16)


def deployed(delta: int = 600, **settings: object) -> Deployment:
    """Three hosts; nothing goes between A and C."""
    schema = pa.schema([("ts", pa.int64()), ("k", pa.int64())])
    streams = tuple(Stream(name, schema, TimeWindow(100)) for name in "ABC")
    query = Query(streams, (("A.k", "B.k"), ("B.k", "C.k")), 10, delta)
    plan = {
        "A": [Step("B", Algorithm.SP_D), Step("C", Algorithm.SP_S)],
        "B": [Step("A", Algorithm.SP_S), Step("C", Algorithm.SP_S)],
        "C": [Step("B", Algorithm.SP_D), Step("A", Algorithm.SP_S)],
    }
    addresses = dict.fromkeys("ABC", "grpc://127.0.0.1:1")
    first = time.time_ns() // 1_000_000_000 // 10 + 2
    given = {"unit": "s", "heartbeats": False, "first_interval": first} | settings
    return Deployment("q", Plan(query, plan), addresses, **given)  # type: ignore[arg-type]


def test_delays_when_told_on_then_every_host_knows_the_longest() -> None:
    a, b, c = (Delays(host, "ABC".replace(host, "")) for host in "ABC")
    for delays, seconds in ((a, 0.1), (b, 0.2), (c, 4.0)):
        for peer in delays._own:
            delays.measured(peer, seconds)
    assert a.bound == pytest.approx(0.15)
    b.told(c.reports())
    a.told(b.reports())  # A hears nothing of C itself
    assert a.bound == pytest.approx(6.0)
    older = c.reports()
    for _ in range(64):
        c.measured("A", 0.3)
        c.measured("B", 0.3)
    a.told(c.reports())
    a.told(older)
    assert a.bound == pytest.approx(0.45)
    with pytest.raises(SiteRefusedError, match="no delays"):
        a.told({"B": (1, "x", True)})


def test_delays_when_a_host_is_silent_or_has_not_measured_all_then_are_not_complete() -> None:
    clock = [100.0]
    a = Delays("A", "BC", lambda: clock[0])
    for peer in "BC":
        a.measured(peer, 0.1)
    a.told({"B": (1.0, 0.1, True)})
    assert not a.complete
    a.told({"C": (1.0, 0.1, False)})
    assert not a.complete
    a.told({"C": (2.0, 0.1, True)})
    assert a.complete
    clock[0] += 30
    a.told({"B": (3.0, 0.1, True)})
    assert not a.complete, "C may be cut off, with messages of any age"


def test_driver_when_not_all_hosts_have_reported_then_does_not_shorten_delta(
    tmp_path: Path,
) -> None:
    driver = Driver(deployed(), "A", tmp_path, Limits(durable=False))

    def delta() -> int:
        driver._round([])
        return int(driver.status()["streams"]["A"]["delta"])

    try:
        for peer in "BC":
            driver.delays.measured(peer, 1.0)
        driver.delays.told({"B": (1.0, 2.0, True)})
        assert delta() == 600
        driver.delays.told({"B": (2.0, 2.0, True), "C": (1.0, 40.0, True)})
        assert delta() == 60
        driver.delays.told({"B": (3.0, 2.0, True), "C": (2.0, 100.0, False)})
        assert delta() == 150
    finally:
        driver.stop()


def test_planner_when_links_show_another_delay_then_proposes_by_it(tmp_path: Path) -> None:
    driver = Driver(deployed(heartbeats=True, replan_every=5), "A", tmp_path, Limits(durable=False))
    planner = driver._machine.planner
    assert planner is not None
    assert planner.delta == 600
    driver.delays.measured("B", 700.0)
    driver._round([])
    assert planner.delta == 1050
    planner.change(driver.deployment.plan, 0)
    assert planner._offer is not None
    assert planner._offer[0] >= 3 * 1050 / 10
    driver.stop()


def test_links_when_they_have_nothing_to_send_then_are_measured_and_told_of(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        hosts = [Host(n, tmp_path / n, ACCESS, Limits(durable=False)) for n in "ABC"]
        servers = [
            stack.enter_context(SiteServer(host, "grpc://127.0.0.1:0", ACCESS)) for host in hosts
        ]
        addresses = {
            host.name: f"grpc://127.0.0.1:{server.port}"
            for host, server in zip(hosts, servers, strict=True)
        }
        deployment = deployed().moved(addresses)
        for host in hosts:
            host.start(deployment)
            stack.callback(host.close)
        drivers = [host.part("q").driver for host in hosts]
        deadline = time.monotonic() + 20
        while any(driver._machine.delta == 600 for driver in drivers):
            assert time.monotonic() < deadline, [driver.delays.reports() for driver in drivers]
            time.sleep(0.05)
        assert all(driver.delays.complete for driver in drivers)
