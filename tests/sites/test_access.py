"""Nobody without the token gets in, by whichever call."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.cli.site.views import refusals
from dovetail.errors import SiteAccessError
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.client import LinkStatus, SiteClient, Status
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.local import LocalSites
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow
from support.sites import counted, window_join
from support.waiting import until_true

SEED = 1  # a query of three streams at two hosts
SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64())])


def calls(client: Any, options: Any) -> dict[str, Callable[[], Any]]:
    """Every kind of call that Flight has."""
    path = flight.FlightDescriptor.for_path("q", "S0")

    def do_put() -> None:
        writer, _ = client.do_put(path, SCHEMA, options)
        writer.close()

    def exchange() -> None:
        writer, reader = client.do_exchange(path, options)
        writer.done_writing()
        reader.read_all()

    actions = ("start", "stop", "queries", "describe", "status", "advance", "trim", "shape", "put",
               "messages")  # fmt: skip
    return {
        **{name: lambda n=name: list(client.do_action((n, b"{}"), options)) for name in actions},
        "upload": do_put,
        "get": lambda: client.do_get(flight.Ticket(b"{}"), options).read_all(),
        "exchange": exchange,
        "list": lambda: list(client.list_flights(options=options)),
        "list actions": lambda: client.list_actions(options),
        "info": lambda: client.get_flight_info(path, options),
    }


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer WRONG", "Basic TOKEN", "Bearer TOKENx"])
def test_call_when_the_token_is_missing_or_wrong_then_is_refused(header, fleet) -> None:
    headers = []
    if header:
        token = fleet.access.token
        text = header.replace("TOKEN", token).replace("WRONG", "w" * len(token))
        headers = [(b"authorization", text.encode())]
    options = flight.FlightCallOptions(timeout=10, headers=headers)
    with flight.FlightClient(fleet.address("h0")) as client:
        for name, call in calls(client, options).items():
            with pytest.raises(flight.FlightUnauthenticatedError, match="missing or wrong"):
                pytest.fail(f"{name}: {call()}")


def test_client_when_its_token_is_wrong_then_says_so_without_telling_it(fleet) -> None:
    wrong = Access("not the right token")
    said = pytest.raises(SiteAccessError, match="the token is missing or wrong")
    with SiteClient(fleet.address("h0"), wrong) as client, said as caught:
        client.queries()
    assert wrong.token not in f"{caught.value!r} {wrong!r} {client!r}"
    logs = [path.read_text() for path in fleet.directory.glob("*.log")]
    assert not any(fleet.access.token in log or wrong.token in log for log in logs)


class TwoTokens:
    """A query of streams A and B, at sites that each have a token of their own."""

    def __init__(self, folder: Path) -> None:
        self.rows = {
            name: pa.record_batch({"ts": range(40), "k": [n % 7 for n in range(40)]})
            for name in "AB"
        }
        self.sites = {n: LocalSites(folder / n, (n,), {"durable": False}) for n in "AB"}
        for name, sites in self.sites.items():
            sites.start(name)
        self.addresses = {name: sites.address(name) for name, sites in self.sites.items()}
        streams = tuple(Stream(name, SCHEMA, TimeWindow(20)) for name in "AB")
        self.query = Query(streams, (("A.k", "B.k"),), tau=10, delta=5)
        steps = {"A": [Step("B", Algorithm.SP_S)], "B": [Step("A", Algorithm.SP_S)]}
        self.deployment = Deployment("q", Plan(self.query, steps), self.addresses, clock="rows")

    def client(self, name: str, token_of: str = "") -> SiteClient:
        return SiteClient(self.addresses[name], self.sites[token_of or name].access)

    def stop(self) -> None:
        for sites in self.sites.values():
            sites.stop()


@pytest.fixture
def two_tokens(tmp_path: Path) -> Iterator[TwoTokens]:
    made = TwoTokens(tmp_path)
    yield made
    made.stop()


def test_sites_when_their_tokens_differ_then_name_each_other_and_lose_nothing(two_tokens) -> None:
    clients = {name: two_tokens.client(name) for name in "AB"}
    for name, client in clients.items():
        client.start(two_tokens.deployment)
        client.put("q", name, two_tokens.rows[name], producer="p", batch=0, until=60)

    def statuses() -> dict[str, Status]:
        return {name: client.status("q") for name, client in clients.items()}

    def links() -> list[LinkStatus]:
        return [link for status in statuses().values() for link in status.links.values()]

    until_true(lambda: all(link.refused and link.messages for link in links()), 60)
    said = refusals(statuses())
    assert said is not None
    for pair in ("'A' cannot send to 'B'", "'B' cannot send to 'A'"):
        assert re.search(f"{pair}: .* does not let us in: .* same token", said), said
    assert [link.acknowledged for link in links()] == [0, 0]
    assert [(s.error, s.result_rows) for s in statuses().values()] == [(None, 0)] * 2
    # put right, they go on from where they were
    sites = two_tokens.sites["B"]
    (sites.directory / "token").write_text(two_tokens.sites["A"].access.token)
    sites.kill("B")
    clients["B"] = two_tokens.client("B", token_of="A")
    clients["B"].wait_until_there(60)
    answer = window_join(two_tokens.query, two_tokens.rows, 4)
    expected = sum(answer.values(), start=Counter())
    until_true(lambda: sum(s.result_rows for s in statuses().values()) >= expected.total(), 60)
    found = [result.rows for client in clients.values() for result in client.results("q")]
    assert counted(pa.Table.from_batches(found)) == expected
    assert expected.total() > 50
    assert refusals(statuses()) is None


def test_run_when_a_site_has_another_token_then_says_which_and_starts_nothing(
    two_tokens, tmp_path
) -> None:
    text = 'name = "q"\ntau = "1 second"\nclock = "rows"\non = [["A.k", "B.k"]]\n'
    text += f'token_file = "{tmp_path / "A" / "token"}"\n'
    for name, address in two_tokens.addresses.items():
        text += f'[sites.{name}]\naddress = "{address}"\n[streams.{name}]\nwindow = "1 second"\n'
        text += 'columns = { ts = "int64", k = "int64" }\n'
        text += 'input = { kind = "made-up", rate = 100, keys = { k = 10 } }\n'
    (tmp_path / "q.toml").write_text(text)
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    done = runner.invoke(app, ["site", "run", str(tmp_path / "q.toml"), "--intervals", "3"])
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    assert re.search("'B': .* token is missing or wrong.* 'A' let us in: all sites", said), said
    assert [two_tokens.client(name).queries() for name in "AB"] == [[], []]
