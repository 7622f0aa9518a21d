"""Nobody without the token gets in, by whichever call; and with TLS all is the same."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from dovetail.errors import SiteAccessError, SiteError
from dovetail.sites.live.access import Access
from dovetail.sites.live.client import SiteClient
from dovetail.sites.live.local import LocalSites
from dovetail.sites.live.wire import ENVELOPE

SEED = 1  # a query of three streams at two hosts


def calls(client: Any, options: Any) -> dict[str, Callable[[], Any]]:
    """Every kind of call that Flight has."""
    path = flight.FlightDescriptor.for_path("input", "q", "S0")

    def do_put() -> None:
        writer, _ = client.do_put(path, ENVELOPE, options)
        writer.close()

    def exchange() -> None:
        writer, reader = client.do_exchange(path, options)
        writer.done_writing()
        reader.read_all()

    actions = ("start", "stop", "queries", "describe", "status", "advance", "trim", "shape")
    return {
        **{name: lambda n=name: list(client.do_action((n, b"{}"), options)) for name in actions},
        "put": do_put,
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


def make_certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout",
         "site.key", "-out", "site.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


def test_sites_when_they_use_tls_then_emit_what_one_place_would(tmp_path, run) -> None:
    make_certificate(tmp_path)
    sites = LocalSites(tmp_path, ("h0", "h1"), {"durable": False})
    tls = '[tls]\ncertificate = "site.pem"\nkey = "site.key"\nca = "site.pem"'
    try:
        for host in sites.hosts:
            sites.start(host, listen="grpc+tls://localhost:0", extra=tls)
        plain = sites.access
        sites.access = Access(plain.token, (tmp_path / "site.pem").read_bytes())
        running = run(sites, SEED, intervals=4)
        running.feed(1, 4)
        running.drain()
        assert running.check() > 0
        address = sites.address("h0")
        with SiteClient(address, plain) as client, pytest.raises(SiteAccessError, match="TLS"):
            client.queries()
        without = address.replace("grpc+tls", "grpc")
        with SiteClient(without, plain) as client, pytest.raises(SiteError):
            client.queries()
    finally:
        sites.stop()
