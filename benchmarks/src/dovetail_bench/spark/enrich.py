"""`spark-enrich`: a stream looked up in a table, against Spark's own stream-static join.

A table of about 120 bytes a row and a stream whose keys follow Zipf's law with exponent 1, 100,000
rows in a micro-batch. Rivals: Spark's stream-static join as a sort-merge join, with the table
cached, and with a broadcast hint where the table is small enough for one; of these the fastest
counts. Ours has 1 % and 10 % of the table as its budget.

All of them take turns. The first turns warm up caches and are not counted; a rival that is much
slower than another in these has no more of them.

- busy: the time of a micro-batch, and of any that it leaves work to, for each stream row;
- wait50, wait95: from the arrival of a row to the end of the micro-batch that emitted it, the
  median row and the 95th of a hundred, of a stream that comes evenly, as fast as the fastest of
  Spark's joins can bear. A slower rival has no such wait: it grows without end.

How both are measured is in `enrich_turns`. A query that joins nothing has its turns, too: no
join can do without what it takes (`no-join` among the facts).

Staging is shown apart, with the number of micro-batches that pay it back.
"""

import binascii
import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.api import enrich, progress
from dovetail_bench.measure import Contender, Runs, interleaved, warm_up
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Failure, Result, Spread, goals, significant
from dovetail_bench.spark.enrich_turns import Turns
from dovetail_bench.spark.runs import PARTITIONS, SparkBed, spark_bed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dovetail_bench.spark.enrich_turns import Plan

NAME = "spark-enrich"
SIZES = {"3.5M": 0.175, "20M": 1.0}  #: of the largest table
SHARES = {"1%": 0.01, "10%": 0.10}
STREAM_ROWS = 100_000
WARM_UP_TURNS = 2
FAR_BEHIND = 2.0  #: times the busy time of the fastest rival: such a one cannot count
KEEPS_UP = 1.25  #: of the time that Spark's fastest join takes, what a live stream leaves it
_BROADCAST_BYTES = 600 << 20  # a larger table is not for broadcasting
_CHUNK = 500_000
GOALS = {
    "busy, 20M at 10 %": (3.0, ("spark-busy/20M-10%",)),
    "median wait, 20M at 10 %": (5.0, ("spark-wait50/20M-10%",)),
    "busy, 3.5M at 1 %": (1.0, ("spark-busy/3.5M-1%",)),
    "median wait, 3.5M at 1 %": (1.0, ("spark-wait50/3.5M-1%",)),
    "busy, 3.5M at 10 %": (1.0, ("spark-busy/3.5M-10%",)),
    "median wait, 3.5M at 10 %": (1.0, ("spark-wait50/3.5M-10%",)),
}


@dataclass
class Keys:
    """Zipf-distributed keys over a permutation of `0..values`."""

    values: int
    cumulative: "np.ndarray[Any, np.dtype[np.float64]]" = field(init=False)

    def __post_init__(self) -> None:
        self.cumulative = np.cumsum(1.0 / np.arange(1, self.values + 1))

    def draw(self, rng: np.random.Generator, count: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        ranks = np.searchsorted(self.cumulative, rng.random(count) * self.cumulative[-1])
        return self.spread(np.minimum(ranks, self.values - 1))

    def spread(self, ranks: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.int64]]":
        multiplier = 7_368_787  # a prime: coprime to any number of values that it does not divide
        return np.asarray(ranks.astype(np.int64) * multiplier % self.values)


def write_table(path: Path, rows: int, keys: Keys, rng: np.random.Generator) -> int:
    """A table with each key once; returns its size in memory."""
    nbytes = 0
    writer: pq.ParquetWriter | None = None
    for start in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - start)
        offsets = np.arange(0, 64 * (count + 1), 64, dtype=np.int32)
        text = pa.StringArray.from_buffers(
            count, pa.py_buffer(offsets), pa.py_buffer(binascii.hexlify(rng.bytes(32 * count)))
        )
        batch = pa.record_batch(
            {
                "key": keys.spread(np.arange(start, start + count)),
                "a": rng.integers(0, 1 << 40, count),
                "b": rng.integers(0, 1 << 40, count),
                "c": rng.random(count),
                "d": rng.random(count),
                "text": text,
            }
        )
        nbytes += batch.nbytes
        writer = writer or pq.ParquetWriter(path, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return nbytes


def run(config: Config, reporter: Reporter) -> Result:
    facts: dict[str, Any] = {"stream_rows_a_micro_batch": _stream_rows(config)}
    ratios: dict[str, Spread] = {}
    failures: list[Failure] = []
    with spark_bed() as bed:
        facts["session"] = bed.facts()["session"]
        for size, share in SIZES.items():
            if not config.wants(size):
                continue
            runs, facts[size] = _one_size(config, bed, size, int(config.rows * share), reporter)
            for budget in SHARES:
                for clock in ("busy", "wait50", "wait95"):
                    label = f"spark-{clock}/{size}-{budget}"
                    ratios[label] = runs.ratio(_rivals(runs, clock), f"dovetail-{budget}", clock)
                facts[size][f"pays_back_{budget}"] = _pay_back(runs, config, budget, facts[size])
            failures += runs.failures
    facts["goals"] = goals(ratios, GOALS)
    return Result(NAME, ratios, facts, tuple(failures))


def _one_size(
    config: Config, bed: SparkBed, size: str, rows: int, reporter: Reporter
) -> tuple[Runs, dict[str, Any]]:
    """All contenders on a table of this size, which is deleted afterwards."""
    directory = bed.directory / f"table-{size}"
    directory.mkdir()
    table = _Table.make(config, bed, directory, rows, reporter)
    plans = table.plans()
    turns = {name: Turns(name, bed, directory / name, table.feed, plans[name]) for name in plans}
    staging = table.staging_seconds(plans, reporter)
    reporter.begin("caching Spark's table")
    started = time.perf_counter()
    table.cached.count()
    facts: dict[str, Any] = {
        "table_rows": rows,
        "table_bytes": table.nbytes,
        "staging_seconds": staging,
        "spark_caching_seconds": significant(time.perf_counter() - started),
    }
    runs, measured = _measure(config, size, turns, reporter)
    facts |= measured
    for name in staging:
        done = progress(directory / name / "state")
        facts[f"{name}_memory"] = done.memory
        facts[f"{name}_rows_out"] = done.rows_out
    facts["contenders"] = runs.facts()
    table.cached.unpersist(blocking=True)
    shutil.rmtree(directory, ignore_errors=True)
    return runs, facts


def _measure(
    config: Config, size: str, turns: dict[str, Turns], reporter: Reporter
) -> tuple[Runs, dict[str, Any]]:
    """Turns of all, until they are warm and then the ones that count; then live."""
    first = interleaved([Contender(name, one.turn) for name, one in turns.items()], 1, reporter)
    slow = _far_behind(first)
    contenders = [Contender(name, one.turn) for name, one in turns.items() if name not in slow]
    for _ in range(WARM_UP_TURNS - 1):
        warm_up(contenders, first, reporter)
    repetitions = config.repetitions_of(size)
    runs = interleaved(contenders, repetitions, reporter)
    runs.failures[:0] = first.failures
    rows = _stream_rows(config)
    pace = _pace(runs, rows)
    if pace is not None:
        live = [
            Contender(name, partial(turns[name].live, pace))
            for name in _that_keep_up(runs, pace / rows)
        ]
        runs.add(interleaved(live, repetitions, reporter))
    facts = {"far_behind": slow, "live_seconds_a_micro_batch": pace and significant(pace)}
    return runs, facts


@dataclass
class _Table:
    """A table in a Parquet file, and how each contender joins a stream with it."""

    config: Config
    bed: SparkBed
    directory: Path
    keys: Keys
    nbytes: int
    stored: "DataFrame"
    cached: "DataFrame"  #: nothing is cached before its first action

    @classmethod
    def make(
        cls, config: Config, bed: SparkBed, directory: Path, rows: int, reporter: Reporter
    ) -> "_Table":
        keys = Keys(rows)
        path = directory / "table.parquet"
        reporter.begin(f"making a table of {rows:,} rows")
        nbytes = write_table(path, rows, keys, np.random.default_rng(config.seed))
        reporter.end(f"a table of {rows:,} rows, {nbytes >> 20:,} MB")
        # a file of its own, or Spark would serve every plan that reads the table from its cache
        twin = directory / "cached.parquet"
        twin.hardlink_to(path)
        stored = bed.session.read.parquet(str(path))
        cached = bed.session.read.parquet(str(twin)).cache()
        return cls(config, bed, directory, keys, nbytes, stored, cached)

    def feed(self, number: int) -> pa.Table:
        """The stream rows of a file."""
        rng = np.random.default_rng([self.config.seed, number])
        count = _stream_rows(self.config)
        keys = self.keys.draw(rng, count)
        return pa.table({"key": keys, "id": np.arange(count), "amount": rng.random(count)})

    def plans(self) -> "dict[str, Plan]":
        from pyspark.sql import functions as F

        plans: dict[str, Plan] = {
            "spark-sort-merge": lambda stream, _: stream.join(self.stored.hint("merge"), "key"),
            "spark-cached": lambda stream, _: stream.join(self.cached, "key"),
            "no-join": lambda stream, _: stream,
        }
        if self.nbytes <= _BROADCAST_BYTES:
            small = F.broadcast(self.stored)
            plans["spark-broadcast"] = lambda stream, _: stream.join(small, "key")
        for budget, share in SHARES.items():
            plans[f"dovetail-{budget}"] = self._ours(int(self.nbytes * share))
        return plans

    def _ours(self, memory: int) -> "Plan":
        return lambda stream, place: enrich(
            stream, self.stored, on="key", memory=memory, state=place / "state",
            partitions=PARTITIONS,
        )  # fmt: skip

    def staging_seconds(
        self, plans: "dict[str, Plan]", reporter: Reporter
    ) -> dict[str, float | None]:
        """Make our plans once: the first one stages the table."""
        staging = {}
        for name in [name for name in plans if name.startswith("dovetail")]:
            reporter.begin(f"staging for {name}")
            started = time.perf_counter()
            stream = self.bed.session.readStream.schema("key long, id long, amount double")
            plans[name](stream.parquet(str(self.directory / name / "in")), self.directory / name)
            staging[name] = significant(time.perf_counter() - started)
            reporter.end(f"staging for {name}: {staging[name]} s")
        return staging


def _rivals(runs: Runs, clock: str) -> list[str]:
    """Those of Spark's joins that this was measured of."""
    found = [name for name, done in runs.done.items() if name.startswith("spark") and done]
    return [name for name in found if all(clock in run.seconds for run in runs.done[name].values())]


def _busy(runs: Runs) -> dict[str, float]:
    """The median busy time of those that were measured."""
    return {
        name: float(np.median([run.seconds["busy"] for run in done.values()]))
        for name, done in runs.done.items()
        if done
    }


def _far_behind(first: Runs) -> dict[str, float]:
    """Rivals that are so much slower than another that they cannot count, and their busy time."""
    busy = {name: seconds for name, seconds in _busy(first).items() if name.startswith("spark")}
    least = min(busy.values(), default=0.0)
    return {name: seconds for name, seconds in busy.items() if seconds > FAR_BEHIND * least}


def _pace(runs: Runs, rows: int) -> float | None:
    """In how many seconds the rows of a micro-batch come, as fast as the fastest rival can bear."""
    rivals = [seconds for name, seconds in _busy(runs).items() if name.startswith("spark")]
    return KEEPS_UP * rows * min(rivals) if rivals else None


def _that_keep_up(runs: Runs, pace: float) -> list[str]:
    """Those that can bear so many seconds a row; ours have to in any case."""
    return [
        name
        for name, seconds in _busy(runs).items()
        if not name.startswith("spark") or seconds <= pace
    ]


def _pay_back(runs: Runs, config: Config, budget: str, facts: dict[str, Any]) -> float | None:
    """After how many micro-batches staging has cost less than it saves."""
    ours = [run.seconds["busy"] for run in runs.done.get(f"dovetail-{budget}", {}).values()]
    theirs = [
        [run.seconds["busy"] for run in runs.done[rival].values()]
        for rival in _rivals(runs, "busy")
    ]
    staged = facts["staging_seconds"].get(f"dovetail-{budget}")
    if not ours or not theirs or staged is None:
        return None
    saved = min(float(np.median(one)) for one in theirs) - float(np.median(ours))
    return significant(staged / (saved * _stream_rows(config)), 3) if saved > 0 else None


def _stream_rows(config: Config) -> int:
    return min(STREAM_ROWS, max(100, config.rows // 50))


BENCHMARKS = (
    Benchmark(
        name=NAME,
        summary="a stream looked up in a table, against Spark's stream-static join",
        rows=20_000_000,
        rows_mean="rows of the largest table; the smaller one has 17.5 % of that",
        groups=tuple(SIZES),
        function=run,
    ),
)
