"""Bloom filters of join keys: a semijoin that sends bits instead of keys.

A filter lets through every key that was put in, and a share of the others, so what it reduces is a
superset of what a semijoin would leave. The join that follows compares the keys themselves; the
result is exact, only more may be sent for it.
"""

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes, spread
from dovetail.multisite.messages import column
from dovetail.multisite.snapshots import Kept
from dovetail.multisite.windows import Mask

ERROR = 0.01  #: share of other keys that pass
# A filter that asks for rows is held against the whole window, again in every interval, and each
# error costs a row; so it pays to make them rare.
ASKING_ERROR = 0.0001
_MOST_HASHES = 14
_STEP = np.uint64(0xC2B2AE3D27D4EB4F)


def bits_for(keys: int, error: float = ERROR) -> int:
    """The size of a filter of so many keys, in bits.

    A multiple of 64, as in a filter of a few bits the places of a key fall together.
    """
    return 64 * max(1, math.ceil(-keys * math.log(error) / math.log(2) ** 2 / 64))


class Bloom(Kept):
    """A filter as the bytes it travels as."""

    KEPT = ("data", "hashes")

    def __init__(self, data: NDArray[np.uint8], keys: int) -> None:
        self._data = data
        self._hashes = min(_MOST_HASHES, max(1, round(8 * len(data) / max(keys, 1) * math.log(2))))

    @classmethod
    def of(cls, codes: Codes, error: float = ERROR) -> "Bloom":
        """A filter of distinct codes."""
        bloom = cls(np.zeros(bits_for(len(codes), error) // 8, dtype=np.uint8), len(codes))
        bits = np.zeros(8 * len(bloom._data), dtype=np.uint8)
        for places in bloom._places(codes):
            bits[places] = 1
        bloom._data = np.packbits(bits, bitorder="little")
        return bloom

    @classmethod
    def received(cls, part: pa.RecordBatch, keys: int) -> "Bloom":
        return cls(np.asarray(part.column(0)), keys)

    @property
    def nbytes(self) -> int:
        return int(self._data.nbytes)

    def part(self) -> pa.RecordBatch:
        return column(self._data)

    def _places(self, codes: Codes) -> Iterator[NDArray[np.int64]]:
        # a hash for each place: in a small filter, sums of two hashes would fall together
        seeded = spread(codes).view(np.uint64)
        size = np.uint64(8 * len(self._data))
        for _ in range(self._hashes):
            seeded += _STEP
            yield (spread(seeded.view(np.int64)).view(np.uint64) % size).astype(np.int64)

    def contains(self, codes: Codes) -> Mask:
        found = np.ones(len(codes), dtype=np.bool_)
        for places in self._places(codes):
            found &= ((self._data[places >> 3] >> (places & 7).astype(np.uint8)) & 1).astype(bool)
        return found
