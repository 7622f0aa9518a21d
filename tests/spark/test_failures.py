"""What a user reads when a query fails: Dovetail's own sentence, in Spark's first line.

And two joins that share a state directory: refused as soon as that shows.
"""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

import dovetail
from dovetail.errors import StateMismatchError
from dovetail.spark.jobs import planning

pytestmark = pytest.mark.spark


@pytest.fixture
def begun(bench: Any) -> Any:
    """A query that has run, with more rows to come."""
    for side in ("left", "right"):
        bench.keyed(side, np.arange(100))
    bench.run(bench.join())
    for side in ("left", "right"):
        bench.keyed(side, np.arange(100))
    return bench


def new_checkpoint(bench: Any) -> str:
    return str(bench.failure(bench.join(), "noop", bench.root / "other"))


def deleted_state(bench: Any) -> str:
    shutil.rmtree(bench.state)
    return str(bench.failure(bench.join()))


def state_that_cannot_be_made(bench: Any) -> str:
    (bench.root / "file").write_text("")
    return str(bench.failure(bench.join(state=bench.root / "file"), "noop", bench.root / "other"))


@pytest.mark.parametrize(
    ("happens", "error", "sentence"),
    [
        (new_checkpoint, "StateMismatchError", "the state directory {state} is in use (partition"),
        (deleted_state, "StateMissingError", "the state directory {state} is missing or empty"),
        (state_that_cannot_be_made, "StorageError", "cannot write to {root}/file: "),
    ],
)
def test_query_when_dovetail_ends_it_then_the_first_line_has_the_whole_sentence(
    happens: Callable[[Any], str], error: str, sentence: str, begun: Any
) -> None:
    text = happens(begun)
    first = text.splitlines()[0]
    said = sentence.format(state=begun.state, root=begun.root)
    assert f": dovetail.errors.{error}: {said}" in first, text
    assert first.endswith("."), "the sentence goes on in another line"
    assert "Traceback" not in text


def test_query_when_anything_else_fails_then_the_traceback_is_kept(begun: Any) -> None:
    @F.udf("long", useArrow=False)
    def broken(value: int) -> int:
        raise ZeroDivisionError(f"at {value}")

    text = begun.failure(begun.join().select(broken("k")), "noop")
    begun.says(text, "Traceback", "in broken", "ZeroDivisionError: at ")


# --- one state directory, two joins -----------------------------------------------------------


def test_join_when_an_input_is_a_join_with_the_same_state_then_is_refused_when_planned(
    begun: Any,
) -> None:
    inner = begun.join(state=begun.root / "new").select("k", F.col("left_id").alias("a"))
    (begun.root / "alias").symlink_to(begun.root)
    same = begun.root / "alias" / "new"
    right = begun.stream("right")
    calls: list[Callable[[], DataFrame]] = [
        lambda: dovetail.join(inner, right, "k", state=same),
        lambda: dovetail.join_all({"one": inner, "two": right}, "k", state=same),
        lambda: dovetail.enrich(inner.where("a > 5"), begun.batch("right"), "k", state=same),
    ]
    for call in calls:
        with pytest.raises(StateMismatchError, match="an input comes from a join that keeps its"):
            call()
    assert not (begun.root / "new").exists()
    dovetail.join(inner, right, "k", state=begun.root / "another")
    dovetail.plan.join(inner, right, "k", state=begun.root / "another").explain()


@pytest.mark.parametrize("within", [None, 0])
def test_query_when_two_joins_in_it_share_a_state_then_fails_with_one_sentence(
    bench: Any, within: int | None
) -> None:
    """With equal settings, each would find the other's results committed, and emit those."""
    for side in ("left", "right"):
        bench.keyed(side, np.arange(200))
    low, high = (
        [bench.stream(side).where(part) for side in ("left", "right")]
        for part in ("k < 100", "k >= 100")
    )
    options = {"on": "k", "state": bench.state, "partitions": 2}
    one, two = dovetail.join(*low, **options), dovetail.join(*high, **options, within=within)
    ids = ["left_id", "right_id"]
    text = bench.failure(one.select(ids).unionAll(two.select(ids)))
    assert f"two joins of this query share the state directory {bench.state}." in text
    assert "Traceback" not in text


def test_query_when_one_join_is_read_twice_in_it_then_has_its_results_twice(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(100) % 30, files=2)
    joined = bench.join()
    bench.run(joined.unionAll(joined))
    bench.check("twice the same join", bench.expected().unionAll(bench.expected()))


# --- sources ------------------------------------------------------------------------------------


def test_clock_when_joins_are_planned_then_is_registered_once_a_session(
    begun: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[tuple[SparkSession, type[DataSource]]] = []

    class Watched(type(spark.dataSource)):  # type: ignore[misc]
        def register(self, source: type[DataSource]) -> None:
            registered.append((self.sparkSession, source))
            super().register(source)

    monkeypatch.setattr(SparkSession, "dataSource", property(Watched))
    other = spark.newSession()
    for session in (other, other, spark.newSession()):
        sides = [
            session.readStream.schema(begun.batch(name).schema).parquet(str(begun.root / name))
            for name in ("left", "right")
        ]
        dovetail.join(*sides, on="k", state=begun.root / "unused")
    assert [source for _, source in registered] == [planning.Clock] * 2
    assert registered[0][0] is other
