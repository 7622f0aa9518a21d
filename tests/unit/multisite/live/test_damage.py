"""A site's files, damaged one by one: each time the site says so when it starts, or is unharmed."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import SiteError, StorageError
from dovetail.multisite.encoded import batch_bytes
from dovetail.multisite.live import results as results_module
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.host import Host
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.records import HEAD_BYTES, RecordFile, read_whole, scan, write_whole
from dovetail.multisite.live.restoring import journal_of
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow
from support.malformed import POINTING_ELSEWHERE, strings

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.string())])
ACCESS = Access("t" * 16)
TAU = 10
INTERVALS = 30


def deployed(name: str = "q") -> Deployment:
    """Both streams are here: all results follow from what is put."""
    streams = tuple(Stream(s, SCHEMA, TimeWindow(30), site="here") for s in "AB")
    plan = Plan(
        Query(streams, (("A.k", "B.k"),), TAU, 5),
        {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_D)]},
    )
    return Deployment(name, plan, {"here": "grpc://127.0.0.1:1"}, clock="rows")


def rows(interval: int) -> pa.RecordBatch:
    times = range((interval - 1) * TAU, interval * TAU)
    return pa.RecordBatch.from_arrays(
        [pa.array(times, pa.int64()), pa.array([f"k{t % 3}" for t in times])], schema=SCHEMA
    )


def feed(host: Host, first: int, last: int) -> None:
    driver = host.part("q").driver
    for interval in range(first, last + 1):
        for stream in "AB":
            facts = {"producer": "p", "batch": interval, "part": 0, "until": interval * TAU}
            driver.put(stream, rows(interval), facts, 20)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a host that was stopped, with snapshots and several files of results."""
    folder = tmp_path_factory.mktemp("written")
    patch = pytest.MonkeyPatch()
    patch.setattr(results_module, "SEGMENT_BYTES", 4000)
    host = Host("here", folder / "data", ACCESS, Limits(durable=False, snapshot_bytes=6000))
    host.start(deployed())
    feed(host, 1, 20)
    assert host.part("q").status()["snapshots"] > 0
    host.part("q").driver.results.trim(4)
    host.close()
    # and more events, which no snapshot has
    host = Host("here", folder / "data", ACCESS, Limits(durable=False))
    host.restore()
    feed(host, 21, INTERVALS)
    host.close()
    patch.undo()
    return folder / "data"


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data")


@pytest.fixture
def hosts() -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(folder: Path, name: str = "here") -> Host:
        host = Host(name, folder, ACCESS, Limits(durable=False))
        made.append(host)
        host.restore()
        return host

    yield make
    for host in made:
        host.close()


def results_of(host: Host) -> list[Any]:
    log = host.part("q").driver.results
    return [(n, i, found.to_pydict()) for n, i, found in log.read(log.range()[0] - 1)]


def test_site_when_nothing_is_damaged_then_goes_on_with_the_same_results(
    folder: Path, written: Path, tmp_path: Path, hosts
) -> None:
    first = results_of(hosts(folder))
    assert len(first) > 20
    assert len(list((folder / "q").glob("results-*.log"))) > 2
    assert results_of(hosts(shutil.copytree(written, tmp_path / "again"))) == first


def one(folder: Path, pattern: str, at: int = 0) -> Path:
    return sorted((folder / "q").glob(pattern))[at]


def cut_last_record(path: Path) -> None:
    *_, (at, _) = scan(path)
    os.truncate(path, at)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rewrite_facts(path: Path, **facts: Any) -> None:
    """The first record with other facts, and right checksums."""
    bodies = [body for _, body in scan(path)]
    path.unlink()
    file = RecordFile(path)
    file.append(json.dumps({**json.loads(bodies[0]), **facts}).encode())
    for body in bodies[1:]:
        file.append(body)
    file.close()


def rename(folder: Path, pattern: str) -> None:
    path = one(folder, pattern)
    kind, _, number = path.stem.partition("-")
    path.rename(path.with_name(f"{kind}-{int(number) + 1:012}{path.suffix}"))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no description": (lambda f: (f / "q/deployment").unlink(), r"deployment is gone"),
    "description damaged": (lambda f: flip(f / "q/deployment", 60), r"deployment is damaged"),
    "description cut off": (lambda f: os.truncate(f / "q/deployment", 90), "damaged"),
    "description of another query": (
        lambda f: write_whole(f / "q/deployment", json.dumps(deployed("p").to_json()).encode()),
        "has the state of query 'p'",
    ),
    "description that is none": (
        lambda f: write_whole(f / "q/deployment", b'{"name": 3}'), "does not describe a query",
    ),
    "no events": (lambda f: one(f, "events-*").unlink(), r"events-\d+.log is gone"),
    "events empty": (lambda f: os.truncate(one(f, "events-*"), 0), "ends at byte 0"),
    "events cut at a record": (lambda f: cut_last_record(one(f, "events-*")), "was closed at byte"),
    "events torn": (
        lambda f: os.truncate(one(f, "events-*"), one(f, "events-*").stat().st_size - 3),
        "was closed at byte",
    ),
    "events damaged": (lambda f: flip(one(f, "events-*"), 400), "is damaged: the record at byte"),
    "events of another host": (
        lambda f: (rewrite_facts(one(f, "events-*"), host="them"), (f / "q/closed").unlink()),
        "written with another host",
    ),
    "events under another number": (lambda f: rename(f, "events-*"), "is gone"),
    "no snapshot": (lambda f: one(f, "snapshot-*").unlink(), r"snapshot-\d+.bin is gone"),
    "snapshot damaged": (lambda f: flip(one(f, "snapshot-*"), 3000), "damaged"),
    "snapshot cut off": (lambda f: os.truncate(one(f, "snapshot-*"), 3000), "damaged"),
    "snapshot under another number": (lambda f: rename(f, "snapshot-*"), "is gone"),
    "first results gone": (lambda f: one(f, "results-*").unlink(), "is not there"),
    "results gone amid others": (lambda f: one(f, "results-*", 1).unlink(), "is not there"),
    "all results gone": (
        lambda f: [path.unlink() for path in (f / "q").glob("results-*")], "lost|end with number",
    ),
    "results damaged": (lambda f: flip(one(f, "results-*"), HEAD_BYTES + 9), "damaged"),
    "trimmed damaged": (lambda f: flip(f / "q/trimmed", HEAD_BYTES), "damaged"),
    "trimmed that is none": (lambda f: write_whole(f / "q/trimmed", b"-3"), "does not say which"),
    "journal gone, results there": (
        lambda f: [p.unlink() for k in ("events", "snapshot") for p in (f / "q").glob(f"{k}-*")],
        "is gone",
    ),
    "closed damaged": (lambda f: flip(f / "q/closed", HEAD_BYTES), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_site_when_a_file_is_damaged_then_says_so_at_its_start(
    damage: str, folder: Path, hosts, caplog: pytest.LogCaptureFixture
) -> None:
    harm, said = DAMAGES[damage]
    harm(folder)
    host = hosts(folder)
    assert host.queries == []
    with pytest.raises(SiteError, match=f"query 'q' could not go on at 'here': .*({said})"):
        host.part("q")
    assert "query q cannot go on at here" in caplog.text


UNHARMED: dict[str, Callable[[Path], Any]] = {
    "newest results gone, which follow from the journal": lambda f: one(
        f, "results-*", -1
    ).unlink(),
    "last result cut off": lambda f: cut_last_record(one(f, "results-*", -1)),
    "not closed": lambda f: (f / "q/closed").unlink(),
    "no lock": lambda f: (f / "lock").unlink(),
}


@pytest.mark.parametrize("damage", UNHARMED)
def test_site_when_what_is_gone_follows_from_the_rest_then_makes_it_again(
    damage: str, folder: Path, tmp_path: Path, written: Path, hosts
) -> None:
    expected = results_of(hosts(shutil.copytree(written, tmp_path / "whole")))
    UNHARMED[damage](folder)
    assert results_of(hosts(folder)) == expected


def test_host_when_a_damaged_folder_has_no_description_then_other_queries_go_on(
    folder: Path, hosts
) -> None:
    shutil.copytree(folder / "q", folder / "p")
    (folder / "p/deployment").unlink()
    for path in (folder / "p").glob("snapshot-*"):
        path.unlink()
    (events,) = (folder / "p").glob("events-*")
    flip(events, 400)
    (folder / "empty").mkdir(mode=0o700)
    host = hosts(folder)
    assert host.queries == ["q"]
    with pytest.raises(SiteError, match="query 'p' could not go on"):
        host.part("p")


def test_site_when_its_journal_lacks_acknowledged_events_after_a_crash_then_results_tell(
    folder: Path, hosts
) -> None:
    (folder / "q/closed").unlink()  # as a crash leaves it
    for _ in range(8):
        cut_last_record(one(folder, "events-*"))
    with pytest.raises(SiteError, match="end with number"):
        hosts(folder).part("q")


def test_host_when_a_folder_is_of_another_host_then_refuses_the_query(folder: Path, hosts) -> None:
    deployment = json.loads(read_whole(folder / "q/deployment"))
    for stream in deployment["query"]["streams"]:
        stream["site"] = "there"
    deployment["addresses"] = {"there": "grpc://127.0.0.1:1"}
    write_whole(folder / "q/deployment", json.dumps(deployment).encode())
    with pytest.raises(SiteError, match="written with another digest and host"):
        hosts(folder, "there").part("q")


@pytest.mark.parametrize("offsets", POINTING_ELSEWHERE)
def test_site_when_an_event_of_its_journal_is_malformed_then_says_so_at_its_start(
    offsets: str, tmp_path: Path, hosts
) -> None:
    folder = tmp_path / "data"
    host = hosts(folder)
    host.start(deployed())
    host.close()
    journal = journal_of(deployed(), "here", folder / "q", Limits(durable=False))
    journal.open()
    foreign = strings(POINTING_ELSEWHERE[offsets])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), foreign], schema=SCHEMA)
    facts = {"stream": "A", "producer": "p", "batch": 1, "part": 0, "until": 10}
    journal.append(Event(What.INPUT, 0, facts, batch_bytes(batch)), 0)
    journal.close()
    said = r"event 0 in .*events-0+\.log cannot be taken in .*malformed Arrow data"
    with pytest.raises(SiteError, match=said):
        hosts(folder).part("q")


def test_snapshot_when_it_is_of_the_pickled_format_then_is_refused_unread(
    folder: Path, hosts
) -> None:
    path = one(folder, "snapshot-*")
    facts = json.loads(read_whole(path).partition(b"\n")[0])
    # what would happen if it were unpickled: the folder is gone
    shell = f"cposix\nsystem\n(S'rm -r {folder}'\ntR.".encode()
    for name in ("events-*", "snapshot-*"):
        where = one(folder, name)
        old = {**facts, "format": 2}
        if name == "events-*":
            rewrite_facts(where, format=2)
        else:
            write_whole(where, json.dumps(old).encode() + b"\n" + shell)
    (folder / "q/closed").unlink()
    with pytest.raises(SiteError, match=r"another format \(2 instead of 3\).* start it anew"):
        hosts(folder).part("q")
    assert folder.exists()


# --- whose files these are ----------------------------------------------------------------------


def test_files_when_a_site_makes_them_then_are_its_own_alone(folder: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        host = Host("here", tmp_path / "fresh", ACCESS, Limits(durable=False, snapshot_bytes=3000))
        host.start(deployed())
        feed(host, 1, 20)
        assert host.part("q").status()["snapshots"] > 0
        host.part("q").driver.results.trim(1)
        host.close()
    finally:
        os.umask(old)
    found = {p: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "fresh").rglob("*")}
    assert {mode for path, mode in found.items() if path.is_file()} == {"0o600"}, found
    assert oct((tmp_path / "fresh").stat().st_mode & 0o777) == "0o700"
    assert found[tmp_path / "fresh" / "q"] == "0o700"


def test_folder_when_others_may_read_it_then_is_closed_to_them(folder: Path, hosts) -> None:
    for path in (folder, folder / "q", one(folder, "events-*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    hosts(folder).part("q")
    assert (folder / "q").stat().st_mode & 0o077 == 0
    assert one(folder, "events-*").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_folder_when_others_may_write_there_then_is_refused(mode: int, folder: Path) -> None:
    folder.chmod(mode)
    with pytest.raises(StorageError, match=r"others may write to .*chmod -R go-rwx"):
        Host("here", folder, ACCESS)


@pytest.mark.parametrize("name", ["", "events-*", "snapshot-*", "results-*", "deployment"])
def test_query_when_others_may_write_its_files_then_is_refused(
    name: str, folder: Path, hosts
) -> None:
    path = one(folder, name) if name else folder / "q"
    path.chmod(0o770 if path.is_dir() else 0o660)
    if not name:
        with pytest.raises(StorageError, match="others may write to"):
            hosts(folder)
        return
    with pytest.raises(SiteError, match="could not go on at 'here': others may write to"):
        hosts(folder).part("q")


def test_folder_when_it_belongs_to_another_then_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.raises(StorageError, match=f"belongs to user {us}, but this site runs as user"):
        Host("here", folder, ACCESS)


def test_query_when_its_folder_is_a_link_then_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "q").rename(tmp_path / "elsewhere")
    (folder / "q").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is a link to another place"):
        Host("here", folder, ACCESS)
