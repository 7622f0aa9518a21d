"""The newest versions of all partitions, and state that is older than the checkpoint."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.errors import StateCorruptError, StateMismatchError, StateMissingError
from dovetail.spark.state import prepare
from dovetail.spark.state.newest import Newest, NewestVersions, check_known

WriteVersion = Callable[..., Path]


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


def test_newest_when_several_versions_exist_then_is_the_highest_number(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    write_version(tmp_path, 0, 9, 100)
    write_version(tmp_path, 0, 10, 0)
    write_version(tmp_path, 1, 999, 0)
    write_version(tmp_path, 1, 1000, 4, parent=998)
    first, second = NewestVersions(tmp_path, 2)()
    assert (first.version, first.parent, first.pending) == (10, -1, 0)
    assert (second.version, second.parent, second.pending) == (1000, 998, 4)


def test_newest_when_a_version_is_added_then_is_noticed(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    newest = NewestVersions(tmp_path, 1)
    write_version(tmp_path, 0, 1, 8)
    make_old(tmp_path / "p00000")
    assert newest()[0].pending == newest()[0].pending == 8
    write_version(tmp_path, 0, 2, 3)
    assert newest()[0].pending == 3
    write_version(tmp_path, 0, 3, 0)  # within the same tick of the file system's clock
    assert newest()[0].pending == 0


def test_newest_when_a_settled_directory_is_unchanged_then_is_not_read_again(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    path = write_version(tmp_path, 0, 1, 8)
    make_old(tmp_path / "p00000")
    newest = NewestVersions(tmp_path, 1)
    assert newest()[0].pending == 8
    path.write_bytes(b"unreadable")  # does not change the directory
    assert newest()[0].pending == 8


def test_newest_when_other_files_lie_about_then_ignores_them(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    write_version(tmp_path, 0, 1, 2)
    (tmp_path / "identity.json").write_text("{}")
    (tmp_path / "p00000" / "b1-x-left-run.arrows").write_bytes(b"")
    (tmp_path / "p00000" / "latest").write_text("1")
    assert pending(tmp_path, 1) == [2]


@pytest.mark.parametrize("damage", ["pending", "outbox", "batches"])
def test_newest_when_a_manifest_lacks_a_part_then_names_it(
    tmp_path: Path, write_version: WriteVersion, damage: str
) -> None:
    path = write_version(tmp_path, 0, 1, 2)
    path.write_bytes(path.read_bytes().replace(damage.encode(), b"x" * len(damage)))
    with pytest.raises(StateCorruptError, match=re.escape(str(path))):
        NewestVersions(tmp_path, 1)()


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


def test_check_known_when_there_is_no_state_then_says_that_it_is_missing() -> None:
    with pytest.raises(StateMissingError, match=r"missing or empty, but .* knows of batch 4"):
        check_known(Path("state"), [3, 4], [Newest(), Newest()])
