"""`history=` of an enrichment: `enrich` and `explain` choose by the skew of a sample of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import dovetail
from dovetail.costs import calibrate, storage
from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.ssbj import zipf
from dovetail.costs.storage import Storage
from dovetail.errors import ArgumentError
from dovetail.spark.jobs.streamkeys import StreamKeys
from dovetail.spark.state.chosen import read_chosen

pytestmark = pytest.mark.spark

SEED = 20_261_118
VALUES = 20_000
FACTORS = MeshFactors(2e-10, 4e-8, 2e-8, 5e-10, 8e-8, lookup=8e-8, call=0.16, chunk=5e-5)
OPTIONS: dict[str, Any] = {"on": "k", "memory": "550KB", "partitions": 1}


@pytest.fixture(autouse=True)
def _machine(conf: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which pieces of work are slow to begin: a scan in few of them is best, with a cache if
    keys are skewed."""
    conf(
        "spark.sql.execution.arrow.maxRecordsPerBatch", "10000"
    )  # as it is by itself; fewer would be a scan's packets
    monkeypatch.setattr(storage, "measure_storage", lambda _: Storage("this machine", 0.5, 90e6))
    monkeypatch.setattr(storage, "_measured", {})
    monkeypatch.setattr(calibrate, "_factors_for", lambda *_: FACTORS)


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each sample had."""
    sizes: list[int] = []
    take = StreamKeys._sampled

    def counted(self: StreamKeys, spec: Any) -> Any:
        codes = take(self, spec)
        sizes.append(len(codes))
        return codes

    monkeypatch.setattr(StreamKeys, "_sampled", counted)
    return sizes


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A file of rows of 40 bytes, as their types tell."""
    columns = {name: np.arange(VALUES) for name in ("k", *(f"c{n}" for n in range(4)))}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    return str(tmp_path / "table.parquet")


def keys(spark: SparkSession, exponent: float, rows: int = 8_000) -> DataFrame:
    rng = np.random.default_rng(SEED)
    drawn = rng.choice(VALUES, rows, p=zipf(VALUES, exponent))
    return spark.createDataFrame(pa.table({"k": drawn.astype(np.int64)}))


def streaming(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir()
    return spark.readStream.schema("k long").parquet(str(folder))


def explained(*arguments: Any, sample_rows: int = 20_000, **options: Any) -> str:
    said = dovetail.plan.enrich(*arguments, **OPTIONS, **options).explain(sample_rows=sample_rows)
    return dict(said.sections)["algorithm"][0].split(",")[0]


def test_auto_when_keys_are_skewed_then_enrich_and_explain_choose_by_them(
    spark: SparkSession, table: str, tmp_path: Path, sampled: list[int]
) -> None:
    stream, skewed = streaming(spark, tmp_path / "in"), keys(spark, 1.3)
    state = tmp_path / "state"
    assert explained(stream, table, state=state) == "ameshjoin", "uniform, for all that is known"
    assert sampled == []
    assert explained(stream, table, state=state, history=skewed) == "ssbj"
    assert explained(stream, table, state=state, history=keys(spark, 0.0)) == "ameshjoin"
    sampled.clear()
    dovetail.enrich(stream, table, state=state, history=skewed, **OPTIONS)
    kept = read_chosen(state)
    assert kept is not None
    assert kept.choice.algorithm == "ssbj", kept
    assert kept.skew.exponent == pytest.approx(1.3, abs=0.15)
    assert kept.skew.rows == 8_000
    assert sampled == [8_000], "once, though a choice is made before and after staging"


def test_auto_when_the_stream_is_a_batch_then_goes_by_its_own_keys(
    spark: SparkSession, table: str, tmp_path: Path, sampled: list[int]
) -> None:
    batch = keys(spark, 1.3)
    assert explained(batch, table, state=tmp_path / "state") == "ssbj"
    assert explained(batch, table, state=tmp_path / "state", sample_rows=0) == "ameshjoin"
    sampled.clear()
    dovetail.enrich(batch, table, state=tmp_path / "state", **OPTIONS)
    kept = read_chosen(tmp_path / "state")
    assert kept is not None
    assert (kept.choice.algorithm, sampled) == ("ssbj", [8_000])
    few = spark.range(50).toDF("k")
    dovetail.enrich(batch, few, state=tmp_path / "other", algorithm="seek", **OPTIONS)
    assert sampled == [8_000], "nothing depends on them"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda spark, _: (spark.range(3),), "history= is a tuple, but has to be a batch"),
        (streaming, "history=: the DataFrame streams"),
        (lambda spark, _: spark.range(3), "history=: the DataFrame has no column 'k' of type"),
        (lambda spark, _: spark.sql("SELECT 1 AS k"), "no column 'k' of type int64"),
    ],
)
def test_history_when_it_is_not_like_the_stream_then_says_so_before_anything_is_staged(
    spark: SparkSession, table: str, tmp_path: Path, wrong: Any, said: str
) -> None:
    stream, history = keys(spark, 0.0, 10), wrong(spark, tmp_path / "in")
    for call in (dovetail.enrich, dovetail.plan.enrich):
        with pytest.raises(ArgumentError, match=said):
            call(stream, table, state=tmp_path / "state", history=history, **OPTIONS)
    assert not (tmp_path / "state").exists()


def test_keys_when_there_are_none_then_are_uniform(spark: SparkSession) -> None:
    empty = keys(spark, 0.0, 10).where("k IS NULL")
    said = str(dovetail.plan.enrich(empty, spark.range(50).toDF("k"), **OPTIONS).explain())
    assert "for uniform keys, one match" in " ".join(said.split())
