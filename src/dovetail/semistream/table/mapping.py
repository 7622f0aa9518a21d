"""Files mapped for reading, with a bound on how much of them may be resident.

Mapped pages count as memory of the process for as long as they stay. Who looks at a part of a file
says so (`window`); when it would be too much, all that was looked at is given back first. What was
seen before stays valid, it is only read again.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from dovetail.errors import StateCorruptError, StateMissingError
from dovetail.kernel.blocks import storage_problem

_AROUND_BYTES = 2 << 20  # the most that one page fault makes resident
_REMEDY = "Stage the table again (dovetail.refresh), or restore"


class Mapping:
    """The bytes of a file. At most those between the touched ends are resident."""

    def __init__(self, path: Path) -> None:
        self.touched_bytes = 0  #: what may be resident
        self._map: mmap.mmap | None = _mapped(path)
        self.buffer: pa.Buffer | None = pa.py_buffer(self._map)
        self._begin, self._end = len(self._map), 0

    def part(self, begin: int, length: int) -> pa.Buffer:
        assert self.buffer is not None, "closed"
        return self.buffer[begin : begin + length]

    def touch(self, begin: int, length: int) -> None:
        """Count bytes that may become resident."""
        self.touched_bytes += length
        self._begin, self._end = min(self._begin, begin), max(self._end, begin + length)

    def expect(self, begin: int, length: int) -> None:
        """Most of these bytes will be wanted: read what of them is on disk in few requests."""
        self._advise(mmap.MADV_WILLNEED, begin, begin + length)

    def give_back(self, begin: int, end: int) -> None:
        """Let a part be resident no longer, nor what the system has mapped around it."""
        begin -= begin % _AROUND_BYTES
        end += -end % _AROUND_BYTES
        self._advise(mmap.MADV_DONTNEED, begin, end)

    def release(self) -> None:
        """Let nothing be resident that was touched."""
        if self.touched_bytes and self._map is not None:
            self.give_back(self._begin, self._end)
            self.touched_bytes, self._begin, self._end = 0, len(self._map), 0

    def close(self) -> None:
        self._map = self.buffer = None

    def _advise(self, advice: int, begin: int, end: int) -> None:
        assert self._map is not None, "closed"
        begin -= begin % mmap.PAGESIZE
        self._map.madvise(advice, begin, min(end, len(self._map)) - begin)


class MappedFiles:
    """The mapped files of one table."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes  #: that may be resident
        self._files: list[Mapping] = []

    @property
    def touched_bytes(self) -> int:
        """The bytes that may be resident."""
        return sum(file.touched_bytes for file in self._files)

    def map(self, path: Path) -> Mapping:
        self._files.append(Mapping(path))
        return self._files[-1]

    def window(self, file: Mapping, begin: int, length: int) -> pa.Buffer:
        """Bytes of one of the files, which may become resident; others make room for them."""
        if self.touched_bytes + length > self.most_bytes:
            self.release(0)
        file.touch(begin, length)
        return file.part(begin, length)

    def release(self, above: int) -> None:
        """Give back what is mapped, if more than this much of it may be resident."""
        if self.touched_bytes > above:
            for file in self._files:
                file.release()

    def close(self) -> None:
        for file in self._files:
            file.close()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the system about a table's file into errors that say what to do."""
    try:
        yield
    except FileNotFoundError:
        raise StateMissingError(
            f"the staged table {path} is gone. {_REMEDY} it from a backup."
        ) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error


def open_for_reading(path: Path) -> int:
    with reading(path):
        return os.open(path, os.O_RDONLY)


def damaged(path: Path, offset: int) -> StateCorruptError:
    return StateCorruptError(
        f"the staged table {path} is damaged at byte {offset}: it does not have the checksum it "
        f"was written with. {_REMEDY} the file from a backup."
    )


def _mapped(path: Path) -> mmap.mmap:
    descriptor = open_for_reading(path)
    try:
        with reading(path):
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:  # an empty file
        raise damaged(path, 0) from None
    finally:
        os.close(descriptor)
