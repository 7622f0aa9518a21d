"""The clock ticks while work is pending, and only then."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.errors import StorageError
from dovetail.spark.clock import ClockReader, PendingWork, read_pending
from dovetail.spark.endings import SILENT_STEPS, Silence
from dovetail.spark.layout import CLOCK, LAST_ROWS
from dovetail.spark.state import FORMAT, prepare
from dovetail.spark.step import StreamingTask


def write_version(root: Path, partition: int, version: int, pending: int) -> Path:
    """A manifest with as much in it as the clock reads."""
    directory = root / f"p{partition:05d}"
    directory.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"pending": pending, "files": []}).encode()
    path = directory / f"v{version:012d}"
    path.write_bytes(f"dovetail {FORMAT} {len(head)} 0 0\n".encode() + head)
    return path


def make_old(directory: Path) -> None:
    """Date a directory back, as if it had last changed a minute ago."""
    then = time.time() - 60
    os.utime(directory, (then, then))


def test_pending_work_when_there_is_no_state_yet_then_is_none(tmp_path: Path) -> None:
    assert PendingWork(tmp_path / "nowhere")() == {}
    prepare(tmp_path / "state", 3)
    assert PendingWork(tmp_path / "state")() == {}


def test_pending_work_when_partitions_differ_then_names_those_with_work(tmp_path: Path) -> None:
    for partition, rows in enumerate([5, 0, 7]):
        write_version(tmp_path, partition, 3, rows)
    assert PendingWork(tmp_path)() == {0: 5, 2: 7}


def test_pending_work_when_several_versions_exist_then_the_newest_counts(tmp_path: Path) -> None:
    write_version(tmp_path, 0, 9, 100)
    write_version(tmp_path, 0, 10, 0)
    write_version(tmp_path, 1, 999, 0)
    write_version(tmp_path, 1, 1000, 4)
    assert PendingWork(tmp_path)() == {1: 4}


def test_pending_work_when_a_version_is_added_then_is_noticed(tmp_path: Path) -> None:
    pending = PendingWork(tmp_path)
    write_version(tmp_path, 0, 1, 8)
    make_old(tmp_path / "p00000")
    assert pending() == pending() == {0: 8}
    write_version(tmp_path, 0, 2, 3)
    assert pending() == {0: 3}
    write_version(tmp_path, 0, 3, 0)  # within the same tick of the file system's clock
    assert pending() == {}


def test_pending_work_when_a_settled_directory_is_unchanged_then_is_not_read_again(
    tmp_path: Path,
) -> None:
    path = write_version(tmp_path, 0, 1, 8)
    make_old(tmp_path / "p00000")
    pending = PendingWork(tmp_path)
    assert pending() == {0: 8}
    path.write_bytes(b"unreadable")  # does not change the directory
    assert pending() == {0: 8}


def test_pending_work_when_other_files_lie_about_then_ignores_them(tmp_path: Path) -> None:
    write_version(tmp_path, 0, 1, 2)
    (tmp_path / "identity.json").write_text("{}")
    (tmp_path / "p00000" / "b1-x-left-run.arrows").write_bytes(b"")
    (tmp_path / "p00000" / "latest").write_text("1")
    assert PendingWork(tmp_path)() == {0: 2}


def test_read_pending_when_manifest_is_long_then_reads_its_head_only(tmp_path: Path) -> None:
    path = write_version(tmp_path, 0, 1, 77)
    path.write_bytes(path.read_bytes() + b"\x00" * 1000)
    assert read_pending(path) == 77


def test_clock_reader_when_work_is_pending_then_offset_advances_and_names_partitions(
    tmp_path: Path,
) -> None:
    reader = ClockReader(tmp_path, 3)
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    assert reader.partitions(start, start) == []
    write_version(tmp_path, 0, 4, 5)
    write_version(tmp_path, 2, 4, 1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {"tick": 1, "wake": [0, 2]}
    (wake,) = reader.partitions(start, end)
    assert list(reader.read(wake)) == [(0, False), (2, False)]
    write_version(tmp_path, 0, 5, 0)
    write_version(tmp_path, 2, 5, 0)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    # a replay of the tick wakes the same partitions, whatever is pending now
    (again,) = reader.partitions(start, end)
    assert list(reader.read(again)) == [(0, False), (2, False)]


def test_clock_reader_when_query_begins_then_prepares_the_state_once(tmp_path: Path) -> None:
    ClockReader(tmp_path / "state", 2).initialOffset()
    latest = [tmp_path / "state" / name / "latest" for name in ("p00000", "p00001")]
    assert [path.read_text() for path in latest] == ["-1", "-1"]
    latest[0].write_text("12")
    ClockReader(tmp_path / "state", 2).initialOffset()
    assert [path.read_text() for path in latest] == ["12", "-1"]


def test_clock_reader_when_state_cannot_be_made_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        ClockReader(tmp_path / "file", 1).initialOffset()


# -- in a query -----------------------------------------------------------------------------


def quiet_for(query: Any, seconds: float) -> int:
    """How many more micro-batches ran in a while."""
    before = query.lastProgress["batchId"]
    query.awaitTermination(seconds)
    assert query.exception() is None
    return query.lastProgress["batchId"] - before


@pytest.mark.spark
@pytest.mark.parametrize("trigger", [{}, {"processingTime": "200 milliseconds"}])
def test_stream_when_silent_then_works_off_what_is_pending_and_comes_to_rest(
    bench: Any, trigger: dict[str, str]
) -> None:
    seed = 5
    rng = np.random.default_rng(seed)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 150, 1500), files=1)
    with bench.running(bench.join(memory="200KB", slice_ms=20), **trigger) as query:
        for more in (True, False):  # comes to rest again after more rows
            query.processAllAvailable()
            progress = bench.progress()
            assert progress.pending_rows == 0
            assert progress.spilled_bytes > 0
            assert progress.rows_out.get("cleanup", 0) > 0
            assert quiet_for(query, 2.5) == 0, "micro-batches ran although nothing was pending"
            bench.check(f"silent stream, {trigger}, seed {seed}")
            if more:
                for side in ("left", "right"):
                    bench.keyed(side, rng.integers(0, 150, 400), files=1)
        ticks = [record for record in progress.records() if not any(record["rows_in"])]
        assert ticks, "no step worked while the stream was silent"


@pytest.mark.spark
def test_ticks_when_slices_are_short_then_are_several_and_wake_only_who_has_work(
    bench: Any,
) -> None:
    """One partition has all the rows; ticks leave the other one alone."""
    for side in ("left", "right"):
        bench.keyed(side, np.full(260, 3), text=400, files=1)
    bench.run(bench.join(memory="200KB", slice_ms=1))
    records = list(bench.progress().records())
    ticks = [record for record in records if not any(record["rows_in"])]
    assert len(ticks) > 1, records
    assert {record["partition"] for record in ticks} == {records[0]["partition"]}
    assert ticks[-1]["pending"] == 0
    bench.check("one busy partition")


LONG = [(0, []), (1, []), (2, []), (3, [0, 1]), (9, [0, 1])]
LAST = [(0, []), (1, []), (2, [0, 1])]


@pytest.mark.parametrize(
    ("last_rows", "silent", "ended"),
    [*((False, *case) for case in LONG), *((True, *case) for case in LAST)],
)
def test_step_when_silence_lasts_then_inputs_count_as_ended(
    last_rows: bool, silent: int, ended: list[int]
) -> None:
    """Cleanup is not to wait until the Reactive phase has let every block meet every other."""
    task = StreamingTask.__new__(StreamingTask)
    task.spec = SimpleNamespace(slice_ms=250, inputs=("", ""), retune=lambda *_: None, eager=False)
    task._tuned, task._began, task._last_rows = None, 0.0, last_rows
    task._work_off = lambda *_: None
    finished: list[int] = []
    silence = Silence(silent, ((0, 0), (0, 0)))
    task._defer(SimpleNamespace(finish=finished.append), silence, None)
    assert finished == ended


@pytest.mark.parametrize(("available_now", "tag"), [(True, LAST_ROWS), (False, CLOCK)])
def test_tick_when_the_query_is_an_available_now_one_then_tells(
    tmp_path: Path, available_now: bool, tag: int
) -> None:
    reader = ClockReader(tmp_path, 1)
    reader._pending = lambda: {0: 5}
    if available_now:
        reader.prepareForTriggerAvailableNow()
    start = {"tick": 3, "wake": [1]}
    end = reader.latestOffset(start, None)
    (wake,) = reader.partitions(start, json.loads(json.dumps(end)))
    assert list(reader.read(wake)) == [(0, tag == LAST_ROWS)]
    # offsets of before this was told are still read
    assert reader.partitions(start, {"tick": 4, "wake": [0]})[0].ends is False


def test_input_when_others_bring_rows_without_it_then_counts_as_ended_until_its_next() -> None:
    silence, so_far = Silence.after(None, 2), 0
    for rows in [(10, 10), (10, 10), *[(10, 0)] * (SILENT_STEPS - 1)]:
        silence, so_far = silence.then(rows), so_far + sum(rows)
        assert silence.fallen_silent(so_far) == []
    silence = silence.then((10, 0))
    assert silence.fallen_silent(so_far + 10) == [1]
    assert silence.fallen_silent(10_000) == [], "these were few of all the rows"
    restored = Silence.after(json.loads(json.dumps(silence.facts())), 2)
    assert restored == silence
    assert restored.then((0, 0)).fallen_silent(so_far + 10) == [1], "nobody spoke"
    assert restored.then((0, 1)).fallen_silent(so_far + 11) == []
