"""Sorted blocks on disk: checksummed Arrow IPC messages with zone maps.

A block is a run (see `runs`) in one Arrow record batch: its rows, then the code and arrival tick
of each. Blocks are appended to segment files; a segment file is a valid Arrow IPC stream, so any
Arrow reader opens it. The catalogue entry of a block (`BLOCK`) says where it lies, its checksum,
and its zone map: the range of codes, the range of arrival ticks, and the tick of its flush.

Blocks are read with `pread` into one buffer that the caller has reserved, not mapped: mapped pages
would count as resident without the budget knowing.

On failure: a block that cannot be written raises `StorageError` and leaves at most an unreferenced
tail in a segment file. A block that is not what was written raises `StateCorruptError` naming the
file; it is never returned as rows.
"""

import contextlib
import os
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import StateCorruptError, StateMissingError, StorageError
from dovetail.kernel.protocol import SIDE_NAMES, Counters
from dovetail.kernel.runs import Run

BLOCK = np.dtype(
    [
        ("file", "<i4"),  # index into the store's list of file names
        ("side", "<i1"),
        ("kind", "<i1"),  # RESIDENT: a run of memory; FLUSHED: only here
        ("part", "<i4"),  # the algorithm's own partition, or -1
        ("offset", "<i8"),
        ("length", "<i8"),
        ("rows", "<i4"),
        ("crc", "<u4"),
        ("code_min", "<i8"),
        ("code_max", "<i8"),
        ("ats_min", "<i8"),
        ("ats_max", "<i8"),
        ("dts", "<i8"),  # tick of the flush; NEVER for a resident run
    ]
)
RESIDENT, FLUSHED = 0, 1
NEVER = np.iinfo(np.int64).max
_CODE, _ATS = "__code", "__ats"


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


class BlockList:
    """Catalogue entries in order, packed: a block costs `BLOCK.itemsize` bytes of memory."""

    def __init__(self) -> None:
        self._entries = np.zeros(0, dtype=BLOCK)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def entries(self) -> NDArray[np.void]:
        """A view of all entries, to be read only."""
        return self._entries[: self._count]

    def append(self, block: np.void) -> None:
        if self._count == len(self._entries):
            grown = np.zeros(max(4, self._count + self._count // 4), dtype=BLOCK)
            grown[: self._count] = self._entries
            self._entries = grown
        self._entries[self._count] = block
        self._count += 1


class BlockStore:
    """The blocks of one operator in one directory; appends go to files of this store's own.

    `stem` makes the names of new files unique; `files` are the names a catalogue refers to.
    """

    def __init__(
        self,
        directory: Path,
        schemas: tuple[pa.Schema, ...],
        stem: str,
        files: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.files = list(files)
        self._schemas = tuple(
            schema.append(pa.field(_CODE, pa.int64())).append(pa.field(_ATS, pa.int64()))
            for schema in schemas
        )
        self._stem = stem
        self.counters = Counters()  # the context puts its own here
        self._writers: dict[tuple[int, int], tuple[int, IO[bytes]]] = {}
        self._readers: dict[int, int] = {}

    def append(self, run: Run, side: int, kind: int, part: int = -1, dts: int = NEVER) -> np.void:
        """Write a run as a block and return its catalogue entry."""
        batch = pa.RecordBatch.from_arrays(
            [*run.rows.columns, pa.array(run.codes), pa.array(run.ats)],
            schema=self._schemas[side],
        )
        message = batch.serialize()
        path = self.directory
        try:
            index, handle = self._writer(side, kind)
            path = self.directory / self.files[index]
            offset = handle.tell()
            handle.write(message)
            handle.flush()
        except OSError as error:
            raise storage_problem(error, path, "write") from error
        self.counters.blocks_written += 1
        entry = np.zeros(1, dtype=BLOCK)
        entry[0] = (
            index, side, kind, part, offset, message.size, len(run), zlib.crc32(message),
            run.codes[0], run.codes[-1], run.ats.min(), run.ats.max(), dts,
        )  # fmt: skip
        return cast("np.void", entry[0])

    def read(self, block: np.void) -> Run:
        """The rows of a block. The caller has reserved `block["length"]` bytes."""
        path = self.directory / self.files[int(block["file"])]
        length = int(block["length"])
        try:
            data = _read_fully(self._reader(int(block["file"]), path), length, int(block["offset"]))
        except FileNotFoundError as error:
            raise StateMissingError(
                f"the state file {path} is gone; restore it from a backup, or start over with a "
                "new state directory and a new checkpoint"
            ) from error
        except OSError as error:
            raise storage_problem(error, path, "read") from error
        if len(data) != length or zlib.crc32(data) != int(block["crc"]):
            raise StateCorruptError(
                f"the state file {path} is damaged: the block at byte {int(block['offset'])} does "
                "not have the checksum it was written with. Restore the file from a backup, or "
                "start over with a new state directory and a new checkpoint."
            )
        self.counters.blocks_read += 1
        self.counters.bytes_read += length
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schemas[int(block["side"])])
        *columns, codes, ats = batch.columns
        schema = pa.schema(list(self._schemas[int(block["side"])])[:-2])
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        run = Run(codes.to_numpy(), ats.to_numpy(), rows, block)
        if int(block["kind"]) == FLUSHED:
            run._nbytes = length  # near enough for a short stay, and cheaper than to ask Arrow
        return run

    def sync(self) -> None:
        """Force what was appended to stable storage, and close the files."""
        for index, handle in self._writers.values():
            try:
                handle.flush()
                os.fsync(handle.fileno())
            except OSError as error:
                path = self.directory / self.files[index]
                raise storage_problem(error, path, "write") from error
            handle.close()
        self._writers.clear()

    def close(self) -> None:
        """Give the file handles back. Unsynced blocks may be lost."""
        for _, handle in self._writers.values():
            with contextlib.suppress(OSError):  # of a write that has failed before
                handle.close()
        for descriptor in self._readers.values():
            os.close(descriptor)
        self._writers.clear()
        self._readers.clear()

    def begin(self, stem: str, counters: Counters) -> None:
        """Start a new generation of files, after `sync`; what was appended stays readable."""
        assert not self._writers
        self._stem = stem
        self.counters = counters

    def _writer(self, side: int, kind: int) -> tuple[int, IO[bytes]]:
        key = (side, kind)
        if key not in self._writers:
            whose = SIDE_NAMES[side] if side < len(SIDE_NAMES) else f"other{side}"
            name = f"{self._stem}-{whose}-{'run' if kind == RESIDENT else 'disk'}.arrows"
            handle = (self.directory / name).open("xb")
            handle.write(self._schemas[side].serialize())
            self.files.append(name)
            self._writers[key] = (len(self.files) - 1, handle)
        return self._writers[key]

    def _reader(self, index: int, path: Path) -> int:
        if index not in self._readers:
            if len(self._readers) >= 64:  # keep well below the limit on open files
                os.close(self._readers.pop(next(iter(self._readers))))
            self._readers[index] = os.open(path, os.O_RDONLY)
        return self._readers[index]


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
