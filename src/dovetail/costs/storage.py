"""The cost of reads from storage: a seek and a speed, given or measured.

Reading is modelled as `requests` times the wait for a first byte, plus the bytes at a steady
speed. A request is one contiguous read of any length.

`measure_storage` finds both numbers out for a folder of this machine. It writes a file, asks the
system to forget it, and reads it twice: from start to end, and block by block in random order.
Without the right to drop caches that is a request and not an order: where the system keeps the
file all the same (tmpfs, overlays, a busy page cache), the page cache is what is measured, which
the note of the result says it may be.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import ArgumentError, StorageError

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)  #: one setting, or an array of them

BLOCK_BYTES = 64 * 1024  #: of a measured read
_FILE_BYTES = 32 * 1024 * 1024
_RANDOM_READS = 256
_PATIENCE_SECONDS = 0.5  # for each of the two ways to read


@dataclass(frozen=True)
class Storage:
    """The cost of a read from one storage."""

    name: str
    seek_seconds: float  #: until the first byte of a request
    bytes_per_second: float  #: from then on, of one stream
    note: str = ""

    def __post_init__(self) -> None:
        if not (self.seek_seconds >= 0 and self.bytes_per_second > 0):
            raise ArgumentError(
                f"storage {self.name!r}: seek_seconds must be 0 or more and bytes_per_second "
                f"above 0, not {self.seek_seconds} and {self.bytes_per_second}"
            )

    def read_seconds(self, requests: float, nbytes: Number) -> Number:
        """The time of `requests` contiguous reads, one after the other, of `nbytes` in all."""
        return requests * self.seek_seconds + nbytes / self.bytes_per_second


DISK_7200 = Storage(
    "7200 rpm disk", 0.0085 + 0.0042, 150e6, "8.5 ms average seek and half a turn, 4.2 ms"
)
OBJECT_STORE = Storage("object store", 0.030, 90e6, "one stream; several at once are faster")
THIS_MACHINE = "this machine"  #: the name of what is measured
PROFILES = {one.name: one for one in (DISK_7200, OBJECT_STORE)}


def profile(name: str) -> Storage | None:
    """The storage of that name; None if it is this machine's, which has to be measured.

    Case does not matter, nor whether words are joined by hyphens. Raises `ArgumentError`, which
    lists the names, for another.
    """
    known = str(name).lower().replace("-", " ").strip()
    if known == THIS_MACHINE:
        return None
    if known not in PROFILES:
        raise ArgumentError(
            f"storage={name!r} is no storage profile; there are "
            f"{', '.join(map(repr, (THIS_MACHINE, *PROFILES)))}"
        )
    return PROFILES[known]


def measure_storage(directory: str | os.PathLike[str]) -> Storage:
    """Measure the folder's storage in about a second, with a temporary file of 32 MB.

    The file is gone afterwards, also on failure. Raises `StorageError` if the system refuses.
    """
    generator = np.random.default_rng(0)
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            descriptor = file.fileno()
            block = generator.bytes(BLOCK_BYTES)  # incompressible, should the file system try
            for _ in range(_FILE_BYTES // BLOCK_BYTES):
                file.write(block)
            os.fsync(descriptor)
            offsets = np.arange(0, _FILE_BYTES, BLOCK_BYTES)
            in_order = statistics.fmean(_block_seconds(descriptor, offsets.tolist()))
            generator.shuffle(offsets)
            # the median: what other work on the machine adds to some reads is not the storage's
            at_random = statistics.median(
                _block_seconds(descriptor, offsets[:_RANDOM_READS].tolist())
            )
    except OSError as error:
        raise StorageError(
            f"cannot measure the storage of {Path(directory)}: {error}; name a folder that can be "
            f"written to, with {_FILE_BYTES >> 20} MB to spare"
        ) from error
    return Storage(
        THIS_MACHINE,
        seek_seconds=max(0.0, at_random - in_order),
        bytes_per_second=BLOCK_BYTES / in_order,
        note="measured; of the page cache, if the system kept the file there",
    )


def hit_at_random(places: int, draws: float) -> float:
    """The mean number of places, of one at least, that so many draws hit."""
    return places * -math.expm1(draws * math.log1p(-min(1 / places, 1 - 1e-12)))


def storage_of(directory: str | os.PathLike[str]) -> Storage:
    """As `measure_storage`, but once for each file system in the life of this process."""
    device = Path(directory).stat().st_dev
    if device not in _measured:
        _measured[device] = measure_storage(directory)
    return _measured[device]


_measured: dict[int, Storage] = {}  # by device


def _block_seconds(descriptor: int, offsets: Iterable[int]) -> list[float]:
    """The times to read a block at each of the offsets, or at as many as patience allows."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    seconds: list[float] = []
    begin = last = time.perf_counter()
    for offset in offsets:
        os.pread(descriptor, BLOCK_BYTES, offset)
        now = time.perf_counter()
        seconds.append(max(now - last, 1e-9))
        last = now
        if now - begin > _PATIENCE_SECONDS:
            break
    return seconds
