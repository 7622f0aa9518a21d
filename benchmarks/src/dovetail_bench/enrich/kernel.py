"""`enrich-kernel`: joins of a stream with a table larger than memory, without Spark.

A table of 3.5 million rows of about 104 bytes lies on disk. A stream brings batches of 100,000 rows
whose keys are Zipfian (exponent 1) over a random permutation of the table's keys; every row has
exactly one match. All contenders get the same batches and 64 MB, and leave their results in Arrow
memory.

Ours: one operator each, on one staged partition. A batch is handed over in ten record batches, then
the operator is polled until nothing is pending. MESHJOIN and its relatives finish a round of the
table for every batch that way, which is not what they are made for; their facts are to be read so.
DuckDB: its own table in a database file, `memory_limit` 64 MB, two threads; each batch is joined
with it as a registered Arrow table.
SQLite: a rowid table in a file with the key as its primary key, a page cache of 64 MB; a batch goes
into a temporary table, which is joined by index lookups.

Both files were written in key order, and all that anybody reads is in the page cache of the system:
this measures computing, not a disk. Caches are warm: some batches come before the first that is
timed. A repetition is a few batches, and its time is the mean of a batch.

Scales: with fewer table rows, batches and the budget shrink alike, the latter down to 16 MB.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from dovetail.semistream import TableWriter
from dovetail.semistream.spec import TABLE
from dovetail_bench.enrich.contenders import (
    PIECES,
    TABLE_SCHEMA,
    WRITE_ROWS,
    DuckDb,
    Joiner,
    Operator,
    Sqlite,
    load_duckdb,
    spec,
)
from dovetail_bench.enrich.load import BATCHES, GROUP, WARM_UP_BATCHES, Load, Stream
from dovetail_bench.measure import Contender, Measured, Runs, expect_rows, interleaved
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config, describe
from dovetail_bench.result import Failure, Result, Spread, significant
from dovetail_bench.scratch import scratch

NAME = "enrich-kernel"
ROWS = 3_500_000
TEXT_BYTES = 60
OPERATORS = ("seek", "seek-uncached", "ssbj", "meshjoin", "ameshjoin", "inl")
RIVALS = ("duckdb", "sqlite")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Size(Load):
    """A number of table rows, and what it means for the rest."""

    published_rows: ClassVar[int] = ROWS

    def __str__(self) -> str:
        rows = f"{self.rows / 1e6:.3g}M" if self.rows >= 10**5 else str(self.rows)
        return f"{rows}-{self.budget_bytes / 1e6:.3g}MB"


def make_table(rows: int, seed: int) -> pa.RecordBatch:
    """Every key once, in no order."""
    rng = np.random.default_rng([seed, 0])
    letters = rng.integers(ord("a"), ord("z") + 1, rows * TEXT_BYTES, dtype=np.uint8)
    ends = np.arange(0, (rows + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
    text = pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters))
    numbers = [
        rng.permutation(rows),
        rng.integers(0, 1 << 40, rows),
        rng.integers(0, 1_000, rows),
        rng.random(rows),
        rng.normal(size=rows),
    ]
    return pa.RecordBatch.from_arrays([*map(pa.array, numbers), text], schema=TABLE_SCHEMA)


def stage(table: pa.RecordBatch, directory: Path) -> None:
    """Write the table as the staging job would."""
    codes, _ = spec().encode(TABLE, table)
    order = np.argsort(codes)
    writer = TableWriter(directory, TABLE_SCHEMA)
    for start in range(0, len(order), WRITE_ROWS):
        part = order[start : start + WRITE_ROWS]
        writer.append(codes[part], table.take(pa.array(part)))
    writer.finish()


def run(config: Config, reporter: Reporter) -> Result:
    """All contenders on the same batches."""
    size = Size(config.rows)
    with ExitStack() as stack:
        root = stack.enter_context(scratch())
        joiners, facts, failures = _prepare(size, config.seed, root, reporter)
        for joiner in joiners.values():
            stack.callback(joiner.close)
        stream = Stream(size.rows, size.batch_rows, config.seed)
        failures += _warm_up(joiners, stream, reporter)
        contenders = [_contender(name, joiner, stream) for name, joiner in joiners.items()]
        runs = interleaved(contenders, config.repetitions_of(GROUP), reporter)
    runs.failures[:0] = failures
    facts = {
        "table_rows": size.rows,
        "batch_rows": f"{size.batch_rows} in {PIECES} record batches",
        "budget_bytes": size.budget_bytes,
        "batches": f"{WARM_UP_BATCHES} to warm up, then {BATCHES} a repetition",
        "threads": "two for DuckDB, one for the others",
        "bytes_read": "of codes and whole pages, a batch; single rows are not counted",
        **facts,
        "best of ours": _best(runs),
        "contenders": runs.facts(),
    }
    return Result(NAME, _ratios(runs, size), facts, tuple(runs.failures))


def _prepare(
    size: Size, seed: int, root: Path, reporter: Reporter
) -> tuple[dict[str, Joiner], dict[str, Any], list[Failure]]:
    """The contenders with their tables ready, and what that took."""
    reporter.begin("making the table")
    table = make_table(size.rows, seed)
    seconds, _ = _timed(lambda: stage(table, root / "staged"))
    staging, sizes = {"ours": significant(seconds)}, {"ours": _bytes_in(root / "staged")}
    joiners: dict[str, Joiner] = {}
    failures = []
    for name in (*OPERATORS, *RIVALS):
        reporter.begin(f"opening {name}")
        try:
            seconds, joiners[name] = _timed(partial(_open, name, table, root, size))
        except Exception as error:  # noqa: BLE001  a contender that failed is shown as failed
            failures.append(Failure(name, None, describe(error)))
            continue
        if name in RIVALS:
            staging[name], sizes[name] = significant(seconds), _bytes_in(root / name)
    facts = {
        "row_bytes": significant(table.nbytes / table.num_rows),
        "staging_seconds": staging,
        "file_bytes": sizes,
    }
    return joiners, facts, failures


def _open(name: str, table: pa.RecordBatch, root: Path, size: Size) -> Joiner:
    if name in OPERATORS:
        return Operator(name, root / "staged", root / name, size.budget_bytes)
    if name == "duckdb":
        load_duckdb([table], root / name)
        return DuckDb(root / name, size.budget_bytes)
    return Sqlite(table, root / name, size.budget_bytes)


def _warm_up(joiners: dict[str, Joiner], stream: Stream, reporter: Reporter) -> Iterator[Failure]:
    """Let every contender join the first batches; those that fail take no further part."""
    for name, joiner in list(joiners.items()):
        reporter.begin(f"warm-up {name}")
        try:
            for number in range(WARM_UP_BATCHES):
                _join(joiner, stream.batch(number))
            joiner.facts()
        except Exception as error:  # noqa: BLE001  a contender that failed is shown as failed
            del joiners[name]
            yield Failure(name, None, describe(error))


def _contender(name: str, joiner: Joiner, stream: Stream) -> Contender:
    """Every run takes the stream's next few batches."""
    numbers = iter(range(WARM_UP_BATCHES, 1 << 30))

    def run() -> Measured:
        seconds = [_join(joiner, stream.batch(next(numbers))) for _ in range(BATCHES)]
        mean = sum(seconds) / BATCHES
        facts = {
            fact: count if fact in ("cache_hit_share", "peak_budget_bytes") else count / BATCHES
            for fact, count in joiner.facts().items()
        }
        facts["rows_per_s"] = stream.batch_rows / mean
        facts["slowest_over_fastest_batch"] = max(seconds) / min(seconds)
        return Measured({"batch": mean}, facts)

    return Contender(name, run)


def _join(joiner: Joiner, batch: pa.RecordBatch) -> float:
    """Seconds; the results are checked afterwards."""
    seconds, results = _timed(lambda: joiner.join(batch))
    expect_rows(sum(found.num_rows for found in results), batch.num_rows)
    return seconds


def _timed(action: Callable[[], _T]) -> tuple[float, _T]:
    started = time.perf_counter()
    done = action()
    return time.perf_counter() - started, done


def _bytes_in(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(os.path.getsize(file) for file in files if file.exists())


def _best(runs: Runs) -> str | None:
    """The operator with the least median time."""
    medians = {
        name: Spread.of(run.seconds["batch"] for run in runs.done[name].values()).median
        for name in OPERATORS
        if runs.done.get(name)
    }
    found = {name: median for name, median in medians.items() if median is not None}
    return min(found, key=lambda name: found[name]) if found else None


def _ratios(runs: Runs, size: Size) -> dict[str, Spread]:
    best = _best(runs) or OPERATORS[0]
    ratios = {f"{rival}/{size}": runs.ratio([rival], best, "batch") for rival in RIVALS}
    for name in OPERATORS:
        ratios[f"duckdb/{name}"] = runs.ratio(["duckdb"], name, "batch")
    return ratios


BENCHMARKS = (
    Benchmark(
        NAME,
        "a stream joined with a table on disk in 64 MB, against DuckDB and SQLite",
        rows=ROWS,
        rows_mean="table rows",
        groups=(GROUP,),
        function=run,
    ),
)
