"""Plans are objects: planning does nothing, an explanation has fields, a DataFrame is asked for."""

import inspect
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.costs.expected import Expected
from dovetail.errors import StateMismatchError
from dovetail.spark.jobs import staging_shown
from dovetail.spark.machine import default_memory, machine_bytes

SEED = 31


@pytest.mark.parametrize("name", ["join", "join_all", "enrich"])
def test_call_when_it_has_a_plan_then_both_have_one_signature(name: str) -> None:
    call, planned = getattr(dovetail, name), getattr(dovetail.plan, name)
    assert inspect.signature(call).parameters == inspect.signature(planned).parameters
    assert inspect.signature(call).return_annotation == "DataFrame"
    assert call.__doc__ == planned.__doc__
    assert not hasattr(dovetail, "explain")


@pytest.fixture
def inputs(bench: Any) -> Any:
    rng = np.random.default_rng(SEED)
    for name in ("left", "right", "stream", "table"):
        bench.keyed(name, rng.integers(0, 300, 600))
    return bench


def plans(bench: Any) -> dict[str, Callable[[], Any]]:
    left, right = (bench.stream(name) for name in ("left", "right"))
    past = {"a": bench.batch("left"), "b": bench.batch("right")}
    options: dict[str, Any] = {"on": "k", "memory": "1MB", "partitions": 2}
    return {
        "join": lambda: dovetail.plan.join(left, right, state=bench.root / "join", **options),
        "join_all": lambda: dovetail.plan.join_all(
            {"a": left, "b": right}, history=past, state=bench.root / "join_all", **options
        ),
        "enrich": lambda: dovetail.plan.enrich(
            bench.stream("stream"), bench.batch("table"), history=bench.batch("stream"),
            state=bench.root / "enrich", **options,
        ),
    }  # fmt: skip


@pytest.mark.spark
def test_plan_when_it_is_made_then_nothing_runs_and_nothing_is_written(inputs: Any) -> None:
    context, before = inputs.spark.sparkContext, set(threading.enumerate())
    makers = plans(inputs)
    context.setJobGroup("only-planned", "plans")
    try:
        made = {name: make() for name, make in makers.items()}
        time.sleep(0.5)  # until a job would be known of
        assert not list(context.statusTracker().getJobIdsForGroup("only-planned"))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)
    started = [thread.name for thread in set(threading.enumerate()) - before]
    assert not [name for name in started if "refresh" in name or "staging" in name], started
    for name, plan in made.items():
        assert not (inputs.root / name).exists(), name
        assert plan.problem is None
    assert made["enrich"].dataframe().isStreaming
    assert (inputs.root / "enrich" / "table" / "current").exists(), "staged when it is asked for"


@pytest.mark.spark
def test_explanation_when_it_is_made_then_has_the_numbers_as_fields(inputs: Any) -> None:
    made = {name: make() for name, make in plans(inputs).items()}
    history = (inputs.batch("left"), inputs.batch("right"))
    joined = made["join"].explain(history=history)
    assert joined.algorithm == "diner"
    assert joined.reasons[0] == "diner, chosen for its spilling"
    assert (joined.memory.total_bytes, joined.memory.partition_bytes) == (1 << 20, 1 << 19)
    (expected,) = joined.predictions
    assert isinstance(expected, Expected)
    assert joined.wait is None
    enriched = made["enrich"].explain()
    mine = next(one for one in enriched.predictions if one.algorithm == enriched.algorithm)
    assert mine.rate > 0
    assert enriched.wait == timedelta(seconds=mine.wait_seconds)
    one, cascade = made["join_all"].explain().predictions
    assert min(one.rows, cascade.rows) >= 1200
    assert str(joined).startswith("join\n  two streams")


@pytest.mark.spark
def test_plan_when_the_state_is_of_another_join_then_is_explained_and_not_carried_out(
    inputs: Any,
) -> None:
    inputs.run(inputs.join(memory="1MB"))
    sides = [inputs.stream(name) for name in ("left", "right")]
    plan = dovetail.plan.join(*sides, on="k", state=inputs.state, partitions=3, memory="1MB")
    assert "DOES NOT FIT" in str(plan.explain())
    with pytest.raises(StateMismatchError, match="partitions=2"):
        plan.dataframe()


def test_staging_when_it_takes_long_on_a_terminal_then_shows_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").write_bytes(b"x" * 2048)
    with staging_shown.shown(tmp_path):
        time.sleep(0.05)
    assert capsys.readouterr().err == "", "not a terminal"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(staging_shown, "PATIENCE_SECONDS", 0.01)
    with staging_shown.shown(tmp_path):
        time.sleep(0.2)
    assert "Staging the table: 2.0 KB written" in capsys.readouterr().err


@pytest.mark.spark
def test_memory_when_it_is_left_out_then_is_a_quarter_of_the_machine_and_explained(
    inputs: Any,
) -> None:
    sides = [inputs.batch(name) for name in ("left", "right")]
    found = dovetail.plan.join(*sides, on="k").explain(sample_rows=0)
    assert found.memory.total_bytes == machine_bytes() // 4
    assert "a quarter of the" in str(found)
    assert "that this machine has, as memory= was left out" in str(found)
    unbounded = dovetail.plan.join(*sides, on="k", memory="unbounded").explain(sample_rows=0)
    assert unbounded.memory.total_bytes is None
    assert "unbounded: all rows stay in memory" in str(unbounded)


def test_memory_when_it_is_left_out_on_a_cluster_then_is_a_quarter_of_an_executor() -> None:
    def context(**settings: str) -> Any:
        conf = {name.replace("_", "."): value for name, value in settings.items()}
        return SimpleNamespace(master="spark://host:7077", getConf=lambda: conf)

    assert default_memory(context()).nbytes == 256 << 20
    found = default_memory(context(spark_executor_memory="8g"))
    assert found.nbytes == 2 << 30
    assert "8.0 GB that an executor has (spark.executor.memory)" in found.words
    assert default_memory(context(spark_executor_memory="2048")).nbytes == 512 << 20
