"""`cost-growth`: what a micro-batch costs as the state grows, at one fixed budget.

Four sizes, each twice the one before, up to `rows` a side. Keys come from a domain as large as the
rows a side, so that the results grow in line with the input. A cost that does not depend on the
state's size shows as a rate that is the same at every size, and as micro-batches that take as long
at the end as at the beginning.

Group `spark`: streaming queries, 100,000 + 100,000 rows in a micro-batch. Micro-batches in which
rows arrive are kept apart from those that only do deferred work.
Group `kernel`: the operator alone, push by push, at the same budget and with an unbounded one.
"""

import statistics
from typing import Any

import numpy as np

from dovetail_bench.data import (
    Files,
    Relations,
    make_matched_relations,
    make_relations,
    write_files,
)
from dovetail_bench.growth import Arrival, Middle, by_position, fit, quarters
from dovetail_bench.kernel_runs import BATCH_ROWS, pushes
from dovetail_bench.measure import Contender, Measured, Runs, interleaved, warm_up
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Failure, Result, Spread
from dovetail_bench.spark.runs import QueryRun, SparkBed, dovetail_job, spark_bed

NAME = "cost-growth"
BUDGET_BYTES = 16_000_000
FILE_ROWS = 100_000
Arrivals = dict[str, list[list[Arrival]]]  #: by contender, the arrivals of each repetition


def run(config: Config, reporter: Reporter) -> Result:
    """Both groups, or the one that is asked for."""
    facts: dict[str, Any] = {
        "largest_rows": f"{config.rows} + {config.rows}",
        "budget_bytes": BUDGET_BYTES,
    }
    ratios: dict[str, Spread] = {}
    failures: list[Failure] = []
    if config.wants("spark"):
        found, facts["spark"], failed = _spark(config, reporter)
        ratios |= found
        failures += failed
    if config.wants("kernel"):
        found, facts["kernel"], failed = _kernel(config, reporter)
        ratios |= found
        failures += failed
    return Result(NAME, ratios, facts, tuple(failures))


def sizes(rows: int) -> list[int]:
    """Rows a side: an eighth, a quarter, a half and the whole."""
    return [max(1, rows // 8), max(1, rows // 4), max(1, rows // 2), rows]


def in_words(rows: int) -> str:
    """`500000` as `0.5M`."""
    return f"{rows / 1e6:g}M"


# -- on Spark -----------------------------------------------------------------------------------


def _spark(
    config: Config, reporter: Reporter
) -> tuple[dict[str, Spread], dict[str, Any], list[Failure]]:
    reporter.begin("starting Spark")
    rng = np.random.default_rng(config.seed)
    arrivals: Arrivals = {}
    with spark_bed() as bed:
        contenders = []
        for rows in sizes(config.rows):
            relations = make_relations(rows, rows, rng)
            directory = bed.directory / f"data-{rows}"
            files = write_files(relations, directory, max(2, rows // FILE_ROWS))
            contenders.append(_size_contender(bed, files, arrivals))
        warming = Runs()
        warm_up(contenders[:1], warming, reporter)
        arrivals.clear()
        runs = interleaved(contenders, config.repetitions_of("spark"), reporter)
        facts = {**bed.facts(), "sizes": _with_fits(runs, arrivals)}
    ratios = _quarter_ratios(runs, arrivals) | _rates(runs)
    return ratios, facts, [*warming.failures, *runs.failures]


def _size_contender(bed: SparkBed, files: Files, arrivals: Arrivals) -> Contender:
    name = in_words(files.rows)
    job = dovetail_job(name, BUDGET_BYTES)

    def measure() -> Measured:
        done = bed.run(job, files)
        arrivals.setdefault(name, []).append(_arrivals(done))
        rows = sum(trigger.rows_in for trigger in done.arriving)
        arriving = sum(trigger.seconds for trigger in done.arriving)
        facts = {
            **done.facts,
            "arriving_rows_per_s": rows / arriving,
            "rows_per_s": rows / done.warm_seconds,
            "deferred_micro_batches": sum(not trigger.rows_in for trigger in done.triggers),
        }
        clocks = {"arriving": arriving, "warm": done.warm_seconds, "whole": done.seconds}
        return Measured(clocks, facts)

    return Contender(name, measure)


def _arrivals(done: QueryRun) -> list[Arrival]:
    found = []
    state_rows = 0
    for trigger in done.triggers:
        if trigger.rows_in and trigger.batch > 0:
            found.append(Arrival(trigger.seconds, state_rows, trigger.rows_out))
        state_rows += trigger.rows_in
    return found


def _rates(runs: Runs) -> dict[str, Spread]:
    """Our rate at a size over our rate at the smallest one, the first micro-batch left out."""
    smallest, *larger = runs.done
    found = {}
    for name in larger:
        found[f"rate/{name}"] = runs.rate_ratio(smallest, name, "arriving_rows_per_s")
        found[f"rate-with-cleanup/{name}"] = runs.rate_ratio(smallest, name, "rows_per_s")
    return found


# -- the operator alone -------------------------------------------------------------------------


def _kernel(
    config: Config, reporter: Reporter
) -> tuple[dict[str, Spread], dict[str, Any], list[Failure]]:
    arrivals: Arrivals = {}
    contenders = [
        _kernel_contender("kernel 16MB", _uniform(config), BUDGET_BYTES, arrivals),
        _kernel_contender("kernel unbounded", _matched(config), None, arrivals),
    ]
    warming = Runs()
    warm_up(contenders, warming, reporter)
    arrivals.clear()
    runs = interleaved(contenders, config.repetitions_of("kernel"), reporter)
    facts = {
        "batch_rows": BATCH_ROWS,
        "kernel 16MB": "uniform keys; pushes before the first flush are left out",
        "kernel unbounded": "keys such that every push has as many results as the next",
        "the quarters": "means: an arrival now and then merges or flushes for many others",
        "budgets": _with_fits(runs, arrivals, parts=20),
    }
    ratios = _quarter_ratios(runs, arrivals, statistics.fmean)
    return ratios, facts, [*warming.failures, *runs.failures]


def _uniform(config: Config) -> Relations:
    return make_relations(config.rows, config.rows, np.random.default_rng(config.seed))


def _matched(config: Config) -> Relations:
    """All rows in memory: with uniform keys the results of a push would grow with the state."""
    return make_matched_relations(config.rows, BATCH_ROWS, np.random.default_rng(config.seed))


def _kernel_contender(
    name: str, relations: Relations, budget_bytes: int | None, arrivals: Arrivals
) -> Contender:
    batches = list(relations.batches(BATCH_ROWS))

    def measure() -> Measured:
        done = pushes(relations, batches, budget_bytes)
        counted = [push for push in done if push.spilled or budget_bytes is None]
        # the two sides of a step together: only the second of them meets rows of the first
        steps = [
            Arrival(a.seconds + b.seconds, a.state_rows, a.rows_out + b.rows_out)
            for a, b in zip(counted[::2], counted[1::2], strict=False)
        ]
        arrivals.setdefault(name, []).append(steps)
        slowest = max(step.seconds for step in steps) if steps else 0.0
        clocks = {"arriving": sum(push.seconds for push in done)}
        return Measured(clocks, {"slowest_ms": slowest * 1e3})

    return Contender(name, measure)


# -- both ---------------------------------------------------------------------------------------


def _quarter_ratios(
    runs: Runs, arrivals: Arrivals, middle: Middle = statistics.median
) -> dict[str, Spread]:
    """Of every contender that failed or had arrivals enough for quarters."""
    found = {}
    for name in runs.done:
        ratios = [quarters(run, middle) for run in arrivals.get(name, [])]
        if not ratios or any(ratio is not None for ratio in ratios):
            spread = Spread.of(ratio for ratio in ratios if ratio is not None)
            found[f"first-quarter/{name}"] = spread
    return found


def _with_fits(runs: Runs, arrivals: Arrivals, parts: int | None = None) -> dict[str, Any]:
    facts = runs.facts()
    for name, repeated in arrivals.items():
        facts[name]["fit"] = fit([arrival for run in repeated for arrival in run])
        facts[name]["ms_by_position"] = by_position(repeated, parts)
    return facts


BENCHMARKS = (
    Benchmark(
        NAME,
        "rows/s and time for a micro-batch as the state grows, at a fixed budget",
        rows=4_000_000,
        rows_mean="rows a side at the largest of four sizes",
        groups=("spark", "kernel"),
        function=run,
    ),
)
