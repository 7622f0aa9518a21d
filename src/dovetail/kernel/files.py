"""Reads of pieces of files, checked, and errors of storage that say what to do.

Files are read with `pread` into one buffer that the caller has reserved, not mapped: mapped pages
would count as resident without the budget knowing. Except for what is to stay anyway, and is
reserved in full (`view_checked`): mapped, it is there at once, and what is never looked at is never
read.
"""

import mmap
import os
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import StateCorruptError, StateMissingError, StorageError

_MOST_OPEN = 64  # files; well below the usual limit
_REMEMBERED_VIEWS = 256
_CHECKED_BYTES = 1 << 20  # of a view, at a time


def storage_problem(error: OSError, path: Path, doing: str) -> StorageError:
    """A `StorageError` that says what to do about an operating system error."""
    remedy = (
        "make room there, or move the state to a larger disk"
        if error.errno == 28
        else ("check that the directory exists, is writable, and is reachable from every executor")
    )
    return StorageError(
        f"cannot {doing} {path}: {error.strerror or error}. Nothing was lost: the last committed "
        f"version is intact. To go on, {remedy}, then start the query again."
    )


class View:
    """A mapped piece of a file, valid for as long as anybody holds the buffer."""

    def __init__(self, mapped: mmap.mmap, offset: int, length: int) -> None:
        whole = pa.py_buffer(mapped)
        self.buffer = whole[offset : offset + length]
        self._mapped = mapped
        self._address = whole.address

    def forget(self, array: NDArray[Any]) -> None:
        """Let an array that lies in the piece take no memory until it is looked at again."""
        begin = array.ctypes.data - self._address
        assert 0 <= begin <= len(self._mapped) - array.nbytes, "this array lies elsewhere"
        page = begin - begin % mmap.PAGESIZE
        self._mapped.madvise(mmap.MADV_DONTNEED, page, begin + array.nbytes - page)


class Readers:
    """Reads pieces of the files of one directory, a few of which are kept open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: dict[str, int] = {}

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read bytes of a file; fewer only if the file ends before."""
        try:
            if name not in self._open:
                if len(self._open) >= _MOST_OPEN:
                    os.close(self._open.pop(next(iter(self._open))))
                self._open[name] = os.open(self.directory / name, os.O_RDONLY)
            return _read_fully(self._open[name], length, offset)
        except FileNotFoundError as error:
            raise self._gone(name) from error
        except OSError as error:
            raise storage_problem(error, self.directory / name, "read") from error

    def read_checked(self, name: str, offset: int, length: int, checksum: int) -> bytes:
        """Read bytes of a file and verify their checksum."""
        data = self.read(name, offset, length)
        if len(data) != length or zlib.crc32(data) != checksum:
            raise self._damaged(name, offset)
        return data

    def view_checked(self, name: str, offset: int, length: int, checksum: int) -> View:
        """Map bytes of a file and verify their checksum; they become resident as they are read.

        They are checked when the process first sees them, and not again while the file is the same.
        """
        try:
            with (self.directory / name).open("rb") as handle:
                file = os.fstat(handle.fileno())
                if file.st_size < offset + length:
                    raise self._damaged(name, offset)
                mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise self._gone(name) from error
        except OSError as error:
            raise storage_problem(error, self.directory / name, "read") from error
        same = (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns)
        known = _known_view(same, offset, length, checksum)
        if not known:
            if _mapped_checksum(mapped, offset, length) != checksum:
                raise self._damaged(name, offset)
            known.append(True)
        return View(mapped, offset, length)

    def _gone(self, name: str) -> StateMissingError:
        return StateMissingError(
            f"the state file {self.directory / name} is gone; restore it from a backup, or "
            "start over with a new state directory and a new checkpoint"
        )

    def _damaged(self, name: str, offset: int) -> StateCorruptError:
        return StateCorruptError(
            f"the state file {self.directory / name} is damaged: the block at byte {offset} "
            "does not have the checksum it was written with. Restore the file from a backup, "
            "or start over with a new state directory and a new checkpoint."
        )

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def _read_fully(descriptor: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes, fewer only at the end of the file: one call may read less (2 GB)."""
    data = os.pread(descriptor, length, offset)
    if len(data) == length:
        return data
    pieces = [data]
    while data and (length := length - len(data)):
        offset += len(data)
        data = os.pread(descriptor, length, offset)
        pieces.append(data)
    return b"".join(pieces)


@lru_cache(maxsize=_REMEMBERED_VIEWS)
def _known_view(_file: tuple[int, ...], _offset: int, _length: int, _checksum: int) -> list[bool]:
    """Not empty once this piece of a file has been checked."""
    return []


def _mapped_checksum(mapped: mmap.mmap, offset: int, length: int) -> int:
    """The checksum of some mapped bytes, of which only a few are in memory at a time."""
    checksum, end = 0, offset + length
    with memoryview(mapped) as view:
        for start in range(offset, end, _CHECKED_BYTES):
            stop = min(start + _CHECKED_BYTES, end)
            checksum = zlib.crc32(view[start:stop], checksum)
            page = start - start % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, page, stop - page)
    return checksum
