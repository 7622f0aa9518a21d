"""The newest versions of all partitions, and state that is older than the checkpoint."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from dovetail.errors import StateCorruptError, StateMismatchError, StateMissingError
from dovetail.spark.sources.clock import ClockReader
from dovetail.spark.state import FORMAT, prepare
from dovetail.spark.state.manifest import read_brief
from dovetail.spark.state.newest import Newest, NewestVersions, check_known


def write_version(root: Path, partition: int, version: int, pending: int, parent: int = -1) -> Path:
    """A manifest with as much in it as the clock reads."""
    directory = root / f"p{partition:05d}"
    directory.mkdir(parents=True, exist_ok=True)
    outbox = {"name": f"b{version}-a-out.arrows", "batches": [[0, 8, 1]]}
    header = {"pending": pending, "outbox": outbox, "parent": parent}
    head = json.dumps(header).encode()
    path = directory / f"v{version:012d}"
    path.write_bytes(f"dovetail {FORMAT} {len(head)} 0 0\n".encode() + head)
    (directory / outbox["name"]).write_bytes(b"results!")
    return path


def outboxes(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("p*/*-out.arrows"))


def make_old(directory: Path) -> None:
    """Date a directory back, as if it had last changed a minute ago."""
    then = time.time() - 60
    os.utime(directory, (then, then))


def pending(root: Path, partitions: int) -> list[int]:
    return [found.pending for found in NewestVersions(root, partitions)()]


def test_newest_when_there_is_no_state_yet_then_has_no_versions(tmp_path: Path) -> None:
    assert NewestVersions(tmp_path / "nowhere", 2)() == [Newest(), Newest()]
    prepare(tmp_path / "state", 3)
    assert NewestVersions(tmp_path / "state", 3)() == [Newest()] * 3


def test_newest_when_several_versions_exist_then_is_the_highest_number(tmp_path: Path) -> None:
    write_version(tmp_path, 0, 9, 100)
    write_version(tmp_path, 0, 10, 0)
    write_version(tmp_path, 1, 999, 0)
    write_version(tmp_path, 1, 1000, 4, parent=998)
    first, second = NewestVersions(tmp_path, 2)()
    assert (first.version, first.parent, first.pending) == (10, -1, 0)
    assert (second.version, second.parent, second.pending) == (1000, 998, 4)


def test_newest_when_a_version_is_added_then_is_noticed(tmp_path: Path) -> None:
    newest = NewestVersions(tmp_path, 1)
    write_version(tmp_path, 0, 1, 8)
    make_old(tmp_path / "p00000")
    assert newest()[0].pending == newest()[0].pending == 8
    write_version(tmp_path, 0, 2, 3)
    assert newest()[0].pending == 3
    write_version(tmp_path, 0, 3, 0)  # within the same tick of the file system's clock
    assert newest()[0].pending == 0


def test_newest_when_a_settled_directory_is_unchanged_then_is_not_read_again(
    tmp_path: Path,
) -> None:
    path = write_version(tmp_path, 0, 1, 8)
    make_old(tmp_path / "p00000")
    newest = NewestVersions(tmp_path, 1)
    assert newest()[0].pending == 8
    path.write_bytes(b"unreadable")  # does not change the directory
    assert newest()[0].pending == 8


def test_newest_when_other_files_lie_about_then_ignores_them(tmp_path: Path) -> None:
    write_version(tmp_path, 0, 1, 2)
    (tmp_path / "identity.json").write_text("{}")
    (tmp_path / "p00000" / "b1-x-left-run.arrows").write_bytes(b"")
    (tmp_path / "p00000" / "latest").write_text("1")
    assert pending(tmp_path, 1) == [2]


@pytest.mark.parametrize("damage", ["pending", "outbox", "batches"])
def test_newest_when_a_manifest_lacks_a_part_then_names_it(tmp_path: Path, damage: str) -> None:
    path = write_version(tmp_path, 0, 1, 2)
    path.write_bytes(path.read_bytes().replace(damage.encode(), b"x" * len(damage)))
    with pytest.raises(StateCorruptError, match=re.escape(str(path))):
        NewestVersions(tmp_path, 1)()


def test_read_head_when_manifest_is_long_then_reads_its_head_only(tmp_path: Path) -> None:
    path = write_version(tmp_path, 0, 1, 77)
    path.write_bytes(path.read_bytes() + b"\x00" * 1000)
    assert read_brief(path).pending == 77


# -- the clock's offsets --------------------------------------------------------------------


def test_clock_when_work_is_pending_then_offset_advances_and_names_partitions(
    tmp_path: Path,
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
    tmp_path: Path,
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


@pytest.mark.parametrize(
    ("newest", "said"),
    [
        ([Newest(4, 3), Newest(4, 3)], None),
        ([Newest(5, 4), Newest(4, 3)], None),
        (
            [Newest(2, 1), Newest(4, 3)],
            "batch 4 in partition 0, the state is at batch 2, made from batch 1.",
        ),
        ([Newest(4, 3), Newest()], "batch 4 in partition 1, the state has none."),
        ([Newest(), Newest(2, 1)], "the state has none (and 1 other partitions)"),
        ([Newest(5, 2), Newest(5, 4)], "partition 0, the state is at batch 5, made from batch 2."),
    ],
)
def test_check_known_when_state_lacks_a_version_then_refuses_with_both_numbers(
    newest: list[Newest], said: str | None
) -> None:
    if said is None:
        check_known(Path("state"), [4, 4], newest)
        return
    with pytest.raises(StateMismatchError, match=re.escape(said)) as raised:
        check_known(Path("state"), [4, 4], newest)
    assert "Restore the state directory and the query's checkpoint together" in str(raised.value)


def test_clock_when_a_replayed_batch_meets_older_state_then_refuses_before_it_runs(
    tmp_path: Path,
) -> None:
    write_version(tmp_path, 0, 2, 0, parent=1)
    reader = ClockReader(tmp_path, 1)
    start = {"tick": 0, "wake": [], "known": [3]}
    with pytest.raises(StateMismatchError, match="older than the query's checkpoint"):
        reader.partitions(start, {**start, "known": [4]})


def test_check_known_when_there_is_no_state_then_says_that_it_is_missing() -> None:
    with pytest.raises(StateMissingError, match=r"missing or empty, but .* knows of batch 4"):
        check_known(Path("state"), [3, 4], [Newest(), Newest()])


def test_clock_when_the_checkpoint_is_new_and_the_state_is_not_then_refuses(
    tmp_path: Path,
) -> None:
    write_version(tmp_path, 0, 7, 0, parent=6)
    reader = ClockReader(tmp_path, 1)
    start = reader.initialOffset()
    with pytest.raises(StateMismatchError, match=r"in use \(partition 0 is at batch 7\)"):
        reader.latestOffset(start, None)
