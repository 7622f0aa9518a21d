"""Where generated cases keep their files."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_IN_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 256 << 20  # a case has a few MB and deletes them


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, in memory if there is one: a case syncs dozens of files, and none survives it.

    Temporary folders that a harness makes by itself are put there as well.
    """
    folder = tmp_path
    if _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ENOUGH_BYTES:
        folder = Path(tempfile.mkdtemp(prefix="dovetail-test-", dir=_IN_MEMORY))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    if folder != tmp_path:
        shutil.rmtree(folder)
