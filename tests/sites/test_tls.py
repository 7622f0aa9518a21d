"""Certificates: sites and clients that have them work together, and nobody else gets as far."""

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.errors import SiteAccessError, SiteUnavailableError
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.local import LocalSites
from support.certificates import make_certificates

EXAMPLE = Path(__file__).parents[2] / "examples" / "site.toml"
SEED = 1  # a query of three streams at two hosts
TLS = '[tls]\ncertificate = "certs/{0}.pem"\nkey = "certs/{0}.key"\nca = "certs/ca.pem"\n'
REQUEST_BYTES = 192 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder / "certs", EXAMPLE, "h0", "h1", "client")
    make_certificates(folder / "others", EXAMPLE, "stranger")
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text("0123456789abcdef")
    return folder


@pytest.fixture(scope="module")
def sites(folder: Path) -> Iterator[LocalSites]:
    """Two that ask for certificates; h2 does not, and h3 is plain."""
    sites = LocalSites(folder, ("h0", "h1", "h2", "h3"), {"durable": False})
    for host in ("h0", "h1"):
        extra = TLS.format(host) + "verify_clients = true\n"
        sites.start(host, listen="grpc+tls://localhost:0", extra=extra)
    sites.start("h2", listen="grpc+tls://localhost:0", extra=TLS.format("h0"))
    sites.start("h3")
    sites.addresses()
    yield sites
    sites.stop()


def access_of(folder: Path, ca: str = "certs/ca", shown: str = "certs/client") -> Access:
    return Access.from_files(
        folder / "token", folder / f"{ca}.pem" if ca else None,
        *((folder / f"{shown}.pem", folder / f"{shown}.key") if shown else ()),
    )  # fmt: skip


def test_sites_when_they_ask_for_certificates_then_emit_what_one_place_would(
    sites: LocalSites, folder: Path, run
) -> None:
    plain = sites.access
    sites.access = access_of(folder)
    try:
        running = run(sites, SEED, intervals=4, hosts=("h0", "h1"))
        running.feed(1, 4)
        running.drain()
        assert running.check() > 0
    finally:
        sites.access = plain


@pytest.mark.parametrize(
    ("host", "ca", "shown", "said"),
    [
        ("h0", "certs/ca", "", "asks its callers for a certificate, and none is named here"),
        ("h0", "certs/ca", "others/stranger", "does not take the certificate that is named here"),
        ("h0", "others/ca", "certs/client", "is not trusted here .*signed by the CA"),
        ("h2", "others/ca", "", "is not trusted here .*signed by the CA"),
        ("h2", "", "", "is not trusted here .*signed by the CA"),
    ],
)
def test_client_when_certificates_do_not_fit_then_says_which_and_does_not_try_again(
    host: str, ca: str, shown: str, said: str, sites: LocalSites, folder: Path
) -> None:
    client = SiteClient(sites.address(host), access_of(folder, ca, shown))
    with client, pytest.raises(SiteAccessError, match=f"because of TLS: .*{said}"):
        client.wait_until_there(3600)


@pytest.mark.parametrize(
    ("host", "scheme", "said"),
    [
        ("h0", "grpc", r"it speaks TLS, and was called without: write grpc\+tls://"),
        ("h2", "grpc", r"it speaks TLS, and was called without: write grpc\+tls://"),
        ("h3", "grpc+tls", "does not speak TLS, and was called with it: write grpc://"),
    ],
)
def test_client_when_one_end_only_has_tls_then_says_so(
    host: str, scheme: str, said: str, sites: LocalSites, folder: Path
) -> None:
    port = sites.address(host).rpartition(":")[2]
    address = f"{scheme}://localhost:{port}"
    with (
        SiteClient(address, access_of(folder)) as client,
        pytest.raises(SiteAccessError, match=said),
    ):
        client.wait_until_there(60)


def test_client_when_nobody_listens_then_it_is_not_about_tls(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        for scheme in ("grpc", "grpc+tls"):
            address = f"{scheme}://localhost:{taken.getsockname()[1]}"
            said = pytest.raises(SiteUnavailableError, match="cannot be reached")
            with SiteClient(address, access_of(folder)) as client, said:
                client.queries()


def test_site_when_told_of_certificates_that_are_none_then_does_not_start(
    folder: Path, tmp_path: Path
) -> None:
    certs = folder / "certs"
    for settings, said in (
        (f"certificate = '{certs}/h0.pem'\nkey = '{certs}/h1.key'", "no certificate in PEM and"),
        (f"certificate = '{certs}/h0.pem'", "tls.key is missing"),
        (f"ca = '{certs}/h0.key'", "holds no certificate in PEM"),
        ("verify_clients = true", "there is no certificate: name one"),
        (f"certificate = '{certs}/h0.pem'\nkey = '{certs}/h0.key'\nverify_clients = true",
         "there is no CA: name the one that signs them"),
    ):  # fmt: skip
        text = f"name = 'x'\nlisten = 'grpc+tls://localhost:0'\ndata = '{tmp_path / 'x'}'\n"
        (tmp_path / "x.toml").write_text(
            f"{text}token_file = '{folder / 'token'}'\n[tls]\n{settings}\n"
        )
        runner = CliRunner(env={"COLUMNS": "500", "NO_COLOR": "1"})
        done = runner.invoke(app, ["site", "serve", str(tmp_path / "x.toml")])
        assert done.exit_code == 2, done.output
        assert said in " ".join(done.output.split())


def most_resident(process: "subprocess.Popen[bytes]") -> int:
    """The most memory that a process has had."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


#: sends one request of many bytes, as anybody could, without a token
SENDING = """
import sys
from pyarrow import flight
address, ca, size = sys.argv[1], open(sys.argv[2], "rb").read(), int(sys.argv[3])
client = flight.FlightClient(address, tls_root_certs=ca)
try:
    list(client.do_action(flight.Action("put", bytes(size)), flight.FlightCallOptions(timeout=60)))
except flight.FlightError as error:
    print(type(error).__name__)
"""


@pytest.mark.memory
@pytest.mark.parametrize(("host", "refused"), [("h0", True), ("h2", False)])
def test_request_when_its_sender_has_no_certificate_then_takes_no_memory_if_they_are_asked_for(
    host: str, refused: bool, sites: LocalSites, folder: Path
) -> None:
    """A site that asks for none takes the request in before it misses the token, as is stated."""
    before = most_resident(sites.processes[host])
    sent = subprocess.run(
        [sys.executable, "-c", SENDING, sites.address(host), str(folder / "certs" / "ca.pem"),
         str(REQUEST_BYTES)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    expected = "FlightUnavailableError" if refused else "FlightUnauthenticatedError"
    assert sent.stdout.strip() == expected, sent
    more = most_resident(sites.processes[host]) - before
    if refused:
        assert more < REQUEST_BYTES // 8, f"{more:,} bytes more"
    else:
        assert more > REQUEST_BYTES, f"{more:,} bytes more: then verify_clients is not needed"


def test_site_when_served_then_may_open_all_the_files_that_the_system_allows(
    sites: LocalSites,
) -> None:
    soft, hard = resource.prlimit(sites.processes["h3"].pid, resource.RLIMIT_NOFILE)
    assert soft == hard
