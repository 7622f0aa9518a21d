"""Durable writes, on stable storage before anything goes on; and what is said when files fail."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dovetail.errors import StateCorruptError, StateMissingError
from dovetail.kernel.files import storage_problem
from dovetail.spark import faults


@contextmanager
def storing(path: Path, doing: str) -> Iterator[None]:
    """Say of an operating system's error what could not be done to which path, and what to do."""
    try:
        yield
    except OSError as error:
        raise storage_problem(error, path, doing) from error


@contextmanager
def reading(path: Path, *, gone: str = "", damaged: str = "") -> Iterator[None]:
    """Likewise while a file is read, with what there is to say if it is gone or holds nonsense.

    Where that is empty, such errors pass as they are.
    """
    try:
        yield
    except FileNotFoundError:
        if not gone:
            raise
        raise StateMissingError(gone) from None
    except (ValueError, LookupError, TypeError):
        if not damaged:
            raise
        raise StateCorruptError(damaged) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error


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


def link_durably(path: Path, data: bytes, fault: str = "") -> None:
    """Have a file appear whole or not at all, unless there is one already.

    fault: the point before it appears at which a test may stop the task.
    """
    temporary = path.with_name(f"{uuid.uuid4().hex}.tmp")
    write_durably(temporary, data)
    if fault:
        faults.fault_point(fault)
    with suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()


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
