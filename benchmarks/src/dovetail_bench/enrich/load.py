"""The load that the kernel benchmarks of `enrich` share: batches of a stream, and a budget."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail_bench.enrich.contenders import PIECES, STREAM_SCHEMA

BATCH_ROWS = 100_000
BUDGET_BYTES = 64_000_000
LEAST_BUDGET_BYTES = 16_000_000  # DuckDB needs about that much
WARM_UP_BATCHES = 8
BATCHES = 3  # of a repetition
GROUP = "zipf"


@dataclass(frozen=True)
class Load:
    """What the rows of a table mean for the rest."""

    rows: int
    published_rows: ClassVar[int]  #: those of batches and a budget of full size

    @property
    def batch_rows(self) -> int:
        return max(PIECES, BATCH_ROWS * self.rows // self.published_rows)

    @property
    def budget_bytes(self) -> int:
        return max(LEAST_BUDGET_BYTES, BUDGET_BYTES * self.rows // self.published_rows)


class Stream:
    """Batches with keys by Zipf's law; each can be made by itself."""

    def __init__(self, rows: int, batch_rows: int, seed: int) -> None:
        self.batch_rows = batch_rows
        self._seed = seed
        self._keys = np.random.default_rng([seed, 1]).permutation(rows)
        upper = np.cumsum(1 / np.arange(1, rows + 1))
        self._upper = upper / upper[-1]

    def batch(self, number: int) -> pa.RecordBatch:
        rng = np.random.default_rng([self._seed, 2, number])
        rows = self.batch_rows
        ranks = np.searchsorted(self._upper[:-1], rng.random(rows), side="right")
        columns = [self._keys[ranks], number * rows + np.arange(rows), rng.random(rows)]
        return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=STREAM_SCHEMA)
