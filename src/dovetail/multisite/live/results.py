"""Results of a host, by number, in files until those who read them need them no more.

They follow from the journal, so they need not be synced before they are read; only before the
events that they follow from are given up. After a restart the machine makes some of them again:
these are compared with what is here, and must be the same.

Of each result only its place and checksum are in memory, twelve bytes.
"""

import json
import struct
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from dovetail.errors import SiteRefusedError
from dovetail.multisite.live.folders import corrupt, missing
from dovetail.multisite.live.machine import rows_bytes, rows_of
from dovetail.multisite.live.records import (
    HEAD_BYTES,
    RecordFile,
    read_record,
    read_whole,
    scan,
    write_whole,
)

SEGMENT_BYTES = 32 << 20
_HEAD = struct.Struct("<Qq")  # number, interval


@dataclass
class Segment:
    """A file of successive results."""

    path: Path
    first: int  #: the number of the first of them
    nbytes: int = 0
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    checksums: "array[int]" = field(default_factory=lambda: array("I"))

    @property
    def end(self) -> int:
        """The number after the last."""
        return self.first + len(self.offsets)

    def left(self, trimmed: int) -> int:
        """The bytes of those after a number."""
        at = max(0, trimmed + 1 - self.first)
        return self.nbytes - self.offsets[at] if at < len(self.offsets) else 0

    def add(self, offset: int, checksum: int, end: int) -> None:
        self.offsets.append(offset)
        self.checksums.append(checksum)
        self.nbytes = end


class ResultLog:
    """The results of one query at one host. Any thread may read; one appends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._segments: deque[Segment] = deque()
        self._changed = threading.Condition()
        self._file: RecordFile | None = None
        self._closed = False
        self._trim_file = directory / "trimmed"
        self.trimmed = 0  #: results up to this number are gone
        self.nbytes = 0  #: of all that can be read
        if self._trim_file.exists():
            self.trimmed = _trimmed(self._trim_file)
        self.last = self.trimmed
        for path in sorted(directory.glob("results-*.log")):
            segment = _found(path)
            if segment.first > self.last + 1 or (self._segments and segment.first <= self.last):
                raise missing(path, f"result {self.last + 1} is not there, but {segment.first} is")
            self._segments.append(segment)
            self.last = max(self.last, segment.end - 1)
        if self._segments:
            self._file = RecordFile(self._segments[-1].path)
        self._forget()

    def append(self, number: int, interval: int, rows: pa.RecordBatch) -> None:
        """Add a result; one that is here already must be the same."""
        if number <= self.trimmed:
            return
        pieces = _HEAD.pack(number, interval), rows_bytes(rows)
        checksum = zlib.crc32(pieces[1], zlib.crc32(pieces[0]))
        if number <= self.last:
            self._compare(number, checksum, interval, rows)
            return
        if number != self.last + 1:
            lost = f"results {self.last + 1} to {number - 1}"
            raise corrupt(f"{lost} in {self._directory} are lost")
        file = self._open_for(number)
        offset = file.append(*pieces)
        with self._changed:
            self._segments[-1].add(offset, checksum, file.nbytes)
            self._count()
            self.last = number
            self._changed.notify_all()

    def _open_for(self, number: int) -> RecordFile:
        """The file that a result goes to."""
        last = self._segments[-1] if self._segments else None
        if self._file is not None and last is not None:
            if last.nbytes <= SEGMENT_BYTES and last.end == number:
                return self._file
            self.sync()
            self._close_file()
        path = self._directory / f"results-{number:020}.log"
        self._file = RecordFile(path)
        with self._changed:
            self._segments.append(Segment(path, number))
        return self._file

    def _place(self, number: int) -> tuple[Path, int, int]:
        """The file of a result, where it is in it, and its checksum."""
        segment = next(s for s in reversed(self._segments) if s.first <= number)
        at = number - segment.first
        return segment.path, segment.offsets[at], segment.checksums[at]

    def _compare(self, number: int, checksum: int, interval: int, rows: pa.RecordBatch) -> None:
        """A result that was made again must be the one that is here."""
        path, offset, known = self._place(number)
        if known == checksum:
            return
        body = read_record(path, offset)
        kept = rows_of(body[_HEAD.size :])
        if kept is None or _HEAD.unpack_from(body)[1] != interval or not kept.equals(rows):
            raise corrupt(
                f"result {number} in {path} is not what follows from the journal beside it: "
                "the two are not of one time, or of different versions"
            )

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def range(self) -> tuple[int, int]:
        """The first and the last number that can be read."""
        with self._changed:
            return self.trimmed + 1, self.last

    def wait(self, after: int, seconds: float) -> None:
        """Until there is a result after this one, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.last > after or self._closed, seconds)

    def read(
        self, after: int, through: int | None = None
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Results with these numbers, in order: number, interval and rows."""
        number = after + 1
        end = None
        while end is None or number <= end:
            with self._changed:
                if number <= self.trimmed:
                    raise SiteRefusedError(
                        f"results after {number - 1} were asked for, but those up to "
                        f"{self.trimmed} have been given up (trim): start from there, or start "
                        "the query anew"
                    )
                if end is None:
                    end = self.last if through is None else min(through, self.last)
                    continue
                path, offset, _ = self._place(number)
            body = read_record(path, offset)
            _, interval = _HEAD.unpack_from(body)
            rows = rows_of(body[_HEAD.size :])
            assert rows is not None, number
            yield number, interval, rows
            number += 1

    def trim(self, through: int) -> None:
        """Give up the results up to a number."""
        with self._changed:
            through = min(through, self.last)
            if through <= self.trimmed:
                return
            write_whole(self._trim_file, json.dumps(through).encode())
            self.trimmed = through
        self._forget()

    def _forget(self) -> None:
        """Delete the files of which all is given up, but the one that is written to."""
        gone = []
        with self._changed:
            while self._segments and self._segments[0].end - 1 <= self.trimmed:
                if self._file is not None and self._segments[0].path == self._file.path:
                    break
                gone.append(self._segments.popleft())
            self._count()
        for segment in gone:
            segment.path.unlink(missing_ok=True)

    def _count(self) -> None:
        self.nbytes = sum(segment.left(self.trimmed) for segment in self._segments)


def _trimmed(path: Path) -> int:
    try:
        number = json.loads(read_whole(path))
        if isinstance(number, int) and number >= 0:
            return number
    except ValueError:
        pass
    raise corrupt(f"the file {path} does not say which results are given up")


def _found(path: Path) -> Segment:
    """A segment that an earlier process has left."""
    segment = Segment(path, int(path.stem.partition("-")[2]))
    for offset, body in scan(path):
        number, _ = _HEAD.unpack_from(body)
        if number != segment.end:
            raise corrupt(f"the file {path} has result {number} where {segment.end} belongs")
        segment.add(offset, zlib.crc32(body), offset + HEAD_BYTES + len(body))
    return segment
