"""What travels between sites: numbers, delays, and who may talk."""

import math
from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import ArgumentError, SiteAccessError, SiteError, SiteRefusedError
from dovetail.multisite.live import access as access_module
from dovetail.multisite.live.access import Access, check_plain, is_tls
from dovetail.multisite.live.deployment import Deployment, Shape
from dovetail.multisite.live.host import Host
from dovetail.multisite.live.inbox import Inbox
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.link import CallSize
from dovetail.multisite.live.outbox import Outbox
from dovetail.multisite.live.server import SiteServer
from dovetail.multisite.live.wire import MESSAGES, call, envelopes, packed
from dovetail.multisite.messages import Header, Kind, Message, column, encode
from dovetail.multisite.plan import Algorithm, Plan, Step


class Time:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def numbers(box: Outbox, most_bytes: int = 1000) -> list[int]:
    return [posted.seq for posted in box.take(most_bytes, 0.0)]


def test_outbox_when_not_acknowledged_then_gives_the_same_again() -> None:
    box = Outbox(Shape())
    for seq in (1, 2, 3, 3, 2):
        box.add(seq, b"x" * 10)
    assert numbers(box) == [1, 2, 3]
    assert numbers(box, 25) == [1, 2]
    assert numbers(box, 1) == [1], "one goes, however large"
    box.acknowledge(2)
    assert numbers(box) == [3]
    assert (box.nbytes, box.last, box.acknowledged) == (10, 3, 2)


def test_outbox_when_restored_then_goes_on_with_its_numbers() -> None:
    box = Outbox(Shape())
    for seq in (1, 2, 3):
        box.add(seq, b"x")
    box.acknowledge(1)
    again = Outbox(Shape())
    again.restore(3, box.kept())
    again.add(2, b"made again")
    again.add(4, b"new")
    assert numbers(again) == [2, 3, 4]
    assert again.acknowledged == 1
    empty = Outbox(Shape())
    empty.restore(7, [])
    assert (empty.last, empty.acknowledged) == (7, 7)


def test_outbox_when_shaped_then_messages_come_after_latency_and_bandwidth() -> None:
    time = Time()
    box = Outbox(Shape(latency=2.0, bandwidth=10.0), time)
    box.add(1, b"x" * 10)  # on the wire until 101, there at 103
    box.add(2, b"x" * 20)  # on the wire until 103, there at 105
    arrivals = {}
    for tenths in range(60):
        time.now = 100 + tenths / 10
        for seq in numbers(box):
            arrivals.setdefault(seq, time.now)
    assert arrivals == {1: 103.0, 2: 105.0}
    time.now = 200
    box.reshape(Shape(cut=True))
    assert numbers(box) == []
    box.reshape(Shape())
    assert numbers(box) == [1, 2]


@pytest.mark.parametrize("shape", [(-1.0, 1.0), (0.0, 0.0)])
def test_shape_when_it_cannot_be_then_is_refused(shape: tuple[float, float]) -> None:
    with pytest.raises(ArgumentError, match="the latency must be 0 or more"):
        Shape(*shape)
    assert Shape.from_json(Shape().to_json()) == Shape(0.0, math.inf, False)


def test_inbox_when_messages_come_in_any_order_then_gives_each_once_in_order() -> None:
    inbox = Inbox("A", 4, 1000)
    assert inbox.take([(7, b"7"), (5, b"5"), (4, b"old"), (7, b"7")]) == [(5, b"5")]
    assert inbox.take([(6, b"6"), (9, b"9")]) == [(6, b"6"), (7, b"7")]
    assert inbox.take([(8, b"8")]) == [(8, b"8"), (9, b"9")]
    assert (inbox.last, inbox.repeated) == (9, 2)


@pytest.mark.parametrize(("first", "last"), [(6, 9), (1, 3)])
def test_inbox_when_a_journal_was_lost_then_says_whose(first: int, last: int) -> None:
    inbox = Inbox("A", 4, 1000)
    inbox.check(5, 4)
    inbox.check(1, 9)
    with pytest.raises(SiteRefusedError, match="journal"):
        inbox.check(first, last)


@pytest.mark.parametrize("address", ["127.0.0.1:70", "grpc://host", "http://h:1", "grpc://h:x", ""])
def test_address_when_it_is_none_then_says_how_to_write_one(address: str) -> None:
    with pytest.raises(SiteAccessError, match="grpc\\+tls://host:port"):
        is_tls(address)


def test_plain_when_it_is_not_on_this_machine_then_is_refused() -> None:
    for address in ("grpc://127.0.0.1:7071", "grpc://localhost:1", "grpc://[::1]:5"):
        check_plain(address)
    for address in ("grpc://10.0.0.1:7071", "grpc://paris.example:7071", "grpc://0.0.0.0:1"):
        with pytest.raises(SiteAccessError, match="without TLS"):
            check_plain(address)
        with pytest.raises(SiteAccessError, match="without TLS"):
            Access("t" * 16).connect(address)


def test_host_when_its_folder_or_port_is_taken_then_says_so(tmp_path: Path) -> None:
    access = Access("t" * 16)
    host = Host("A", tmp_path, access)
    with pytest.raises(SiteError, match="another process serves a site from"):
        Host("A", tmp_path, access)
    with SiteServer(host, "grpc://127.0.0.1:0", access) as server:
        with pytest.raises(SiteError, match=r"cannot listen at .* Choose another port"):
            SiteServer(host, f"grpc://127.0.0.1:{server.port}", access)
        with pytest.raises(SiteAccessError, match="there is no certificate"):
            SiteServer(host, "grpc+tls://127.0.0.1:0", access)
        with pytest.raises(SiteAccessError, match="without TLS"):
            SiteServer(host, "grpc://0.0.0.0:0", access)
    host.close()
    Host("A", tmp_path, access).close()


def test_inbox_when_early_messages_are_large_then_keeps_no_more_than_the_limit() -> None:
    inbox = Inbox("A", 0, 100)
    assert inbox.take([(3, b"x" * 60), (4, b"y" * 60), (5, b"z" * 40)]) == []
    large = b"w" * 500  # in its turn, so it does not wait
    assert [seq for seq, _ in inbox.take([(1, large), (2, b"")])] == [1, 2, 3]
    assert [seq for seq, _ in inbox.take([(4, b"y" * 60), (6, b"v" * 90)])] == [4, 5, 6]
    assert inbox.repeated == 0


def test_server_when_messages_are_small_then_takes_many_in_a_call(tmp_path: Path, pair) -> None:
    access = Access("t" * 16)
    plan = Plan(pair[0], {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_D)]})
    deployment = Deployment("q", plan, dict.fromkeys("AB", "grpc://127.0.0.1:1"), clock="rows")
    host = Host("B", tmp_path, access, Limits(message_bytes=1000, durable=False))
    body = encode(Message(Header(Kind.PASSED, 0, 1), {"passed": column(np.zeros(100, dtype=int))}))
    assert len(body) < 1000
    messages = [(seq, body) for seq in range(1, 81)]
    size = CallSize()
    for _ in range(10):
        size.failed()
    assert size.nbytes <= len(body) * len(messages)  # a link makes no smaller calls
    with SiteServer(host, "grpc://127.0.0.1:0", access) as server:
        host.start(deployment)
        with access.connect(f"grpc://127.0.0.1:{server.port}") as client:
            facts = {"query": "q", "digest": deployment.digest, "peer": "A", "first": 1, "last": 80}
            body = packed(facts, *envelopes(messages))
            assert call(client, access, MESSAGES, body, 20) == {"through": 80}
        host.close()


def test_access_when_others_can_read_the_token_then_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    for mode, said in ((0o600, False), (0o640, True), (0o604, True)):
        path.chmod(mode)
        caplog.clear()
        Access.from_files(path)
        assert ("can be read by others: chmod 600" in caplog.text) == said


def test_access_when_the_token_is_in_a_file_or_the_environment_then_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOKEN_VARIABLE", "TOKEN_FILE_VARIABLE", "CA_VARIABLE"):
        monkeypatch.delenv(getattr(access_module, name), raising=False)
    with pytest.raises(SiteAccessError, match="there is no token"):
        Access.from_env()
    (tmp_path / "token").write_text("of-a-file-0123456789\nsecond line\n")
    assert Access.from_files(tmp_path / "token").token == "of-a-file-0123456789"
    monkeypatch.setenv(access_module.TOKEN_FILE_VARIABLE, str(tmp_path / "token"))
    assert Access.from_env().token == "of-a-file-0123456789"
    monkeypatch.setenv(access_module.TOKEN_VARIABLE, "of-the-environment")
    assert Access.from_env().token == "of-the-environment"
    with pytest.raises(SiteAccessError, match="cannot read the token file"):
        Access.from_files(tmp_path / "gone")
    with pytest.raises(SiteAccessError, match="fewer than 16"):
        Access("short")


def test_deployment_when_written_and_read_then_is_the_same(pair) -> None:
    query, _ = pair
    plan = Plan(query, {"A": [Step("B", Algorithm.SM_S1)], "B": [Step("A", Algorithm.SP_D)]})
    addresses = {"A": "grpc://127.0.0.1:1", "B": "grpc://127.0.0.1:2"}
    shapes = {("A", "B"): Shape(0.5, 9.0)}
    one = Deployment("q", plan, addresses, clock="rows", unit="us", shapes=shapes)
    again = Deployment.from_json(one.to_json())
    assert again == one
    assert again.query == query
    assert again.digest == one.digest
    moved = one.moved({"A": "grpc://127.0.0.1:3", "B": "grpc://127.0.0.1:4"})
    assert moved.digest == one.digest
    other = Plan(query, {"A": [Step("B", Algorithm.SP_S)], "B": [Step("A", Algorithm.SP_D)]})
    assert Deployment("q", other, addresses, clock="rows", unit="us").digest != one.digest
    for wrong, said in (
        ({"name": "../up"}, "cannot be called"),
        ({"clock": "sun"}, "clocks are wall, rows"),
        ({"heartbeats": False}, "needs the wall clock"),
        ({"addresses": {"A": "grpc://127.0.0.1:1"}}, "no address for B"),
        ({"ahead": 1}, "ahead=1"),
        ({"plan": "{"}, "not a query as it is handed out"),
        ({"surplus": 1}, "not a query as it is handed out"),
    ):
        with pytest.raises(ArgumentError, match=said):
            Deployment.from_json(one.to_json() | wrong)
