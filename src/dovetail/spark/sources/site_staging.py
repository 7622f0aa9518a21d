"""Staged rows of a micro-batch on disk, and the list of their puts to a site.

A micro-batch that failed is run again, and Spark promises only that it begins with the same input:
its rows may come in other partitions, in another order or, where the plan draws a random number,
with other values. One put is all or nothing, but a micro-batch may need several. So before the
first of them, tasks write the rows down, and the list of puts is written last, in one piece:

    checkpoint/
      query/                  Spark's own checkpoint
      rows/producer           the name under which rows are put, and of which stream
      rows/b000000000042/     rows of a micro-batch, in files of checksummed records
      rows/b000000000042.puts which of them make a put; then, that all puts have been done

Without that list nothing has been put, and rows are written anew. With it the micro-batch is what
the list says, whatever Spark would now compute; puts that the site has it acknowledges again.
"""

import contextlib
import itertools
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.errors import (
    ArgumentError,
    StateCorruptError,
    StateMismatchError,
    StateMissingError,
)
from dovetail.multisite.live.machine import rows_bytes, rows_of
from dovetail.multisite.live.records import (
    RecordFile,
    read_record,
    read_whole,
    sync_directory,
    write_whole,
)
from dovetail.multisite.query import Stream, times_of
from dovetail.spark.grouping import grouped
from dovetail.spark.layout import quoted
from dovetail.spark.sources.site_columns import site_rows
from dovetail.spark.state.durable import storing
from dovetail.spark.worker_errors import own_errors

_PIECE = "file string, at long, nbytes long, oldest long, newest long"
_PIECES_OF_A_PUT = 16

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Piece:
    """Some staged rows, where they are, and the range of their times."""

    file: str
    at: int
    nbytes: int
    oldest: int
    newest: int


@dataclass(frozen=True)
class Put:
    """Rows that are put together, and what is promised then: no row before `until` follows."""

    pieces: tuple[Piece, ...]
    until: int | None


class StagedBatches:
    """The staged micro-batches of one publication."""

    def __init__(self, directory: Path, stream: Stream, put_bytes: int) -> None:
        self._directory = directory
        self._stream = stream
        self._put_bytes = put_bytes

    def producer(self, facts: dict[str, str], begun: bool) -> str:
        """The name under which rows are put. `begun`: Spark has a checkpoint already."""
        path = self._directory / "producer"
        if not path.exists():
            if begun:
                raise StateMissingError(
                    f"{path} is gone, but Spark's checkpoint beside it is not: which rows have "
                    "been put is not known. Restore the folder, or publish with a new checkpoint."
                )
            self._directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({**facts, "name": f"spark/{uuid.uuid4()}"}).encode())
        known = _read(path)
        if differs := [f for f in facts if known.get(f) != facts[f]]:
            raise StateMismatchError(
                f"the checkpoint {self._directory.parent} is of "
                f"{', '.join(f'{f} {known.get(f)!r}' for f in differs)}, not of "
                f"{', '.join(repr(facts[f]) for f in differs)}: name another folder"
            )
        return str(known["name"])

    def load(self, number: int) -> list[Put] | None:
        """The puts of a micro-batch, none if all have been done; None if it is not staged."""
        path = self._list(number)
        if later := [p.stem for p in self._directory.glob("b*.puts") if p.stem > path.stem]:
            raise StateMismatchError(
                f"micro-batch {number} is to be put, but {int(later[0][1:])} was already: Spark's "
                f"checkpoint beside {self._directory} is of an earlier time. Restore both "
                "together, or publish with a new checkpoint."
            )
        if not path.exists():
            return None
        return [
            Put(tuple(Piece(**piece) for piece in put["pieces"]), put["until"])
            for put in _read(path)["puts"]
        ]

    def stage(self, frame: DataFrame, number: int, lateness: int | None) -> list[Put]:
        """Write the rows of a micro-batch, then the list of its puts."""
        for old in self._directory.glob("b*"):
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink()
        folder = self._folder(number)
        with storing(folder, "write to"):
            folder.mkdir(parents=True)
            # the oldest first: so intervals can end, and make room, while later puts still come
            in_time = lateness is not None
            pieces = sorted(self._write(frame, folder, in_time), key=lambda piece: piece.oldest)
            sync_directory(folder)
            sync_directory(self._directory)
        # pieces that go together: many partitions have few rows each
        puts = _promised(list(grouped(pieces, self._portion)), lateness)
        write_whole(self._list(number), json.dumps({"puts": [asdict(p) for p in puts]}).encode())
        return puts

    def rows(self, number: int, put: Put) -> pa.Table:
        """The rows of a put."""
        batches = []
        for piece in put.pieces:
            path = self._folder(number) / piece.file
            rows = rows_of(read_record(path, piece.at))
            assert rows is not None, path
            batches.append(rows)
        return pa.Table.from_batches(batches, self._stream.schema)

    def done(self, number: int) -> None:
        """Delete the rows of a micro-batch once all of them have been put."""
        write_whole(self._list(number), json.dumps({"puts": []}).encode())
        shutil.rmtree(self._folder(number), ignore_errors=True)

    def forget(self, number: int) -> None:
        """Forget a micro-batch of which nothing was put."""
        self._list(number).unlink()

    @property
    def _portion(self) -> int:
        """Of what a site takes at once; what is around the rows needs room, too."""
        return max(1, min(8 << 20, self._put_bytes // 2))

    def _folder(self, number: int) -> Path:
        return self._directory / f"b{number:012d}"

    def _list(self, number: int) -> Path:
        return self._directory / f"b{number:012d}.puts"

    def _write(self, frame: DataFrame, folder: Path, in_time: bool) -> list[Piece]:
        """Let tasks write rows; in the order of the partitions.

        `in_time`: each in the order of its times and in small pieces, so that those of different
        partitions can be put in the order of their times, and intervals end meanwhile.
        """
        columns = frame.select(*map(quoted, self._stream.schema.names))
        portion = self._portion
        if in_time:
            columns = columns.sortWithinPartitions(quoted(self._stream.time))
            portion = max(1, portion // _PIECES_OF_A_PUT)
        write = _writer(self._stream, folder, portion, self._put_bytes)
        with own_errors():
            return [Piece(**row.asDict()) for row in columns.mapInArrow(write, _PIECE).collect()]


def _writer(
    stream: Stream, folder: Path, portion: int, most_bytes: int
) -> Callable[[Batches], Batches]:
    """The task that stages rows. Each attempt has its own file; the list names those that count."""

    def write(batches: Batches) -> Batches:
        path = folder / f"{uuid.uuid4().hex}.rows"
        portions = _portions((site_rows(b, stream) for b in batches), portion)
        first = next(portions, None)
        if first is None:
            return
        with contextlib.closing(RecordFile(path)) as file:
            pieces = [
                _append(file, rows, stream, most_bytes)
                for rows in itertools.chain([first], portions)
            ]
            file.sync()
        yield pa.RecordBatch.from_pylist([asdict(piece) for piece in pieces])

    return write


def _append(file: RecordFile, rows: pa.RecordBatch, stream: Stream, most_bytes: int) -> Piece:
    if rows.nbytes > most_bytes:
        raise ArgumentError(
            f"a row of {rows.nbytes:,} bytes, but the site takes at most {most_bytes:,} at once: "
            "raise its limit put_bytes"
        )
    times = times_of(rows.column(stream.time))
    at = file.append(rows_bytes(rows))
    return Piece(file.path.name, at, rows.nbytes, int(np.min(times)), int(np.max(times)))


def _portions(batches: Batches, portion: int) -> Batches:
    """Regroup rows into batches of about this many bytes."""
    pieces = itertools.chain.from_iterable(_split(batch, portion) for batch in batches)
    return map(pa.concat_batches, grouped(pieces, portion))


def _split(rows: pa.RecordBatch, portion: int) -> Batches:
    if rows.num_rows > 1 and rows.nbytes > portion:
        half = rows.num_rows // 2
        yield from _split(rows.slice(0, half), portion)
        yield from _split(rows.slice(half), portion)
    elif rows.num_rows:
        yield rows


def _promised(groups: list[list[Piece]], lateness: int | None) -> list[Put]:
    """The promise of each put: until which time no later put of the micro-batch has rows."""
    if lateness is None:
        return [Put(tuple(group), None) for group in groups]
    until = max((p.newest for group in groups for p in group), default=0) - lateness
    puts = []
    for group in reversed(groups):
        puts.append(Put(tuple(group), until))
        until = min(until, *(piece.oldest for piece in group))
    return puts[::-1]


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_whole(path)))
    except StateCorruptError:
        raise StateCorruptError(
            f"the file {path} is damaged. Restore the folder from a backup, or publish with a new "
            "checkpoint."
        ) from None
