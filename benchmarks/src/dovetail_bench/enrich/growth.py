"""`enrich-growth`: what becomes of rate and wait when the table grows and the budget does not.

Tables of 1 to 20 million rows of 120 bytes lie on disk. A stream brings batches of 100,000 rows
whose keys are Zipfian (exponent 1) over the keys of the table; every row has exactly one match. All
contenders have 64 MB at every size, and all sizes take turns in every repetition, so that a ratio
of sizes comes from one spell of the machine.

Ours: `seek`, with its cache and without (`seek-uncached`), and `ssbj`, each on one staged
partition; a batch is handed over in ten record batches, then the operator is polled until nothing
is pending. DuckDB: its own table in a database file, written in key order, `memory_limit` 64 MB,
two threads; it gives its results as one Arrow table (`duckdb`) or in batches as they come
(`duckdb-streamed`), and whichever is the faster counts.

- batch: the time of a batch;
- wait50, wait95: from the moment at which a batch is there to that at which a row's result is, the
  median row and the 95th of a hundred.

`duckdb/SIZE` is DuckDB's time over that of the best of ours, `first-size/SIZE` our time at the
first size over that at this one: 1 is no growth at all. What lies on disk is in the page cache of
the system: this measures computing, not a disk.

Scales: with fewer rows, all tables, batches and the budget shrink alike, the latter down to 16 MB.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.semistream import TableWriter
from dovetail_bench.enrich.contenders import (
    PIECES,
    TABLE_SCHEMA,
    WRITE_ROWS,
    DuckDb,
    Operator,
    load_duckdb,
    spec,
)
from dovetail_bench.enrich.load import BATCHES, GROUP, WARM_UP_BATCHES, Load, Stream
from dovetail_bench.measure import Contender, Measured, Runs, expect_rows, interleaved
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config, describe
from dovetail_bench.result import Failure, Result, Spread, significant
from dovetail_bench.scratch import scratch

NAME = "enrich-growth"
ROWS = 20_000_000
SIZES = {"1M": 0.05, "3.5M": 0.175, "10M": 0.5, "20M": 1.0}  #: of the largest table
TEXT_BYTES = 76  # makes a row of 120
OPERATORS = ("seek", "seek-uncached", "ssbj")
RIVAL = "duckdb"
RIVALS = (RIVAL, f"{RIVAL}-streamed")
CLOCKS = ("batch", "wait50", "wait95")
_POOL_BYTES = 1 << 20  # of letters that texts are taken from

Results = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Table:
    """A table with the keys `0..rows`, made in parts; what a row holds follows from its key."""

    rows: int
    seed: int

    @cached_property
    def _pool(self) -> NDArray[np.uint8]:
        rng = np.random.default_rng([self.seed, 0])
        return rng.integers(ord("a"), ord("z") + 1, _POOL_BYTES + TEXT_BYTES, dtype=np.uint8)

    def rows_of(self, keys: NDArray[np.int64]) -> pa.RecordBatch:
        mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # spreads over 64 bits
        texts = np.lib.stride_tricks.sliding_window_view(self._pool, TEXT_BYTES)
        letters = texts[(mixed >> np.uint64(44)).astype(np.int64)]
        ends = np.arange(0, (len(keys) + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
        text = pa.StringArray.from_buffers(len(keys), pa.py_buffer(ends), pa.py_buffer(letters))
        share = mixed / 2.0**64
        numbers = [keys, (mixed >> np.uint64(24)).astype(np.int64), keys % 1_000, share, 1 - share]
        return pa.RecordBatch.from_arrays([*map(pa.array, numbers), text], schema=TABLE_SCHEMA)

    def parts(self, order: NDArray[np.int64] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows by key, or in this order of keys, a part at a time."""
        for start in range(0, self.rows, WRITE_ROWS):
            stop = min(self.rows, start + WRITE_ROWS)
            yield self.rows_of(np.arange(start, stop) if order is None else order[start:stop])

    def stage(self, directory: Path) -> None:
        """Write the table as the staging job would: by code."""
        codes, _ = spec().codec.encode([pa.array(np.arange(self.rows))])
        order = np.argsort(codes)
        writer = TableWriter(directory, TABLE_SCHEMA)
        for number, part in enumerate(self.parts(order)):
            start = number * WRITE_ROWS
            writer.append(codes[order[start : start + part.num_rows]], part)
        writer.finish()


@dataclass
class Place:
    """Everything at one size: the stream, and the contenders with their tables ready."""

    size: str
    stream: Stream
    results: dict[str, Results] = field(default_factory=dict)
    facts: dict[str, Callable[[], dict[str, float]]] = field(default_factory=dict)

    def contender(self, name: str) -> Contender:
        """Every run takes the stream's next few batches."""
        numbers = iter(range(WARM_UP_BATCHES, 1 << 30))

        def run() -> Measured:
            joined = [self.join(name, next(numbers)) for _ in range(BATCHES)]
            seconds = {clock: sum(one[clock] for one in joined) / BATCHES for clock in CLOCKS}
            facts = {"rows_per_s": self.stream.batch_rows / seconds["batch"]}
            return Measured(seconds, facts | self.facts[name]())

        return Contender(f"{name} {self.size}", run)

    def join(self, name: str, number: int) -> dict[str, float]:
        """The clocks of a batch; that its results are all there is checked as well."""
        batch = self.stream.batch(number)
        ends: list[float] = []
        rows: list[int] = []
        started = time.perf_counter()
        for found in self.results[name](batch):
            ends.append(time.perf_counter() - started)
            rows.append(found.num_rows)
        whole = time.perf_counter() - started
        expect_rows(sum(rows), batch.num_rows)
        share = np.cumsum(rows) / batch.num_rows
        return {
            "batch": whole,
            "wait50": ends[int(np.searchsorted(share, 0.50))],
            "wait95": ends[int(np.searchsorted(share, 0.95))],
        }


@dataclass(frozen=True)
class Scale(Load):
    """The rows of the largest table, and what they mean for the rest."""

    published_rows: ClassVar[int] = ROWS

    def table_rows(self, size: str) -> int:
        return max(1, round(SIZES[size] * self.rows))


def run(config: Config, reporter: Reporter) -> Result:
    """All contenders at all sizes."""
    scale = Scale(config.rows)
    failures: list[Failure] = []
    contenders: list[Contender] = []
    staging: dict[str, dict[str, float | None]] = {}
    with ExitStack() as stack:
        root = stack.enter_context(scratch())
        for size in SIZES:
            reporter.begin(f"making the tables of {size}")
            (root / size).mkdir()
            place, staging[size] = _prepare(scale, size, config.seed, root / size, stack)
            failures += _warm_up(place, reporter)
            contenders += [place.contender(name) for name in place.results]
        runs = interleaved(contenders, config.repetitions_of(GROUP), reporter)
    runs.failures[:0] = failures
    best = {size: _best(runs, size) for size in SIZES}
    facts = {
        "table_rows": {size: scale.table_rows(size) for size in SIZES},
        "row_bytes": Table(1, config.seed).rows_of(np.zeros(1, np.int64)).nbytes,
        "batch_rows": f"{scale.batch_rows} in {PIECES} record batches",
        "budget_bytes": scale.budget_bytes,
        "batches": f"{WARM_UP_BATCHES} to warm up, then {BATCHES} a repetition",
        "threads": "two for DuckDB, one for ours",
        "staging_seconds": staging,
        "best of ours": best,
        "first-size of duckdb": {
            size: _growth(runs, RIVAL, size).to_dict() for size in list(SIZES)[1:]
        },
        "contenders": runs.facts(),
    }
    return Result(NAME, _ratios(runs, best), facts, tuple(runs.failures))


def _prepare(
    scale: Scale, size: str, seed: int, root: Path, stack: ExitStack
) -> tuple[Place, dict[str, float | None]]:
    """Write the table for ours and for DuckDB, and open both; `stack` closes them."""
    table = Table(scale.table_rows(size), seed)
    started = time.perf_counter()
    table.stage(root / "staged")
    staged = time.perf_counter()
    load_duckdb(table.parts(), root / RIVAL)
    loaded = time.perf_counter()
    place = Place(size, Stream(table.rows, scale.batch_rows, seed))
    for name in OPERATORS:
        operator = Operator(name, root / "staged", root / name, scale.budget_bytes)
        stack.callback(operator.close)
        place.results[name], place.facts[name] = operator.results, operator.facts
    database = DuckDb(root / RIVAL, scale.budget_bytes)
    stack.callback(database.close)
    for name, results in zip(RIVALS, (database.join, database.results), strict=True):
        place.results[name], place.facts[name] = results, database.facts
    seconds = {"ours": staged - started, RIVAL: loaded - staged}
    return place, {name: significant(one) for name, one in seconds.items()}


def _warm_up(place: Place, reporter: Reporter) -> list[Failure]:
    """Let every contender join the first batches; those that fail take no further part."""
    failures = []
    for name in list(place.results):
        reporter.begin(f"warm-up {name} {place.size}")
        try:
            for number in range(WARM_UP_BATCHES):
                place.join(name, number)
            place.facts[name]()
        except Exception as error:  # noqa: BLE001  a contender that failed is shown as failed
            del place.results[name]
            failures.append(Failure(f"{name} {place.size}", None, describe(error)))
    return failures


def _best(runs: Runs, size: str) -> str | None:
    """The operator with the least median time at a size."""
    medians = {}
    for name in OPERATORS:
        done = runs.done.get(f"{name} {size}", {}).values()
        median = Spread.of(one.seconds["batch"] for one in done).median
        if median is not None:
            medians[name] = median
    return min(medians, key=lambda name: medians[name]) if medians else None


def _growth(runs: Runs, name: str, size: str) -> Spread:
    """The time of a batch at the first size over that at this one."""
    first = next(iter(SIZES))
    return runs.ratio([f"{name} {first}"], f"{name} {size}", "batch")


def _ratios(runs: Runs, best: dict[str, str | None]) -> dict[str, Spread]:
    ratios: dict[str, Spread] = {}
    for size in SIZES:
        rivals = [f"{name} {size}" for name in RIVALS]
        ours = best[size] or OPERATORS[0]
        ratios[f"{RIVAL}/{size}"] = runs.ratio(rivals, f"{ours} {size}", "batch")
        for clock in CLOCKS[1:]:
            ratios[f"{RIVAL}-{clock}/{size}"] = runs.ratio(rivals, f"{ours} {size}", clock)
        for name in OPERATORS:
            ratios[f"{RIVAL}/{size},{name}"] = runs.ratio(rivals, f"{name} {size}", "batch")
    for size in list(SIZES)[1:]:
        ratios[f"first-size/{size}"] = _growth(runs, best[size] or OPERATORS[0], size)
        for name in OPERATORS:
            ratios[f"first-size/{size},{name}"] = _growth(runs, name, size)
    return ratios


BENCHMARKS = (
    Benchmark(
        NAME,
        "rate and wait of a stream joined in 64 MB as the table grows, against DuckDB",
        rows=ROWS,
        rows_mean="rows of the largest table; the others have 5, 17.5 and 50 % of that",
        groups=(GROUP,),
        function=run,
    ),
)
