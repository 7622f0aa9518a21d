"""The demo's two streams: orders and payments, made up, as Parquet files.

Keys are mildly skewed (low ones come more often) and a few are null. Everything follows from the
seed.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 10  #: a side; one arrives in each micro-batch
KEY = "order_id"
SIDES = {
    "orders": ("customer_id", "amount", "item"),
    "payments": ("account_id", "paid", "reference"),
}
NULL_SHARE = 1 / 500
_SKEW = 1.5  # keys are drawn as u**_SKEW of the range, u uniform
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
_TEXT_BYTES = 16


@dataclass(frozen=True)
class Streams:
    """What was made, by the name of the stream."""

    directories: dict[str, Path]
    rows: dict[str, int]
    null_keys: dict[str, int]
    nbytes: int  #: of all rows, in memory


def make_streams(directory: Path, rows: int, seed: int) -> Streams:
    """Write `rows` rows a side below `directory`, in files that arrive in turn."""
    rng = np.random.default_rng(seed)
    made = Streams({name: directory / name for name in SIDES}, {}, {}, 0)
    nbytes = 0
    for path in made.directories.values():
        path.mkdir(parents=True)
    cuts = np.linspace(0, rows, min(FILES, rows) + 1).astype(int)
    for number, size in enumerate(np.diff(cuts)):
        for name, path in made.directories.items():
            table = _table(rng, name, int(size), keys=rows)
            pq.write_table(table, path / f"part-{number:05d}.parquet")
            made.rows[name] = made.rows.get(name, 0) + table.num_rows
            nulls = table.column(KEY).null_count
            made.null_keys[name] = made.null_keys.get(name, 0) + nulls
            nbytes += table.nbytes
    return Streams(made.directories, made.rows, made.null_keys, nbytes)


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
