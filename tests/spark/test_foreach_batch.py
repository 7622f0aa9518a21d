"""A `foreachBatch` function may read what it likes of a batch: no row is lost, none is repeated.

What a function does (all, some, nothing, twice, in another order, throw) is crossed with plans
whose steps run differently. Every query is run to its end, and again after what was thrown.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryException

import dovetail
from dovetail.spark.foreach import states_in
from support.depth import only_full

pytestmark = pytest.mark.spark

SEED = 31
DOMAIN = 30
Sink = dict[int, Counter[str]]


class Away(Exception):
    """The user's own sink fails."""


def rows_of(frame: DataFrame) -> Counter[str]:
    return Counter(repr(tuple(row)) for row in frame.collect())


def reads_all(sink: Sink) -> Callable[[DataFrame, int], None]:
    def function(batch: DataFrame, number: int) -> None:
        sink[number] = rows_of(batch)

    return function


def reads_twice(sink: Sink) -> Callable[[DataFrame, int], None]:
    def function(batch: DataFrame, number: int) -> None:
        sink[number] = rows_of(batch)
        assert rows_of(batch) == sink[number], "the second reading gives other rows"

    return function


def reads_in_another_order(sink: Sink) -> Callable[[DataFrame, int], None]:
    def function(batch: DataFrame, number: int) -> None:
        keys = [F.desc(name) for name in batch.columns]
        sink[number] = rows_of(batch.coalesce(1).orderBy(*keys))

    return function


def reads_five_rows(sink: Sink) -> Callable[[DataFrame, int], None]:
    def function(batch: DataFrame, number: int) -> None:
        batch.limit(5).collect()

    return function


def reads_every_other(sink: Sink) -> Callable[[DataFrame, int], None]:
    def function(batch: DataFrame, number: int) -> None:
        if number % 2:
            batch.collect()

    return function


def reads_nothing(sink: Sink) -> Callable[[DataFrame, int], None]:
    return lambda batch, number: None


def throws(sink: Sink) -> Callable[[DataFrame, int], None]:
    """Once before it has read the second batch, and once after it has read a row of the third."""
    thrown: set[int] = set()

    def function(batch: DataFrame, number: int) -> None:
        if number in (1, 2) and number not in thrown:
            thrown.add(number)
            if number == 2:
                batch.first()
            raise Away(f"in batch {number}")
        sink[number] = rows_of(batch)

    return function


FUNCTIONS = {
    "all": reads_all,
    "twice": reads_twice,
    "another order": reads_in_another_order,
    "five rows": reads_five_rows,
    "every other batch": reads_every_other,
    "nothing": reads_nothing,
    "throws": throws,
}
WHOLE = ("all", "twice", "another order", "throws")  #: their sinks have all results


def joined(bench: Any, plan: str) -> DataFrame:
    memory = {"spilling": "200KB"}.get(plan, "unbounded")
    if plan == "several inputs":
        inputs = {name: bench.stream(name) for name in ("left", "right")}
        return dovetail.join_all(
            inputs, on=[("left.k", "right.k")], state=bench.state, partitions=2
        ).drop("right_k")
    if plan == "table":
        return dovetail.enrich(
            bench.stream("left"), bench.batch("right"), on="k", state=bench.state, partitions=2,
            memory="1MB",
        )  # fmt: skip
    frame = bench.join(memory=memory)
    if plan == "cascade":
        third = bench.stream("third")
        state = bench.root / "second"
        return dovetail.join(frame, third, on="k", state=state, partitions=2).drop("third_text")
    return frame


def expected(bench: Any, plan: str) -> Counter[str]:
    frame = bench.expected()
    if plan == "cascade":
        frame = frame.join(bench.batch("third").drop("third_text"), "k")
    return rows_of(frame)


def run(bench: Any, frame: DataFrame, function: Callable[[DataFrame, int], None]) -> None:
    """To the end of the query, however often it has to be started."""
    for _ in range(4):
        writer = frame.writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(bench.checkpoint))
        query = writer.trigger(availableNow=True).start()
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()
            return
        assert "Away" in str(query.exception()), "it failed, but not by the function's own doing"
    raise AssertionError("the query fails again and again")


@pytest.mark.parametrize(
    "plan",
    ["spilling", "table", "cascade", *only_full("unbounded", "without AQE", "several inputs")],
)
def test_batch_when_a_function_reads_what_it_likes_of_it_then_no_row_is_lost(
    bench: Any, conf: Any, plan: str
) -> None:
    conf("spark.sql.adaptive.enabled", "false" if plan == "without AQE" else "true")
    rng = np.random.default_rng(SEED)
    for side in ("left", "right", "third"):
        bench.keyed(side, rng.integers(0, DOMAIN, 150), files=3)
    wanted = expected(bench, plan)
    assert wanted
    root = bench.root
    for name, make in FUNCTIONS.items():
        about = f"{plan}, the function reads {name}, seed {SEED}"
        sink: Sink = {}
        again = type(bench)(bench.spark, root / name.replace(" ", "-"), bench.schemas)
        again.root.mkdir()
        for side in ("left", "right", "third"):
            (again.root / side).symlink_to(root / side)
        run(again, joined(again, plan), make(sink))
        progress = again.progress()
        came = progress.rows_in[: 1 if plan == "table" else None]
        assert came == (150,) * len(came), about
        last = dovetail.progress(again.root / "second") if plan == "cascade" else progress
        assert sum(last.rows_out.values()) == wanted.total(), about
        if name in WHOLE:
            assert sum(sink.values(), Counter()) == wanted, about


def test_query_without_a_join_when_a_join_was_planned_then_its_function_is_left_alone(
    bench: Any,
) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(10), files=2)
    frame = bench.join()
    assert {state.root for state in states_in(frame.select("k"))} == {bench.state}
    assert states_in(bench.stream("left")) == []
    seen: list[int] = []

    def function(batch: DataFrame, number: int) -> None:
        seen.append(number)

    run(bench, bench.stream("left"), function)
    assert seen == [0, 1]
