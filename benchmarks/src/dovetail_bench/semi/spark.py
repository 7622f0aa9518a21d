"""`semi-spark`: a join where its streams are, against all rows shipped to one Spark job.

Two streams with windows of ten seconds. `sites`: each stream is at a site, a process of its own
with a durable journal, and rows are put to it over loopback, interval by interval, as fast as it
takes them; the time runs from the first put until the last result has been read back. `spark-ends`:
the same, but a streaming query publishes the rows and another one reads the results. The rivals are
Spark's stream-stream join with the same windows and a watermark, on files that are at hand: what it
costs to ship the rows to the job is not in their time. Their rate leaves out the first micro-batch,
in which code is compiled; ours leaves out nothing.

Ratios: our rate over theirs; and the bytes of all rows, of those of one stream (if the job is where
the other stream is), and the least there could be (every row that has a match, of the one stream or
the other, and a key with it) over the bytes that our sites sent each other.
"""

import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.multisite.live.local import LocalSites
from dovetail.sites import Plan
from dovetail_bench.data import Files
from dovetail_bench.measure import Contender, Measured, Runs, expect_rows, interleaved, warm_up
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Failure, Result, Spread, significant
from dovetail_bench.semi.bound import LEAST
from dovetail_bench.semi.served import (
    RATE,
    SCHEMA,
    SECOND,
    WINDOW,
    Case,
    Served,
    choose,
    local_sites,
    serving,
)
from dovetail_bench.spark.runs import IN_HEAP, ROCKSDB, Job, SparkBed, spark_bed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "semi-spark"
SITES, ENDS, RIVALS = "sites", "spark-ends", ("rocksdb", "inheap")
_SHARED = {"few match": 0.1, "all match": 1.0}  #: of the keys


def sites_contender(sites: LocalSites, case: Case, plan: Plan) -> Contender:
    def run() -> Measured:
        with serving(sites, plan) as served:
            begin = time.perf_counter()
            served.put_all(case)
            served.finish(case)
            found = served.read()
            seconds = time.perf_counter() - begin
            expect_rows(found, case.pairs)
            return _measured(seconds, case, served)

    return Contender(SITES, run)


def ends_contender(
    bed: SparkBed, sites: LocalSites, case: Case, files: Files, plan: Plan
) -> Contender:
    def run() -> Measured:
        directory = Path(tempfile.mkdtemp(prefix="ends-", dir=bed.directory))
        try:
            with serving(sites, plan) as served:
                begin = time.perf_counter()
                _publish(bed, served, files, directory)
                served.finish(case)
                bed.query(lambda _: _results(bed, served), case.pairs)
                return _measured(time.perf_counter() - begin, case, served)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    return Contender(ENDS, run)


def _measured(seconds: float, case: Case, served: Served) -> Measured:
    return Measured({"whole": seconds}, {"rows_per_s": 2 * case.rows / seconds, **served.facts()})


def _publish(bed: SparkBed, served: Served, files: Files, directory: Path) -> None:
    from dovetail.sites import publish

    queries = [
        publish(
            stream.withWatermark("ts", "1 second"), served.deployment.addresses[side],
            query=served.deployment.name, stream=side, checkpoint=directory / side,
            access=served.sites.access, trigger={"availableNow": True},
        )
        for side, stream in zip(SIDE_NAMES, bed.streams(files), strict=True)
    ]  # fmt: skip
    for query in queries:
        assert query is not None
        query.awaitTermination()


def _results(bed: SparkBed, served: Served) -> "DataFrame":
    reader = bed.session.readStream.format("dovetail_site")
    reader = reader.option("address", served.deployment.addresses[SIDE_NAMES[0]])
    reader = reader.option("query", served.deployment.name)
    return reader.option("token_file", str(served.sites.directory / "token")).load()


def spark_job(name: str, settings: dict[str, str]) -> Job:
    """Spark's own join, with the same windows."""

    def plan(left: "DataFrame", right: "DataFrame", _: Path) -> "DataFrame":
        from pyspark.sql import functions as F

        left = left.withWatermark("ts", "1 second")
        right = right.toDF(*(f"right_{name}" for name in SCHEMA.names))
        right = right.withWatermark("right_ts", "1 second")
        size = f"interval {WINDOW // SECOND} seconds"
        near = F.expr(f"right_ts >= ts - {size} and right_ts <= ts + {size}")
        return left.join(right, (left["key"] == right["right_key"]) & near)

    return Job(name, plan, lambda files: files.pairs, settings)


def _rival(contender: Contender) -> Contender:
    """Its rate without the first micro-batch."""

    def run() -> Measured:
        measured = contender.run()
        rate = measured.facts["warm_rows_per_s"]
        return Measured(measured.seconds, {**measured.facts, "rows_per_s": rate})

    return Contender(contender.name, run)


@dataclass(frozen=True)
class Outcome:
    """What was measured of a case."""

    case: Case
    plan: Plan
    runs: Runs

    def ratios(self, label: str) -> dict[str, Spread]:
        found = {
            f"{rival}/{ours}, {label}": self.runs.rate_ratio(rival, ours, "rows_per_s")
            for ours in (SITES, ENDS)
            for rival in RIVALS
        }
        for name, nbytes in self._rival_bytes().items():
            sent = [run.facts["bytes_sent"] for run in self.runs.done.get(SITES, {}).values()]
            found[f"{name}/{label}"] = Spread.of(nbytes / one for one in sent)
        return found

    def _rival_bytes(self) -> dict[str, float]:
        sizes = self.case.nbytes.values()
        return {
            "all rows": float(sum(sizes)),
            "rows of one stream": float(min(sizes)),
            LEAST: self.case.least_bytes,
        }

    def _sent(self) -> dict[str, float | None]:
        """Medians: header and data, as costs count them, and messages as they travel."""
        runs = self.runs.done.get(SITES, {}).values()
        return {
            name: significant(statistics.median(run.facts[fact] for run in runs) if runs else None)
            for name, fact in (("counted", "bytes_sent"), ("on the wire", "bytes_on_the_wire"))
        }

    def facts(self) -> dict[str, Any]:
        return {
            "result_rows": self.case.pairs,
            "rows that meet one": {s: int(np.count_nonzero(m)) for s, m in self.case.met.items()},
            "plan": repr(self.plan),
            "bytes": {name: significant(value) for name, value in self._rival_bytes().items()},
            "bytes between the sites": self._sent(),
            "contenders": self.runs.facts(),
        }


def _run_case(
    label: str, case: Case, bed: SparkBed, sites: LocalSites, config: Config, reporter: Reporter
) -> Outcome:
    files = case.files(bed.directory / f"data {label}")
    plan = choose(case)
    settings = dict(zip(RIVALS, (ROCKSDB, IN_HEAP), strict=True))
    rivals = [_rival(bed.contender(spark_job(n, settings[n]), files)) for n in RIVALS]
    ours = sites_contender(sites, case, plan), ends_contender(bed, sites, case, files, plan)
    contenders = [rivals[0], ours[0], rivals[1], ours[1]]
    warming = Runs()
    warm_up(contenders, warming, reporter)
    runs = interleaved(contenders, config.repetitions_of(label), reporter)
    runs.failures[:0] = warming.failures
    return Outcome(case, plan, runs)


def run(config: Config, reporter: Reporter) -> Result:
    """All cases that are asked for."""
    ratios: dict[str, Spread] = {}
    facts: dict[str, Any] = {"rows": f"{config.rows} + {config.rows}", "rows a second": RATE}
    failures: list[Failure] = []
    reporter.begin("starting Spark and two sites")
    with spark_bed() as bed, local_sites(bed.directory) as sites:
        for label, shared in _SHARED.items():
            if config.wants(label):
                case = Case(config.rows, shared, config.seed)
                outcome = _run_case(label, case, bed, sites, config, reporter)
                ratios |= outcome.ratios(label)
                facts[label] = outcome.facts()
                failures += outcome.runs.failures
        facts["session"] = bed.facts()["session"]
    return Result(NAME, ratios, facts, tuple(failures))


BENCHMARKS = (
    Benchmark(
        NAME,
        "a two-site join over loopback against all rows shipped to one Spark job",
        rows=200_000,
        rows_mean="rows of each stream",
        groups=tuple(_SHARED),
        function=run,
    ),
)
