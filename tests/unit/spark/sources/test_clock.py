"""The clock's offsets: who is woken, what is known of, and state that does not go with them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.errors import StateMismatchError, StorageError
from dovetail.spark.layout import CLOCK, LAST_ROWS
from dovetail.spark.sources.clock import ClockReader
from dovetail.spark.state.newest import Newest

WriteVersion = Callable[..., Path]


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


@pytest.mark.parametrize(("available_now", "tag"), [(True, LAST_ROWS), (False, CLOCK)])
def test_tick_when_the_query_is_an_available_now_one_then_tells(
    tmp_path: Path, available_now: bool, tag: int
) -> None:
    reader = ClockReader(tmp_path, 1)
    reader._newest = lambda: [Newest(version=3, parent=2, pending=5)]
    if available_now:
        reader.prepareForTriggerAvailableNow()
    start = {"tick": 3, "wake": [], "known": [2]}
    end = reader.latestOffset(start, None)
    (wake,) = reader.partitions(start, json.loads(json.dumps(end)))
    assert list(reader.read(wake)) == [(0, tag == LAST_ROWS)]


def outboxes(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("p*/*-out.arrows"))


def test_clock_when_work_is_pending_then_offset_advances_and_names_partitions(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    reader = ClockReader(tmp_path, 3)
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    assert reader.partitions(start, start) == []
    write_version(tmp_path, 0, 0, 5)
    write_version(tmp_path, 2, 0, 1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {"tick": 1, "wake": [0, 2], "known": [0, -1, 0]}
    (wake,) = reader.partitions(start, end)
    assert list(reader.read(wake)) == [(0, False), (2, False)]
    write_version(tmp_path, 0, 1, 0, parent=0)
    write_version(tmp_path, 2, 1, 0, parent=0)
    # a replay of the tick wakes the same partitions, whatever is pending now
    (again,) = reader.partitions(start, end)
    assert list(reader.read(again)) == [(0, False), (2, False)]


def test_clock_when_a_version_is_new_then_its_number_is_logged_and_nobody_woken(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    reader = ClockReader(tmp_path, 2)
    start = reader.initialOffset()
    write_version(tmp_path, 1, 0, 0)
    logged = reader.latestOffset(start, None)
    assert logged == {"tick": 0, "wake": [], "known": [-1, 0]}
    assert reader.partitions(start, logged) == []
    assert outboxes(tmp_path) == ["b0-a-out.arrows"], "Spark may still ask for these results"
    assert reader.latestOffset(logged, None) == logged
    assert outboxes(tmp_path) == [], "a batch behind them has been logged"


def test_clock_when_a_replayed_batch_meets_older_state_then_refuses_before_it_runs(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    write_version(tmp_path, 0, 2, 0, parent=1)
    reader = ClockReader(tmp_path, 1)
    start = {"tick": 0, "wake": [], "known": [3]}
    with pytest.raises(StateMismatchError, match="older than the query's checkpoint"):
        reader.partitions(start, {**start, "known": [4]})


def test_clock_when_the_checkpoint_is_new_and_the_state_is_not_then_refuses(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    write_version(tmp_path, 0, 7, 0, parent=6)
    reader = ClockReader(tmp_path, 1)
    start = reader.initialOffset()
    with pytest.raises(StateMismatchError, match=r"in use \(partition 0 is at batch 7\)"):
        reader.latestOffset(start, None)
