"""The relations that the benchmarks join, in memory and as Parquet files.

A row is a 64-bit key drawn uniformly from a domain, a 64-bit integer, a double, and a text of 16
characters. Nothing in it compresses or repeats, so that no contender is helped by luck.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dovetail.kernel.protocol import SIDE_NAMES

KEY = "key"
_TEXT_CHARACTERS = 16


@dataclass(frozen=True)
class Relations:
    """Two relations and the number of pairs that their join has."""

    left: pa.Table
    right: pa.Table
    pairs: int

    @property
    def nbytes(self) -> int:
        """Both inputs as Arrow holds them."""
        return int(self.left.nbytes + self.right.nbytes)

    def batches(self, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of that many rows, the sides taking turns."""
        sides = [table.combine_chunks().to_batches(rows) for table in (self.left, self.right)]
        for pair in zip(*sides, strict=True):
            yield from enumerate(pair)


@dataclass(frozen=True)
class Files:
    """Two relations as Parquet files of one size, below `directory/left` and `directory/right`."""

    directory: Path
    rows: int  #: a side
    files: int  #: a side
    pairs: int
    nbytes: int  #: of both inputs as Arrow holds them

    def side(self, side: int) -> str:
        return str(self.directory / SIDE_NAMES[side])


def make_relations(rows: int, domain: int, rng: np.random.Generator) -> Relations:
    """Two relations of `rows` rows each, with keys from `[0, domain)`."""
    keys = [rng.integers(0, domain, rows), rng.integers(0, domain, rows)]
    return _relations(keys, domain, rng)


def make_matched_relations(rows: int, batch_rows: int, rng: np.random.Generator) -> Relations:
    """Two relations in which each batch meets the other side's batch of that number, and no other.

    So every batch has as many results as the next one, however many rows came before it.
    """
    left = rng.permutation(rows)
    starts = range(0, rows, batch_rows)
    right = np.concatenate([rng.permutation(left[at : at + batch_rows]) for at in starts])
    return _relations([left, right], rows, rng)


def count_pairs(left: NDArray[np.int64], right: NDArray[np.int64], domain: int) -> int:
    """How many pairs of equal keys there are."""
    counts = np.bincount(left, minlength=domain), np.bincount(right, minlength=domain)
    return int(np.dot(*counts))


def write_files(relations: Relations, directory: Path, files: int) -> Files:
    """The relations as `files` Parquet files a side, which Spark will read in their order."""
    rows = relations.left.num_rows
    newest = time.time()
    for side, table in zip(SIDE_NAMES, (relations.left, relations.right), strict=True):
        target = directory / side
        target.mkdir(parents=True)
        for number in range(files):
            begin, end = rows * number // files, rows * (number + 1) // files
            path = target / f"{number:05d}.parquet"
            pq.write_table(table.slice(begin, end - begin), path)
            # a file source takes files by their time, which may be too coarse to tell them apart
            os.utime(path, times=(newest - files + number,) * 2)
    return Files(directory, rows, files, relations.pairs, relations.nbytes)


def _relations(keys: list[NDArray[np.int64]], domain: int, rng: np.random.Generator) -> Relations:
    left, right = (
        pa.table(
            {
                KEY: codes,
                f"{side}_number": rng.integers(0, 1 << 62, len(codes)),
                f"{side}_value": rng.random(len(codes)),
                f"{side}_text": texts(len(codes), rng),
            }
        )
        for side, codes in zip(SIDE_NAMES, keys, strict=True)
    )
    return Relations(left, right, count_pairs(keys[0], keys[1], domain))


def texts(rows: int, rng: np.random.Generator, characters: int = _TEXT_CHARACTERS) -> pa.Array:
    """Random letters."""
    letters = rng.integers(ord("a"), ord("z") + 1, rows * characters, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * characters
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
