"""`join_all` with `history`: partitions are split by a sample of rows like those to come."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail
from dovetail import errors
from dovetail.cli.job import execution
from dovetail.cli.job.file import read_job
from dovetail.costs.cellloads import cell_loads
from dovetail.spark.jobs.join_all import cell_counts
from dovetail.spark.jobs.plans import JoinAllPlan
from dovetail.spark.jobs.shares import sample_hashes
from dovetail.specs import JoinAllOptions

pytestmark = pytest.mark.spark

SEED = 7_711
ON = [("r1.a", "r2.a"), ("r2.b", "r3.b")]
PARTITIONS = 4


@pytest.fixture
def skewed(bench: Any) -> Any:
    """A chain: three in four rows of the middle input, the largest, have one value of `a`."""
    rng = np.random.default_rng(SEED)
    a = np.where(rng.random(2000) < 0.75, 7, rng.integers(0, 4000, 2000))
    b = pa.array(rng.integers(0, 500, 2000), mask=rng.random(2000) < 0.05)
    bench.write("r1", pa.table({"a": rng.permutation(300), "x": np.arange(300)}))
    bench.write("r2", pa.table({"a": a, "b": b, "y": rng.random(2000)}))
    bench.write("r3", pa.table({"b": rng.integers(0, 500, 400), "z": rng.random(400)}))
    return bench


def batches(bench: Any) -> dict[str, Any]:
    return {name: bench.batch(name) for name in bench.schemas}


def streams(bench: Any) -> dict[str, Any]:
    return {name: bench.stream(name) for name in bench.schemas}


def expected(bench: Any) -> Any:
    r1, r2, r3 = (
        frame.toDF(*(f"{name}_{column}" for column in frame.columns))
        for name, frame in batches(bench).items()
    )
    return r1.join(r2, F.expr("r1_a = r2_a")).join(r3, F.expr("r2_b = r3_b"))


def spec_of(bench: Any, on: Any = ON, history: Any = None, **options: Any) -> Any:
    asked = JoinAllOptions(on=on, **{"partitions": PARTITIONS, **options})
    return JoinAllPlan.of(batches(bench), asked, "test", history).spec


@pytest.mark.parametrize("band", [False, True])
def test_loads_when_the_sample_is_everything_then_are_the_rows_that_go_to_each_cell(
    skewed: Any, band: bool
) -> None:
    on = [("r1.a", "r2.a", 3), ON[1]] if band else ON
    spec = spec_of(skewed, on, batches(skewed))
    assert spec.grid.partitions > 1
    samples, rows = sample_hashes(batches(skewed), spec)
    keyed = [skewed.batch(name).dropna(subset=list(keys)).count()
             for name, keys in zip(skewed.schemas, spec.keys, strict=True)]  # fmt: skip
    assert rows == keyed
    assert [sample.rows for sample in samples] == keyed
    counts = cell_counts(batches(skewed), spec)
    told = [sum(some.get(cell, 0) for some in counts) for cell in range(spec.partitions)]
    assert cell_loads(spec.grid, rows, samples).tolist() == pytest.approx(told)


def test_sample_when_there_are_more_rows_then_is_bounded_and_tells_their_number(
    skewed: Any,
) -> None:
    samples, rows = sample_hashes(batches(skewed), spec_of(skewed), most=350)
    assert [sample.rows for sample in samples] == [300, 350, 350]
    r2 = skewed.batch("r2").dropna(subset=["a", "b"]).count()
    assert rows == pytest.approx([300, r2, 400], rel=0.2)  # four standard deviations
    parts = samples[1].hashes[0]
    assert parts is not None
    _, times = np.unique(parts, return_counts=True)
    assert times.max() / 350 == pytest.approx(0.75, abs=0.1), "the heavy value is not as heavy"


def test_history_when_a_value_is_heavy_then_the_fullest_partition_is_smaller(
    skewed: Any, same_rows: Any
) -> None:
    inputs = batches(skewed)
    even, chosen = spec_of(skewed), spec_of(skewed, history=inputs)
    assert even.grid.shares[0] > 1
    assert chosen.grid != even.grid
    fullest = []
    for spec in (even, chosen):
        counts = cell_counts(inputs, spec)
        loads = [sum(some.get(cell, 0) for some in counts) for cell in range(spec.partitions)]
        fullest.append(max(loads))
    assert fullest[1] < 0.9 * fullest[0]
    joined = dovetail.join_all(inputs, ON, partitions=PARTITIONS, history=inputs)
    assert joined.count() > 100
    same_rows(joined, expected(skewed), f"shares by a sample, seed {SEED}")


def test_history_when_inputs_stream_then_shares_are_kept_with_the_state(skewed: Any) -> None:
    options: dict[str, Any] = {"state": skewed.state, "partitions": PARTITIONS, "memory": "1MB"}
    history = batches(skewed)
    chosen, even = spec_of(skewed, history=history).grid, spec_of(skewed).grid
    assert chosen != even
    said = " ".join(
        str(
            dovetail.plan.join_all(streams(skewed), ON, history=history, **options).explain()
        ).split()
    )
    assert "so that the least comes to the fullest one by a sample of history=" in said
    for share, column in zip(chosen.shares, "ab", strict=True):
        assert f"{share} by the hash of r{'12'['ab'.index(column)]}.{column}" in said
    skewed.run(dovetail.join_all(streams(skewed), ON, history=history, **options))
    assert skewed.progress().identity["shares"] == list(chosen.shares)
    skewed.run(dovetail.join_all(streams(skewed), ON, **options))
    assert skewed.progress().identity["shares"] == list(chosen.shares)
    skewed.check(f"streams, shares by a sample, seed {SEED}", expected(skewed))
    other = {**history, "r2": history["r2"].withColumn("a", F.col("b"))}
    skewed.run(dovetail.join_all(streams(skewed), ON, history=other, **options))
    said = " ".join(str(dovetail.plan.join_all(streams(skewed), ON, **options).explain()).split())
    assert "as the state directory was begun with" in said


def test_history_when_sizes_are_given_as_well_then_both_count(skewed: Any) -> None:
    sizes = {"r1": 1, "r2": 1, "r3": 10_000}
    by_both = spec_of(skewed, history=batches(skewed), sizes=sizes)
    assert by_both.grid.shares == (1, PARTITIONS)
    sizes = {"r1": 10_000, "r2": 1, "r3": 1}
    assert spec_of(skewed, history=batches(skewed), sizes=sizes).grid.shares == (PARTITIONS, 1)


def test_history_when_it_does_not_fit_then_one_clear_error(skewed: Any) -> None:
    history = batches(skewed)

    def refused(history: Any, says: str) -> None:
        with pytest.raises(errors.ArgumentError, match=says):
            dovetail.join_all(streams(skewed), ON, state=skewed.state, history=history)

    refused(list(history.values()), "history= is a list")
    refused({**history, "r3": skewed.stream("r3")}, "no batch DataFrame for the input 'r3'")
    refused({"r1": history["r1"]}, "no batch DataFrame for the input 'r2'")
    refused({**history, "r2": history["r2"].drop("y")}, "'r2' has no column 'y'")
    text = history["r3"].withColumn("b", F.col("b").cast("string"))
    refused({**history, "r3": text}, "'r3' has no column 'b' of type int64")
    assert not skewed.state.exists()


def test_job_when_it_asks_for_history_then_its_files_are_sampled(
    skewed: Any, same_rows: Any
) -> None:
    inputs = "".join(
        f'[inputs.{name}]\nformat = "parquet"\npath = "{name}"\n' for name in skewed.schemas
    )
    text = (
        f'{inputs}[join_all]\non = [["r1.a", "r2.a"], ["r2.b", "r3.b"]]\nhistory = true\n'
        f'partitions = {PARTITIONS}\n[sink]\nformat = "parquet"\npath = "out"\n'
        'checkpoint = "checkpoint"\n'
    )
    (skewed.root / "job.toml").write_text(text)
    job = read_job(skewed.root / "job.toml")
    assert job.kind == "join_all"
    execution.start(job, execution.result(skewed.spark, job), available_now=True).awaitTermination()
    chosen = spec_of(skewed, history=batches(skewed)).grid.shares
    assert dovetail.progress(execution.state_of(job)).identity["shares"] == list(chosen)
    same_rows(skewed.results(), expected(skewed), f"a job, seed {SEED}")
