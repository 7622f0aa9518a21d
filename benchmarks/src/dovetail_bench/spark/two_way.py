"""`spark-two-way`: our join against Spark's own, against its own plan, and against batch engines.

Group `spark`: 1M + 1M rows in ten Parquet files a side, joined by streaming queries. Rivals are
Spark's stream-stream join with the in-heap state store and with RocksDB; ours run with an
unbounded budget and with 20 % and 5 % of the input. Beside them runs the plan of our join with a
step that only passes rows through: the rate that Spark and Arrow would allow at best.

Group `kernel`: the same rows, without Spark, in batches of 10,000 from alternating sides, against
the batch joins of DuckDB and Polars, which see both inputs whole. All have every core: ours as one
operator a core. `kernel-one-thread` is one operator against DuckDB with one thread.

The ratios leave out each query's first micro-batch, in which code is compiled and workers start;
the facts have the times with it, too.
"""

from typing import Any

import numpy as np

from dovetail_bench.data import Relations, make_relations, write_files
from dovetail_bench.kernel_runs import (
    BATCH_ROWS,
    duckdb_contenders,
    operator_contender,
    polars_contenders,
)
from dovetail_bench.measure import Contender, Runs, interleaved, warm_up
from dovetail_bench.parallel import parallel_contender
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config, describe
from dovetail_bench.result import Failure, Result, Spread, goals
from dovetail_bench.spark.runs import (
    IN_HEAP,
    ROCKSDB,
    Job,
    dovetail_job,
    pass_through_job,
    spark_bed,
    spark_job,
)

NAME = "spark-two-way"
FILES = 10
WARM_UP_FILES = 2
SHARES = {"unbounded": None, "20%": 0.20, "5%": 0.05}
RIVALS = ("rocksdb", "inheap")
OURS = "diner"  #: what `auto` stands for
#: For each label of the kernel, the variants of the rival, of which the fastest counts, and ours.
KERNEL_RATIOS = {
    "duckdb/kernel": (("duckdb-arrow", "duckdb-native"), f"{OURS}-parallel"),
    "polars/kernel": (("polars-memory", "polars-streaming"), f"{OURS}-parallel"),
    "duckdb/kernel-one-thread": (
        ("duckdb-arrow-one-thread", "duckdb-native-one-thread"), OURS,
    ),
}  # fmt: skip
#: What was aimed at: a ratio, and the labels of which the best has to reach it.
GOALS = {
    "rocksdb/unbounded": (4.0, ("rocksdb/unbounded",)),
    "inheap/unbounded": (1.5, ("inheap/unbounded",)),
    "rocksdb/5%": (2.5, ("rocksdb/5%",)),
    "inheap/5%": (1.0, ("inheap/5%",)),
    "passthrough/unbounded": (0.6, ("passthrough/unbounded",)),
    "slower of duckdb/kernel and polars/kernel": (0.25, ("duckdb/kernel", "polars/kernel")),
}


def run(config: Config, reporter: Reporter) -> Result:
    """Both groups, or the one that is asked for."""
    relations = make_relations(config.rows, config.rows, np.random.default_rng(config.seed))
    facts: dict[str, Any] = {
        "rows": f"{config.rows} + {config.rows}",
        "result_rows": relations.pairs,
        "input_bytes": relations.nbytes,
    }
    ratios: dict[str, Spread] = {}
    failures: list[Failure] = []
    if config.wants("spark"):
        try:
            runs, facts["spark"] = _spark(config, relations, reporter)
        except Exception as error:  # noqa: BLE001  without Spark, the kernel can still be measured
            runs = Runs(failures=[Failure("spark", None, describe(error))])
        ratios |= _spark_ratios(runs)
        failures += runs.failures
    if config.wants("kernel"):
        runs, facts["kernel"] = _kernel(config, relations, reporter)
        for label, (variants, ours) in KERNEL_RATIOS.items():
            ratios[label] = runs.ratio(variants, ours, "whole")
        failures += runs.failures
    measured = {
        name: goal for name, goal in GOALS.items() if any(label in ratios for label in goal[1])
    }
    facts["goals"] = goals(ratios, measured)
    return Result(NAME, ratios, facts, tuple(failures))


def _spark(config: Config, relations: Relations, reporter: Reporter) -> tuple[Runs, dict[str, Any]]:
    reporter.begin("starting Spark")
    with spark_bed() as bed:
        files = write_files(relations, bed.directory / "data", FILES)
        few = make_relations(
            max(1, config.rows // FILES * WARM_UP_FILES),
            config.rows,
            np.random.default_rng(config.seed + 1),
        )
        few_files = write_files(few, bed.directory / "warm-up", WARM_UP_FILES)
        jobs = _jobs(relations.nbytes)
        warming = Runs()
        warm_up([bed.contender(job, few_files) for job in jobs], warming, reporter)
        contenders = [bed.contender(job, files) for job in jobs]
        runs = interleaved(contenders, config.repetitions_of("spark"), reporter)
        runs.failures[:0] = warming.failures
        facts = {
            **bed.facts(),
            "files": f"{FILES} + {FILES} of {config.rows // FILES} rows",
            "warm-up": f"each contender once on {WARM_UP_FILES} + {WARM_UP_FILES} such files",
            "settings": {job.name: dict(job.settings) for job in jobs if job.settings},
            "budget_bytes": _budgets(relations.nbytes),
            "contenders": runs.facts(),
            "ratios with the first micro-batch": {
                label: spread.to_dict() for label, spread in _spark_ratios(runs, "whole").items()
            },
        }
    return runs, facts


def _jobs(input_bytes: int) -> list[Job]:
    rivals = [spark_job("rocksdb", ROCKSDB), spark_job("inheap", IN_HEAP)]
    ours = [dovetail_job(setting, budget) for setting, budget in _budgets(input_bytes).items()]
    # each of ours between two others, so that none always follows a rival that left much behind
    return [rivals[0], ours[0], rivals[1], ours[1], pass_through_job("passthrough"), ours[2]]


def _budgets(input_bytes: int) -> dict[str, int | None]:
    return {
        setting: None if share is None else int(input_bytes * share)
        for setting, share in SHARES.items()
    }


def _spark_ratios(runs: Runs, clock: str = "warm") -> dict[str, Spread]:
    ratios = {
        f"{rival}/{setting}": runs.ratio([rival], setting, clock)
        for setting in SHARES
        for rival in RIVALS
    }
    ratios["passthrough/unbounded"] = runs.ratio(["passthrough"], "unbounded", clock)
    return ratios


def _kernel(
    config: Config, relations: Relations, reporter: Reporter
) -> tuple[Runs, dict[str, Any]]:
    contenders, missing = _kernel_contenders(relations)
    warming = Runs(failures=missing)
    with parallel_contender(f"{OURS}-parallel", relations, OURS) as parallel:
        contenders.append(parallel)
        warm_up(contenders, warming, reporter)
        runs = interleaved(contenders, config.repetitions_of("kernel"), reporter)
    runs.failures[:0] = warming.failures
    facts = {
        "batch_rows": BATCH_ROWS,
        "threads": "all cores for each, but one where a name says so and for diner, xjoin and shj",
        "of a rival's variants": "the faster one counts, repetition by repetition",
        "contenders": runs.facts(),
    }
    return runs, facts


def _kernel_contenders(relations: Relations) -> tuple[list[Contender], list[Failure]]:
    """The operators and the rivals that are installed; a missing rival is a failure."""
    contenders = [
        operator_contender(name, relations, name, None) for name in (OURS, "xjoin", "shj")
    ]
    missing = []
    for name, make in (("duckdb", duckdb_contenders), ("polars", polars_contenders)):
        try:
            contenders += make(relations)
        except ImportError as error:
            hint = f"; dovetail-bench needs it: pip install {name}"
            missing.append(Failure(name, None, f"{error}{hint}"))
    return contenders, missing


BENCHMARKS = (
    Benchmark(
        NAME,
        "dovetail.join against Spark's own stream-stream join, its bare plan, DuckDB and Polars",
        rows=1_000_000,
        rows_mean="rows a side",
        groups=("spark", "kernel"),
        function=run,
    ),
)
