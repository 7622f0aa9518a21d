"""The demo's data, made up, as Parquet files; and the settings that a demo runs it with.

For a join two streams, orders and payments: here those that know no order in time, which is the
worst that can come (`life` has the others). For an enrichment a stream of orders and a table of
customers, with columns like those of TPC-H; some orders are of customers that the table lacks.

Keys are mildly skewed (some come more often) and a few are null. Everything follows from the seed.
"""

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

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

Integers = NDArray[np.integer[Any]]

CUSTOMER_KEY = "custkey"
ORDER_FILES = 5  #: at most; one arrives in each micro-batch
UNKNOWN_SHARE = 1 / 100  #: of the customers who order, those that are not in the table
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")


@dataclass(frozen=True)
class Settings:
    """How a demo is to run."""

    partitions: int
    budget_bytes: int
    batch_rows: int


@dataclass(frozen=True)
class Shop:
    """A stream of orders and a table of customers."""

    orders: Path
    table: Path
    rows: int  #: of the stream
    customers: int  #: in the table
    table_bytes: int  #: of the table, in memory
    order_bytes: float  #: of an order


@dataclass(frozen=True)
class Stream:
    """One stream that was made."""

    directory: Path
    rows: int
    nbytes: int  #: of all rows, in memory
    keyed: tuple[int, ...]  #: rows with a key in the first file, in the first two, and so on

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def files(self) -> int:
        return len(self.keyed)

    @property
    def null_keys(self) -> int:
        return self.rows - self.keyed[-1]


@dataclass(frozen=True)
class Streams:
    """The streams to be joined, the left one first; both are in as many files."""

    left: Stream
    right: Stream
    pairs: tuple[int, ...] = ()  #: results of the first file of each, and so on, if it is known

    @property
    def both(self) -> tuple[Stream, Stream]:
        return self.left, self.right

    @property
    def files(self) -> int:
        return self.left.files

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def rows(self) -> int:
        return self.left.rows + self.right.rows

    def files_with(self, rows: int) -> int:
        """How many files of each side are in so many rows with a key, if files come in pairs."""
        together = [sum(pair) for pair in zip(self.left.keyed, self.right.keyed, strict=True)]
        return bisect_right(together, rows)


def make_streams(directory: Path, rows: int, seed: int) -> Streams:
    """Write `rows` rows a side below `directory`, in files that arrive in turn."""
    rng = np.random.default_rng(seed)
    files = max(1, min(MOST_FILES, rows // _ROWS_WORTH_A_FILE))
    bounds = np.linspace(0, rows, files + 1).astype(int)
    tables: dict[str, list[pa.Table]] = {name: [] for name in SIDES}
    for size in np.diff(bounds):
        for name, parts in tables.items():
            parts.append(_table(rng, name, int(size), keys=rows))
    left, right = (
        write_stream(directory / name, pa.concat_tables(parts), bounds[1:-1])
        for name, parts in tables.items()
    )
    return Streams(left, right)


def write_stream(
    directory: Path, rows: pa.Table, cuts: Sequence[int] | Integers, key: str = KEY
) -> Stream:
    """Write a stream as files that Spark will read in turn; at each cut another file begins."""
    directory.mkdir(parents=True)
    bounds = [0, *(int(cut) for cut in cuts), rows.num_rows]
    newest, keyed = time.time(), [0]
    for number, (begin, end) in enumerate(pairwise(bounds)):
        path = directory / f"part-{number:05d}.parquet"
        part = rows.slice(begin, end - begin)
        pq.write_table(part, path)
        keyed.append(keyed[-1] + part.num_rows - part.column(key).null_count)
        # files are taken by their time, which may be too coarse to tell them apart
        os.utime(path, times=(newest - len(bounds) + number,) * 2)
    return Stream(directory, rows.num_rows, rows.nbytes, tuple(keyed[1:]))


def _table(rng: np.random.Generator, name: str, rows: int, keys: int) -> pa.Table:
    key = (keys * rng.random(rows) ** _SKEW).astype(np.int64)
    without = rng.random(rows) < NULL_SHARE
    who, amount, text = SIDES[name]
    return pa.table(
        {
            KEY: pa.array(key, mask=without),
            who: pa.array(rng.integers(0, 1 << 40, rows)),
            amount: pa.array(rng.integers(100, 1_000_000, rows) / 100),
            text: letters(rng, rows),
        }
    )


def letters(rng: np.random.Generator, rows: int) -> pa.Array:
    """Texts of random letters, all of one length."""
    drawn = _LETTERS[rng.integers(0, len(_LETTERS), rows * _TEXT_BYTES)]
    offsets = np.arange(rows + 1, dtype=np.int32) * _TEXT_BYTES
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(drawn))


def make_shop(directory: Path, rows: int, seed: int) -> Shop:
    """Write so many orders, in files that arrive in turn, and 2.5 times as many customers.

    As in TPC-H, a third of the customers never orders.
    """
    customers = max(1, rows * 5 // 2)
    rng = np.random.default_rng(seed)
    table = directory / "customers"
    table.mkdir(parents=True)
    known = _customers(rng, customers)
    pq.write_table(known, table / "part-00000.parquet")
    files = max(1, min(ORDER_FILES, rows // _ROWS_WORTH_A_FILE))
    bounds = np.linspace(0, rows, files + 1).astype(int)
    parts = [_orders(rng, first, end - first, customers) for first, end in pairwise(bounds)]
    orders = pa.concat_tables(parts)
    write_stream(directory / "orders", orders, bounds[1:-1], CUSTOMER_KEY)
    order_bytes = orders.nbytes / rows
    return Shop(directory / "orders", table, rows, known.num_rows, known.nbytes, order_bytes)


def _customers(rng: np.random.Generator, customers: int) -> pa.Table:
    """Customers 1, 2, ... in no order; the last of those who order are not among them."""
    keys = np.arange(1, customers + 1)
    buyers = keys[keys % 3 != 0]
    known = buyers[: -max(1, int(len(buyers) * UNKNOWN_SHARE))]
    keys = rng.permutation(np.concatenate([known, keys[keys % 3 == 0]]))
    count = len(keys)
    return pa.table(
        {
            CUSTOMER_KEY: pa.array(keys),
            "name": pa.array(np.char.mod("Customer#%09d", keys)),
            "address": letters(rng, count),
            "nationkey": pa.array(rng.integers(0, 25, count, dtype=np.int32)),
            "phone": pa.array(np.char.mod("%015d", rng.integers(0, 10**15, count))),
            "acctbal": pa.array(rng.integers(-99_999, 1_000_000, count) / 100),
            "mktsegment": pa.array(np.array(_SEGMENTS)[rng.integers(0, 5, count)]),
        }
    )


def _orders(rng: np.random.Generator, first: int, rows: int, customers: int) -> pa.Table:
    buyers = np.arange(1, customers + 1)
    buyers = buyers[buyers % 3 != 0]
    chosen = buyers[(len(buyers) * rng.random(rows) ** _SKEW).astype(np.int64)]
    days = rng.integers(0, 2_400, rows)
    return pa.table(
        {
            "orderkey": pa.array(np.arange(first + 1, first + rows + 1)),
            CUSTOMER_KEY: pa.array(chosen, mask=rng.random(rows) < NULL_SHARE),
            "totalprice": pa.array(rng.integers(90_000, 50_000_000, rows) / 100),
            "orderdate": pa.array(np.datetime64("1992-01-01") + days),
            "orderpriority": pa.array(np.array(_PRIORITIES)[rng.integers(0, 5, rows)]),
        }
    )
