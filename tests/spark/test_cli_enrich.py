"""Enrichment from the outside: the command, the examples, job files, and explanations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import dovetail
from dovetail.cli.job import execution
from dovetail.cli.job.explain import explained as explain_job
from dovetail.cli.job.file import Job, read_job
from dovetail.cli.views import make_console
from dovetail.errors import ArgumentError, JobFileError

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*command: str | Path) -> str:
    """What a Python command prints, without a terminal; it has to succeed."""
    # short programs: compiling them well would take longer than running them
    submit = (
        "--driver-java-options -XX:TieredStopAtLevel=1 --conf spark.sql.codegen.wholeStage=false"
    )
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"},
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "\x1b" not in done.stdout + done.stderr
    return done.stdout


# --- from the outside ---------------------------------------------------------------------------


def test_demo_when_a_stream_is_enriched_then_both_results_are_checked(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    output = run("-m", "dovetail.cli", "demo", "enrich", "--rows", "5000", "--keep", kept)
    said = [" ".join(line.split()) for line in output.splitlines()]
    assert any(line.startswith("rows in 5,000") for line in said)
    assert any(line.startswith("time to stage the table") for line in said)
    assert "checked against Spark's batch left join: 5,000 rows, identical" in said
    unknown = sum(dovetail.progress(kept / "state-unknown").rows_out.values())
    assert unknown > 0
    assert f"checked against Spark's batch anti join: {unknown:,} rows, identical" in said


@pytest.mark.full
def test_example_when_a_warehouse_is_loaded_then_checks_itself() -> None:
    output = run(REPOSITORY / "examples" / "warehouse_load.py")
    assert "orders loaded, 322 of unknown customers held back" in output
    assert "checked against Spark's batch joins: identical" in output


# --- job files, on one session ------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped job, with its input."""
    shutil.copy(REPOSITORY / "examples" / "enrich.toml", tmp_path)
    subprocess.run(
        [sys.executable, REPOSITORY / "examples" / "make_data.py", tmp_path / "data"], check=True
    )
    return tmp_path


def job_of(folder: Path, *changes: tuple[str, str]) -> Job:
    file = folder / "enrich.toml"
    text = file.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    file.write_text(text)
    job = read_job(file)
    assert job.kind == "enrich"
    return job


def test_job_when_the_example_is_carried_out_then_is_the_left_join(
    folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder, ("# history = true", "history = true"))
    enriched = execution.result(spark, job)
    execution.start(job, enriched, available_now=False).awaitTermination()
    progress = dovetail.progress(execution.state_of(job))
    assert progress.rows_in == (20_000, 0)
    assert progress.chosen is not None
    assert progress.chosen.skew.rows == 20_000, "all of them are in the sample"
    orders, customers = (pq.read_table(folder / "data" / n) for n in ("orders", "customers"))
    expected = orders.join(customers, "customer", "name", join_type="left outer")
    found = pq.read_table(sorted((folder / "ckpt" / "orders-with-city").glob("*.parquet")))
    assert found.num_rows == expected.num_rows == orders.num_rows
    order = [("order_id", "ascending")]
    for column in ("order_id", "customer", "amount", "city", "credit"):
        assert found.sort_by(order).column(column).to_pylist() == (
            expected.sort_by(order).column(column).to_pylist()
        ), column
    assert 0 < found.column("city").null_count < 1000


def test_job_when_it_is_a_batch_and_the_table_has_a_name_then_finds_what_is_unknown(
    folder: Path, spark: SparkSession
) -> None:
    spark.read.parquet(str(folder / "data" / "customers")).createOrReplaceTempView("known")
    job = job_of(
        folder,
        ('mode = "stream" #', 'mode = "batch" #'),
        ('"data/customers"', '"known"'),
        ('how = "left"', 'how = "anti"'),
        ('checkpoint = "ckpt/enrich-query"\n', ""),
        ("[trigger]\navailable_now = true", "#"),
    )
    execution.write(job, execution.result(spark, job))
    found = spark.read.parquet(str(folder / "ckpt" / "orders-with-city"))
    assert found.columns == ["order_id", "customer", "amount"]
    wanted = spark.sql("SELECT name FROM known").collect()
    names = {row["name"] for row in wanted}
    assert found.count() > 0
    assert not any(row["customer"] in names for row in found.collect())
    spark.catalog.dropTempView("known")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('memory = "1MB"', 'memory = "1KB"'), "[enrich]: memory='1KB' is too small"),
        (('columns = ["city"', 'columns = ["town"'), "[enrich]: the table input has no column"),
        (('"data/customers"', '"nonesuch"'), "[enrich]: table='nonesuch' is neither the path"),
    ],
)
def test_job_when_something_in_it_is_wrong_then_names_file_and_key(
    change: tuple[str, str], said: str, folder: Path, spark: SparkSession
) -> None:
    with pytest.raises(JobFileError) as raised:
        execution.result(spark, job_of(folder, change))
    assert str(raised.value).startswith(f"{folder / 'enrich.toml'}: {said}")
    assert not (folder / "ckpt").exists()


def test_guide_when_its_snippet_is_run_then_enriches(folder: Path, spark: SparkSession) -> None:
    guide = (
        (REPOSITORY / "docs" / "guide.md").read_text().split("## Enrich a stream from a table")[1]
    )
    snippet = guide.split("```python\n")[1].split("```")[0]
    for place in ("data", "ckpt"):
        snippet = snippet.replace(f'"{place}/', f'"{folder}/{place}/')
    exec(snippet, {"spark": spark, "dovetail": dovetail})
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    assert spark.read.parquet(str(folder / "data" / "enriched")).count() == 20_000


# --- explanations -------------------------------------------------------------------------------


def test_explain_when_a_table_is_staged_then_knows_its_size(
    folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder)
    (stream,) = execution.open_inputs(spark, job).values()
    options = dict(job.options)
    before = str(dovetail.plan.enrich(stream, **options).explain())
    assert "about 2,960 rows of 48 bytes" in before
    assert "the row count of its Parquet files" in before
    assert "new: made when the query starts" in before
    for name in ("seek *", "ssbj", "ameshjoin", "meshjoin", "inl"):
        assert f"\n  {name} " in before
    assert not execution.state_of(job).exists()

    execution.start(job, execution.result(spark, job), available_now=True).awaitTermination()
    after = str(dovetail.plan.enrich(stream, **options).explain())
    assert "about 2,960 rows of" in after
    assert "as staged, v000001" in after
    assert "exists and fits, after batch" in after
    other = str(dovetail.plan.enrich(stream, **options | {"partitions": 3}).explain())
    assert "DOES NOT FIT" in other


def test_explain_when_a_sample_is_taken_then_measures_rows_on_it(
    folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder)
    samples = execution.sample(spark, job, 100)
    (stream,) = execution.open_inputs(spark, job).values()
    plan = dovetail.plan.enrich(stream, **job.options)
    text = str(plan.explain(samples=samples, skew=1))
    assert text.count("measured on 100 rows") == 2
    assert "Zipf with exponent 1" in text


def test_explain_when_the_table_has_no_files_then_asks_spark(spark: SparkSession) -> None:
    stream = spark.createDataFrame(pa.table({"id": [1, 2]}))
    text = str(dovetail.plan.enrich(stream, spark.range(5_000), on="id", memory="1MB").explain())
    assert "about 5,000 rows of 8 bytes" in text
    assert "by Spark's statistics" in text or "guessed from Spark's estimate" in text
    with pytest.raises(ArgumentError, match="skew=-1"):
        dovetail.plan.enrich(stream, spark.range(5), on="id").explain(skew=-1)


def test_explain_when_keys_can_be_sampled_then_measures_their_skew(spark: SparkSession) -> None:
    rng = np.random.default_rng(5)
    keys = np.minimum(rng.zipf(1.5, 4_000), 4_999).astype(np.int64)
    stream = spark.createDataFrame(pa.table({"id": keys}))
    options = {"on": "id", "memory": "1MB"}

    def explained(**more: Any) -> str:
        said = dovetail.plan.enrich(stream, spark.range(5_000), **options).explain(**more)
        return " ".join(str(said).split())  # wherever its lines end

    said = explained(sample_rows=3_000)
    assert re.search(r"skewed like Zipf with exponent 1\.[3-7]\d?, as in a sample of 3,000", said)
    assert "for uniform keys, one match" in explained(sample_rows=0)
    assert "skewed like Zipf with exponent 0.5, one match" in explained(skew=0.5)
    wrong = spark.range(3).withColumnRenamed("id", "other")
    with pytest.raises(ArgumentError, match="history=: the DataFrame has no column 'id'"):
        dovetail.plan.enrich(stream, spark.range(5), **options, history=wrong).explain()


@pytest.mark.parametrize(
    ("changes", "sample", "keys"),
    [
        ([], None, "uniform keys, one match"),
        ([], 500, "as in a sample of 500 rows"),
        ([("# history = true", "history = true")], None, "as in a sample of 20,000 rows"),
        ([("# history = true", "history = true")], 0, "uniform keys, one match"),
    ],
)
def test_explained_job_when_there_is_a_history_then_keys_are_as_in_a_sample_of_it(
    changes: list[tuple[str, str]], sample: int | None, keys: str, folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder, *changes)
    said = explain_job(make_console(), spark, job, sample, "this machine")
    assert keys in " ".join(str(said).split())


def test_explain_when_a_storage_is_named_then_predicts_for_it(spark: SparkSession) -> None:
    stream = spark.createDataFrame(pa.table({"id": [1, 2]}))
    table = spark.range(5_000)
    said = dovetail.plan.enrich(stream, table, on="id", memory="1MB").explain(
        storage="object-store"
    )
    predictions = "\n".join(dict(said.sections)["predictions"])
    assert "storage: object store, as asked, and not where this is; 30 ms" in predictions
    assert any("storage='object store' auto would be" in line for line in said.sections[2][1])
    with pytest.raises(ArgumentError, match="'7200 rpm disk', 'object store'"):
        dovetail.plan.enrich(stream, table, on="id").explain(storage="tape")
