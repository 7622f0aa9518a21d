"""The staged table: one hash partition of a relation on disk, sorted by code.

    codes.bin     the codes of all rows, 8 bytes each, sorted
    rows.arrows   the rows in the same order, as Arrow messages of a few pages each (chunks)
    table.json    counts, sizes and checksums; written last, so it says that the rest is whole
    fences.bin    the first code of every page

A *page* is the unit that a scan reads, a fixed number of rows. Codes lie apart from payload: a scan
reads codes alone, and payload is fetched only for rows that match. Because the rows are sorted, the
rows that match a key lie together; a match is a range `[low, high)` of positions.

Codes are read with `pread` into a buffer that the caller has reserved. Payload is mapped, since
single rows are picked out of it, and the mapping is given back once `release_bytes` of it may have
become resident.

On failure: a page or chunk is checked against its checksum when a process first reads it, and a
`StateCorruptError` names the file. A table that was not written to its end has no `table.json`, and
is a `StateMissingError`.
"""

import itertools
import json
import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dovetail.errors import StateCorruptError, StateMissingError
from dovetail.kernel.blocks import storage_problem
from dovetail.kernel.keys import Codes
from dovetail.kernel.protocol import Counters
from dovetail.kernel.runs import Rows

PAGE_BYTES = 256 << 10
CHUNK_PAGES = 16
CODE_BYTES = 8
_NOTHING = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
_CODES, _ROWS, _FENCES, _META = "codes.bin", "rows.arrows", "fences.bin", "table.json"


@dataclass(frozen=True)
class Chunk:
    """A few pages of payload: one Arrow message."""

    offset: int
    length: int
    checksum: int


class TableWriter:
    """Writes rows that come in code order. `finish` makes the table; without it there is none."""

    def __init__(self, directory: Path, schema: pa.Schema, page_bytes: int = PAGE_BYTES) -> None:
        self._directory = directory
        self._schema = schema
        self._page_bytes = page_bytes
        self._page_rows = 0  # known from the first rows
        self._waiting: list[tuple[Codes, pa.RecordBatch]] = []
        self._waiting_rows = 0
        self._rows = 0
        self._last: int | None = None
        self._chunks: list[Chunk] = []
        self._page_checksums: list[int] = []
        self._fences: list[Codes] = []
        self._row_bytes = 0
        try:
            directory.mkdir(parents=True)
            self._codes_file = (directory / _CODES).open("xb")
            self._rows_file = (directory / _ROWS).open("xb")
            self._rows_file.write(schema.serialize())
        except OSError as error:
            raise storage_problem(error, directory, "write to") from error

    def append(self, codes: Codes, rows: pa.RecordBatch) -> None:
        if not len(codes):
            return
        assert self._last is None or codes[0] >= self._last, "rows out of order"
        self._last = int(codes[-1])
        if not self._page_rows:
            row_bytes = max(1, rows.nbytes // rows.num_rows)
            self._page_rows = max(1, self._page_bytes // row_bytes)
        self._waiting.append((codes, rows))
        self._waiting_rows += len(codes)
        chunk_rows = self._page_rows * CHUNK_PAGES
        if self._waiting_rows >= chunk_rows:
            self._write(self._waiting_rows - self._waiting_rows % chunk_rows)

    def finish(self) -> None:
        """Write what is left, and make everything durable."""
        if self._waiting_rows:
            self._write(self._waiting_rows)
        fences = np.concatenate(self._fences) if self._fences else np.zeros(0, dtype=np.int64)
        meta = {
            "rows": self._rows,
            "last_code": self._last,
            "page_rows": self._page_rows or 1,
            "chunk_pages": CHUNK_PAGES,
            "row_bytes": self._row_bytes / max(1, self._rows),
            "page_checksums": self._page_checksums,
            "fences_checksum": zlib.crc32(fences.tobytes()),
            "chunks": [[c.offset, c.length, c.checksum] for c in self._chunks],
        }
        try:
            fences_file = (self._directory / _FENCES).open("xb")
            fences_file.write(fences.tobytes())
            for handle in (fences_file, self._codes_file, self._rows_file):
                handle.flush()
                os.fsync(handle.fileno())
                handle.close()
            body = json.dumps(meta).encode()
            with (self._directory / _META).open("xb") as handle:
                handle.write(f"{zlib.crc32(body)}\n".encode() + body)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise storage_problem(error, self._directory, "write to") from error

    def _write(self, count: int) -> None:
        codes = np.concatenate([codes for codes, _ in self._waiting])
        rows = pa.concat_batches([rows for _, rows in self._waiting])
        chunk_rows = self._page_rows * CHUNK_PAGES
        try:
            for start in range(0, count, chunk_rows):
                stop = min(start + chunk_rows, count)
                self._write_chunk(codes[start:stop], rows.slice(start, stop - start))
        except OSError as error:
            raise storage_problem(error, self._directory, "write to") from error
        left = self._waiting_rows - count
        self._waiting = [(codes[count:], rows.slice(count))] if left else []
        self._waiting_rows = left

    def _write_chunk(self, codes: Codes, rows: pa.RecordBatch) -> None:
        for start in range(0, len(codes), self._page_rows):
            page = codes[start : start + self._page_rows].tobytes()
            self._page_checksums.append(zlib.crc32(page))
            self._codes_file.write(page)
        self._fences.append(codes[:: self._page_rows].copy())
        message = rows.serialize()
        self._chunks.append(Chunk(self._rows_file.tell(), message.size, zlib.crc32(message)))
        self._rows_file.write(message)
        self._rows += len(codes)
        self._row_bytes += message.size


@dataclass(frozen=True)
class Page:
    """A page with its payload, copied out of the table."""

    codes: Codes
    rows: pa.RecordBatch
    nbytes: int

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        return take_rows(self.rows, positions, columns)


class StagedTable:
    """One staged partition, open for reading."""

    def __init__(self, directory: Path, schema: pa.Schema, release_bytes: int = 4 << 20) -> None:
        self.directory = directory
        self.schema = schema
        self.counters = Counters()  # the operator puts its own here
        meta = _read_meta(directory)
        self.rows = int(meta["rows"])
        self.page_rows = int(meta["page_rows"])
        self._chunk_rows = self.page_rows * int(meta["chunk_pages"])
        self.row_bytes = float(meta["row_bytes"])
        self._chunks = [Chunk(*entry) for entry in meta["chunks"]]
        self._page_checksums = np.array(meta["page_checksums"], dtype=np.uint32)
        self._page_seen = np.zeros(len(self._page_checksums), dtype=np.bool_)
        self._chunk_seen = np.zeros(len(self._chunks), dtype=np.bool_)
        self.release_bytes = release_bytes
        self._touched: list[Chunk] = []
        self._touched_bytes = 0
        path = directory / _FENCES
        fences = _read(path)
        if zlib.crc32(fences) != meta["fences_checksum"]:
            raise _damaged(path, 0)
        #: the first code of each page
        self.fences: Codes = np.frombuffer(fences, dtype=np.int64)
        self._map: mmap.mmap | None = _map(directory / _ROWS)
        self._codes_fd = _open(directory / _CODES)
        self._mapped = pa.py_buffer(self._map)

    @property
    def version(self) -> str:
        """Names the staged table that this is a partition of."""
        return self.directory.parent.name

    @property
    def pages(self) -> int:
        return len(self.fences)

    @property
    def nbytes(self) -> int:
        """What an open table itself keeps in memory."""
        return 14 * self.pages + 200 * len(self._chunks)

    def page_start(self, page: int) -> int:
        """The position of a page's first row."""
        return min(page * self.page_rows, self.rows)

    def pages_of(self, low: Codes, high: Codes) -> tuple[Rows, Rows]:
        """For each inclusive range of codes the pages `[first, stop)` that may hold some of it.

        At least one page each, if there are any: a code below the first is looked for there.
        """
        first = np.maximum(np.searchsorted(self.fences, low, side="left") - 1, 0)
        stop = np.searchsorted(self.fences, high, side="right")
        return first, np.minimum(np.maximum(stop, first + 1), self.pages)

    def codes(self, first: int, stop: int) -> Codes:
        """The codes of the pages `[first, stop)`, read in one request."""
        begin, end = self.page_start(first), self.page_start(stop)
        path = self.directory / _CODES
        try:
            data = os.pread(self._codes_fd, CODE_BYTES * (end - begin), CODE_BYTES * begin)
        except OSError as error:
            raise storage_problem(error, path, "read") from error
        if len(data) != CODE_BYTES * (end - begin):
            raise _damaged(path, CODE_BYTES * begin)
        size = CODE_BYTES * self.page_rows
        for page in first + np.flatnonzero(~self._page_seen[first:stop]):
            at = int(page - first) * size
            if zlib.crc32(data[at : at + size]) != self._page_checksums[page]:
                raise _damaged(path, CODE_BYTES * begin + at)
            self._page_seen[page] = True
        self.counters.blocks_read += 1
        self.counters.bytes_read += len(data)
        return cast("Codes", np.frombuffer(data, dtype=np.int64))

    def page(self, number: int) -> Page:
        """A page whole, codes and payload."""
        start = self.page_start(number)
        codes = self.codes(number, number + 1)
        rows = self.take(np.arange(start, start + len(codes)))
        self.counters.bytes_read += rows.nbytes
        return Page(codes, rows, rows.nbytes + CODE_BYTES * len(codes))

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        """The rows at these positions, in any order; a negative position is a row of nulls."""
        schema = self.schema
        if columns is not None:
            if not columns:
                return _NOTHING
            schema = pa.schema([schema.field(index) for index in columns])
        order: Rows | None = None
        if len(positions) > 1 and (positions[1:] < positions[:-1]).any():
            order = np.argsort(positions, kind="stable")
            positions = positions[order]
        nulls = int(np.searchsorted(positions, 0))
        parts: list[pa.RecordBatch] = []
        if nulls:
            parts.append(
                pa.RecordBatch.from_arrays(
                    [pa.nulls(nulls, field.type) for field in schema],
                    schema=_nullable(schema),
                )
            )
        chunk_rows = self._chunk_rows
        rest = positions[nulls:]
        numbers = rest // chunk_rows
        for start, stop in stretches(numbers):
            number = int(numbers[start])
            chunk = self._chunk(number)
            if columns is not None:
                chunk = chunk.select(list(columns))
            parts.append(chunk.take(pa.array(rest[start:stop] - number * chunk_rows)))
        self._release(self.release_bytes)
        if not parts:
            return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
        found = _concat(parts, _nullable(schema) if nulls else schema)
        if order is None:
            return found
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return found.take(pa.array(back))

    def verify(self) -> None:
        """Read everything once; raises if any of it is not what was written."""
        for number in range(len(self._chunks)):
            self._chunk(number)
        pages = max(1, self._chunk_rows // self.page_rows)
        for first in range(0, self.pages, pages):
            self.codes(first, min(first + pages, self.pages))
        self._release(0)

    def close(self) -> None:
        os.close(self._codes_fd)
        self._touched.clear()
        self._map = self._mapped = None

    def _chunk(self, number: int) -> pa.RecordBatch:
        chunk = self._chunks[number]
        if self._touched_bytes + chunk.length > self.release_bytes:
            self._release(0)
        assert self._map is not None
        data = self._mapped[chunk.offset : chunk.offset + chunk.length]
        if not self._chunk_seen[number]:
            self._verify(chunk, data)
            self._chunk_seen[number] = True
        self._touched.append(chunk)
        self._touched_bytes += chunk.length
        self.counters.blocks_read += 1
        return pa.ipc.read_record_batch(data, self.schema)

    def _verify(self, chunk: Chunk, data: pa.Buffer) -> None:
        """Check a chunk against its checksum; no more of it than a page stays resident."""
        checksum = 0
        for start in range(0, len(data), PAGE_BYTES):
            stop = min(start + PAGE_BYTES, len(data))
            checksum = zlib.crc32(data[start:stop], checksum)
            self._give_back(chunk.offset + start, chunk.offset + stop)
        if checksum != chunk.checksum:
            raise _damaged(self.directory / _ROWS, chunk.offset)

    def _give_back(self, begin: int, end: int) -> None:
        """Let a part of the mapping be resident no longer."""
        assert self._map is not None
        begin -= begin % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, begin, min(end, len(self._map)) - begin)

    def _release(self, above: int) -> None:
        """Give mapped payload back, if more than this much of it may be resident."""
        if self._touched_bytes <= above or self._map is None:
            return
        begin = min(chunk.offset for chunk in self._touched)
        end = max(chunk.offset + chunk.length for chunk in self._touched)
        self._give_back(begin, end)
        self._touched.clear()
        self._touched_bytes = 0


def stretches(values: Rows) -> Iterator[tuple[int, int]]:
    """The places `[start, stop)` where neighbours are equal."""
    if len(values):
        bounds = np.flatnonzero(np.diff(values)) + 1
        yield from itertools.pairwise([0, *bounds.tolist(), len(values)])


def take_rows(
    rows: pa.RecordBatch, positions: Rows, columns: tuple[int, ...] | None
) -> pa.RecordBatch:
    """Rows of a batch; a negative position is a row of nulls."""
    if columns is not None:
        if not columns:
            return _NOTHING
        rows = rows.select(list(columns))
    absent = positions < 0
    if not absent.any():
        return rows.take(pa.array(positions))
    rows = pa.RecordBatch.from_arrays(rows.columns, schema=_nullable(rows.schema))
    return rows.take(pa.array(positions, mask=absent))


def _concat(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(parts) == 1:
        return pa.RecordBatch.from_arrays(parts[0].columns, schema=schema)
    columns = [
        pa.concat_arrays([part.column(index) for part in parts]) for index in range(len(schema))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _read_meta(directory: Path) -> dict[str, Any]:
    path = directory / _META
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
        if int(checksum) != zlib.crc32(body):
            raise ValueError("checksum")
        return cast("dict[str, Any]", json.loads(body))
    except FileNotFoundError:
        raise StateMissingError(
            f"{directory} holds no staged table: {_META} is not there. Stage the table again "
            "(dovetail.refresh), or restore the directory from a backup."
        ) from None
    except ValueError:
        raise _damaged(path, 0) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error


def _damaged(path: Path, offset: int) -> StateCorruptError:
    return StateCorruptError(
        f"the staged table {path} is damaged at byte {offset}: it does not have the checksum it "
        "was written with. Stage the table again (dovetail.refresh), or restore the file from a "
        "backup."
    )


def _gone(path: Path) -> StateMissingError:
    return StateMissingError(
        f"the staged table {path} is gone. Stage the table again (dovetail.refresh), or restore it "
        "from a backup."
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _gone(path) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise _gone(path) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error


def _map(path: Path) -> mmap.mmap:
    descriptor = _open(path)
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:  # an empty file
        raise _damaged(path, 0) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error
    finally:
        os.close(descriptor)
