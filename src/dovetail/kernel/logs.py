"""A log: append-only bytes at addresses that never change, in a few segment files.

Bytes stay until all bytes before some address are released. An address is a position in the log,
not in a file, so it holds while the files behind it change: an attempt that appends opens a file of
its own, and where the newest files are small and many, that file begins with a copy of them and
takes their place. Files never change once they are synced, so an older version of the log still has
all of its own, until they are deleted; and an attempt that dies leaves nothing but a file that no
version names.

Each file has a checksum of its part of the log, and a copy is checked against it: damage is
reported for the file that it happened to, and not carried into files that no backup has.

Files are merged like runs: `FAN_IN` of about one size become one, up to `MERGE_BYTES`. A log of n
bytes that grows by s bytes an attempt lies in about log(n / s) files and one more for every
`MERGE_BYTES` or so, and a byte is copied at most log(MERGE_BYTES / s) times, to the base `FAN_IN`.
"""

import contextlib
import os
import zlib
from bisect import bisect_right
from dataclasses import astuple, dataclass, replace
from typing import IO, Any

from dovetail.errors import StateCorruptError
from dovetail.kernel.files import Readers, storage_problem

FAN_IN = 8
MERGE_BYTES = 128 << 20  # what an attempt copies at most
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True)
class Piece:
    """A file that holds a part of the line, from `start` on; before it come `header` bytes."""

    start: int
    header: int
    name: str
    checksum: int = 0  #: of its part of the line


class Log:
    """An append-only log. Every file begins with `header`, and its name ends with `suffix`."""

    def __init__(self, readers: Readers, suffix: str, header: bytes = b"") -> None:
        self._readers = readers
        self._suffix = suffix
        self._header = header
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._length = 0
        self._handle: IO[bytes] | None = None

    def append(self, stem: str, data: Any) -> int:
        """Add bytes at the end; returns their address. A first file is named after `stem`."""
        name = f"{stem}-{self._suffix}"
        try:
            if self._handle is None:
                self._handle = self._open(name)
            address = self._length
            self._length += self._handle.write(data)
            newest = self._pieces[-1]
            self._pieces[-1] = replace(newest, checksum=zlib.crc32(data, newest.checksum))
            self._handle.flush()
        except OSError as error:
            raise storage_problem(error, self._readers.directory / name, "write") from error
        return address

    def locate(self, address: int) -> tuple[str, int]:
        """The file that holds the bytes at an address, and where in it they begin."""
        piece = self._pieces[bisect_right(self._starts, address) - 1]
        return piece.name, piece.header + address - piece.start

    @property
    def length(self) -> int:
        """The address of what is appended next."""
        return self._length

    def release(self, address: int) -> None:
        """Forget the files that end at this address or before it: they are not read any more."""
        ends = [*self._starts, self._length][1:]
        count = bisect_right(ends, address)
        if self._handle is not None:
            count = min(count, len(ends) - 1)  # the last one is being written
        del self._pieces[:count], self._starts[:count]

    @property
    def files(self) -> list[str]:
        return [piece.name for piece in self._pieces]

    def facts(self) -> dict[str, Any]:
        """The log's facts for `restore`, as JSON."""
        return {"length": self._length, "files": [list(astuple(piece)) for piece in self._pieces]}

    def restore(self, facts: dict[str, Any]) -> None:
        self._length = facts["length"]
        self._replace(0, [Piece(*piece) for piece in facts["files"]])

    def sync(self) -> None:
        """Force what was appended to stable storage. What comes next goes to another file."""
        if self._handle is not None:
            try:
                self._handle.flush()
                os.fsync(self._handle.fileno())
            except OSError as error:
                path = self._readers.directory / self._pieces[-1].name
                raise storage_problem(error, path, "write") from error
            self.close()

    def close(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):  # of a write that has failed before
                self._handle.close()
            self._handle = None

    def _open(self, name: str) -> IO[bytes]:
        """Start a file with a copy of those that it is to replace."""
        handle = (self._readers.directory / name).open("xb")
        try:
            handle.write(self._header)
            ends = [*self._starts, self._length][1:]
            sizes = [end - start for start, end in zip(self._starts, ends, strict=True)]
            kept, checksum = len(sizes) - _replaceable(sizes), 0
            for piece, size in zip(self._pieces[kept:], sizes[kept:], strict=True):
                checksum = self._copy(piece, size, handle, checksum)
        except BaseException:
            with contextlib.suppress(OSError):
                handle.close()
            raise
        start = self._starts[kept] if kept < len(sizes) else self._length
        self._replace(kept, [Piece(start, len(self._header), name, checksum)])
        return handle

    def _copy(self, piece: Piece, size: int, handle: IO[bytes], checksum: int) -> int:
        """Copy a file's part of the line; returns the checksum of what there is with it."""
        found = 0
        for done in range(0, size, _CHUNK_BYTES):
            wanted = min(_CHUNK_BYTES, size - done)
            data = self._readers.read(piece.name, piece.header + done, wanted)
            if len(data) != wanted:
                raise StateCorruptError(
                    f"the state file {self._readers.directory / piece.name} is damaged: it ends "
                    f"after {piece.header + done + len(data)} bytes. Restore it from a backup, or "
                    "start over with a new state directory and a new checkpoint."
                )
            found, checksum = zlib.crc32(data, found), zlib.crc32(data, checksum)
            handle.write(data)
        if found != piece.checksum:
            raise StateCorruptError(
                f"the state file {self._readers.directory / piece.name} is damaged: it does not "
                "have the checksum it was written with. Restore it from a backup, or start over "
                "with a new state directory and a new checkpoint."
            )
        return checksum

    def _replace(self, kept: int, pieces: list[Piece]) -> None:
        self._pieces[kept:] = pieces
        self._starts[kept:] = [piece.start for piece in pieces]


def _replaceable(sizes: list[int]) -> int:
    """The number of newest files that a new one replaces (compaction)."""
    count = merged = 0
    while True:
        end = len(sizes) - count
        begin = end - FAN_IN + (1 if count else 0)
        if begin < 0:
            return count
        total = merged + sum(sizes[begin:end])
        # copying a file much larger than the rest would copy it again and again
        if 2 * sizes[begin] > total or total > MERGE_BYTES:
            return count
        count, merged = len(sizes) - begin, total
