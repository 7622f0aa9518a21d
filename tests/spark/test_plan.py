"""Plans are objects: planning does nothing, an explanation has fields, a DataFrame is asked for."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.costs.expected import Expected
from dovetail.errors import StateMismatchError
from dovetail.spark.machine import machine_bytes

pytestmark = pytest.mark.spark

SEED = 31


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


def test_plan_when_the_state_is_of_another_join_then_is_explained_and_not_carried_out(
    inputs: Any,
) -> None:
    inputs.run(inputs.join(memory="1MB"))
    sides = [inputs.stream(name) for name in ("left", "right")]
    plan = dovetail.plan.join(*sides, on="k", state=inputs.state, partitions=3, memory="1MB")
    assert "DOES NOT FIT" in str(plan.explain())
    with pytest.raises(StateMismatchError, match="partitions=2"):
        plan.dataframe()


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
