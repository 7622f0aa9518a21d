"""Reading and failing: what everything that keeps rows in files has in common.

Files are read with `pread` into one buffer that the caller has reserved, not mapped: mapped pages
would count as resident without the budget knowing.
"""

import os
import zlib
from pathlib import Path

from dovetail.errors import StateCorruptError, StateMissingError, StorageError

_MOST_OPEN = 64  # files; well below the usual limit


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


class Readers:
    """Reads pieces of the files of one directory, a few of which are kept open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: dict[str, int] = {}

    def read(self, name: str, offset: int, length: int) -> bytes:
        """These bytes of a file, fewer only if the file ends before."""
        try:
            if name not in self._open:
                if len(self._open) >= _MOST_OPEN:
                    os.close(self._open.pop(next(iter(self._open))))
                self._open[name] = os.open(self.directory / name, os.O_RDONLY)
            return _read_fully(self._open[name], length, offset)
        except FileNotFoundError as error:
            raise StateMissingError(
                f"the state file {self.directory / name} is gone; restore it from a backup, or "
                "start over with a new state directory and a new checkpoint"
            ) from error
        except OSError as error:
            raise storage_problem(error, self.directory / name, "read") from error

    def read_checked(self, name: str, offset: int, length: int, checksum: int) -> bytes:
        """These bytes of a file, if they are what was written."""
        data = self.read(name, offset, length)
        if len(data) != length or zlib.crc32(data) != checksum:
            raise StateCorruptError(
                f"the state file {self.directory / name} is damaged: the block at byte {offset} "
                "does not have the checksum it was written with. Restore the file from a backup, "
                "or start over with a new state directory and a new checkpoint."
            )
        return data

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
