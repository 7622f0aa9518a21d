"""Malformed rows and absurd arguments put to real sites: refused, said why, and nothing happens."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from dovetail.errors import SiteError, SiteRefusedError
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.faults import asking
from dovetail.multisite.live.local import LocalSites
from dovetail.multisite.live.wire import MESSAGES, PUT, call, envelopes, packed
from dovetail.multisite.messages import Header, Kind, Message, column, encode
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow
from support.malformed import (
    POINTING_ELSEWHERE,
    beyond_their_child,
    not_utf8,
    strings,
)
from support.waiting import until_true

SCHEMA = pa.schema(
    [
        ("ts", pa.int64()), ("k", pa.string()), ("text", pa.string()),
        ("list", pa.list_(pa.int64())),
    ]
)  # fmt: skip


def rows(**columns: Any) -> pa.RecordBatch:
    """Three good rows, but for these columns."""
    good = {
        "ts": pa.array([1, 2, 3]), "k": pa.array(["a", "b", "c"]),
        "text": pa.array(["x", "y", "z"]),
        "list": pa.array([[1], [], [2, 3]]),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays(list((good | columns).values()), schema=SCHEMA)


MALFORMED: dict[str, Callable[[], pa.RecordBatch]] = {
    **{f"key {n}": lambda o=o: rows(k=strings(o)) for n, o in POINTING_ELSEWHERE.items()},
    **{f"text {n}": lambda o=o: rows(text=strings(o)) for n, o in POINTING_ELSEWHERE.items()},
    "text that is no UTF-8": lambda: rows(text=not_utf8(3)),
    "lists beyond their child": lambda: rows(list=beyond_their_child(3)),
    "times beyond all": lambda: rows(ts=pa.array([1, 2, 2**63 - 1])),
}


class Joined:
    """A query of two streams, at a site each."""

    def __init__(self, sites: LocalSites, name: str) -> None:
        self.sites, self.name = sites, name
        streams = tuple(
            Stream(s, SCHEMA, TimeWindow(30), site=h) for s, h in (("A", "h0"), ("B", "h1"))
        )
        plan = Plan(
            Query(streams, (("A.k", "B.k"),), 10, 5),
            {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_D)]},
        )
        addresses = {host: sites.address(host) for host in ("h0", "h1")}
        self.deployment = Deployment(name, plan, addresses, clock="rows")
        self.clients = {s.name: SiteClient(addresses[s.site], sites.access) for s in streams}
        for client in self.clients.values():
            client.start(self.deployment)

    def put(
        self, stream: str, batch: pa.RecordBatch, number: int = 1, until: int | None = 60
    ) -> Any:  # fmt: skip
        return self.clients[stream].put(
            self.name, stream, batch, producer="p", batch=number, until=until, timeout=30
        )

    def results(self) -> list[dict[str, Any]]:
        found = [r.rows for c in self.clients.values() for r in c.results(self.name)]
        return [row for batch in found for row in batch.to_pylist()]

    def ask(self, action: str, body: bytes, stream: str = "A") -> dict[str, Any]:
        access, address = self.sites.access, self.clients[stream].address
        with asking(address, access), access.connect(address) as client:
            return call(client, access, action, body, 20)

    def close(self) -> None:
        for client in self.clients.values():
            client.stop(self.name, forget=True)
            client.close()


@pytest.fixture
def joined(fleet: LocalSites, request: pytest.FixtureRequest) -> Any:
    made = Joined(fleet, f"malformed-{abs(hash(request.node.nodeid)) % 10**9}")
    yield made
    made.close()


@pytest.mark.parametrize("kind", MALFORMED)
def test_put_when_rows_are_malformed_then_is_refused_and_the_site_goes_on(
    kind: str, joined: Joined
) -> None:
    with pytest.raises(SiteRefusedError, match=r"malformed Arrow data: |has times from"):
        joined.put("A", MALFORMED[kind]())
    assert joined.clients["A"].status(joined.name).error is None
    assert joined.clients["A"].status(joined.name).streams["A"].rows == 0
    joined.put("A", rows())
    joined.put("B", rows())
    until_true(lambda: len(joined.results()) == 3)
    assert {row["A.text"] for row in joined.results()} == {"x", "y", "z"}


def test_put_when_it_inflates_beyond_the_limit_then_is_refused_before_it_does(
    joined: Joined,
) -> None:
    client = joined.clients["A"]
    limit = client.describe(joined.name).max_put_bytes
    count = 8 * limit // 8
    big = pa.RecordBatch.from_arrays(
        [pa.array(np.zeros(count, np.int64)), *(pa.nulls(count, f.type) for f in list(SCHEMA)[1:])],
        schema=SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_batch(big)
    data = sink.getvalue().to_pybytes()
    assert len(data) < limit // 8
    facts = {"query": joined.name, "stream": "A", "producer": "p", "batch": 1, "part": 0}
    before = resident(joined.sites, "h0")
    said = f"more than {limit:,} bytes in one call .*a batch of [0-9,]+ bytes.*several parts"
    with pytest.raises(SiteRefusedError, match=said):
        joined.ask(PUT, packed(facts, data))
    assert resident(joined.sites, "h0") - before < limit
    # and one that stays within it is taken
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        writer.write_batch(rows())
    answer = joined.ask(PUT, packed(facts, sink.getvalue().to_pybytes()))
    assert answer == {"duplicate": False, "late": 0}


def resident(sites: LocalSites, host: str) -> int:
    """The most memory that a site has had."""
    for line in Path(f"/proc/{sites.processes[host].pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


MESSAGES_OF_B = {
    "offsets beside the data": Message(
        Header(Kind.PROBE, 1, 0, head=1, interval=1),
        {
            "probe": rows(text=strings([0, 65536, 4, 4])).rename_columns(
                [f"B.{n}" for n in SCHEMA.names]
            )
        },
    ),
    "an interval beyond all": Message(Header(Kind.UPDATE, 1, 0, interval=2**62)),
    "rows below none": Message(Header(Kind.UPDATE, 1, 0, interval=1, expired=-1)),
    "steps that no plan has": Message(
        Header(Kind.PASSED, 1, 0, interval=1), {"passed": column(np.array([(1 << 16) | (9 << 8)]))}
    ),
    "a part of no meaning": Message(
        Header(Kind.UPDATE, 1, 0, interval=1), {"what": column(np.array([1]))}
    ),
    "keys of columns that are not joined": Message(
        Header(Kind.UPDATE, 1, 0, interval=1), {"counts\x1fB.text": column(np.array([1]))}
    ),
    "more places than counts": Message(
        Header(Kind.UPDATE, 1, 0, interval=1),
        {"counts\x1fB.k": column(np.array([1])), "places\x1fB.k": column(np.array([1, 2]))},
    ),
    "rows of the window for another's step": Message(
        Header(Kind.PROBE, 1, 0, head=0, interval=1), {"refs": column(np.array([1]))}
    ),
    "a filter of no bits": Message(
        Header(Kind.KEYS, 1, 0, head=1, interval=1),
        {"bloom": column(np.zeros(0, np.uint8)), "size": column(np.array([1]))},
    ),
}


@pytest.mark.parametrize("kind", MESSAGES_OF_B)
def test_message_when_it_claims_what_cannot_be_then_is_refused_and_the_site_goes_on(
    kind: str, joined: Joined
) -> None:
    facts = {"query": joined.name, "digest": joined.deployment.digest, "peer": "h1"}
    body = packed({**facts, "first": 1, "last": 9}, *envelopes([(1, encode(MESSAGES_OF_B[kind]))]))
    with pytest.raises(SiteRefusedError) as caught:
        joined.ask(MESSAGES, body)
    assert "failed inside" not in str(caught.value)
    assert joined.clients["A"].status(joined.name).error is None
    joined.put("A", rows())
    joined.put("B", rows())
    until_true(lambda: len(joined.results()) == 3)


BAD_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("advance", {"stream": "A", "until": 10**26}, "until=1000.* does not fit into 64 bits"),
    ("advance", {"stream": "A", "until": 2**63 - 1}, "cannot be: stream 'A' is at"),
    ("advance", {"stream": "A", "until": 10 * 1_000_000_002}, "1,000,000,000 intervals later"),
    ("advance", {"stream": "A", "until": -(2**63) + 1}, "cannot be"),
    ("advance", {"stream": "A", "until": 1.5}, "until=1.5 has to be a whole number"),
    ("advance", {"stream": "A", "until": True}, "until=True has to be a whole number"),
    ("advance", {"stream": ["A"], "until": 1}, "stream=.* has to be a text"),
    ("advance", {"stream": "B", "until": 1}, "has no stream 'B' at 'h0'"),
    ("trim", {"through": True}, "through=True has to be a whole number"),
    ("trim", {"through": "all"}, "through='all' has to be a whole number"),
    ("trim", {}, "through is missing"),
    ("stop", {"forget": "no"}, "forget='no' has to be true or false"),
    ("shape", {"peer": "h1", "shape": "wide"}, "shape='wide' has to be an object"),
    ("shape", {"peer": "h1", "shape": {"latency": 1}}, "a shape is latency, bandwidth and cut"),
    ("shape", {"peer": "h1", "shape": {"latency": "1", "bandwidth": 1, "cut": False}}, "a link of"),
    ("shape", {"peer": "h1", "shape": {"latency": -1, "bandwidth": 1, "cut": False}}, "a link of"),
    ("shape", {"peer": "h1", "shape": {"latency": 1, "bandwidth": 0, "cut": False}}, "a link of"),
    ("status", {"query": 7}, "query=7 has to be a text"),
    ("start", {"name": "x"}, "not a query as it is handed out to sites"),
]


@pytest.mark.parametrize(("action", "facts", "said"), BAD_ARGUMENTS)
def test_action_when_its_arguments_are_absurd_then_says_which_and_nothing_of_its_inside(
    action: str, facts: dict[str, Any], said: str, joined: Joined
) -> None:
    body = json.dumps({"query": joined.name, **facts}).encode()
    with pytest.raises(SiteRefusedError, match=said) as caught:
        joined.ask(action, body)
    for inside in ("Traceback", ".py", "File ", "/work", "site-packages"):
        assert inside not in str(caught.value)
    assert joined.put("A", rows()).late == 0


@pytest.mark.parametrize(
    "body", [b"5", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"query": NaN}']
)
def test_action_when_its_body_is_no_object_then_says_so(body: bytes, joined: Joined) -> None:
    for action in ("status", "trim", "start"):
        with pytest.raises(SiteRefusedError, match=r"without what belongs to it|not a query"):
            joined.ask(action, body)
    with pytest.raises(SiteRefusedError, match=r"cut off|without what belongs to it"):
        joined.ask(PUT, body)


@pytest.mark.parametrize(
    "wait", [-1, "soon", True, float("nan"), float("inf"), 10**400, 1e300, [1]]
)
def test_results_when_the_wait_is_absurd_then_says_so(wait: Any, joined: Joined) -> None:
    access, address = joined.sites.access, joined.clients["A"].address
    ticket = json.dumps({"query": joined.name, "after": 0, "wait": wait}).encode()
    said = pytest.raises(SiteRefusedError, match=r"wait=.* has to be seconds, from 0 to")
    with access.connect(address) as client, said, asking(address, access):
        client.do_get(flight.Ticket(ticket), access.options(20)).read_all()


@pytest.mark.parametrize("facts", [{"after": True}, {"after": "0"}, {"after": 0, "through": "1"}])
def test_results_when_the_range_is_absurd_then_says_so(facts: Any, joined: Joined) -> None:
    access, address = joined.sites.access, joined.clients["A"].address
    ticket = json.dumps({"query": joined.name, **facts}).encode()
    said = pytest.raises(SiteRefusedError, match="has to be a whole number")
    with access.connect(address) as client, said, asking(address, access):
        client.do_get(flight.Ticket(ticket), access.options(20)).read_all()


class FalseSite(flight.FlightServerBase):  # type: ignore[misc]
    """Answers what no site does."""

    def do_get(self, context: Any, ticket: Any) -> Any:
        batch = pa.RecordBatch.from_arrays([strings(POINTING_ELSEWHERE["just beyond"])], ["text"])
        return flight.GeneratorStream(batch.schema, [(batch, b'{"seq": 1, "interval": 1}')])

    def do_action(self, context: Any, action: Any) -> Any:
        return iter([b'{"range": "everything", "queries": 3}'])


def test_client_when_a_site_sends_malformed_results_then_uses_none_of_them(
    fleet: LocalSites,
) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(FalseSite("grpc://127.0.0.1:0"))
        address = f"grpc://127.0.0.1:{server.port}"
        with SiteClient(address, fleet.access) as client:
            with pytest.raises(SiteError, match=r"has answered as no site does .*Nothing of the"):
                list(client.results("q"))
            for ask in (client.queries, lambda: client.describe("q"), lambda: client.status("q"),
                        lambda: client.result_range("q")):  # fmt: skip
                with pytest.raises(SiteError, match="has answered as no site does"):
                    ask()
