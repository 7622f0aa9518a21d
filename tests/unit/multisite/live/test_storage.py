"""Records, journal and results: what was written is there, or is known to be damaged."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from dovetail.errors import SiteRefusedError, StateCorruptError, StateMismatchError
from dovetail.multisite.live import results as results_module
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.journal import Journal
from dovetail.multisite.live.records import (
    HEAD_BYTES,
    RecordFile,
    read_record,
    read_whole,
    scan,
    write_whole,
)
from dovetail.multisite.live.results import ResultLog

BODIES = [b"first", b"", b"x" * 1000]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    file = RecordFile(tmp_path / "records")
    for body in BODIES:
        file.append(body[:2], body[2:])
    file.sync()
    file.close()
    return file.path


def test_records_when_read_then_are_those_that_were_written(written: Path) -> None:
    assert [body for _, body in scan(written)] == BODIES
    assert [read_record(written, at) for at, _ in scan(written)] == BODIES


@pytest.mark.parametrize("kept", [1, HEAD_BYTES - 1, HEAD_BYTES + 1, 999 + HEAD_BYTES])
def test_records_when_the_last_is_torn_then_it_is_cut_off_and_more_can_follow(
    kept: int, written: Path
) -> None:
    data = written.read_bytes()
    written.write_bytes(data[: -1000 - HEAD_BYTES + kept])
    assert [body for _, body in scan(written)] == BODIES[:2]
    file = RecordFile(written)
    file.append(b"more")
    file.close()
    assert [body for _, body in scan(written)] == [*BODIES[:2], b"more"]


def test_records_when_the_file_grew_without_data_then_the_zeros_are_cut_off(written: Path) -> None:
    with written.open("ab") as handle:
        handle.write(bytes(5000))
    assert [body for _, body in scan(written)] == BODIES


@pytest.mark.parametrize("at", [0, 9, 13, HEAD_BYTES + 2])
def test_records_when_one_in_the_middle_is_damaged_then_it_is_said(at: int, written: Path) -> None:
    data = bytearray(written.read_bytes())
    data[at] ^= 0x10
    written.write_bytes(data)
    with pytest.raises(StateCorruptError, match="the record at byte 0"):
        list(scan(written))


def test_write_whole_when_repeated_then_holds_the_last(tmp_path: Path) -> None:
    for body in BODIES:
        write_whole(tmp_path / "one", body)
    assert [body for _, body in scan(tmp_path / "one")] == [BODIES[-1]]
    assert read_whole(tmp_path / "one") == BODIES[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize("at", [2, HEAD_BYTES + 3, -1])
def test_whole_file_when_damaged_then_it_is_said_and_it_stays(at: int, tmp_path: Path) -> None:
    path = tmp_path / "one"
    write_whole(path, BODIES[-1])
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    for damaged in (bytes(data), bytes(data[:-1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(StateCorruptError, match="damaged"):
            read_whole(path)
        assert path.read_bytes() == damaged


def opened(directory: Path, digest: str = "d", snapshot_bytes: int = 1 << 20) -> Journal:
    return Journal(directory, digest, "h", snapshot_bytes=snapshot_bytes)


def event(number: int) -> Event:
    return Event(What.MESSAGE, -number, {"seq": number}, bytes(number))


def test_journal_when_opened_again_then_replays_what_came_after_the_snapshot(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path, snapshot_bytes=200)
    assert journal.load() is None
    journal.open()
    for number in range(9):
        journal.append(event(number), 10 * number)
        journal.sync()
        if journal.wants_snapshot:
            journal.snapshot({"reached": number})
    assert journal.snapshots > 1
    journal.close()
    again = opened(tmp_path, snapshot_bytes=200)
    reached = again.load()["reached"]
    expected = [(event(number), 10 * number) for number in range(reached + 1, 9)]
    assert list(again.replay()) == expected
    assert len(list(tmp_path.glob("events-*"))) == len(list(tmp_path.glob("snapshot-*"))) == 1


def test_journal_when_it_is_of_another_query_then_is_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.open()
    journal.close()
    with pytest.raises(StateMismatchError, match=r"another digest \(d instead of e\)"):
        list(opened(tmp_path, "e").replay())
    journal = opened(tmp_path)
    journal.open()
    journal.snapshot({"state": 1})
    journal.close()
    with pytest.raises(StateMismatchError, match="another digest"):
        opened(tmp_path, "e").load()
    (snapshot,) = tmp_path.glob("snapshot-*")
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"!")
    with pytest.raises(StateCorruptError, match="damaged"):
        opened(tmp_path).load()


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": list(values)})


def test_results_when_made_again_then_are_kept_once(tmp_path: Path) -> None:
    log = ResultLog(tmp_path)
    for number in (1, 2, 3):
        log.append(number, 10 + number, batch(number))
    log.close()
    again = ResultLog(tmp_path)
    for number in (2, 3, 4):
        again.append(number, 10 + number, batch(number))
    assert [(n, i, rows.to_pydict()["v"]) for n, i, rows in again.read(0)] == [
        (n, 10 + n, [n]) for n in (1, 2, 3, 4)
    ]
    with pytest.raises(StateCorruptError, match=r"result 3 .* is not what follows"):
        again.append(3, 13, batch(7))
    with pytest.raises(StateCorruptError, match=r"results 5 to 8 .* are lost"):
        again.append(9, 13, batch(7))


def test_results_when_trimmed_then_files_go_and_numbers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "SEGMENT_BYTES", 500)
    log = ResultLog(tmp_path)
    for number in range(1, 11):
        log.append(number, 1, batch(number))
    assert log.range() == (1, 10)
    files = len(list(tmp_path.glob("results-*")))
    log.trim(8)
    log.trim(3)  # later, and less: nothing
    assert log.range() == (9, 10)
    assert 1 <= len(list(tmp_path.glob("results-*"))) < files
    log.close()
    again = ResultLog(tmp_path)
    again.append(5, 1, batch(99))  # given up: not compared
    assert [n for n, _, _ in again.read(8)] == [9, 10]
    with pytest.raises(SiteRefusedError, match="those up to 8 have been given up"):
        list(again.read(7))
    again.trim(10)
    again.close()
    last = ResultLog(tmp_path)
    assert last.range() == (11, 10)
    last.append(11, 2, batch(11))
    assert [n for n, _, _ in last.read(10)] == [11]


def test_event_when_parsed_then_is_the_same_and_rubbish_is_refused() -> None:
    one = Event(What.INPUT, 7, {"stream": "S"}, b"rows")
    assert Event.parse(b"".join(one.pieces(5))) == (one, 5)
    for data in (b"", b"\xff" * 40, b"".join(one.pieces(5))[:25]):
        with pytest.raises(StateCorruptError):
            Event.parse(data)
    assert json.loads(one.pieces(0)[1]) == {"stream": "S"}
