"""The relations of both papers: a staged table, and a stream that asks for its keys.

20 bytes a row in the stream, 120 in the table. A table says how many rows each key has, a law how
often a stream asks for it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows
from dovetail.semistream import SemiStreamSpec, TableWriter
from dovetail.semistream.spec import STREAM, TABLE

KEY = "k"
STREAM_ROW_BYTES, TABLE_ROW_BYTES = 20, 120
PAGES = 240  # of a table: a multiple of the iterations of a scan, so that no read is split
_WRITE_ROWS = 500_000
_BLOCK_ROWS = 1 << 16

Floats = NDArray[np.float64]


def _schema(row_bytes: int) -> pa.Schema:
    return pa.schema([(KEY, pa.int64()), ("rest", pa.binary(row_bytes - 8))])


def make_rows(keys: Rows, row_bytes: int) -> pa.RecordBatch:
    """Rows with these keys; what else is in them is zeros."""
    filler = pa.py_buffer(bytes((row_bytes - 8) * len(keys)))
    rest = pa.Array.from_buffers(pa.binary(row_bytes - 8), len(keys), [None, filler])
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), rest], schema=_schema(row_bytes))


@dataclass(frozen=True)
class Relation:
    """A table that lies staged on disk."""

    directory: Path
    spec: SemiStreamSpec
    matches: Rows  #: how many rows each key of the domain has
    stream_row_bytes: int
    table_row_bytes: int

    @property
    def rows(self) -> int:
        return int(self.matches.sum())

    @property
    def nbytes(self) -> int:
        return self.rows * self.table_row_bytes


def stage(
    matches: Rows,
    directory: Path,
    stream_row_bytes: int = STREAM_ROW_BYTES,
    table_row_bytes: int = TABLE_ROW_BYTES,
    pages: int = PAGES,
) -> Relation:
    """Write a table in which key i occurs `matches[i]` times."""
    spec = SemiStreamSpec(_schema(stream_row_bytes), _schema(table_row_bytes), (KEY,), (KEY,))
    keys = np.repeat(np.arange(len(matches)), matches)
    codes, _ = spec.encode(TABLE, make_rows(keys, 9))
    order = np.argsort(codes, kind="stable")
    page_rows = max(1, -(-len(keys) // pages))
    writer = TableWriter(directory, spec.table, page_rows * table_row_bytes)
    for start in range(0, len(order), _WRITE_ROWS):
        part = order[start : start + _WRITE_ROWS]
        writer.append(codes[part], make_rows(keys[part], table_row_bytes))
    writer.finish()
    return Relation(directory, spec, matches, stream_row_bytes, table_row_bytes)


def each_once(rows: int) -> Rows:
    return np.ones(rows, dtype=np.int64)


def with_repetition(rows: int, seed: int) -> Rows:
    """Keys drawn from a domain as large as the table: about 37 % of them occur in no row."""
    drawn = np.random.default_rng([seed, 0]).integers(0, rows, rows)
    return np.bincount(drawn, minlength=rows).astype(np.int64)


class Law:
    """How often a stream asks for each key: by rank, Zipfian; ranks are dealt out at random."""

    def __init__(self, keys: int, skew: float, seed: int) -> None:
        self._keys = np.random.default_rng([seed, 1]).permutation(keys)
        chances = np.arange(1, keys + 1, dtype=np.float64) ** -skew
        self._upper = np.cumsum(chances / chances.sum())

    def draw(self, rows: int, rng: np.random.Generator) -> Rows:
        ranks = np.searchsorted(self._upper[:-1], np.sort(rng.random(rows)), side="right")
        found: Rows = self._keys[rng.permutation(ranks)]
        return found

    @property
    def probability(self) -> Floats:
        """Of each key, by key."""
        found = np.empty(len(self._keys))
        found[self._keys] = np.diff(self._upper, prepend=0.0)
        return found / float(found.sum())


class Listed:
    """A stream that brings given keys, over and over, each time from another place on."""

    def __init__(self, keys: Rows) -> None:
        self._keys = keys

    def draw(self, rows: int, rng: np.random.Generator) -> Rows:
        start = int(rng.integers(len(self._keys)))
        return np.take(self._keys, np.arange(start, start + rows), mode="wrap")


class Feed:
    """Stream rows, which can be looked at before they are taken."""

    def __init__(self, relation: Relation, law: Law | Listed, seed: list[int]) -> None:
        self._relation = relation
        self._law = law
        self._rng = np.random.default_rng(seed)
        self._keys = np.zeros(0, dtype=np.int64)
        self._codes: Codes = np.zeros(0, dtype=np.int64)
        self._at = 0
        self.expected = 0  #: results of the rows taken

    def peek(self, rows: int) -> Codes:
        """The codes of the next rows."""
        missing = self._at + rows - len(self._keys)
        if missing > 0:
            fresh = self._law.draw(max(missing, _BLOCK_ROWS), self._rng)
            codes, _ = self._relation.spec.encode(STREAM, make_rows(fresh, 9))
            self._keys = np.concatenate([self._keys[self._at :], fresh])
            self._codes = np.concatenate([self._codes[self._at :], codes])
            self._at = 0
        return self._codes[self._at : self._at + rows]

    def take(self, rows: int) -> pa.RecordBatch:
        self.peek(rows)
        keys = self._keys[self._at : self._at + rows]
        self._at += rows
        self.expected += int(self._relation.matches[keys].sum())
        return make_rows(keys, self._relation.stream_row_bytes)
