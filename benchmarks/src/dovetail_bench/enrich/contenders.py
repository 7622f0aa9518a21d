"""Who can join a stream's batches with a table on disk inside a budget: ours, DuckDB, SQLite.

The kernel benchmarks of `enrich` take their contenders from here, so that each has the same rival
with the same settings.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context
from dovetail.semistream import KEYS_SCHEMA, SemiStreamSpec, StagedTable, make
from dovetail.semistream.spec import STREAM

PIECES = 10  # record batches that a batch is handed over in
KEY = "k"
_FUEL = 1 << 20
_READ_ROWS = 10_000
WRITE_ROWS = 500_000

STREAM_SCHEMA = pa.schema(
    [(KEY, pa.int64()), ("id", pa.int64()), ("value", pa.float64())],
)
TABLE_SCHEMA = pa.schema(
    [
        (KEY, pa.int64()), ("a", pa.int64()), ("b", pa.int64()),
        ("x", pa.float64()), ("y", pa.float64()), ("text", pa.string()),
    ]
)  # fmt: skip


def spec() -> SemiStreamSpec:
    return SemiStreamSpec(STREAM_SCHEMA, TABLE_SCHEMA, (KEY,), (KEY,))


class Joiner(Protocol):
    """A contender that has its table ready."""

    def join(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """All results of a batch."""

    def facts(self) -> dict[str, float]:
        """Numbers about the batches since this was last called."""

    def close(self) -> None: ...


def pieces_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The record batches that a batch is handed over in."""
    step = -(-batch.num_rows // PIECES)
    return [batch.slice(start, step) for start in range(0, batch.num_rows, step)]


class Operator:
    """One of ours, on a staged table that is there."""

    def __init__(self, algorithm: str, staged: Path, state: Path, budget_bytes: int) -> None:
        self._table = StagedTable(staged, TABLE_SCHEMA)
        state.mkdir()
        self._store = BlockStore(state, (*spec().schemas, KEYS_SCHEMA), "bench")
        self.operator = make(
            algorithm, spec(), Context(Budget(budget_bytes), self._store), self._table
        )
        self._before = self._counts()

    def join(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return list(self.results(batch))

    def results(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same as they come."""
        for piece in pieces_of(batch):
            yield from self.operator.push(STREAM, piece)
        while self.operator.pending():
            yield from self.operator.poll(_FUEL)

    def facts(self) -> dict[str, float]:
        now = self._counts()
        told = {name: count - self._before[name] for name, count in now.items()}
        self._before = now
        rows, found = told.pop("rows"), told.pop("found", None)
        told["peak_budget_bytes"] = self.operator.ctx.budget.peak_bytes
        return told if found is None else {**told, "cache_hit_share": found / rows}

    def _counts(self) -> dict[str, float]:
        counters = self.operator.ctx.counters
        counts: dict[str, float] = {
            "rows": counters.rows_in[STREAM],
            "bytes_read": counters.bytes_read,
            "requests": counters.blocks_read,
        }
        cache = getattr(self.operator, "cache", None)
        if cache is not None and cache.limit:
            counts["found"] = cache.found
        return counts

    def close(self) -> None:
        self._store.close()
        self._table.close()


def load_duckdb(parts: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write a table into a database file, in key order; parts have to follow each other in it."""
    import duckdb

    with duckdb.connect(str(path)) as loading:
        for number, part in enumerate(parts):
            loading.register("arrow", pa.Table.from_batches([part]))
            begin = "INSERT INTO stored" if number else "CREATE TABLE stored AS"
            loading.execute(f"{begin} FROM arrow ORDER BY {KEY}")


class DuckDb:
    """DuckDB with a table in a file of its own, see `load_duckdb`."""

    def __init__(self, path: Path, budget_bytes: int) -> None:
        import duckdb

        settings: dict[str, Any] = {"memory_limit": f"{budget_bytes // 10**6}MB", "threads": 2}
        self._connection = duckdb.connect(str(path), config=settings)
        self._connection.execute("SET preserve_insertion_order = false")

    def join(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = self._query(batch).to_arrow_table().to_batches()
        return found

    def results(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same as they come."""
        yield from self._query(batch).to_arrow_reader(_READ_ROWS)

    def _query(self, batch: pa.RecordBatch) -> Any:
        # in several chunks: DuckDB scans a single one with a single thread
        self._connection.register("batch", pa.Table.from_batches(pieces_of(batch)))
        return self._connection.sql(f"SELECT * FROM batch JOIN stored USING ({KEY})")

    def facts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._connection.close()


class Sqlite:
    """SQLite with a table in a file of its own, its primary key being the rowid."""

    def __init__(
        self,
        table: pa.RecordBatch,
        path: Path,
        budget_bytes: int,
        stream: pa.Schema = STREAM_SCHEMA,
    ) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        execute = self._connection.execute
        execute("PRAGMA journal_mode = OFF")
        execute("PRAGMA synchronous = OFF")
        execute("PRAGMA temp_store = MEMORY")
        self.limit(budget_bytes)
        execute(f"CREATE TABLE stored ({_declared(table.schema, 'INTEGER PRIMARY KEY')})")
        order = np.argsort(np.asarray(table.column(KEY)))
        execute("BEGIN")
        for start in range(0, len(order), WRITE_ROWS):
            part = table.take(pa.array(order[start : start + WRITE_ROWS]))
            self._insert("stored", part)
        execute("COMMIT")
        execute(f"CREATE TEMP TABLE batch ({_declared(stream, 'INTEGER')})")
        self._schema = pa.schema([*stream, *list(table.schema)[1:]])
        # the stream outside, index lookups inside
        columns = [f"batch.{name}" for name in stream.names]
        columns += [f"stored.{name}" for name in table.schema.names[1:]]
        self._query = (
            f"SELECT {', '.join(columns)} FROM batch CROSS JOIN stored "
            f"ON stored.{KEY} = batch.{KEY} ORDER BY batch.rowid"
        )

    def limit(self, budget_bytes: int) -> None:
        """The size of the page cache from now on."""
        self._connection.execute(f"PRAGMA cache_size = -{max(1, budget_bytes // 1000)}")

    def _insert(self, name: str, rows: pa.RecordBatch) -> None:
        marks = ", ".join("?" * rows.num_columns)
        columns = [column.to_pylist() for column in rows.columns]
        self._connection.executemany(
            f"INSERT INTO {name} VALUES ({marks})", zip(*columns, strict=True)
        )

    def join(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        execute = self._connection.execute
        execute("BEGIN")
        execute("DELETE FROM batch")
        # lookups in key order find their pages in the cache
        order = np.argsort(np.asarray(batch.column(KEY)))
        self._insert("batch", batch.take(pa.array(order)))
        found = execute(self._query).fetchall()
        execute("COMMIT")
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*found, strict=True), self._schema, strict=True)
        ]
        return [pa.RecordBatch.from_arrays(columns, schema=self._schema)]

    def facts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._connection.close()


def _declared(schema: pa.Schema, key: str) -> str:
    """The columns of a table in SQL; the first is the key."""
    names = {pa.int64(): "INTEGER", pa.float64(): "REAL"}
    types = [key, *(names.get(type_, "") for type_ in schema.types[1:])]
    return ", ".join(f"{name} {type_}" for name, type_ in zip(schema.names, types, strict=True))
