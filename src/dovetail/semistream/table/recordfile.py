"""Records on disk: reads single ones, out of millions, in few system calls.

    records.bin   the records of all rows (see `records`)
    starts.bin    where each begins, and where the last ends, 8 bytes each; only if widths differ

Records that are far apart are read with `pread`, those that lie side by side in one request, so
nothing of them stays in memory. Where many are near each other, a window of the file is mapped and
they are copied out: a request takes about as long as 16 to 32 KB of a window, with its page faults
and what it costs to give it back. Where records begin is mapped, too. Whoever owns the file gives
back what is mapped (see `mapping`). All is checked by chunks of rows, when first read of.
"""

import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.probing import Rows
from dovetail.kernel.slices import Sizes
from dovetail.semistream.table.mapping import MappedFiles, damaged, open_for_reading, reading
from dovetail.semistream.table.records import RecordFormat, slices

RECORDS, STARTS = "records.bin", "starts.bin"
START_BYTES = 8
_NEAR_BYTES = 16 << 10  # records that are less apart than this, on average, are mapped
READ_BYTES = 1 << 20  #: of records that are read before they are taken apart, at most


@dataclass(frozen=True)
class Chunk:
    """A few pages of rows: a stretch of a file."""

    offset: int
    length: int
    checksum: int


class RecordFile:
    """The records of a staged table."""

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema,
        meta: dict[str, Any],
        seen: NDArray[np.bool_],
        mapped: MappedFiles,
    ) -> None:
        """`meta`: of the table. `seen`: which chunks have been checked; brought up to date."""
        self._format = RecordFormat(schema)
        self._path = directory / RECORDS
        self._chunks = [Chunk(*entry) for entry in meta["records"]]
        self._start_checksums: list[int] = meta["start_checksums"]
        self._chunk_rows = int(meta["page_rows"]) * int(meta["chunk_pages"])
        self._rows = int(meta["rows"])
        self._seen = seen
        size = sum(chunk.length for chunk in self._chunks)
        # at most, between records that are read together
        self._gap = 2 * size // max(1, self._rows)
        self._width: int | None = meta["record_width"]  # of each; None if they differ
        self._mapped = mapped
        self._starts = mapped.map(directory / STARTS) if self._width is None else None
        self._records = mapped.map(self._path) if size else None
        self._fd = open_for_reading(self._path)
        self.read_bytes = READ_BYTES

    def take(self, positions: Rows, columns: Sequence[int]) -> list[pa.Array]:
        """Read columns of the rows at these positions, which are in ascending order."""
        self._verify_all(positions)
        pieces = [self._format.decode(*read, columns) for read in self._read(positions)]
        if not pieces:
            nothing = np.zeros(0, dtype=np.int64)
            return self._format.decode(pa.py_buffer(b""), nothing, columns)
        if len(pieces) == 1:
            return pieces[0]
        return [pa.concat_arrays(column) for column in zip(*pieces, strict=True)]

    def row_sizes(self, positions: Rows) -> Sizes:
        """The bytes of the records of these rows; positions as for `take`."""
        self._verify_all(positions)
        begins, ends = self._bounds(positions)
        return ends - begins

    def _read(self, positions: Rows) -> Iterator[tuple[pa.Buffer, Rows]]:
        """Some of the records at a time, and where each begins."""
        most = max(1, 2 * self.read_bytes // max(1, self._gap))  # of the mean width
        begin = 0
        while begin < len(positions):
            begins, ends = self._bounds(positions[begin : begin + most])
            fits = np.searchsorted(np.cumsum(ends - begins), self.read_bytes, side="right")
            count = max(1, int(fits))
            begins, ends = begins[:count], ends[:count]
            near = int(ends[-1] - begins[0]) < _NEAR_BYTES * count
            yield self._copied(begins, ends) if near else self._requested(begins, ends)
            begin += count

    def _bounds(self, positions: Rows) -> tuple[Rows, Rows]:
        """Where records begin and end."""
        if self._starts is None:
            begins = positions * (self._width or 0)
            return begins, begins + (self._width or 0)
        bounds = np.empty((2, len(positions)), dtype=np.int64)
        span = max(1, self._mapped.most_bytes // (4 * START_BYTES))
        stop = 0
        while stop < len(positions):
            start, first = stop, int(positions[stop])
            stop = int(np.searchsorted(positions, first + span))
            length = START_BYTES * (int(positions[stop - 1]) - first + 2)
            window = self._mapped.window(self._starts, START_BYTES * first, length)
            starts = np.frombuffer(window, np.int64)
            at = positions[start:stop] - first
            bounds[0, start:stop], bounds[1, start:stop] = starts[at], starts[at + 1]
        return bounds[0], bounds[1]

    def _copied(self, begins: Rows, ends: Rows) -> tuple[pa.Buffer, Rows]:
        """Records one after the other, out of windows, and where each begins."""
        if self._records is None or not len(begins):
            return pa.py_buffer(b""), begins
        lengths = ends - begins
        pieces = []
        stop = 0
        while stop < len(begins):
            start, offset = stop, int(begins[stop])
            reach = np.searchsorted(ends, offset + self._mapped.most_bytes, side="right")
            stop = max(start + 1, int(reach))
            length = int(ends[stop - 1]) - offset
            window = self._mapped.window(self._records, offset, length)
            chosen = slices(window, begins[start:stop] - offset, lengths[start:stop])
            pieces.append(chosen.buffers()[2])
        after = np.cumsum(lengths)
        data = pieces[0] if len(pieces) == 1 else pa.py_buffer(b"".join(pieces))
        return data, after - lengths

    def _requested(self, begins: Rows, ends: Rows) -> tuple[pa.Buffer, Rows]:
        """Records with what lies between neighbours, and where each begins."""
        first = np.flatnonzero(np.append(True, begins[1:] - ends[:-1] > self._gap))
        offsets = begins[first]
        lengths = ends[np.append(first[1:], len(ends)) - 1] - offsets
        fd = self._fd
        requests = zip(lengths.tolist(), offsets.tolist(), strict=True)
        with reading(self._path):
            data = b"".join([os.pread(fd, length, offset) for length, offset in requests])
        after = np.cumsum(lengths)
        if len(data) != after[-1]:
            raise damaged(self._path, int(offsets[0]))
        moved = np.repeat(offsets - after + lengths, np.diff(first, append=len(begins)))
        return pa.py_buffer(data), begins - moved

    def _verify_all(self, positions: Rows) -> None:
        """Check the chunks of these rows that are new."""
        for chunk in np.unique(positions // self._chunk_rows).tolist():
            if not self._seen[chunk]:
                self.verify(chunk)

    def verify(self, number: int) -> None:
        """Check a chunk against its checksum; a little of it at a time is in memory."""
        if self._starts is not None:
            first = number * self._chunk_rows
            last = min(first + self._chunk_rows, self._rows)
            offset, length = START_BYTES * first, START_BYTES * (last - first + 1)
            if zlib.crc32(self._starts.part(offset, length)) != self._start_checksums[number]:
                raise damaged(self._path.with_name(STARTS), offset)
            self._starts.give_back(offset, offset + length)
        chunk, checksum = self._chunks[number], 0
        step = max(mmap.PAGESIZE, self.read_bytes)
        for start in range(0, chunk.length, step):
            length = min(step, chunk.length - start)
            with reading(self._path):
                data = os.pread(self._fd, length, chunk.offset + start)
            checksum = zlib.crc32(data, checksum)
        if checksum != chunk.checksum:
            raise damaged(self._path, chunk.offset)
        self._seen[number] = True

    def close(self) -> None:
        os.close(self._fd)
