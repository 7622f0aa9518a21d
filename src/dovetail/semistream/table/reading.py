"""The staged table: one hash partition of a relation on disk, sorted by code.

    codes.bin     the codes of all rows, 8 bytes each, sorted
    records.bin   the rows in the same order (see `recordfile`, also for starts.bin)
    rows.arrows   lists, maps and structs, as Arrow messages of a few pages each; if there are any
    table.json    counts, sizes and checksums; written last, so it says that the rest is whole
    fences.bin    the first code of every page

A *page* is the unit that a scan reads, a fixed number of rows. Codes lie apart from payload: a scan
reads codes alone, and payload is fetched only for rows that match. Because the rows are sorted, the
rows that match a key lie together; a match is a range `[low, high)` of positions.

A scan reads codes with `pread` into a buffer that the caller has reserved (`codes`). A search looks
at few of them and sees them mapped (`view`). Payload is read row by row, and what is not flat is
mapped (`mapped`). That is given back once too much of it may have become resident: a fixed amount,
whatever the budget; what is above a share of the budget is given back whenever the operator rests.

On failure: a page or chunk (a few pages) is checked against its checksum when a process first reads
it, and a `StateCorruptError` names the file. What has been checked is remembered for as long as the
process lives and the files are the same ones, since a worker opens the same table in step after
step. A table that was not written to its end has no `table.json`, and is a `StateMissingError`.
"""

import itertools
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import Counters
from dovetail.kernel.slices import Sizes, is_uneven, sizes_in
from dovetail.semistream.table.gathering import NOTHING, gathered, positions_of, with_nulls
from dovetail.semistream.table.mapping import (
    MappedFiles,
    Mapping,
    damaged,
    open_for_reading,
    reading,
)
from dovetail.semistream.table.opening import (
    CODES,
    FENCES,
    ROWS,
    checked,
    read_meta,
)
from dovetail.semistream.table.recordfile import READ_BYTES, Chunk, RecordFile
from dovetail.semistream.table.records import is_flat

PAGE_BYTES = 256 << 10
_LEAST_PAGE_BYTES = 4 << 10
CHUNK_PAGES = 16  #: the fewest
_CHUNK_BYTES = PAGE_BYTES * CHUNK_PAGES  # of tiny pages, too: opening a chunk costs as much
CODE_BYTES = 8
RELEASE_BYTES = 4 << 20
_GAP_PAGES = 2  # between ranges that are read together


def page_bytes_for(budget_bytes: int | None) -> int:
    """The page size for a join in this budget.

    Small enough that a few fit its working memory, and large enough that their index does.
    """
    share = PAGE_BYTES if budget_bytes is None else budget_bytes // 64
    return max(_LEAST_PAGE_BYTES, min(PAGE_BYTES, share))


def chunk_pages(page_bytes: int) -> int:
    """The number of pages of this size in a chunk."""
    return max(CHUNK_PAGES, _CHUNK_BYTES // page_bytes)


def split_columns(schema: pa.Schema) -> tuple[list[int], list[int]]:
    """The columns that are flat, and those that are not."""
    flat = [is_flat(field.type) for field in schema]
    numbers = range(len(schema))
    return [n for n in numbers if flat[n]], [n for n in numbers if not flat[n]]


class StagedTable:
    """One staged partition, open for reading."""

    def __init__(
        self, directory: Path, schema: pa.Schema, release_bytes: int = RELEASE_BYTES
    ) -> None:
        self.directory = directory
        self.schema = schema
        self.counters = Counters()  # the operator puts its own here
        meta = read_meta(directory)
        self.rows = int(meta["rows"])
        self.page_rows = int(meta["page_rows"])
        self._chunk_rows = self.page_rows * int(meta["chunk_pages"])
        self.row_bytes = float(meta["row_bytes"])
        #: whether rows differ much in size
        self.uneven = is_uneven(int(meta["widest_row"]), self.row_bytes)
        self._chunks = [Chunk(*entry) for entry in meta["chunks"]]
        self._flat, self._nested = split_columns(schema)
        self._page_checksums = np.array(meta["page_checksums"], dtype=np.uint32)
        self._page_seen, self._chunk_seen, records_seen = checked(
            directory, len(self._page_checksums), -(-self.rows // self._chunk_rows)
        )
        self.mapped = MappedFiles(release_bytes)
        path = directory / FENCES
        with reading(path):
            fences = path.read_bytes()
        if zlib.crc32(fences) != meta["fences_checksum"]:
            raise damaged(path, 0)
        #: the first code of each page
        self.fences: Codes = np.frombuffer(fences, dtype=np.int64)
        self._payload = self.mapped.map(directory / ROWS) if self._nested else None
        self._records: RecordFile | None = None
        if self._flat:
            fields = pa.schema([schema.field(index) for index in self._flat])
            self._records = RecordFile(directory, fields, meta, records_seen, self.mapped)
        self._codes_fd = open_for_reading(directory / CODES)
        self._code_view: Mapping | None = None  # from the first search on

    def read_at_most(self, nbytes: int) -> None:
        """Have no more than this of rows in memory, or a single row, before they are copied out."""
        if self._records is not None:
            self._records.read_bytes = min(READ_BYTES, nbytes)

    @property
    def version(self) -> str:
        """Names the staged table that this is a partition of."""
        return self.directory.parent.name

    @property
    def pages(self) -> int:
        return len(self.fences)

    @property
    def nbytes(self) -> int:
        """The bytes that an open table keeps in memory."""
        chunks = len(self._chunk_seen) * (bool(self._nested) + bool(self._flat))
        return 14 * self.pages + 200 * chunks

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
        data = self._read_codes(self.page_start(first), self.page_start(stop))
        self._verify_codes(first, stop, data)
        return cast("Codes", np.frombuffer(data, dtype=np.int64))

    def view(self, first: int, stop: int) -> Codes:
        """View the codes of pages for a search: mapped, not copied.

        Up to `mapped.most_bytes` of it may be resident until it is released.
        """
        self._count_read(self.page_start(first), self.page_start(stop))
        return self._peek(first, stop)

    def _peek(self, first: int, stop: int) -> Codes:
        begin, end = self.page_start(first), self.page_start(stop)
        if self._code_view is None:
            self._code_view = self.mapped.map(self.directory / CODES)
        offset, length = CODE_BYTES * begin, CODE_BYTES * (end - begin)
        data = self.mapped.window(self._code_view, offset, length)
        if len(data) != length:
            raise damaged(self.directory / CODES, offset)
        self._code_view.expect(offset, length)
        self._verify_codes(first, stop, data)
        return cast("Codes", np.frombuffer(data, dtype=np.int64))

    def _verify_codes(self, first: int, stop: int, data: bytes | pa.Buffer) -> None:
        """Check those of the pages `[first, stop)`, whose codes these are, that are new."""
        size = CODE_BYTES * self.page_rows
        for page in first + np.flatnonzero(~self._page_seen[first:stop]):
            at = int(page - first) * size
            if zlib.crc32(data[at : at + size]) != self._page_checksums[page]:
                raise damaged(self.directory / CODES, CODE_BYTES * self.page_start(first) + at)
            self._page_seen[page] = True

    def _read_codes(self, begin: int, end: int) -> bytes:
        with reading(self.directory / CODES):
            data = os.pread(self._codes_fd, CODE_BYTES * (end - begin), CODE_BYTES * begin)
        if len(data) != CODE_BYTES * (end - begin):
            raise damaged(self.directory / CODES, CODE_BYTES * begin)
        self._count_read(begin, end)
        return data

    def _count_read(self, begin: int, end: int) -> None:
        self.counters.blocks_read += 1
        self.counters.bytes_read += CODE_BYTES * (end - begin)

    def ranges(self, begins: Rows, ends: Rows) -> tuple[Codes, pa.RecordBatch]:
        """Codes and rows of some ranges of positions that follow each other, one after the other.

        What is read is counted as if each range were read by itself, but for the size of its rows.
        """
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self._count_read(begin, end)
        messages = (ends - 1) // self._chunk_rows - begins // self._chunk_rows + 1
        positions = positions_of(begins, ends - begins)
        with self.uncounted():
            rows = self.take(positions)
        self.counters.blocks_read += int(messages.sum())
        return self._codes_of(begins, ends, positions), rows

    def _codes_of(self, begins: Rows, ends: Rows, positions: Rows) -> Codes:
        """The codes at the positions of some ranges, seen in stretches of the pages they are on."""
        first, stop = begins // self.page_rows, -(-ends // self.page_rows)
        starts = np.concatenate([[0], np.cumsum(ends - begins)])
        codes = np.empty(len(positions), dtype=np.int64)
        most = max(1, self.mapped.most_bytes // (CODE_BYTES * self.page_rows))
        apart = (np.diff(first // most) != 0) | (first[1:] - stop[:-1] > _GAP_PAGES)
        bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(begins)]
        for one, other in itertools.pairwise(bounds if len(begins) else []):
            part = slice(starts[one], starts[other])
            seen = self._peek(int(first[one]), int(stop[other - 1]))
            codes[part] = seen[positions[part] - self.page_start(int(first[one]))]
        return codes

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Keep reads inside this context out of the operator's counters."""
        counters, self.counters = self.counters, Counters()
        try:
            yield
        finally:
            self.counters = counters

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        """The rows at these positions, in any order; a negative position is a row of nulls."""
        if columns is not None and not columns:
            return NOTHING
        wanted = range(len(self.schema)) if columns is None else columns
        schema = pa.schema([self.schema.field(index) for index in wanted])
        found = with_nulls(positions, schema, lambda sorted_: self._fetch(sorted_, wanted, schema))
        self.mapped.release(self.mapped.most_bytes)
        return found

    def row_sizes(self, positions: Rows) -> Sizes:
        """What each of the rows at these positions takes up; a negative one is a row of nulls."""
        there = positions >= 0
        distinct, back = np.unique(positions[there], return_inverse=True)
        found = np.zeros(len(distinct), dtype=np.int64)
        if self._records is not None:
            found += self._records.row_sizes(distinct)
        for number in np.unique(distinct // self._chunk_rows).tolist() if self._nested else ():
            inside = distinct // self._chunk_rows == number
            fixed, sizes = sizes_in(self._chunk(number).columns)
            at = distinct[inside] - number * self._chunk_rows
            found[inside] += int(fixed) + 1 + (0 if sizes is None else sizes[at])
        total = np.zeros(len(positions), dtype=np.int64)
        total[there] = found[back]
        return total

    def _fetch(
        self, positions: Rows, wanted: Sequence[int], schema: pa.Schema
    ) -> pa.RecordBatch:  # fmt: skip
        """Read columns of the rows at some positions, which are in ascending order."""
        chunks = positions // self._chunk_rows
        self.counters.blocks_read += int(np.count_nonzero(np.diff(chunks))) + bool(len(chunks))
        found: dict[int, pa.Array] = {}
        flat = [self._flat.index(index) for index in wanted if index in self._flat]
        if flat and self._records is not None:
            arrays = self._records.take(positions, flat)
            found |= zip((self._flat[at] for at in flat), arrays, strict=True)
        nested = [self._nested.index(index) for index in wanted if index in self._nested]
        if nested:
            fields = pa.schema([self.schema.field(self._nested[at]) for at in nested])

            def fetch(number: int, at: Rows) -> pa.RecordBatch:
                chunk = self._chunk(number).select(nested)
                return chunk.take(pa.array(at - number * self._chunk_rows))

            rows = gathered(positions, chunks, fields, fetch)
            found |= zip((self._nested[at] for at in nested), rows.columns, strict=True)
        return pa.RecordBatch.from_arrays([found[index] for index in wanted], schema=schema)

    def verify(self) -> None:
        """Read everything once; raises if any of it is not what was written."""
        for number in range(len(self._chunk_seen)):
            if self._nested:
                self._chunk(number)
            if self._records is not None:
                self._records.verify(number)
        pages = max(1, self._chunk_rows // self.page_rows)
        for first in range(0, self.pages, pages):
            self.codes(first, min(first + pages, self.pages))
        self.mapped.release(0)

    def close(self) -> None:
        os.close(self._codes_fd)
        if self._records is not None:
            self._records.close()
        self.mapped.close()

    def _chunk(self, number: int) -> pa.RecordBatch:
        """The columns that are not flat, of a few pages."""
        assert self._payload is not None
        chunk = self._chunks[number]
        data = self.mapped.window(self._payload, chunk.offset, chunk.length)
        if not self._chunk_seen[number]:
            self._verify(chunk, data)
            self._chunk_seen[number] = True
        schema = pa.schema([self.schema.field(index) for index in self._nested])
        return pa.ipc.read_record_batch(data, schema)

    def _verify(self, chunk: Chunk, data: pa.Buffer) -> None:
        """Check a chunk against its checksum; no more of it than a page stays resident."""
        assert self._payload is not None
        checksum = 0
        for start in range(0, len(data), PAGE_BYTES):
            stop = min(start + PAGE_BYTES, len(data))
            checksum = zlib.crc32(data[start:stop], checksum)
            self._payload.give_back(chunk.offset + start, chunk.offset + stop)
        if checksum != chunk.checksum:
            raise damaged(self.directory / ROWS, chunk.offset)
