"""`explain_join_all` and job files with several inputs."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail
from dovetail import errors
from dovetail.cli.job import execution
from dovetail.cli.job.file import Job, read_job

pytestmark = pytest.mark.spark

SEED = 881
ON = [("r1.a", "r2.a"), ("r2.b", "r3.b")]


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.fixture
def chain(bench: Any) -> Any:
    """Between r1 and r2 every row has ten partners, between r2 and r3 one in ten has one."""
    rng = np.random.default_rng(SEED)
    rows = 2000
    bench.write("r1", pa.table({"a": np.arange(rows) % 200, "x": rng.random(rows)}))
    bench.write("r2", pa.table({"a": np.arange(rows) // 10, "b": np.arange(rows) * 10}))
    b = pa.array(np.arange(rows), mask=np.arange(rows) % 4 == 1)
    bench.write("r3", pa.table({"b": b, "y": rng.random(rows)}))
    return bench


def test_explain_when_batches_are_counted_then_numbers_are_those_of_the_data(chain: Any) -> None:
    inputs = {name: chain.batch(name) for name in chain.schemas}
    text = str(dovetail.plan.join_all(inputs, ON, memory="1MB", partitions=4).explain())
    said = " ".join(text.split())
    assert "counted: r1 2,000, r2 2,000, r3 1,500 rows with a key" in said
    results = number(re.findall(r"about ([\d,]+) results", said)[0])
    r1, r2, r3 = inputs.values()
    exact = r1.join(r2, "a").join(r3, "b").count()
    assert results == pytest.approx(exact, rel=0.1)
    (travel,) = re.findall(r"one operator: ([\d,]+) rows travel", said)
    copies = dict(
        re.findall(r"of (r\d) to ([\d.]+)[,;]", said.split("partitions a row goes to:")[1])
    )
    rows = {"r1": 2000, "r2": 2000, "r3": 1500}
    expected = sum(rows[name] * float(copies[name]) for name in rows)
    assert number(travel) == pytest.approx(expected, rel=0.01)
    # the cheap order has few intermediate results: r2 and r3 first
    order, between = re.findall(
        r"cascade, (r\d then r\d then r\d): [\d,]+ rows travel, ([\d,]+) of", said
    )[0]
    assert order == "r2 then r3 then r1"
    assert number(between) == pytest.approx(r2.join(r3, "b").count(), rel=0.1)
    fullest = number(re.findall(r"([\d,]+) rows, [\d.]+ \w+, in the fullest", said)[0])
    assert expected / 4 <= fullest < expected / 2
    assert "a cascade of dovetail.join would keep" in said


def test_explain_when_intermediate_results_are_many_then_prefers_the_one_operator(
    bench: Any,
) -> None:
    for name in ("r1", "r2", "r3"):
        bench.write(name, pa.table({"k": np.arange(900) % 9, f"{name}_x": np.arange(900)}))
    inputs = {name: bench.batch(name) for name in bench.schemas}
    said = " ".join(str(dovetail.plan.join_all(inputs, "k", partitions=2).explain()).split())
    assert "2 by the hash of r1.k = r2.k = r3.k" in said
    assert "the one operator keeps" in said
    assert "times less, because it has no intermediate results" in said
    (between,) = re.findall(r"([\d,]+) of them intermediate results", said)
    assert number(between) == pytest.approx(90_000, rel=0.02)


def test_explain_when_inputs_stream_then_counts_history_and_starts_nothing(chain: Any) -> None:
    streams = {name: chain.stream(name) for name in chain.schemas}
    options: dict[str, Any] = {"state": chain.state, "partitions": 4}
    bare = " ".join(str(dovetail.plan.join_all(streams, ON, **options).explain()).split())
    assert "no estimate: the rows of a stream cannot be read before it runs" in bare
    assert "taking the streams to be equally long" in bare
    assert "new: made when the query starts" in bare
    history = {name: chain.batch(name) for name in chain.schemas}
    text = dovetail.plan.join_all(streams, ON, history=history, **options).explain()
    assert "counted: r1 2,000" in str(text)
    with pytest.raises(errors.ArgumentError, match="no batch DataFrame for the input 'r3'"):
        dovetail.plan.join_all(
            streams, ON, history={**history, "r3": streams["r3"]}, **options
        ).explain()
    assert not chain.state.exists()


def test_explain_when_a_band_is_joined_then_says_that_ranges_are_cut(chain: Any) -> None:
    inputs = {name: chain.batch(name) for name in chain.schemas}
    on = [("r1.a", "r2.a", 2), ("r2.b", "r3.b")]
    said = " ".join(
        str(dovetail.plan.join_all(inputs, on, partitions=4).explain(count=False)).split()
    )
    assert "|r1.a - r2.a| <= 2 (in units of int64)" in said
    assert "by the ranges of r1.a, r2.a, which bands link" in said
    assert "no estimate: count=False" in said


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_job_when_it_has_several_inputs_then_is_explained_and_carried_out(
    chain: Any, same_rows: Any, mode: str
) -> None:
    job = job_of(chain.root, mode)
    opened = execution.open_inputs(chain.spark, job)
    assert [frame.isStreaming for frame in opened.values()] == [mode == "stream"] * 3
    assert execution.are_files(job)
    joined = execution.result(chain.spark, job)
    if mode == "batch":
        execution.write(job, joined)
    else:
        execution.start(job, joined, available_now=True).awaitTermination()
        assert dovetail.progress(execution.state_of(job)).identity["job"] == "join_all"
    r1, r2, r3 = (chain.batch(name) for name in chain.schemas)
    expected = r1.join(r2, r2.a == r1.a).join(r3, r3.b == r2.b)
    assert joined.columns == ["r1_a", "x", "r2_a", "r2_b", "r3_b", "y"]
    same_rows(chain.results(), expected, mode)


def job_of(root: Path, mode: str) -> Job:
    inputs = "".join(
        f'[inputs.{name}]\nformat = "parquet"\npath = "{name}"\n' for name in ("r1", "r2", "r3")
    )
    checkpoint = 'checkpoint = "checkpoint"\n' if mode == "stream" else ""
    text = (
        f'mode = "{mode}"\n{inputs}[join_all]\non = [["r1.a", "r2.a"], ["r2.b", "r3.b"]]\n'
        f'memory = "2MB"\npartitions = 2\n[sink]\nformat = "parquet"\npath = "out"\n{checkpoint}'
    )
    (root / "job.toml").write_text(text)
    job = read_job(root / "job.toml")
    assert job.kind == "join_all"
    return job
