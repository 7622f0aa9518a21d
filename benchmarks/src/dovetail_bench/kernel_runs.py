"""The operators by themselves, and the batch engines that they are measured against.

An operator gets batches from alternating sides and hands its results out as they come; a batch
engine sees both inputs whole. All of them leave their results materialised in Arrow memory.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import SIDES, Context, Status
from dovetail.twoway import TwoWayJoin, TwoWaySpec, make
from dovetail_bench.data import KEY, Relations
from dovetail_bench.machine import available_cores
from dovetail_bench.measure import Contender, Measured, expect_rows
from dovetail_bench.scratch import block_store

BATCH_ROWS = 10_000
_FUEL = 1 << 16
Batches = Sequence[tuple[int, pa.RecordBatch]]


@dataclass(frozen=True)
class Push:
    """What the arrival of one batch cost, and what state it met."""

    seconds: float
    rows_out: int
    state_rows: int  #: of both sides, before the batch
    spilled: bool  #: whether anything had been flushed before the batch


@contextmanager
def operator_of(
    relations: Relations, algorithm: str, budget_bytes: int | None
) -> Iterator[TwoWayJoin]:
    """A new operator with a directory of its own, which goes away with it."""
    spec = TwoWaySpec(relations.left.schema, relations.right.schema, (KEY,), (KEY,))
    with block_store(spec.schemas) as store:
        yield make(algorithm, spec, Context(Budget(budget_bytes), store))


def finish(operator: TwoWayJoin) -> list[pa.RecordBatch]:
    """The results that are left when both inputs have ended."""
    for side in SIDES:
        operator.finish(side)
    results: list[pa.RecordBatch] = []
    while operator.status() is not Status.DONE:
        results += operator.poll(_FUEL)
    return results


def operator_contender(
    name: str, relations: Relations, algorithm: str, budget_bytes: int | None
) -> Contender:
    """An operator that takes the relations in batch by batch, cleanup included."""
    batches: Batches = list(relations.batches(BATCH_ROWS))

    def run() -> Measured:
        with operator_of(relations, algorithm, budget_bytes) as operator:
            results: list[pa.RecordBatch] = []
            started = time.perf_counter()
            for side, batch in batches:
                results += operator.push(side, batch)
            arrived = time.perf_counter() - started
            early = sum(batch.num_rows for batch in results)
            results += finish(operator)
            seconds = time.perf_counter() - started
            counters = operator.ctx.counters
        expect_rows(sum(batch.num_rows for batch in results), relations.pairs)
        return Measured(
            {"whole": seconds},
            {
                "rows_per_s": 2 * relations.left.num_rows / seconds,
                "arriving_seconds": arrived,
                "results_while_arriving": early,
                "spilled_bytes": counters.flushed_bytes,
                "bytes_read_back": counters.bytes_read,
            },
        )

    return Contender(name, run)


def pushes(relations: Relations, batches: Batches, budget_bytes: int | None) -> list[Push]:
    """Each arrival by itself. The results are counted and dropped; there is no cleanup."""
    found = []
    with operator_of(relations, "diner", budget_bytes) as operator:
        state_rows = 0
        for side, batch in batches:
            spilled = operator.ctx.counters.flushed_rows > 0
            started = time.perf_counter()
            rows_out = sum(out.num_rows for out in operator.push(side, batch))
            found.append(Push(time.perf_counter() - started, rows_out, state_rows, spilled))
            state_rows += batch.num_rows
    return found


def duckdb_contenders(relations: Relations) -> list[Contender]:
    """DuckDB over the Arrow tables, and over tables of its own that hold the same rows.

    With a thread a core, and with a single one. Its results need not keep any order, as ours do
    not: that is the faster setting.
    """
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET preserve_insertion_order = false")
    for name in ("left", "right"):
        table = getattr(relations, name)
        # in several chunks: DuckDB scans a single one with a single thread
        chunks = table.combine_chunks().to_batches(max(1, table.num_rows // 10))
        connection.register(f"arrow_{name}", pa.Table.from_batches(chunks))
        connection.execute(f"CREATE TABLE native_{name} AS FROM arrow_{name}")

    def contender(kind: str, threads: int) -> Contender:
        query = f"SELECT * FROM {kind}_left JOIN {kind}_right USING ({KEY})"

        def run() -> Measured:
            connection.execute(f"SET threads = {threads}")
            started = time.perf_counter()
            found = connection.sql(query).to_arrow_table()
            seconds = time.perf_counter() - started
            expect_rows(found.num_rows, relations.pairs)
            return _batch_measured(seconds, relations)

        return Contender(f"duckdb-{kind}" + ("-one-thread" if threads == 1 else ""), run)

    threads = {available_cores(), 1}
    return [contender(kind, count) for count in threads for kind in ("arrow", "native")]


def polars_contenders(relations: Relations) -> list[Contender]:
    """Polars' in-memory join, and its streaming engine, over frames made before."""
    import polars as pl

    left, right = (
        pl.DataFrame(pl.from_arrow(table)).rechunk() for table in (relations.left, relations.right)
    )

    def in_memory() -> pl.DataFrame:
        return left.join(right, on=KEY)

    def streaming() -> pl.DataFrame:
        return left.lazy().join(right.lazy(), on=KEY).collect(engine="streaming")

    def contender(name: str, join: "Callable[[], pl.DataFrame]") -> Contender:
        def run() -> Measured:
            started = time.perf_counter()
            found = join()
            seconds = time.perf_counter() - started
            expect_rows(found.height, relations.pairs)
            return _batch_measured(seconds, relations)

        return Contender(name, run)

    return [contender("polars-memory", in_memory), contender("polars-streaming", streaming)]


def _batch_measured(seconds: float, relations: Relations) -> Measured:
    return Measured({"whole": seconds}, {"rows_per_s": 2 * relations.left.num_rows / seconds})
