"""Parts of the cache: some values, sorted by code, with their table rows."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows
from dovetail.semistream.table.gathering import positions_of

KEY_BYTES = 40  # of a cached value: code, start, hits, and 12 for the index of all parts


@dataclass
class Part:
    """Some of the cached values, by code."""

    keys: Codes  #: each once
    starts: Rows  #: where a value's rows begin; one more than there are keys
    hits: Rows  #: stream rows that each value has settled, recent ones counting more
    rows: pa.RecordBatch
    blocks: list[np.void] | None = None
    noted: int = 0  #: the hits of all values, as the blocks have them

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes) + KEY_BYTES * len(self.keys)

    def only(self, keep: NDArray[np.bool_]) -> "Part":
        counts = np.diff(self.starts)
        rows = self.rows.filter(pa.array(np.repeat(keep, counts)))
        return Part(self.keys[keep], starts_of(counts[keep]), self.hits[keep], rows)


def firsts_of(codes: Codes) -> Rows:
    """Where each of some sorted codes first occurs."""
    fresh = np.ones(len(codes), dtype=np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)


def starts_of(counts: Rows) -> Rows:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def merged(one: Part, two: Part) -> Part:
    keys = np.concatenate([one.keys, two.keys])
    order = np.argsort(keys, kind="stable")
    counts = np.concatenate([np.diff(one.starts), np.diff(two.starts)])
    begins = np.concatenate([one.starts[:-1], two.starts[:-1] + one.rows.num_rows])
    rows = pa.concat_batches([one.rows, two.rows])
    rows = rows.take(pa.array(positions_of(begins[order], counts[order])))
    hits = np.concatenate([one.hits, two.hits])[order]
    return Part(keys[order], starts_of(counts[order]), hits, rows)
