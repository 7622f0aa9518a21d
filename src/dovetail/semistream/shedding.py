"""Strategies of load shedding: which rows to keep when more arrive than the join can take.

After Polyzotis et al., "Meshing Streaming Updates with Persistent Data in an Active Data
Warehouse", section 4. Of the rows that arrive in one iteration of the join, `w` can be taken up.
`f_R` of a row is how many rows of the relation have its code (for a hashed key a little too many,
see `kernel.keys`). The strategies are those of Table 2:

- `keep`: the first `w`. Loses least when every row has one match.
- `sample`: `w` at random. With one match for every row, a uniform sample of the results.
- `topw`: the `w` rows with the largest `f_R`. Loses least within the interval, with any matches.
- `cluster`: at random, a row's chance being proportional to its `f_R`.

What is shed is the caller's to store or to count. Here nothing is kept from one call to the next.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.kernel.keys import Codes
from dovetail.semistream.cache.parts import firsts_of

Rows = NDArray[np.int64]
Counts = NDArray[np.int64]
_SKETCH_ROWS = 4  # hash functions: an estimate is off by more than it should once in e**4 times
_SKETCH_LEAST_BUCKETS = 3
_COUNTER_BYTES = 8
# drawn once, the factors odd
_SKETCH_FACTORS = np.array(
    [0xF520CB059AFFE73, 0x69D09E93D9E18E01, 0x4FDCAC3157EE7463, 0x1CC597659D15CCA9],
    dtype=np.uint64,
)
_SKETCH_ADDENDS = np.array(
    [0xD659CC45CA9F5307, 0x4A8402502BAF1391, 0x93DA4566A0A9FF4C, 0x8C6AE8A7FA6FB572],
    dtype=np.uint64,
)


class FrequencyLookup(Protocol):
    """Tells f_R."""

    def of(self, codes: Codes) -> Counts:
        """For each code, how many rows of the relation have it, or an estimate of that."""


Strategy = Callable[[Codes, int, FrequencyLookup, np.random.Generator], Rows]


def rows_to_keep(
    strategy: str, codes: Codes, w: int, frequencies: FrequencyLookup, rng: np.random.Generator
) -> Rows:
    """The numbers of the rows to keep, in ascending order: `w` of them, or all if fewer came.

    `codes` are those of the rows of one interval, in the order of their arrival.
    """
    if w < 0:
        raise ArgumentError(f"w is how many rows to keep, 0 or more, not {w}")
    if w >= len(codes):
        return np.arange(len(codes))
    if w == 0:
        return np.zeros(0, dtype=np.int64)
    return np.sort(SHEDDERS[strategy](codes, w, frequencies, rng))


# Each of them in any order; `w` is at least 1 and less than there are rows.


def _first(_codes: Codes, w: int, _frequencies: FrequencyLookup, _rng: np.random.Generator) -> Rows:
    """The first `w` rows; needs neither frequencies nor chance."""
    return np.arange(w)


def _sample(codes: Codes, w: int, _frequencies: FrequencyLookup, rng: np.random.Generator) -> Rows:
    """Every set of `w` rows is as likely as any other."""
    return rng.choice(len(codes), w, replace=False, shuffle=False)


def _top(codes: Codes, w: int, frequencies: FrequencyLookup, _rng: np.random.Generator) -> Rows:
    """The `w` rows with the most matches; of rows with equally many, the earliest."""
    counts = frequencies.of(codes)
    least = np.partition(counts, len(counts) - w)[len(counts) - w]
    above = np.flatnonzero(counts > least)
    level = np.flatnonzero(counts == least)[: w - len(above)]
    return np.concatenate([above, level])


def _cluster(codes: Codes, w: int, frequencies: FrequencyLookup, rng: np.random.Generator) -> Rows:
    """At random, with chances that are proportional to f_R exactly.

    A row's chance of being kept is `w * f_R / (sum of f_R)`. Where that would exceed 1 the row is
    kept for certain, and the chances of the others are proportional among themselves. So the
    chances are known, as estimates from the sample need them to be; drawing row after row in
    proportion to f_R would not give them. Rows without a match are kept only when there is room
    left by all the others, and then at random.

    The method is systematic sampling: the rows, in random order, are laid end to end, each as
    long as its f_R, and `w` marks at equal distances say which are kept. In integers, so that
    rounding takes no part.
    """
    counts = frequencies.of(codes)
    matched = np.flatnonzero(counts > 0)
    if len(matched) <= w:
        rest = rng.choice(np.flatnonzero(counts <= 0), w - len(matched), replace=False)
        return np.concatenate([matched, rest])
    descending = matched[np.argsort(-counts[matched], kind="stable")]
    certain = _certain(counts[descending], w)
    others = rng.permutation(descending[certain:])
    marked = _systematic(counts[others], w - certain, rng)
    return np.concatenate([descending[:certain], others[marked]])


SHEDDERS: dict[str, Strategy] = {
    "keep": _first,
    "sample": _sample,
    "topw": _top,
    "cluster": _cluster,
}

WEIGHING = ("topw", "cluster")  #: the strategies that ask for f_R


def _certain(descending: Counts, w: int) -> int:
    """The number of counts kept for certain, of more than `w`, all above 0: fewer than `w`."""
    leading = descending[:w]
    before = np.cumsum(leading) - leading
    left = descending.sum() - before  # the sum of this count and all smaller ones
    places = w - np.arange(len(leading))
    # chance of at least 1: count * places >= left, without a product that could overflow
    sure = leading >= -(-left // places)
    return int(np.argmin(sure))  # the first that is not; the w-th cannot be, as more follow it


def _systematic(counts: Counts, w: int, rng: np.random.Generator) -> Rows:
    """`w` different positions, each with chance `w * count / total`, which is below 1 for all."""
    ends = np.cumsum(counts)
    total = int(ends[-1])
    numbers = np.arange(w)
    # the marks are (start + number * total) / w, rounded down; start is below total
    start = int(rng.integers(total))
    marks = start // w + numbers * (total // w) + (start % w + numbers * (total % w)) // w
    return np.searchsorted(ends, marks, side="right")


# -- how often a code occurs --------------------------------------------------------------------


@dataclass(frozen=True)
class Frequencies:
    """Exact f_R: the different codes of the relation, in order, and how often each occurs."""

    codes: Codes
    counts: Counts

    def of(self, codes: Codes) -> Counts:
        """For each code, how many rows of the relation have it; 0 if none does."""
        if not len(self.codes):
            return np.zeros(len(codes), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[places] == codes, self.counts[places], 0)


class SketchedFrequencies:
    """Estimates of f_R from a count-min sketch of a size that does not grow with the relation.

    Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its
    applications". Each of four rows of counters counts a code in the bucket that the row's hash
    gives it, and the least of the four is the estimate.

    An estimate is never below the truth. It is above it by more than `e / buckets` of the
    relation's rows in one of fifty cases (e ** -4), `buckets` being `budget_bytes / 32`. For two
    codes share a bucket of a row with a probability of 1 / buckets; so others add 1 / buckets of
    the relation's rows to a code on average, and e times that with a probability of 1 / e at most,
    in each of the four. So frequent codes are told from rare ones, but rare ones not from each
    other, nor from those that do not occur, unless the budget is ample.
    """

    def __init__(self, budget_bytes: int, counters: Counts | None = None) -> None:
        """`budget_bytes` bounds the sketch, not the working memory of `add` and `of`.

        `counters`: of another in this budget, which counted the same way (`hashing`).
        """
        buckets = budget_bytes // (_SKETCH_ROWS * _COUNTER_BYTES)
        if buckets < _SKETCH_LEAST_BUCKETS:
            least = _SKETCH_LEAST_BUCKETS * _SKETCH_ROWS * _COUNTER_BYTES
            raise ArgumentError(
                f"a sketch of f_R needs at least {least} bytes, and {budget_bytes} were given"
            )
        if counters is None:
            counters = np.zeros(_SKETCH_ROWS * buckets, dtype=np.int64)
        self.counters = counters.reshape(_SKETCH_ROWS, buckets)

    @staticmethod
    def size(budget_bytes: int) -> int:
        """The bytes of the counters of a sketch in this budget."""
        row = _SKETCH_ROWS * _COUNTER_BYTES
        return budget_bytes // row * row

    @staticmethod
    def hashing() -> int:
        """Names the hash functions: where it differs, counters mean something else."""
        return zlib.crc32(_SKETCH_FACTORS.tobytes() + _SKETCH_ADDENDS.tobytes())

    def add(self, sorted_codes: Codes) -> None:
        """Count the codes of more rows of the relation, in ascending order within the call."""
        starts = firsts_of(sorted_codes)
        codes, counts = sorted_codes[starts], np.diff(starts, append=len(sorted_codes))
        for row, buckets in zip(self.counters, self._buckets(codes), strict=True):
            np.add.at(row, buckets, counts)

    def of(self, codes: Codes) -> Counts:
        """For each code, at least as many rows as the relation has of it."""
        found = np.full(len(codes), np.iinfo(np.int64).max)
        for row, buckets in zip(self.counters, self._buckets(codes), strict=True):
            np.minimum(found, row[buckets], out=found)
        return found

    def _buckets(self, codes: Codes) -> Iterator[Rows]:
        """The bucket of each code in one row after the other: multiply, add, and scale down.

        With an odd factor and any addend, both at random, two codes meet with a probability of no
        more than 1 / buckets.
        """
        width = np.uint64(self.counters.shape[1])
        half = np.uint64(32)
        for factor, addend in zip(_SKETCH_FACTORS, _SKETCH_ADDENDS, strict=True):
            hashed = codes.view(np.uint64) * factor + addend
            yield (((hashed >> half) * width) >> half).view(np.int64)
