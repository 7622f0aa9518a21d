"""Storage: reads cost a seek and their bytes; measuring leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest

from dovetail.costs.storage import (
    DISK_7200,
    OBJECT_STORE,
    Storage,
    measure_storage,
    profile,
)
from dovetail.errors import ArgumentError, StorageError


def test_read_when_made_of_requests_and_bytes_then_both_add_up() -> None:
    storage = Storage("tape", seek_seconds=2.0, bytes_per_second=10.0)
    assert storage.read_seconds(3, 50.0) == 3 * 2.0 + 50 / 10
    assert storage.read_seconds(0, 0.0) == 0


def test_read_when_given_an_array_then_each_is_as_alone() -> None:
    sizes = np.array([0.0, 1e6, 5e7])
    together = DISK_7200.read_seconds(1, sizes)
    assert together.tolist() == [DISK_7200.read_seconds(1, size) for size in sizes.tolist()]


@pytest.mark.parametrize("storage", [DISK_7200, OBJECT_STORE], ids=lambda storage: storage.name)
def test_profiles_when_reading_64_kib_then_the_seek_outweighs_the_bytes(storage: Storage) -> None:
    assert storage.read_seconds(1, 65536.0) < 2 * storage.read_seconds(1, 0.0)
    one_by_one = storage.read_seconds(100, 100 * 65536.0)
    assert one_by_one > 10 * storage.read_seconds(1, 100 * 65536.0)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("7200 rpm disk", DISK_7200),
        ("7200-RPM-disk", DISK_7200),
        ("Object Store", OBJECT_STORE),
        ("this machine", None),
        ("this-machine", None),
    ],
)
def test_profile_when_named_then_is_found(name: str, found: Storage | None) -> None:
    assert profile(name) is found


@pytest.mark.parametrize("name", ["ssd", "", "7200rpm disk", None])
def test_profile_when_the_name_is_unknown_then_lists_those_there_are(name: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        profile(name)
    said = str(raised.value)
    assert f"storage={name!r}" in said
    for known in ("this machine", "7200 rpm disk", "object store"):
        assert repr(known) in said


@pytest.mark.parametrize(("seek", "speed"), [(-1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0)])
def test_storage_when_its_numbers_make_no_sense_then_raises(seek: float, speed: float) -> None:
    with pytest.raises(ArgumentError, match="'odd'"):
        Storage("odd", seek, speed)


def test_measure_when_done_then_the_folder_is_as_before(tmp_path: Path) -> None:
    found = measure_storage(tmp_path)
    assert found.name == "this machine"
    assert found.seek_seconds >= 0
    assert found.bytes_per_second > 0
    assert "page cache" in found.note
    assert list(tmp_path.iterdir()) == []


def test_measure_when_the_folder_is_missing_then_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        measure_storage(tmp_path / "nowhere")
