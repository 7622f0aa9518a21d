"""The command and the examples, from the outside; and job files as Spark carries them out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import dovetail
from dovetail.cli import watch
from dovetail.cli.demo import join as demo_join
from dovetail.cli.demo.check import Comparison, compare
from dovetail.cli.demo.data import make_streams
from dovetail.cli.demo.scene import Scene
from dovetail.cli.failures import failure
from dovetail.cli.job import execution
from dovetail.cli.job import run as run_command
from dovetail.cli.job.file import Job, read_job
from dovetail.cli.views import make_console
from dovetail.errors import JobFileError
from support.depth import only_full

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*command: str | Path, code: int = 0) -> str:
    """What a Python command prints, without a terminal; its exit code is checked."""
    # short programs: compiling them well would take longer than running them
    submit = (
        "--driver-java-options -XX:TieredStopAtLevel=1 --conf spark.sql.codegen.wholeStage=false"
    )
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def dovetail_command(*arguments: str | Path, code: int = 0) -> str:
    return run("-m", "dovetail.cli", *arguments, code=code)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The shipped examples in a folder of their own, with the job's input."""
    folder = tmp_path / "examples"
    shutil.copytree(
        REPOSITORY / "examples",
        folder,
        ignore=shutil.ignore_patterns("data", "ckpt", "__pycache__"),
    )
    run(folder / "make_data.py")
    return folder


# --- from the outside ---------------------------------------------------------------------------


def test_demo_when_streams_are_as_in_life_then_most_results_come_while_rows_arrive(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    output = dovetail_command("demo", "--rows", "10000", "--budget-share", "0.2", "--keep", kept)
    said = [" ".join(line.split()) for line in output.splitlines()]
    (rows,) = [line.split()[-1] for line in said if line.startswith("rows out ")]
    assert f"checked against Spark's batch join: {rows} rows, identical" in said
    seen = dovetail.progress(kept / "state")
    assert f"{sum(seen.rows_out.values()):,}" == rows
    assert seen.spilled_bytes > 0
    assert seen.pending_rows == 0
    share = 100 * seen.rows_out["arriving"] / sum(seen.rows_out.values())
    assert share > 60
    (outcome,) = [line for line in said if "of the results came while rows arrived" in line]
    assert outcome.startswith(f"{share:.1f} % of the results")
    (held,) = re.findall(r"Spark's own join held ([\d.]+) MB in the end\.", outcome)
    assert seen.budget_bytes is not None
    assert float(held) > seen.budget_bytes / (1 << 20)
    assert "the memory that each reports for its rows" in " ".join(said)
    assert not (kept / "checkpoint-spark").exists()


@pytest.mark.full
def test_demo_when_streams_are_uniform_then_spills_and_is_checked_against_sparks_join(
    tmp_path: Path,
) -> None:
    output = dovetail_command("demo", "--uniform", "--rows", "5000", "--keep", tmp_path / "kept")
    said = [" ".join(line.split()) for line in output.splitlines()]
    assert any(line.startswith("rows in, orders 5,000") for line in said)
    (rows,) = [line.split()[-1] for line in said if line.startswith("rows out ")]
    assert f"checked against Spark's batch join: {rows} rows, identical" in said
    assert "own stream-stream join" not in output
    seen = dovetail.progress(tmp_path / "kept" / "state")
    assert f"{sum(seen.rows_out.values()):,}" == rows
    assert seen.spilled_bytes > 0
    assert seen.pending_rows == 0
    frame = dovetail_command("top", tmp_path / "kept" / "state", "--once")
    assert rows in frame
    assert frame.splitlines()[0].startswith("dovetail diner on order_id")


def test_run_when_given_the_example_job_then_joins_as_explained(examples: Path) -> None:
    job = examples / "job.toml"
    explained = dovetail_command("explain", job)
    assert "left.order_id = right.ordered" in explained
    assert "new: made when the query starts" in explained
    assert not (examples / "ckpt").exists()
    orders, shipments = (pq.read_table(examples / "data" / n) for n in ("orders", "shipments"))
    said = " ".join(explained.split())
    assert f"of {orders.num_rows:,} rows of left and" in said
    assert f"of {shipments.num_rows:,} rows of right" in said
    (share,) = re.findall(r"([\d.]+)% of them online, while rows arrive", said)
    assert 0 < float(share) <= 100

    output = dovetail_command("run", job)
    assert f"{shipments.num_rows:,}" in output
    result = pq.read_table(sorted((examples / "ckpt" / "shipped-orders").glob("*.parquet")))
    expected = orders.join(shipments, "order_id", "ordered", join_type="inner")
    assert result.num_rows == expected.num_rows == shipments.num_rows
    for table in (result, expected):
        assert len(set(table.column("shipment_id").to_pylist())) == shipments.num_rows
    order = [("shipment_id", "ascending")]
    for column in ("order_id", "customer", "amount", "shipment_id"):
        assert result.sort_by(order).column(column) == expected.sort_by(order).column(column)
    assert dovetail.progress(examples / "ckpt" / "query" / "dovetail" / "join").spilled_bytes > 0


def test_run_when_given_the_example_of_several_inputs_then_joins_as_explained(
    examples: Path,
) -> None:
    job = examples / "join_all.toml"
    said = " ".join(dovetail_command("explain", job).split())
    assert "customer.name = order.customer" in said
    names = ("customers", "orders", "shipments")
    customers, orders, shipments = (pq.read_table(examples / "data" / name) for name in names)
    counted = f"customer {len(customers):,}, order {len(orders):,}, shipment {len(shipments):,}"
    assert f"counted: {counted} rows with a key" in said
    assert not (examples / "ckpt").exists()

    output = " ".join(dovetail_command("run", job).split())
    shipped = orders.join(shipments, "order_id", "ordered", join_type="inner")
    expected = shipped.join(customers, "customer", "name", join_type="inner")
    assert f"rows out {len(expected):,}" in output
    assert f"rows in, customer {len(customers):,} and {len(customers):,} copies" in output
    assert f"rows in, order {len(orders):,} " in output
    assert f"Results are in {examples / 'ckpt' / 'shipped-to'} State is in " in output
    result = pq.read_table(sorted((examples / "ckpt" / "shipped-to").glob("*.parquet")))
    order = [("shipment_id", "ascending")]
    for column in ("shipment_id", "order_id", "customer", "city", "weight_g"):
        assert result.sort_by(order).column(column) == expected.sort_by(order).column(column)
    state = examples / "ckpt" / "join_all-query" / "dovetail" / "join_all"
    assert dovetail.progress(state).spilled_bytes > 0
    title = dovetail_command("top", state, "--once").splitlines()[0]
    assert title.startswith("dovetail miner on customer.name = order.customer, order.order_id = ")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("two_streams.py", "rows in, 90,375 out"),
        ("sites_spark.py", "meetings; a join in one place finds the same"),
        *only_full(
            ("pipeline.py", "5,400 shipments"),
            ("nexmark.py", "18,400 offers; checked against Spark's batch joins: identical"),
        ),
    ],
)
def test_example_when_run_then_prints_its_result(program: str, said: str) -> None:
    assert said in run(REPOSITORY / "examples" / program)


def test_run_when_spark_cannot_start_then_is_one_message(
    examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(examples))
    said = dovetail_command("run", examples / "job.toml", code=2)
    assert said.startswith("dovetail: Spark needs Java 17 or newer")
    assert said.count("\n") == 1


# --- job files, on one session ------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    left = pa.table({"id": range(2000), "name": [f"n{i % 7}" for i in range(2000)]})
    right = pa.table({"id": [i // 2 for i in range(2000)], "value": [i / 4 for i in range(2000)]})
    for name, table in (("left", left), ("right", right)):
        (tmp_path / name).mkdir()
        pyarrow.csv.write_csv(table, tmp_path / name / "a.csv")
    return tmp_path


def job_of(folder: Path, mode: str = "stream", join: str = "", **changed: str) -> Job:
    options = "[{0}.options]\nheader = true\n"
    parts = {
        "left": '[left]\nformat = "csv"\npath = "left"\nschema = "id BIGINT, name STRING"\n'
        + options.format("left"),
        "right": '[right]\nformat = "csv"\npath = "right"\nschema = "id BIGINT, value DOUBLE"\n'
        'select = ["id", "value * 2 AS twice"]\n' + options.format("right"),
        "join": f'[join]\non = "id"\npartitions = 2\n{join}\n',
        "sink": '[sink]\nformat = "parquet"\npath = "out"\n'
        + ('checkpoint = "ckpt"\n' if mode == "stream" else ""),
    } | changed
    file = folder / "job.toml"
    file.write_text(f'mode = "{mode}"\n' + "\n".join(parts.values()))
    return read_job(file)


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_job_when_carried_out_then_result_is_the_join(
    mode: str, folder: Path, spark: SparkSession, same_rows: Any
) -> None:
    job = job_of(folder, mode, 'memory = "1MB"')
    joined = execution.result(spark, job)
    if mode == "batch":
        execution.write(job, joined)
    else:
        execution.start(job, joined, available_now=True).awaitTermination()
        assert dovetail.progress(execution.state_of(job)).rows_in == (2000, 2000)
    batch = job_of(folder, "batch")
    left, right = execution.open_inputs(spark, batch).values()
    expected = left.join(right, "id")
    assert joined.columns == ["id", "name", "twice"]
    same_rows(spark.read.parquet(str(folder / "out")), expected, mode)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"join": 'memory = "1KB"'}, "[join]: memory='1KB' is too small"),
        ({"join": "within = -1"}, "[join]: within=-1 is not a distance"),
        (
            {"left": '[left]\nformat = "csv"\npath = "left"\nschema = "id BIGHINT"\n'},
            "left.schema: Spark says: ",
        ),
        (
            {
                "right": '[right]\nformat = "csv"\npath = "right"\nschema = "id BIGINT"\n'
                'select = ["idd"]\n'
            },
            "right.select: Spark says: [UNRESOLVED_COLUMN",
        ),
        (
            {
                "right": '[right]\nformat = "csv"\npath = "right"\nschema = "id BIGINT"\n'
                'watermark = { column = "t", delay = "1 hour" }\n'
            },
            "right.watermark: Spark says: ",
        ),
        (
            {"right": '[right]\nformat = "nonesuch"\n'},
            "right: Spark says: [DATA_SOURCE_NOT_FOUND]",
        ),
    ],
    ids=["memory", "band", "schema", "select", "watermark", "format"],
)
def test_job_when_something_in_it_is_wrong_then_names_file_and_key(
    changes: dict[str, str], said: str, folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder, **changes)
    with pytest.raises(JobFileError) as raised:
        execution.result(spark, job)
    assert str(raised.value).startswith(f"{folder / 'job.toml'}: {said}")
    assert "\n" not in str(raised.value)


def test_job_when_a_task_fails_then_the_message_is_dovetails(
    folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder, join='memory = "128KiB"\nalgorithm = "shj"')
    joined = execution.result(spark, job)
    query = execution.start(job, joined, available_now=True)
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    said = failure(raised.value)
    assert said is not None
    assert said.startswith("algorithm 'shj' keeps every row in memory")


def test_run_when_nothing_is_new_then_says_so_in_place_of_old_totals(
    folder: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "LINE_EVERY_S", float("inf"))
    job = job_of(folder)
    said, versions = [], []
    for more in (False, False, True):
        if more:
            shutil.copy(folder / "left" / "a.csv", folder / "left" / "b.csv")
        joined = execution.result(spark, job)
        run_command._stream(make_console(), job, joined, True)
        said.append(" ".join(capsys.readouterr().out.split()))
        versions.append(dovetail.progress(execution.state_of(job)).version)
    assert said[0].startswith("rows in, left 2,000 ")
    assert said[0].endswith(
        f"Results are in {folder / 'out'} State is in {execution.state_of(job)}"
    )
    assert "from the first start" not in said[0]
    assert said[1] == f"Nothing new since batch {versions[0]}."
    assert "rows in, left 4,000" in said[2]
    assert (
        f"this run, up to batch {versions[2]} All but the last line counts from the first start"
        in said[2]
    )


def test_explain_when_there_is_a_state_then_says_whether_it_fits(
    folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder, join='memory = "1MB"')
    left, right = execution.open_inputs(spark, job).values()
    state = execution.state_of(job)
    options: dict[str, Any] = {"on": "id", "memory": "1MB", "state": state}
    before = str(dovetail.plan.join(left, right, **options, partitions=2).explain())
    assert "new: made when the query starts" in before
    assert not state.exists()

    joined = execution.result(spark, job)
    execution.start(job, joined, available_now=True).awaitTermination()
    version = dovetail.progress(state).version
    after = str(dovetail.plan.join(left, right, **options, partitions=2).explain())
    assert f"exists and fits, after batch {version}" in after
    other = str(dovetail.plan.join(left, right, **options, partitions=3).explain())
    assert "DOES NOT FIT" in other
    assert "partitions=2" in other
    assert "3, as asked" in other


def test_explain_when_a_sample_is_taken_then_says_what_to_expect_and_from_what(
    folder: Path, spark: SparkSession
) -> None:
    job = job_of(folder, join='memory = "128KiB"')
    assert execution.are_files(job)
    history = execution.as_arguments(job, execution.open_as_batch(spark, job))
    left, right = execution.open_inputs(spark, job).values()
    options: dict[str, Any] = {"memory": "128KiB", "state": folder / "s", "partitions": 1}
    text = str(dovetail.plan.join(left, right, "id", **options).explain(history=history))
    assert text.count("measured on 1,000 rows") == 2
    said = " ".join(text.split())
    assert "estimated from 2,000 of 2,000 rows of left and 2,000 of 2,000 rows of right" in said
    assert "joined with 100 % of the memory" in said
    assert "results: about 2,000, " in said  # each right row has one match
    assert "of them online, while rows arrive (" in said
    assert "spilled while rows arrive: about" in said
    assert "seconds with 1 worker" in said or "a second or less with 1 worker" in said
    assert not (folder / "s").exists()
    without = str(dovetail.plan.join(left, right, "id", **options).explain())
    assert "the rows of a stream cannot be read before it runs" in " ".join(without.split())


def test_explain_when_an_input_is_no_file_then_says_how_to_go_on(
    folder: Path, spark: SparkSession
) -> None:
    kafka = job_of(folder, right='[right]\nformat = "kafka"\n')
    assert not execution.are_files(kafka)
    with pytest.raises(JobFileError, match=r"a sample can be taken of files only.*--sample 0"):
        execution.open_as_batch(spark, kafka)


def test_compare_when_multisets_differ_then_counts_both_ways(spark: SparkSession) -> None:
    columns = "id INT, name STRING"
    one = spark.createDataFrame([(1, "a"), (1, "a"), (2, None), (3, "c")], columns)
    two = spark.createDataFrame([(1, "a"), (2, None), (4, "c"), (4, "c")], columns)
    assert compare(one, one) == Comparison(4, 4, 0, 0)
    different = compare(one, two)
    assert replace(different, examples=()) == Comparison(4, 4, 2, 2)
    assert sorted(different.examples) == [
        "Row(id=1, name='a', __expected=2, __found=1)",
        "Row(id=3, name='c', __expected=1, __found=0)",
        "Row(id=4, name='c', __expected=0, __found=2)",
    ]


def test_demo_when_the_result_is_wrong_then_says_what_differs(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = make_streams(tmp_path / "in", 200, seed=1)
    orders, payments = (pq.read_table(stream.directory) for stream in streams.both)
    right = orders.join(payments, "order_id", join_type="inner")
    (tmp_path / "out").mkdir()
    wrong = pa.concat_tables([right.slice(1), right.slice(5, 2)])
    pq.write_table(wrong, tmp_path / "out" / "a.parquet")
    assert not demo_join.check(Scene(make_console(), spark, tmp_path), streams)
    said = " ".join(capsys.readouterr().out.split())  # wherever its lines end
    assert f"Spark's batch join {right.num_rows:,}; 1 are missing and 2 are too many" in said
    assert said.count("Row(order_id=") == 3
    pq.write_table(right, tmp_path / "out" / "a.parquet")
    spark.catalog.refreshByPath(str(tmp_path / "out"))
    assert demo_join.check(Scene(make_console(), spark, tmp_path), streams)
    said = " ".join(capsys.readouterr().out.split())
    assert f"join: {right.num_rows:,} rows, identical" in said
