"""The two streams of `semi-spark`, and the query over them at two sites of this machine."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.multisite.formulas import KEY_BYTES
from dovetail.multisite.live.client import SiteClient, Status
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.local import LocalSites
from dovetail.sites import (
    CostModel,
    LinkPrice,
    Plan,
    Prices,
    Query,
    Statistics,
    Stream,
    StreamStatistics,
    TimeWindow,
    joint,
)
from dovetail_bench.data import Files, Relations, texts, write_files
from dovetail_bench.semi.bound import partners

RATE = 5_000  #: rows a second of each stream
SECOND = 1_000_000
WINDOW = 10 * SECOND
START = 1_769_860_800  #: seconds: not 0, which Spark would take for late
KEYS = 100_000  #: as many as rows in two windows: a row whose key both have meets one, on average
FILES = 5
TEXT = 240  #: characters: rows are wide, as those of logs are
SCHEMA = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("key", pa.int64()), ("value", pa.float64()),
     ("text", pa.string())]
)  # fmt: skip
_WAIT_SECONDS = 300.0


@dataclass(frozen=True)
class Case:
    """Two streams of so many rows, a part of whose keys are the same."""

    rows: int
    shared: float
    seed: int

    @cached_property
    def tables(self) -> dict[str, pa.Table]:
        """In the order of their times, which are evenly apart."""
        rng = np.random.default_rng(self.seed)
        times = START * SECOND + np.arange(self.rows, dtype=np.int64) * SECOND // RATE
        found = {}
        for side, first_key in zip(SIDE_NAMES, (0, round(KEYS * (1 - self.shared))), strict=True):
            columns = [
                pa.array(times, SCHEMA.field("ts").type),
                pa.array(first_key + rng.integers(0, KEYS, self.rows)),
                pa.array(rng.random(self.rows)),
                texts(self.rows, rng, TEXT),
            ]
            found[side] = pa.Table.from_arrays(columns, schema=SCHEMA)
        return found

    @cached_property
    def met(self) -> dict[str, NDArray[np.int64]]:
        """For each row of a stream, how many of the other it meets."""
        columns = {
            side: (
                np.asarray(table["ts"].cast(pa.int64())) - START * SECOND,
                np.asarray(table["key"]),
            )
            for side, table in self.tables.items()
        }
        left, right = columns.values()
        pairs = {SIDE_NAMES[0]: (left, right), SIDE_NAMES[1]: (right, left)}
        return {side: partners(*pair, WINDOW, WINDOW) for side, pair in pairs.items()}

    @property
    def pairs(self) -> int:
        return int(self.met[SIDE_NAMES[0]].sum())

    @property
    def nbytes(self) -> dict[str, int]:
        return {side: int(table.nbytes) for side, table in self.tables.items()}

    @property
    def least_bytes(self) -> float:
        """What has to be sent, whatever one does: the rows that meet one, with their keys."""
        return min(
            np.count_nonzero(self.met[side]) * (self.nbytes[side] / self.rows + KEY_BYTES)
            for side in self.tables
        )

    def files(self, directory: Path) -> Files:
        left, right = self.tables.values()
        return write_files(Relations(left, right, self.pairs), directory, FILES)


def make_query() -> Query:
    streams = tuple(Stream(side, SCHEMA, TimeWindow(WINDOW), site=side) for side in SIDE_NAMES)
    left, right = (f"{side}.key" for side in SIDE_NAMES)
    return Query(streams, ((left, right),), tau=SECOND, delta=SECOND // 10)


def choose(case: Case) -> Plan:
    """The plan that sends the fewest bytes, by what the streams were drawn from."""
    query = make_query()
    sizes = {side: nbytes / case.rows for side, nbytes in case.nbytes.items()}
    streams = {
        side: StreamStatistics(RATE / SECOND, size, {f"{side}.key": float(KEYS)})
        for side, size in sizes.items()
    }
    statistics = Statistics(streams, {query.on[0]: KEYS * case.shared})
    return joint(CostModel(query, statistics, Prices(LinkPrice(0.0, 1.0))))


@contextlib.contextmanager
def local_sites(directory: Path) -> Iterator[LocalSites]:
    """A site for each stream, on this machine."""
    sites = LocalSites(directory / "sites", SIDE_NAMES)
    try:
        for host in sites.hosts:
            sites.start(host)
        sites.addresses()
        yield sites
    finally:
        sites.stop()


@dataclass
class Served:
    """The case's query at the sites, until it is closed."""

    sites: LocalSites
    deployment: Deployment
    clients: dict[str, SiteClient]

    @classmethod
    def start(cls, sites: LocalSites, plan: Plan, name: str) -> "Served":
        addresses = sites.addresses()
        deployment = Deployment(
            name, plan, addresses, clock="rows", unit="us", first_interval=START + 1
        )
        clients = {side: SiteClient(addresses[side], sites.access) for side in SIDE_NAMES}
        for client in clients.values():
            client.start(deployment)
        return cls(sites, deployment, clients)

    def put_all(self, case: Case) -> None:
        """The rows of both streams, a put for each interval, both at once."""
        errors: list[BaseException] = []

        def put(side: str) -> None:
            try:
                table, step = case.tables[side], RATE
                for batch, at in enumerate(range(0, case.rows, step)):
                    self.clients[side].put(
                        self.deployment.name, side, table.slice(at, step), producer="bench",
                        batch=batch, until=self.deployment.query.boundary(START + batch + 1),
                        timeout=_WAIT_SECONDS,
                    )  # fmt: skip
            except Exception as error:  # noqa: BLE001  raised again where the thread is awaited
                errors.append(error)

        threads = [threading.Thread(target=put, args=(side,)) for side in SIDE_NAMES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def finish(self, case: Case) -> None:
        """No row will follow: until all results are out."""
        last = beyond = START - (-case.rows // RATE)
        deadline = time.monotonic() + _WAIT_SECONDS
        while min(s.settled for st in self.statuses() for s in st.streams.values()) < last:
            if time.monotonic() > deadline:
                raise TimeoutError("the sites do not come to an end")
            beyond += 1
            until = self.deployment.query.boundary(beyond)
            for side, client in self.clients.items():
                client.advance(self.deployment.name, side, until)

    def statuses(self) -> list[Status]:
        return [client.status(self.deployment.name) for client in self.clients.values()]

    def read(self) -> int:
        """All results; returns how many rows they are."""
        return sum(
            result.rows.num_rows
            for client in self.clients.values()
            for result in client.results(self.deployment.name)
        )

    def facts(self) -> dict[str, float]:
        links = [link for status in self.statuses() for link in status.links.values()]
        return {
            "bytes_sent": sum(link.nbytes for link in links),
            "bytes_on_the_wire": sum(link.wire_bytes for link in links),
            "messages": sum(link.messages for link in links),
            "rows_sent": sum(link.rows for link in links),
        }

    def close(self) -> None:
        for client in self.clients.values():
            client.stop(self.deployment.name, forget=True)
            client.close()


@contextlib.contextmanager
def serving(sites: LocalSites, plan: Plan) -> Iterator[Served]:
    """The query at the sites for one run, which leaves nothing behind."""
    served = Served.start(sites, plan, f"run-{time.monotonic_ns()}")
    try:
        yield served
    finally:
        served.close()
