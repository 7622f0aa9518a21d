"""Talks to a site: hands out queries, puts rows, reads results.

Every call may be repeated. Rows count once, by the producer's name and the number of the batch;
results are read by their numbers.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dovetail.errors import SiteUnavailableError
from dovetail.multisite.encoded import batch_bytes
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.deployment import Clock, Deployment, Shape
from dovetail.multisite.live.faults import asking, understanding
from dovetail.multisite.live.wire import PUT, call, packed
from dovetail.multisite.query import Query
from dovetail.multisite.tree import AnyPlan, plan_of_json

_CALL_SECONDS = 60.0
_READ_SECONDS = 600.0  # all results that one call asks for
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True)
class PutAck:
    """The answer to rows. `late`: rows of the stream left out so far, whose interval was over."""

    duplicate: bool
    late: int
    repeated: bool = False  #: an earlier attempt of the same call may have brought them


@dataclass(frozen=True)
class Result:
    """Rows that a host has emitted for an interval, under a number that they keep."""

    seq: int
    interval: int
    rows: pa.RecordBatch


@dataclass(frozen=True)
class Description:
    """A query as it runs, seen from one host."""

    deployment: Deployment
    host: str
    max_put_bytes: int

    @property
    def query(self) -> Query:
        return self.deployment.query

    @property
    def addresses(self) -> Mapping[str, str]:
        return self.deployment.addresses

    @property
    def clock(self) -> Clock:
        return self.deployment.clock

    @property
    def unit(self) -> str:
        return self.deployment.unit

    @property
    def first_interval(self) -> int:
        return self.deployment.first_interval

    @property
    def result_schema(self) -> pa.Schema:
        return self.query.result_schema

    @property
    def streams_here(self) -> list[str]:
        return list(self.deployment.streams_of(self.host))


@dataclass(frozen=True)
class StreamStatus:
    """How far a stream has come. `settled`: the last interval that all are done with here."""

    ticked: int
    settled: int
    rows: int
    late: int  #: rows that were left out
    late_messages: int  #: that came when their interval was over; results may be missing
    window_rows: int
    kept_bytes: int
    delta: int  #: that is reckoned with, 0 with heartbeats


@dataclass(frozen=True)
class LinkStatus:
    """What has gone over a link, each message once."""

    messages: int
    nbytes: int  #: header and data, as plans and costs count them
    wire_bytes: int  #: as messages travel
    rows: int
    acknowledged: int
    waiting_bytes: int
    repeated: int  #: messages from there that had come before
    resent: int
    delay: float  #: the longest of late until a message was safe there, in seconds
    calls: int
    connected: bool
    error: str | None  #: why the last attempt failed
    refused: bool  #: and it will fail again, unless somebody does something about it


@dataclass(frozen=True)
class Status:
    """A host's part of a query."""

    host: str
    error: str | None
    streams: dict[str, StreamStatus]
    links: dict[str, LinkStatus]
    results: tuple[int, int]
    result_rows: int
    measured_delta: int  #: in the unit of the time columns
    plan: str
    changes: list[int]  #: intervals from which a new plan held
    journal_bytes: int
    snapshots: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Status":
        values = {name: data[name] for name in cls.__dataclass_fields__}
        values["streams"] = {n: StreamStatus(**s) for n, s in data["streams"].items()}
        values["links"] = {n: LinkStatus(**s) for n, s in data["links"].items()}
        values["results"] = tuple(data["results"])
        return cls(**values)

    def plan_of(self, query: Query) -> AnyPlan:
        return plan_of_json(query, self.plan)


@dataclass
class SiteClient:
    """One site. Connects when it is first used; any thread may call; can be pickled."""

    address: str
    access: Access
    _client: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "access": self.access, "_client": None}

    def __enter__(self) -> "SiteClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _flight(self) -> Any:
        if self._client is None:
            self._client = self.access.connect(self.address)
        return self._client

    def _act(self, name: str, facts: dict[str, Any], timeout: float = _CALL_SECONDS) -> Any:
        return self._call(name, json.dumps(facts).encode(), timeout)

    def _call(self, name: str, body: bytes, timeout: float) -> dict[str, Any]:
        with asking(self.address, self.access):
            return call(self._flight(), self.access, name, body, timeout)

    # --- queries --------------------------------------------------------------------------------

    def start(self, deployment: Deployment) -> bool:
        """Hand out a query; False if it was running already."""
        answer = self._act("start", deployment.to_json())
        with understanding(self.address):
            return bool(answer["started"])

    def stop(self, query: str, *, forget: bool = False) -> None:
        """End a query; with `forget` for good, or it goes on when the site is started again."""
        self._act("stop", {"query": query, "forget": forget})

    def queries(self) -> list[str]:
        answer = self._act("queries", {})
        with understanding(self.address):
            return list(map(str, answer["queries"]))

    def describe(self, query: str) -> Description:
        answer = self._act("describe", {"query": query})
        with understanding(self.address):
            deployment = Deployment.from_json(answer["deployment"])
            return Description(deployment, answer["host"], int(answer["put_bytes"]))

    def status(self, query: str) -> Status:
        answer = self._act("status", {"query": query})
        with understanding(self.address):
            return Status.from_json(answer)

    def shape(self, query: str, peer: str, shape: Shape) -> None:
        """Hold messages from this site to another back, for experiments."""
        self._act("shape", {"query": query, "peer": peer, "shape": shape.to_json()})

    def wait_until_there(self, timeout: float = 30.0) -> None:
        """Until the site answers."""
        self._patiently(lambda _: self._act("queries", {}, 5.0), timeout)

    # --- rows -----------------------------------------------------------------------------------

    def put(
        self, query: str, stream: str, rows: pa.RecordBatch | pa.Table, *, producer: str,
        batch: int, part: int = 0, until: int | None = None, timeout: float = _CALL_SECONDS,
    ) -> PutAck:  # fmt: skip
        """Rows of a stream, all of them or none, and once, however often this is called.

        Waits while the site is behind or away, up to `timeout` seconds.
        """
        facts = {
            "query": query, "stream": stream, "producer": producer, "batch": batch, "part": part,
            "until": until,
        }  # fmt: skip
        body = packed(facts, batch_bytes(_as_one(rows)))
        attempts = 0

        def put(left: float) -> PutAck:
            nonlocal attempts
            attempts += 1
            answer = self._call(PUT, body, left)
            with understanding(self.address):
                return PutAck(bool(answer["duplicate"]), int(answer["late"]), attempts > 1)

        ack: PutAck = self._patiently(put, timeout)
        return ack

    def advance(self, query: str, stream: str, until: int, timeout: float = _CALL_SECONDS) -> None:
        """No row of the stream with an earlier time will follow, where rows make the time."""
        facts = {"query": query, "stream": stream, "until": until}
        self._patiently(lambda left: self._act("advance", facts, left), timeout)

    def _patiently(self, call: Any, timeout: float) -> Any:
        """Call again while the site is behind or away."""
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                return call(max(0.1, deadline - time.monotonic()))
            except SiteUnavailableError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    # --- results --------------------------------------------------------------------------------

    def result_range(self, query: str) -> tuple[int, int]:
        """The numbers of the first and the last result that can be read."""
        answer = self._act("range", {"query": query})
        with understanding(self.address):
            first, last = answer["range"]
            return int(first), int(last)

    def results(
        self, query: str, after: int = 0, through: int | None = None, wait: float = 0.0
    ) -> Iterator[Result]:
        """Results after a number, in order; waits up to `wait` seconds for the first."""
        facts = {"query": query, "after": after, "through": through, "wait": wait}
        with asking(self.address, self.access):
            ticket = flight.Ticket(json.dumps(facts).encode())
            reader = self._flight().do_get(ticket, self.access.options(_READ_SECONDS + wait))
            for chunk in reader:
                yield self._result(chunk)

    def _result(self, chunk: Any) -> Result:
        """A result that can be worked with, whoever has sent it."""
        with understanding(self.address):
            chunk.data.validate(full=True)
            label = json.loads(chunk.app_metadata.to_pybytes())
            return Result(int(label["seq"]), int(label["interval"]), chunk.data)

    def trim(self, query: str, through: int) -> None:
        """Results up to this number are not needed any more."""
        self._act("trim", {"query": query, "through": through})


def _as_one(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=rows.schema)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
