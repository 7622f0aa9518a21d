"""The groups of `spark-diner` that need Spark, at a tiny size, in the session of the tests."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dovetail.spark.endings import MAX_SLICE_MS
from dovetail_bench import registry
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result
from dovetail_bench.spark import diner as spark_diner
from dovetail_bench.spark import diner_band as spark_diner_band
from dovetail_bench.spark import diner_handover as spark_diner_handover
from dovetail_bench.spark import diner_setup as spark_diner_setup
from dovetail_bench.spark.runs import SparkBed

pytestmark = pytest.mark.spark

ROWS = 4_000


class SharedBed(SparkBed):
    """The bed of a benchmark, without a session of its own."""

    def __init__(self, directory: Path, session: SparkSession) -> None:
        self.directory = directory
        self.session = session

    def facts(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def tiny(spark: SparkSession, conf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files and contenders, budgets that make thousands of rows spill, and no warm-up."""
    bed = SharedBed(tmp_path, spark)
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "64")  # a query's settings are unset
    monkeypatch.setattr(spark_diner, "spark_bed", lambda: contextlib.nullcontext(bed))
    monkeypatch.setattr(spark_diner_setup, "LEAST_BUDGET_BYTES", 80_000)
    monkeypatch.setattr(spark_diner_setup, "warm_up", lambda *_: None)
    monkeypatch.setattr(spark_diner, "SHARES", {"5%": 0.05})
    for module, files in ((spark_diner, 2), (spark_diner_band, 2), (spark_diner_handover, 4)):
        monkeypatch.setattr(module, "FILES", files)
    monkeypatch.setattr(spark_diner, "ONLINE_FILES", 2)
    monkeypatch.setattr(spark_diner, "DRIFTS", {"drift": 16.0})
    monkeypatch.setattr(spark_diner_handover, "FIRST_FILES", 2)
    monkeypatch.setattr(spark_diner_handover, "SILENCES", (0.0, 0.0))
    monkeypatch.setattr(spark_diner_handover, "LEAST_ROWS", ROWS)


def run(only: str) -> Result:
    benchmark = registry.find("spark-diner")
    result = registry.run(benchmark, benchmark.configure(ROWS, ("1",), only=only), Silent())
    assert result.ok, result.failures
    assert all(ratio.n == 1 and (ratio.min or 0) > 0 for ratio in result.ratios.values())
    return result


@pytest.mark.usefixtures("tiny")
def test_uniform_when_tiny_then_both_algorithms_spill_and_are_compared() -> None:
    result = run("uniform")
    assert set(result.ratios) == {"xjoin/uniform-5%"}
    contenders = result.facts["uniform"]["contenders"]
    assert set(contenders) == {"xjoin 5%", "diner 5%"}
    assert all(facts["spilled_bytes"] > 0 for facts in contenders.values())
    assert set(result.facts["goals"]) == {"xjoin/uniform-5%"}


@pytest.mark.full
@pytest.mark.usefixtures("tiny")
def test_online_when_tiny_then_counts_the_results_before_the_inputs_ended() -> None:
    result = run("online")
    assert set(result.ratios) == {"xjoin-online/zipf", "xjoin-online/drift"}
    facts = result.facts["online"]
    assert set(facts["contenders"]) == {
        f"{name} {law}" for name in ("xjoin", "diner") for law in ("zipf", "drift")
    }
    for name, found in facts["contenders"].items():
        assert found["spilled_bytes"] > 0
        assert 0 < found["online_share"] < 1
        # no work is deferred and done while rows come: what arrives is joined as it arrives
        assert found["results_online"] == pytest.approx(found["results_arriving"], rel=1e-3), name


@pytest.mark.full
@pytest.mark.usefixtures("tiny")
def test_band_when_tiny_then_every_query_has_the_same_results() -> None:
    result = run("band")
    rivals = ("rocksdb", "inheap", "rocksdb-watermark", "inheap-watermark")
    settings = ("band", "band-packed", "band-packed-5%")
    assert set(result.ratios) == {f"{rival}/{ours}" for rival in rivals for ours in settings}
    contenders = result.facts["band"]["contenders"]
    assert len(contenders) == len(rivals) + len(settings)
    for name, found in contenders.items():
        wanted = result.facts["band"]["result_rows"]
        assert found["rows_out"] == pytest.approx(wanted, rel=1e-3), name
    assert contenders["band-packed-5%"]["spilled_bytes"] > 0


@pytest.mark.full
@pytest.mark.usefixtures("tiny")
def test_handover_when_work_is_pending_then_measures_the_waits() -> None:
    result = run("handover")
    assert set(result.ratios) == {"allowed/handover"}
    (waits,) = result.facts["handover"]["waits_seconds"]
    assert len(waits) in (1, 2)
    found = result.facts["handover"]["contenders"]["handover"]["seconds"]
    assert found["longest wait"]["max"] == pytest.approx(max(waits), rel=0.01)
    typical = found["typical micro-batch"]["median"]
    assert found["allowed"]["median"] == pytest.approx(MAX_SLICE_MS / 1000 + typical, rel=0.01)
