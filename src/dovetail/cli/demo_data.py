"""The demo's two streams: orders and payments, made up, as Parquet files.

Keys are mildly skewed (low ones come more often) and a few are null. Everything follows from the
seed.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MOST_FILES = 10  #: a side; one arrives in each micro-batch
KEY = "order_id"
SIDES = {
    "orders": ("customer_id", "amount", "item"),
    "payments": ("account_id", "paid", "reference"),
}
NULL_SHARE = 1 / 500
_SKEW = 1.5  # keys are drawn as u**_SKEW of the range, u uniform
_ROWS_WORTH_A_FILE = 1_000
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
_TEXT_BYTES = 16


@dataclass(frozen=True)
class Streams:
    """What was made; mappings are by the name of the stream."""

    directories: dict[str, Path]
    rows: int  #: a side
    null_keys: dict[str, int]
    nbytes: int  #: of all rows, in memory
    files: int  #: a side


def make_streams(directory: Path, rows: int, seed: int) -> Streams:
    """Write `rows` rows a side below `directory`, in files that arrive in turn."""
    rng = np.random.default_rng(seed)
    directories = {name: directory / name for name in SIDES}
    for path in directories.values():
        path.mkdir(parents=True)
    files = max(1, min(MOST_FILES, rows // _ROWS_WORTH_A_FILE))
    nulls = dict.fromkeys(SIDES, 0)
    nbytes = 0
    for number, size in enumerate(np.diff(np.linspace(0, rows, files + 1).astype(int))):
        for name, path in directories.items():
            table = _table(rng, name, int(size), keys=rows)
            pq.write_table(table, path / f"part-{number:05d}.parquet")
            nulls[name] += table.column(KEY).null_count
            nbytes += table.nbytes
    return Streams(directories, rows, nulls, nbytes, files)


def _table(rng: np.random.Generator, name: str, rows: int, keys: int) -> pa.Table:
    key = (keys * rng.random(rows) ** _SKEW).astype(np.int64)
    without = rng.random(rows) < NULL_SHARE
    who, amount, text = SIDES[name]
    return pa.table(
        {
            KEY: pa.array(key, mask=without),
            who: pa.array(rng.integers(0, 1 << 40, rows)),
            amount: pa.array(rng.integers(100, 1_000_000, rows) / 100),
            text: _texts(rng, rows),
        }
    )


def _texts(rng: np.random.Generator, rows: int) -> pa.Array:
    letters = _LETTERS[rng.integers(0, len(_LETTERS), rows * _TEXT_BYTES)]
    offsets = np.arange(rows + 1, dtype=np.int32) * _TEXT_BYTES
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
