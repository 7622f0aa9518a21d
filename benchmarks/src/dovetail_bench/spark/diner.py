"""`spark-diner`: DINER as a join of Spark's streams, against `xjoin` and against Spark's own join.

Group `uniform`: the rows of `spark-two-way`, whose uniform keys give DINER nothing to choose by:
what its bookkeeping costs, at three budgets.

Group `online`: keys that are worth choosing by, at 5 % memory: how many results there are by the
end of the micro-batch that takes the last rows in. Zipf's law with exponent 1, low keys the most
frequent, as in the paper; and its drift (Fig. 15), normal keys whose mean moves in every tenth of
the stream. Such keys have pairs by the square of the rows, so a 25th of `rows` is joined, Zipfian
keys from a domain of `rows` values: at the published size 40,000 + 40,000 rows, and 12 to 36
million results. XJoin has as many hash partitions as it chooses by itself.

Groups `cleanup`, `band` and `handover`: see `diner_cleanup`, `_band` and `_handover`.
"""

import binascii
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dovetail.api import join
from dovetail.kernel.protocol import SIDE_NAMES
from dovetail_bench.data import KEY, Files, Relations, make_relations, write_files
from dovetail_bench.diner.streams import Keys, Rng, drifting
from dovetail_bench.measure import Contender, Measured, Runs, interleaved
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config, describe
from dovetail_bench.result import Failure, Result, Spread, goals
from dovetail_bench.spark.diner_band import band
from dovetail_bench.spark.diner_cleanup import cleanup
from dovetail_bench.spark.diner_handover import handover
from dovetail_bench.spark.diner_setup import (
    Part,
    batch_rows,
    batch_setting,
    budget_of,
    side_by_side,
)
from dovetail_bench.spark.runs import PARTITIONS, Job, QueryRun, SparkBed, spark_bed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "spark-diner"
FILES = 10
ONLINE_FILES = 40  #: so that a micro-batch is small beside the memory
ONLINE_SHARE, LEAST_ONLINE_ROWS = 1 / 25, 2_000
MEMORY_SHARE = 0.05
SHARES = {"5%": MEMORY_SHARE, "20%": 0.20, "unbounded": None}
#: By how much the mean moves in every tenth of the stream; the paper does not tell. The keys'
#: standard deviation is 3.9: with 4 neighbouring periods overlap, with 16 they hardly do.
DRIFTS = {"drift": 4.0, "drift-16": 16.0}
OURS, RIVAL = "diner", "xjoin"
_TEXT_BYTES = 40  # each of them two characters, for rows of 100 bytes
#: What was aimed at: a ratio, and the labels of which the best has to reach it.
GOALS: dict[str, tuple[float, tuple[str, ...]]] = {
    "xjoin/uniform-5%": (0.95, ("xjoin/uniform-5%",)),
    "xjoin/uniform-20%": (0.95, ("xjoin/uniform-20%",)),
    "xjoin/uniform-unbounded": (0.95, ("xjoin/uniform-unbounded",)),
    "xjoin-online/zipf": (1.5, ("xjoin-online/zipf",)),
    "xjoin-online/drift": (1.5, ("xjoin-online/drift",)),
    "xjoin-online/drift-16": (1.5, ("xjoin-online/drift-16",)),
    "loops/cleanup": (3.0, ("loops/cleanup",)),
    "allowed/handover": (1.0, ("allowed/handover",)),
}
Group = Callable[[Config, SparkBed, Reporter], Part]


def run(config: Config, reporter: Reporter) -> Result:
    """All groups, or the one that is asked for."""
    parts: dict[str, Part] = {}
    wanted = {name: group for name, group in SPARK_GROUPS.items() if config.wants(name)}
    if wanted:
        parts |= _on_spark(wanted, config, reporter)
    if config.wants("cleanup"):
        parts["cleanup"] = cleanup(config, reporter)
    ratios = {label: ratio for part in parts.values() for label, ratio in part.ratios.items()}
    facts: dict[str, Any] = {name: part.facts for name, part in parts.items()}
    measured = {name: goal for name, goal in GOALS.items() if name in ratios}
    facts["goals"] = goals(ratios, measured)
    failures = tuple(failure for part in parts.values() for failure in part.failures)
    return Result(NAME, ratios, facts, failures)


def _on_spark(groups: dict[str, Group], config: Config, reporter: Reporter) -> dict[str, Part]:
    """The groups that need a session, in one; what goes wrong in one leaves the others alone."""
    parts = {}
    reporter.begin("starting Spark")
    with spark_bed() as bed:
        for name, group in groups.items():
            try:
                part = group(config, bed, reporter)
            except Exception as error:  # noqa: BLE001  a group that failed is shown as failed
                part = Part({}, {}, (Failure(name, None, describe(error)),))
            parts[name] = replace(part, facts={**bed.facts(), **part.facts})
    return parts


def join_job(name: str, algorithm: Any, budget_bytes: int | None, rows: int) -> Job:
    """Our join by one algorithm, with batches that suit so many rows a side."""

    def plan(left: "DataFrame", right: "DataFrame", directory: Path) -> "DataFrame":
        return join(
            left,
            right,
            on=KEY,
            memory=budget_bytes or "unbounded",
            state=directory / "state",
            algorithm=algorithm,
            partitions=PARTITIONS,
        )

    return Job(name, plan, lambda files: files.pairs, batch_setting(rows))


# -- uniform ------------------------------------------------------------------------------------


def _uniform(config: Config, bed: SparkBed, reporter: Reporter) -> Part:
    rng = np.random.default_rng(config.seed)
    relations = make_relations(config.rows, config.rows, rng)
    few = make_relations(max(1, config.rows // 5), config.rows, rng)
    files = write_files(relations, bed.directory / "uniform", FILES)
    few_files = write_files(few, bed.directory / "uniform-warm-up", 2)
    budgets = {
        setting: None if share is None else budget_of(relations.nbytes, share)
        for setting, share in SHARES.items()
    }
    jobs = [
        join_job(f"{algorithm} {setting}", algorithm, budget, config.rows)
        for setting, budget in budgets.items()
        for algorithm in (RIVAL, OURS)
    ]
    runs = side_by_side(bed, jobs, (few_files, files), config.repetitions_of("uniform"), reporter)
    ratios = {
        f"{RIVAL}/uniform-{setting}": runs.ratio(
            [f"{RIVAL} {setting}"], f"{OURS} {setting}", "warm"
        )
        for setting in SHARES
    }
    facts = {
        "rows": f"{config.rows} + {config.rows}",
        "result_rows": relations.pairs,
        "input_bytes": relations.nbytes,
        "budget_bytes": budgets,
        "batch_rows": batch_rows(config.rows),
        "contenders": runs.facts(),
    }
    return Part(ratios, facts, tuple(runs.failures))


# -- online -------------------------------------------------------------------------------------


def zipf_keys(rng: Rng, rows: int, domain: int) -> Keys:
    """Keys from `[0, domain)` by Zipf's law with exponent 1, the low ones the most frequent."""
    cumulative = np.cumsum(1.0 / np.arange(1, domain + 1))
    drawn = np.searchsorted(cumulative, rng.random(rows) * cumulative[-1])
    return np.asarray(np.minimum(drawn, domain - 1), dtype=np.int64)


def relations_of(keys: tuple[Keys, Keys], rng: Rng) -> Relations:
    """Rows of 100 bytes with these keys, in this order."""
    tables = [
        pa.table(
            {
                KEY: one,
                f"{side}_number": rng.integers(0, 1 << 62, len(one)),
                f"{side}_text": _texts(len(one), rng),
            }
        )
        for side, one in zip(SIDE_NAMES, keys, strict=True)
    ]
    domain = 1 + int(max(one.max() for one in keys))
    counts = [np.bincount(one, minlength=domain) for one in keys]
    return Relations(tables[0], tables[1], int(np.dot(*counts)))


def _texts(rows: int, rng: Rng) -> pa.Array:
    offsets = np.arange(rows + 1, dtype=np.int32) * (2 * _TEXT_BYTES)
    letters = binascii.hexlify(rng.bytes(rows * _TEXT_BYTES))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))


def results_online(done: QueryRun) -> int:
    """The results by the end of the micro-batch that took the last rows in."""
    last = max(place for place, trigger in enumerate(done.triggers) if trigger.rows_in)
    return sum(trigger.rows_out for trigger in done.triggers[: last + 1])


def _online(config: Config, bed: SparkBed, reporter: Reporter) -> Part:
    rows = max(LEAST_ONLINE_ROWS, int(config.rows * ONLINE_SHARE))
    rng = np.random.default_rng(config.seed)
    drawn = {
        "zipf": (zipf_keys(rng, rows, config.rows), zipf_keys(rng, rows, config.rows)),
    }
    for law, shift in DRIFTS.items():
        drawn[law] = drifting(rng, rows, shift), drifting(rng, rows, shift)
    facts: dict[str, Any] = {
        "rows": f"{rows} + {rows}",
        "zipf_domain": config.rows,
        "drifts": DRIFTS,
    }
    contenders = []
    for law, keys in drawn.items():
        relations = relations_of(keys, rng)
        files = write_files(relations, bed.directory / f"online-{law}", ONLINE_FILES)
        budget = budget_of(relations.nbytes, MEMORY_SHARE)
        facts[law] = {"result_rows": relations.pairs, "budget_bytes": budget}
        facts[law]["memory_share"] = round(budget / relations.nbytes, 4)
        for algorithm in (RIVAL, OURS):
            job = join_job(f"{algorithm} {law}", algorithm, budget, rows)
            contenders.append(_online_contender(bed, job, files))
    runs = interleaved(contenders, config.repetitions_of("online"), reporter)
    ratios = {f"{RIVAL}-online/{law}": _online_ratio(runs, law) for law in drawn}
    facts |= {"files": f"{ONLINE_FILES} + {ONLINE_FILES}", "contenders": runs.facts()}
    return Part(ratios, facts, tuple(runs.failures))


def _online_contender(bed: SparkBed, job: Job, files: Files) -> Contender:
    def measure() -> Measured:
        done = bed.run(job, files)
        online = results_online(done)
        # a rival that found nothing counts as having found one, as in the other benchmarks
        facts = {
            **done.facts,
            "results_online": max(1, online),
            "online_share": online / files.pairs,
        }
        return Measured({"warm": done.warm_seconds, "whole": done.seconds}, facts)

    return Contender(job.name, measure)


def _online_ratio(runs: Runs, law: str) -> Spread:
    return runs.rate_ratio(f"{RIVAL} {law}", f"{OURS} {law}", "results_online")


SPARK_GROUPS: dict[str, Group] = {
    "uniform": _uniform,
    "online": _online,
    "band": band,
    "handover": handover,
}
BENCHMARKS = (
    Benchmark(
        NAME,
        "DINER on Spark: against xjoin, against loops in Cleanup, against Spark's band join, and "
        "how long rows wait for deferred work",
        rows=1_000_000,
        rows_mean="rows a side; 4 % of that in the group online, 20 % in handover",
        groups=(*SPARK_GROUPS, "cleanup"),
        function=run,
    ),
)
