"""State as steps leave it, with no step."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.spark.state import FORMAT


def _write_version(
    root: Path, partition: int, version: int, pending: int, parent: int = -1
) -> Path:
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


@pytest.fixture
def write_version() -> Callable[..., Path]:
    return _write_version
