"""`spark-multi-way`: one multi-way join against cascades of two-way joins, on Spark.

Three and four inputs as a star, all joined on one column, and as a chain, each with the next on a
column of their own. Keys are drawn uniformly from as many values as an input has rows: a row has
one partner in each neighbour on average, and intermediate results are as large as inputs.

Contenders: `dovetail.join_all` with an unbounded budget and with 20 % of the input; a cascade of
`dovetail.join` with the same budgets, split evenly over its joins; cascades of Spark's own
stream-stream joins, with RocksDB and with the in-heap store. All read the same Parquet files, one
of each input in a micro-batch, into the noop sink, whose count is checked.

Besides the ratios of time, each has what it kept: memory in use at most, and bytes on disk at the
end (checkpoint and state), of which its rivals' parts are ratios, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dovetail.api import join, join_all
from dovetail_bench.data import texts
from dovetail_bench.measure import Contender, Measured, Runs, interleaved, warm_up
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Failure, Result, Spread
from dovetail_bench.spark.runs import IN_HEAP, PARTITIONS, ROCKSDB, SparkBed, spark_bed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "spark-multi-way"
FILES = 10
SHAPES = {"star-3": (3, False), "star-4": (4, False), "chain-3": (3, True), "chain-4": (4, True)}
SHARES = {"unbounded": None, "20%": 0.20}
_KEPT = "disk_bytes"
_LEAST_BUDGET = 4 << 20
# a batch of the widest intermediate result has to fit into a join's part of the budget
_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "2000"}

Plan = Callable[[Any, Path], Any]


@dataclass(frozen=True)
class Inputs:
    """Relations by name, what joins each with the one before it, and how many results there are."""

    tables: Mapping[str, pa.Table]
    columns: tuple[str, ...]
    results: int

    @property
    def nbytes(self) -> int:
        return sum(int(table.nbytes) for table in self.tables.values())

    @property
    def on(self) -> list[tuple[str, str]]:
        names = list(self.tables)
        pairs = zip(names, names[1:], self.columns, strict=False)
        return [(f"{one}.{column}", f"{two}.{column}") for one, two, column in pairs]


@dataclass(frozen=True)
class Job:
    """A query: how its plan is made from the streams, and under which settings."""

    name: str
    plan: Plan
    settings: Mapping[str, str] = field(default_factory=dict)


def make_inputs(rng: np.random.Generator, rows: int, inputs: int, *, chain: bool) -> Inputs:
    """Relations of `rows` rows each."""
    columns = tuple(f"a{i if chain else 0}" for i in range(inputs - 1))
    tables: dict[str, pa.Table] = {}
    weights: NDArray[np.float64] = np.ones(rows)  # results that end in each row of the last input
    for number in range(inputs):
        name = f"r{number + 1}"
        mine = dict.fromkeys([*columns[max(0, number - 1) : number], *columns[number : number + 1]])
        keys = {column: rng.integers(0, rows, rows) for column in mine}
        if number:
            column = columns[number - 1]
            by_value = np.bincount(tables[f"r{number}"][column], weights=weights, minlength=rows)
            weights = by_value[keys[column]].astype(np.float64)
        more = {f"{name}_value": rng.random(rows), f"{name}_text": texts(rows, rng)}
        tables[name] = pa.table({**keys, **more})
    return Inputs(tables, columns, int(weights.sum()))


def write_inputs(inputs: Inputs, directory: Path, files: int) -> None:
    for name, table in inputs.tables.items():
        (directory / name).mkdir(parents=True)
        for number in range(files):
            start, stop = (len(table) * n // files for n in (number, number + 1))
            path = directory / name / f"{number:05d}.parquet"
            pq.write_table(table.slice(start, stop - start), path)


def native(name: str, columns: tuple[str, ...], settings: Mapping[str, str]) -> Job:
    """A cascade of Spark's own stream-stream joins."""

    def plan(streams: dict[str, "DataFrame"], _: Path) -> "DataFrame":
        first, *rest = streams.values()
        pairs = zip(rest, columns, strict=True)
        return reduce(lambda one, pair: one.join(pair[0], pair[1]), pairs, first)

    return Job(name, plan, settings)


def cascade(name: str, columns: tuple[str, ...], budget: int | None) -> Job:
    """A cascade of `dovetail.join`, each with its part of the budget."""
    each = None if budget is None else budget // len(columns)

    def plan(streams: dict[str, "DataFrame"], directory: Path) -> "DataFrame":
        joined, *rest = streams.values()
        for number, (right, column) in enumerate(zip(rest, columns, strict=True)):
            state = directory / f"state-{number}"
            joined = join(
                joined,
                right,
                column,
                memory=each or "unbounded",
                state=state,
                partitions=PARTITIONS,
            )
        return joined

    return Job(name, plan, _BATCHES)


def at_once(name: str, on: list[tuple[str, str]], budget: int | None) -> Job:
    """`dovetail.join_all`."""

    def plan(streams: dict[str, "DataFrame"], directory: Path) -> "DataFrame":
        state = directory / "state"
        return join_all(
            streams, on, memory=budget or "unbounded", state=state, partitions=PARTITIONS
        )

    return Job(name, plan, _BATCHES)


def jobs_for(inputs: Inputs) -> list[Job]:
    """All contenders, with budgets for these inputs."""
    budgets = {
        setting: None if share is None else max(_LEAST_BUDGET, int(inputs.nbytes * share))
        for setting, share in SHARES.items()
    }
    ours = [at_once(setting, inputs.on, budget) for setting, budget in budgets.items()]
    cascades = [
        cascade(f"cascade {setting}", inputs.columns, budget) for setting, budget in budgets.items()
    ]
    rivals = [native("rocksdb", inputs.columns, ROCKSDB), native("inheap", inputs.columns, IN_HEAP)]
    # each of ours between two others, so that none always follows a rival that left much behind
    return [rivals[0], ours[0], cascades[0], rivals[1], ours[1], cascades[1]]


def contender(bed: SparkBed, job: Job, inputs: Inputs, directory: Path) -> Contender:
    """A job as something to measure, over the whole and over all but the first batch."""

    def run() -> Measured:
        streams = {name: _stream(bed, directory / name) for name in inputs.tables}
        done = bed.query(lambda place: job.plan(streams, place), inputs.results, job.settings)
        rows = sum(len(table) for table in inputs.tables.values())
        facts = {**done.facts, "rows_per_s": rows / done.seconds}
        return Measured({"warm": done.warm_seconds, "whole": done.seconds}, facts)

    return Contender(job.name, run)


def _stream(bed: SparkBed, path: Path) -> "DataFrame":
    reader = bed.session.readStream.schema(bed.session.read.parquet(str(path)).schema)
    return reader.option("maxFilesPerTrigger", 1).parquet(str(path))


def run(config: Config, reporter: Reporter) -> Result:
    """All shapes, or the one that is asked for."""
    ratios: dict[str, Spread] = {}
    facts: dict[str, Any] = {"rows": f"{config.rows} of each input"}
    failures: list[Failure] = []
    reporter.begin("starting Spark")
    with spark_bed() as bed:
        facts |= bed.facts()
        for shape in filter(config.wants, SHAPES):
            runs, facts[shape] = _shape(config, bed, shape, reporter)
            ratios |= _ratios(shape, runs)
            failures += [
                Failure(f"{shape} {one.contender}", one.repetition, one.error)
                for one in runs.failures
            ]
    return Result(NAME, ratios, facts, tuple(failures))


def _shape(
    config: Config, bed: SparkBed, shape: str, reporter: Reporter
) -> tuple[Runs, dict[str, Any]]:
    count, chain = SHAPES[shape]
    rng = np.random.default_rng([config.seed, count, chain])
    inputs = make_inputs(rng, config.rows, count, chain=chain)
    few = make_inputs(rng, max(1, config.rows // FILES), count, chain=chain)
    places = [bed.directory / shape / part for part in ("data", "warm-up")]
    for some, place, files in zip((inputs, few), places, (FILES, 1), strict=True):
        write_inputs(some, place, files)
    warming = Runs()
    jobs = jobs_for(inputs)
    warm_up([contender(bed, job, few, places[1]) for job in jobs], warming, reporter)
    contenders = [contender(bed, job, inputs, places[0]) for job in jobs]
    runs = interleaved(contenders, config.repetitions_of(shape), reporter)
    runs.failures[:0] = warming.failures
    facts = {
        "results": inputs.results,
        "input_bytes": inputs.nbytes,
        "on": [" = ".join(pair) for pair in inputs.on],
        "contenders": runs.facts(),
    }
    return runs, facts


def _ratios(shape: str, runs: Runs) -> dict[str, Spread]:
    found = {}
    for setting in SHARES:
        for rival in ("rocksdb", "inheap", f"cascade {setting}"):
            label = f"{shape}: {rival}/{setting}"
            found[label] = runs.ratio([rival], setting, "warm")
            # the other way round: how many times as much the rival keeps
            found[f"{label}, bytes kept"] = runs.rate_ratio(setting, rival, _KEPT)
    return found


BENCHMARKS = (
    Benchmark(
        NAME,
        "dovetail.join_all against cascades of dovetail.join and of Spark's stream-stream joins",
        rows=200_000,
        rows_mean="rows of each input",
        groups=tuple(SHAPES),
        function=run,
    ),
)
