"""Files of records, each with the checksum it was written with.

A record is there once `append` has returned, though the process be killed; once `sync` has
returned, though the machine lose its power. A write that was cut off leaves a torn end, which is
cut away when the file is read; damage anywhere else is a `StateCorruptError`.
"""

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from dovetail.errors import StateCorruptError
from dovetail.kernel.files import storage_problem
from dovetail.multisite.live.folders import corrupt, storing

_HEAD = struct.Struct("<QII")  # bytes of the body, its checksum, the checksum of the two
_CHECKED = 12
HEAD_BYTES = _HEAD.size
_CHUNK_BYTES = 1 << 20
Buffer = bytes | bytearray | memoryview


class RecordFile:
    """A file that records are added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with storing(path, "open"):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self.nbytes = os.fstat(self._descriptor).st_size

    def append(self, *pieces: bytes) -> int:
        """Add a record that is made of these pieces; returns where it begins."""
        at = self.nbytes
        length, checksum = 0, 0
        for piece in pieces:
            length += len(piece)
            checksum = zlib.crc32(piece, checksum)
        data = b"".join([_head(length, checksum), *pieces])
        try:
            _write_fully(self._descriptor, data)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, at)
            raise storage_problem(error, self.path, "write") from error
        self.nbytes += len(data)
        return at

    def cut(self, at: int) -> None:
        """Take back the records from here on."""
        with storing(self.path, "write"):
            os.ftruncate(self._descriptor, at)
        self.nbytes = at

    def sync(self) -> None:
        with storing(self.path, "write"):
            getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def scan(path: Path) -> Iterator[tuple[int, bytes]]:
    """Where each record of a file begins, and what it holds; a torn end is cut off the file."""
    with storing(path, "read"), path.open("r+b") as handle:
        size = os.fstat(handle.fileno()).st_size
        at = 0
        while at < size:
            head = handle.read(HEAD_BYTES)
            if len(head) < HEAD_BYTES:
                break
            parsed = _parsed(head)
            if parsed is None:
                if _is_blank(head, handle):
                    break
                raise _damaged(path, at)
            length, checksum = parsed
            end = at + HEAD_BYTES + length
            body = handle.read(length) if end <= size else b""
            if len(body) < length:
                break
            if zlib.crc32(body) != checksum:
                if end == size:
                    break
                raise _damaged(path, at)
            yield at, body
            at = end
        if at < size:
            handle.truncate(at)


def read_record(path: Path, at: int) -> bytes:
    """One record of a file that others may be adding to."""
    with storing(path, "read"), path.open("rb") as handle:
        handle.seek(at)
        head = handle.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            raise _damaged(path, at)
        length, checksum, _ = _HEAD.unpack(head)
        body = handle.read(length)
    if len(body) != length or zlib.crc32(body) != checksum:
        raise _damaged(path, at)
    return body


@contextlib.contextmanager
def whole(path: Path) -> Iterator["WholeFile"]:
    """A file of one record, written piece by piece: there as a whole or not at all, and stays."""
    fresh = path.with_name(f"{path.name}.new")
    with contextlib.closing(WholeFile(fresh)) as file, storing(path, "write"):
        yield file
        file.finish()
        os.replace(fresh, path)
    sync_directory(path.parent)


class WholeFile:
    """What `whole` is written to: piece by piece."""

    def __init__(self, path: Path) -> None:
        self.nbytes = 0  #: so far
        self._checksum = 0
        with storing(path, "open"):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.lseek(self._descriptor, HEAD_BYTES, os.SEEK_SET)

    def write(self, data: Buffer) -> int:
        _write_fully(self._descriptor, data)
        self._checksum = zlib.crc32(data, self._checksum)
        length = memoryview(data).nbytes
        self.nbytes += length
        return length

    def finish(self) -> None:
        os.pwrite(self._descriptor, _head(self.nbytes, self._checksum), 0)
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """A file of one record."""
    with whole(path) as file:
        file.write(data)


@contextlib.contextmanager
def opened_whole(path: Path) -> Iterator[BinaryIO]:
    """The record of a file that `whole` made, checked, from its beginning."""
    with storing(path, "read"), path.open("rb") as handle:
        head = handle.read(HEAD_BYTES)
        size = os.fstat(handle.fileno()).st_size - HEAD_BYTES
        length, checksum = _parsed(head) or (-1, 0)
        found = 0
        for chunk in _chunks(handle):
            found = zlib.crc32(chunk, found)
        if length != size or found != checksum:
            raise _damaged(path, 0)
        handle.seek(HEAD_BYTES)
        yield handle


def read_whole(path: Path) -> bytes:
    """What `write_whole` was given."""
    with opened_whole(path) as handle:
        return handle.read()


def sync_directory(directory: Path) -> None:
    """Make new, renamed and deleted files of a directory stay so."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _head(length: int, checksum: int) -> bytes:
    head = _HEAD.pack(length, checksum, 0)[:_CHECKED]
    return head + struct.pack("<I", zlib.crc32(head))


def _parsed(head: bytes) -> tuple[int, int] | None:
    """Length and checksum, if this is a head."""
    if len(head) < HEAD_BYTES:
        return None
    length, checksum, check = _HEAD.unpack(head)
    return (length, checksum) if zlib.crc32(head[:_CHECKED]) == check else None


def _chunks(handle: BinaryIO) -> Iterator[bytes]:
    """All that follows, piece by piece."""
    return iter(partial(handle.read, _CHUNK_BYTES), b"")


def _write_fully(descriptor: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _is_blank(head: bytes, handle: BinaryIO) -> bool:
    """Whether there are only zeros from here on: a file that grew before its data was written."""
    return not any(head) and not any(map(any, _chunks(handle)))


def _damaged(path: Path, at: int) -> StateCorruptError:
    return corrupt(
        f"the file {path} is damaged: the record at byte {at} does not have the checksum it was "
        "written with"
    )
