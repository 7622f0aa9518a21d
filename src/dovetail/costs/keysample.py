"""Samples of a join's input that stand for all of it, pairs included.

By key. Taking a share f of the rows of either side by chance leaves a share f*f of the pairs: of
keys that come once or twice, nearly none. So keys are chosen, by a hash, and of a chosen key all
rows of both sides are taken. Rows and pairs shrink to f alike, and a join with f of the memory does
with the sample what it would do with the whole. Each pair stands for 1 / f pairs.

By row. Where keys have many rows this fails: whether the most frequent key is chosen decides about
most of the results. There even f*f of the pairs are enough to count, so each row is taken with
chance f; memory sees a share f of every key, and a pair stands for 1 / (f*f).

Which of the two is decided by counting hashes in `BUCKETS`. If rows taken by chance would leave
enough pairs, all are taken so. Else only those in the few buckets with very many rows are: they
have fewer matches than they should have beside keys that are whole, and DINER, which keeps what has
many matches, would be misled if they were many.

Band joins. What is hashed in place of the key is a *token*: the cell of values that a row lies in.
A right row has the tokens of all cells with left rows in reach, two at most, and is taken for
either. If a light cell of these was chosen, the row is in the sample for certain, and its pairs
with left rows that were taken by chance stand for 1 / f.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Hashes = NDArray[np.uint64]

BUCKET_BITS = 16
BUCKETS = 1 << BUCKET_BITS
CHOICE_BITS = 64 - BUCKET_BITS  #: of a hash decide whether its keys are chosen
_MOST_HEAVY = 2048  # buckets
_ENOUGH_PAIRS = 10_000
_MANY_MEANS = 4  # how many times the mean bucket a heavy one has


@dataclass(frozen=True)
class SampledSide:
    """The sampled rows of one input, in the order of their arrival."""

    keys: pa.Array  #: of the type that the join is played through with
    hashes: Hashes  #: of the row's tokens, a column each: one, or two
    exists: Flags  #: likewise: whether the row has that token
    lots: NDArray[np.float64]  #: a number from 0 to 1 for each row, drawn by chance
    input_rows: int  #: that the whole input has
    turns: NDArray[np.int64] | None = (
        None  #: the micro-batch that each row comes in, if it is known
    )

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Chosen:
    """Rows of one side: which they are, and what decides how many pairs one of theirs stands for.

    The flag of a left row: whether it was taken by chance. Of a right row: whether for certain.
    """

    rows: NDArray[np.int64]
    flags: Flags


@dataclass(frozen=True)
class KeySample:
    """Rows of both inputs: a share `fraction` of all of them."""

    left: SampledSide
    right: SampledSide
    heavy: Flags  #: by bucket: whether rows are taken by chance
    fraction: float

    @property
    def sides(self) -> tuple[SampledSide, SampledSide]:
        return self.left, self.right

    def mixed(self) -> "KeySample":
        """The sample without its order of micro-batches."""
        left, right = (replace(side, turns=None) for side in self.sides)
        return replace(self, left=left, right=right)

    @property
    def in_turn(self) -> bool:
        """Whether it is known which rows come in one micro-batch."""
        return all(side.turns is not None for side in self.sides)

    @property
    def input_rows(self) -> tuple[int, int]:
        return self.left.input_rows, self.right.input_rows

    def part(self, low: float, high: float) -> tuple[Chosen, Chosen]:
        """The rows of a part: a sample of `high - low` of the input, below `fraction` in all.

        Parts that do not overlap have no key in common but those with many rows.
        """
        return (
            self._chosen(self.left, low, high, flag_certain=False),
            self._chosen(self.right, low, high, flag_certain=True),
        )

    def _chosen(self, side: SampledSide, low: float, high: float, *, flag_certain: bool) -> Chosen:
        heavy = self.heavy[bucket_of(side.hashes)] & side.exists
        choices = choice_of(side.hashes)
        whole = side.exists & ~heavy & (low <= choices) & (choices < high)
        certain: Flags = np.logical_or.reduce(whole, axis=1)
        by_chance = np.logical_or.reduce(heavy, axis=1) & (low <= side.lots) & (side.lots < high)
        rows = np.flatnonzero(certain | by_chance)
        return Chosen(rows, certain[rows] if flag_certain else ~certain[rows])


def bucket_of(hashes: Hashes) -> NDArray[np.int64]:
    """The bucket of a hash: its lowest bits."""
    return (hashes & np.uint64(BUCKETS - 1)).astype(np.int64)


def choice_of(hashes: Hashes) -> NDArray[np.float64]:
    """A number from 0 to 1 that the other bits of a hash are."""
    return (hashes >> np.uint64(BUCKET_BITS)).astype(np.float64) / float(1 << CHOICE_BITS)


def heavy_buckets(
    counts: tuple[NDArray[np.int64], NDArray[np.int64]], fraction: float, rows: int,
    matching: float = 1.0,
) -> Flags:  # fmt: skip
    """The buckets of whose keys rows are to be taken by chance.

    All of them, if that leaves enough pairs to count: only then has every row as many matches in
    terms of the others' as it has in the input, by which DINER goes. Else those with so many rows
    that one key of theirs might be a fiftieth of the sample.

    counts: the rows of each bucket, left and right; rows: how many the sample is to have of a side;
    matching: the share of pairs of one token that match.
    """
    left, right = (side.astype(np.float64) for side in counts)
    of_other_tokens = left.sum() * right.sum() / BUCKETS  # that share a bucket by chance
    pairs = matching * (float(left @ right) - of_other_tokens)
    if pairs * fraction**2 >= _ENOUGH_PAIRS:
        return np.ones(BUCKETS, dtype=np.bool_)
    most = np.zeros(BUCKETS)
    for side in (left, right):
        many = side > max(rows / 50, _MANY_MEANS * side.mean())
        most[many] = np.maximum(most[many], side[many] / side.sum())
    found = np.flatnonzero(most)
    heavy = np.zeros(BUCKETS, dtype=np.bool_)
    heavy[found[np.argsort(-most[found], kind="stable")][:_MOST_HEAVY]] = True
    return heavy
