"""Durable writes: on stable storage before anything goes on."""

import os
import uuid
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make a directory and those above it, with at most the permissions of the one they are in."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(folder.parent.stat().st_mode & 0o777, exist_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def sync(path: Path) -> None:
    """Have a file or a directory on stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, data: bytes) -> None:
    """Put a file in the place of another, whole or not at all."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    write_durably(temporary, data)
    temporary.replace(path)
