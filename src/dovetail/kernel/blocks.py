"""Sorted blocks on disk: checksummed Arrow IPC messages with zone maps.

A block is a run (see `runs`) in one Arrow record batch: its rows, then the code and arrival tick
of each. Blocks are appended to segment files; a segment file is a valid Arrow IPC stream, so any
Arrow reader opens it. The catalogue entry of a block (`BLOCK`) says where it lies, its checksum,
and its zone map: the range of codes, the range of arrival ticks, and the tick of its flush.

Blocks that stay for long (`LOGGED`) go to a log a side (see `logs`): their address never changes,
while the files behind them are merged as they become many. So does what `catalogue` pages out.

On failure: a block that cannot be written raises `StorageError` and leaves at most an unreferenced
tail in a segment file. A block that is not what was written raises `StateCorruptError` naming the
file; it is never returned as rows.
"""

import contextlib
import os
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.files import Readers, View, storage_problem
from dovetail.kernel.logs import Log
from dovetail.kernel.protocol import SIDE_NAMES, Counters
from dovetail.kernel.runs import Run

BLOCK = np.dtype(
    [
        ("file", "<i4"),  # index into the store's list of file names; IN_LOG: none of these
        ("side", "<i1"),
        ("kind", "<i1"),  # RESIDENT: a run of memory; FLUSHED, LOGGED: only here; above: a page
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
RESIDENT, FLUSHED, LOGGED = 0, 1, 2
IN_LOG = -1
NEVER = np.iinfo(np.int64).max
_CODE, _ATS = "__code", "__ats"


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
        self._readers = Readers(directory)
        self._logs = [
            Log(self._readers, f"{_whose(side)}-log.arrows", schema.serialize().to_pybytes())
            for side, schema in enumerate(self._schemas)
        ]
        self._pages = Log(self._readers, "catalogue.bin")

    def append(self, run: Run, side: int, kind: int, part: int = -1, dts: int = NEVER) -> np.void:
        """Write a run as a block and return its catalogue entry."""
        batch = pa.RecordBatch.from_arrays(
            [*run.rows.columns, pa.array(run.codes), pa.array(run.ats)],
            schema=self._schemas[side],
        )
        message = batch.serialize()
        index, offset = (
            (IN_LOG, self._logs[side].append(self._stem, message))
            if kind == LOGGED
            else self._append(message, side, kind)
        )
        self.counters.blocks_written += 1
        entry = np.zeros(1, dtype=BLOCK)
        entry[0] = (
            index, side, kind, part, offset, message.size, len(run), zlib.crc32(message),
            run.codes[0], run.codes[-1], run.ats.min(), run.ats.max(), dts,
        )  # fmt: skip
        return cast("np.void", entry[0])

    def read(self, block: np.void) -> Run:
        """The rows of a block. The caller has reserved `block["length"]` bytes."""
        data = self._readers.read_checked(*self._place(block), int(block["crc"]))
        return self._run(block, pa.py_buffer(data))

    def view(self, block: np.void) -> tuple[Run, View]:
        """The rows of a block, mapped: for rows that stay for long, and are reserved in full."""
        view = self._readers.view_checked(*self._place(block), int(block["crc"]))
        return self._run(block, view.buffer), view

    def _place(self, block: np.void) -> tuple[str, int, int]:
        """The file, offset and length of a block."""
        if int(block["kind"]) == LOGGED:
            name, offset = self._logs[int(block["side"])].locate(int(block["offset"]))
        else:
            name, offset = self.files[int(block["file"])], int(block["offset"])
        return name, offset, int(block["length"])

    def _run(self, block: np.void, data: pa.Buffer) -> Run:
        length = int(block["length"])
        self.counters.blocks_read += 1
        self.counters.bytes_read += length
        batch = pa.ipc.read_record_batch(data, self._schemas[int(block["side"])])
        *columns, codes, ats = batch.columns
        schema = pa.schema(list(self._schemas[int(block["side"])])[:-2])
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        run = Run(codes.to_numpy(), ats.to_numpy(), rows, block)
        if int(block["kind"]) != RESIDENT:
            run._nbytes = length  # near enough for a short stay, and cheaper than to ask Arrow
        return run

    def append_page(self, data: bytes) -> tuple[int, int, int, int]:
        """Write a page of a catalogue; returns its file, offset, length and checksum."""
        return IN_LOG, self._pages.append(self._stem, data), len(data), zlib.crc32(data)

    def read_page(self, page: np.void) -> bytes:
        name, offset = self._pages.locate(int(page["offset"]))
        length = int(page["length"])
        self.counters.bytes_read += length
        return self._readers.read_checked(name, offset, length, int(page["crc"]))

    def log_facts(self) -> list[dict[str, Any]]:
        """Where the logs lie, for a snapshot."""
        return [log.facts() for log in (*self._logs, self._pages)]

    def restore_logs(self, facts: list[dict[str, Any]]) -> None:
        for log, known in zip((*self._logs, self._pages), facts, strict=True):
            log.restore(known)

    @property
    def log_lengths(self) -> list[int]:
        """The length of each side's log of blocks."""
        return [log.length for log in self._logs]

    def release(self, lengths: list[int]) -> None:
        """Forget the files of blocks that were logged before the logs had these lengths."""
        for log, length in zip(self._logs, lengths, strict=True):
            log.release(length)

    @property
    def log_files(self) -> list[str]:
        """The names of the files that the logs lie in."""
        return [name for log in (*self._logs, self._pages) for name in log.files]

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
        for log in (*self._logs, self._pages):
            log.sync()

    def close(self) -> None:
        """Give the file handles back. Unsynced blocks may be lost."""
        for _, handle in self._writers.values():
            with contextlib.suppress(OSError):  # of a write that has failed before
                handle.close()
        self._writers.clear()
        for log in (*self._logs, self._pages):
            log.close()
        self._readers.close()

    def in_use(self, entries: NDArray[np.void]) -> tuple[NDArray[np.void], list[str]]:
        """Renumber entries by the files that hold them; returns the entries and those files' names.

        Blocks in a log are found without a number.
        """
        entries = entries.copy()
        numbered = entries["file"] != IN_LOG
        used, numbers = np.unique(entries["file"][numbered], return_inverse=True)
        entries["file"][numbered] = numbers
        return entries, [self.files[int(index)] for index in used]

    def begin(self, stem: str, counters: Counters) -> None:
        """Start a new generation of files, after `sync`; what was appended stays readable."""
        assert not self._writers
        self._stem = stem
        self.counters = counters

    def _append(self, message: pa.Buffer, side: int, kind: int) -> tuple[int, int]:
        path = self.directory
        try:
            index, handle = self._writer(side, kind)
            path = self.directory / self.files[index]
            offset = handle.tell()
            handle.write(message)
            handle.flush()
        except OSError as error:
            raise storage_problem(error, path, "write") from error
        return index, offset

    def _writer(self, side: int, kind: int) -> tuple[int, IO[bytes]]:
        key = (side, kind)
        if key not in self._writers:
            name = f"{self._stem}-{_whose(side)}-{'run' if kind == RESIDENT else 'disk'}.arrows"
            handle = (self.directory / name).open("xb")
            handle.write(self._schemas[side].serialize())
            self.files.append(name)
            self._writers[key] = (len(self.files) - 1, handle)
        return self._writers[key]


def _whose(side: int) -> str:
    return SIDE_NAMES[side] if side < len(SIDE_NAMES) else f"other{side}"


__all__ = [
    "BLOCK",
    "FLUSHED",
    "IN_LOG",
    "LOGGED",
    "NEVER",
    "RESIDENT",
    "BlockList",
    "BlockStore",
    "storage_problem",
]
