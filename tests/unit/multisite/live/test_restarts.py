"""The host that plans, started again in the midst of a change of plan."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.messages import PLANNER, Header, decode
from dovetail.sites import Algorithm, Kind, Plan, Step, TimeWindow
from support.sites import counted, window_join

INTERVALS = 12
LIMITS = {
    "journal": Limits(durable=False),
    "snapshots": Limits(durable=False, snapshot_bytes=1),
}


class Hosts:
    """Two hosts whose messages are carried by hand; each may be started again at any moment."""

    def __init__(self, deployment: Deployment, folder: Path, limits: Limits) -> None:
        self.deployment, self.folder, self.limits = deployment, folder, limits
        self.drivers = {host: self._started(host) for host in deployment.hosts}

    def _started(self, host: str) -> Driver:
        driver = Driver(self.deployment, host, self.folder / host, self.limits)
        driver.start()
        return driver

    def again(self, host: str) -> None:
        """All that it knows is what the journal has."""
        self.drivers[host].stop()
        self.drivers[host] = self._started(host)

    def waiting(self) -> Iterator[tuple[str, str, int, Header, bytes]]:
        for host, driver in self.drivers.items():
            for peer, box in driver.outboxes.items():
                for posted in box.take(1 << 30, 0.0):
                    yield host, peer, posted.seq, decode(posted.body).header, posted.body

    def carry(self) -> bool:
        """Messages that wait, once; whether there were any."""
        found = list(self.waiting())
        for host, peer, seq, _, body in found:
            box = self.drivers[host].outboxes[peer]
            facts = {"first": box.acknowledged + 1, "last": box.last}
            box.acknowledge(self.drivers[peer].receive(host, [(seq, body)], facts, 10))
        return bool(found)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("kind", [None, Kind.PREPARE, Kind.READY, Kind.COMMIT])
def test_planner_when_started_again_during_a_change_then_results_are_exact(
    make, tmp_path: Path, kind: Kind | None, limits: str
) -> None:
    query, streams = make(
        (1, range(40), 300, TimeWindow(20)), (1, range(36, 76), 300, TimeWindow(20)),
        intervals=INTERVALS,
    )  # fmt: skip
    plan = Plan(query, {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_D)]})
    addresses = dict.fromkeys("AB", "grpc://127.0.0.1:1")
    deployment = Deployment("q", plan, addresses, clock="rows", replan_every=2)
    hosts = Hosts(deployment, tmp_path, LIMITS[limits])
    restarts = 0
    for interval in range(1, INTERVALS + 6):
        for name, rows in streams.items():
            mine = rows if interval == 1 else None
            facts = {"producer": "p", "batch": interval, "part": 0}
            until = query.boundary(interval)
            hosts.drivers[name].put(name, mine, facts | {"until": until}, 10)
        while True:
            between = [h for *_, h, _ in hosts.waiting() if PLANNER in (h.sender, h.receiver)]
            if kind in [header.kind for header in between]:
                hosts.again("A")
                restarts += 1
            if not hosts.carry():
                break
    assert hosts.drivers["A"].status()["changes"]
    assert (restarts > 0) == (kind is not None)
    assert found_at(hosts) == sum(window_join(query, streams, INTERVALS).values(), Counter())
    for driver in hosts.drivers.values():
        driver.stop()


def found_at(hosts: Hosts) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for driver in hosts.drivers.values():
        for _, _, rows in driver.results.read(0, None):
            found.update(counted(pa.Table.from_batches([rows])))
    return found
