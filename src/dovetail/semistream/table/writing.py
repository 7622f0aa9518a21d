"""Writes a staged table, whose files `table` describes and reads."""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import storage_problem
from dovetail.kernel.keys import Codes
from dovetail.kernel.slices import SizedRows
from dovetail.semistream.table.opening import CODES, FENCES, FORMAT, META, ROWS
from dovetail.semistream.table.reading import CHUNK_PAGES, PAGE_BYTES, split_columns
from dovetail.semistream.table.recordfile import RECORDS, START_BYTES, STARTS, Chunk
from dovetail.semistream.table.records import RecordFormat


class TableWriter:
    """Writes rows that come in code order. `finish` makes the table; without it there is none."""

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema,
        page_bytes: int = PAGE_BYTES,
        chunk_pages: int = CHUNK_PAGES,
    ) -> None:
        self._directory = directory
        self._flat, self._nested = split_columns(schema)
        self._format = RecordFormat(pa.schema([schema.field(index) for index in self._flat]))
        self._page_bytes = page_bytes
        self._chunk_pages = chunk_pages
        self._page_rows = 0  # known from the first rows
        self._waiting: list[tuple[Codes, pa.RecordBatch]] = []
        self._waiting_rows = 0
        self._rows = 0
        self._last: int | None = None
        self._records: list[Chunk] = []
        self._start_checksums: list[int] = []
        self._record_widths: set[int] = set()  # of the narrowest and the widest
        self._chunks: list[Chunk] = []
        self._files: dict[str, IO[bytes]] = {}
        self._page_checksums: list[int] = []
        self._fences: list[Codes] = []
        self._row_bytes = self._widest_row = 0
        with self._writing():
            directory.mkdir(parents=True)
            self._open(CODES)
            if self._flat:
                self._open(RECORDS)
                if self._format.width is None:
                    self._open(STARTS).write(bytes(START_BYTES))
            if self._nested:
                nested = pa.schema([schema.field(index) for index in self._nested])
                self._open(ROWS).write(nested.serialize())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the system into errors that say what to do."""
        try:
            yield
        except OSError as error:
            raise storage_problem(error, self._directory, "write to") from error

    def _open(self, name: str) -> IO[bytes]:
        self._files[name] = (self._directory / name).open("xb")
        return self._files[name]

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
        chunk_rows = self._page_rows * self._chunk_pages
        if self._waiting_rows >= chunk_rows:
            self._write(self._waiting_rows - self._waiting_rows % chunk_rows)

    def finish(self) -> None:
        """Write what is left, and make everything durable."""
        if self._waiting_rows:
            self._write(self._waiting_rows)
        fences = np.concatenate(self._fences) if self._fences else np.zeros(0, dtype=np.int64)
        record_width = self._even_width()
        meta = {
            "format": FORMAT,
            "rows": self._rows,
            "last_code": self._last,
            "page_rows": self._page_rows or 1,
            "chunk_pages": self._chunk_pages,
            "row_bytes": self._row_bytes / max(1, self._rows),
            "widest_row": self._widest_row,
            "page_checksums": self._page_checksums,
            "fences_checksum": zlib.crc32(fences.tobytes()),
            "records": [[c.offset, c.length, c.checksum] for c in self._records],
            "record_width": record_width,
            "start_checksums": self._start_checksums,
            "chunks": [[c.offset, c.length, c.checksum] for c in self._chunks],
        }
        with self._writing():
            self._open(FENCES).write(fences.tobytes())
            for handle in self._files.values():
                handle.flush()
                os.fsync(handle.fileno())
                handle.close()
            if record_width is not None:
                (self._directory / STARTS).unlink(missing_ok=True)
            body = json.dumps(meta).encode()
            with (self._directory / META).open("xb") as handle:
                handle.write(f"{zlib.crc32(body)}\n".encode() + body)
                handle.flush()
                os.fsync(handle.fileno())

    def _even_width(self) -> int | None:
        """The bytes of every record, if all are equally wide: then offsets need no lookup."""
        if self._format.width is not None or len(self._record_widths) != 1:
            return self._format.width
        return next(iter(self._record_widths))

    def _write(self, count: int) -> None:
        codes = np.concatenate([codes for codes, _ in self._waiting])
        rows = pa.concat_batches([rows for _, rows in self._waiting])
        chunk_rows = self._page_rows * self._chunk_pages
        with self._writing():
            for start in range(0, count, chunk_rows):
                stop = min(start + chunk_rows, count)
                self._write_chunk(codes[start:stop], rows.slice(start, stop - start))
        left = self._waiting_rows - count
        self._waiting = [(codes[count:], rows.slice(count))] if left else []
        self._waiting_rows = left

    def _write_chunk(self, codes: Codes, rows: pa.RecordBatch) -> None:
        for start in range(0, len(codes), self._page_rows):
            page = codes[start : start + self._page_rows].tobytes()
            self._page_checksums.append(zlib.crc32(page))
            self._files[CODES].write(page)
        self._fences.append(codes[:: self._page_rows].copy())
        if self._flat:
            self._write_records(rows.select(self._flat))
        if self._nested:
            message = rows.select(self._nested).serialize()
            file = self._files[ROWS]
            self._chunks.append(Chunk(file.tell(), message.size, zlib.crc32(message)))
            file.write(message)
        self._rows += len(codes)
        self._row_bytes += rows.nbytes
        self._widest_row = max(self._widest_row, SizedRows(rows).widest)

    def _write_records(self, rows: pa.RecordBatch) -> None:
        data, ends = self._format.encode(rows)
        file = self._files[RECORDS]
        offset = file.tell()
        if self._format.width is None:
            bounds = offset + np.insert(ends, 0, 0)
            widths = np.diff(bounds)
            ends_of = {int(widths.min()), int(widths.max()), *self._record_widths}
            self._record_widths = {min(ends_of), max(ends_of)}
            self._start_checksums.append(zlib.crc32(bounds.tobytes()))
            self._files[STARTS].write(bounds[1:].tobytes())
        self._records.append(Chunk(offset, data.size, zlib.crc32(data)))
        file.write(data)
