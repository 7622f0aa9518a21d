"""A query that is stopped and started again goes on where it was."""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import dovetail

pytestmark = pytest.mark.spark

SEED = 31_337
TINY = "200KB"


def test_available_now_when_run_again_with_new_files_then_old_and_new_rows_join_once(
    bench: Any,
) -> None:
    """Cleanup runs at the end of every run: spilled rows must also meet what comes later."""
    rng = np.random.default_rng(SEED)
    for run in range(3):
        for side in ("left", "right"):
            bench.keyed(side, rng.integers(0, 150, 800), files=1 + (run + len(side)) % 2)
        bench.run(bench.join(memory="150KB"))
        progress = bench.progress()
        assert progress.pending_rows == 0, f"run {run} left work behind"
        assert progress.spilled_bytes > 0
        bench.check(f"run {run}, seed {SEED}")
    assert progress.rows_out.get("cleanup", 0) > 0, progress.rows_out


def test_available_now_when_run_again_without_new_files_then_adds_nothing(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(900) % 100)
    bench.run(bench.join(memory=TINY))
    first = bench.progress().version
    query = bench.run(bench.join(memory=TINY))
    assert bench.progress().version == first
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == []
    bench.check("two runs over the same files")


def test_query_when_stopped_while_rows_come_then_goes_on(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 200, 1600), files=8)
    for _ in range(2):
        with bench.running(bench.join(memory=TINY)) as query:
            seen = bench.progress().version if bench.state.exists() else -1
            while query.isActive and (not bench.state.exists() or _version(bench) < seen + 2):
                query.awaitTermination(0.05)
            assert query.exception() is None
    bench.run(bench.join(memory=TINY))
    bench.check(f"stopped twice, seed {SEED}")


def _version(bench: Any) -> int:
    try:
        return bench.progress().version
    except dovetail.errors.StateMissingError:
        return -1


def test_budget_when_changed_between_runs_then_goes_on(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    for memory in (TINY, None, "260KB"):
        for side in ("left", "right"):
            bench.keyed(side, rng.integers(0, 150, 500), files=1)
        bench.run(bench.join(memory=memory))
        bench.check(f"memory {memory} after others, seed {SEED}")


def test_checkpoint_and_state_when_moved_together_then_go_on(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(900) % 90, files=1)
    bench.run(bench.join(memory=TINY))
    moved = bench.root / "elsewhere" / "state"
    moved.parent.mkdir()
    shutil.move(bench.state, moved)
    for side in ("left", "right"):
        bench.keyed(side, np.arange(300) % 90, files=1)
    bench.run(bench.join(memory=TINY, state=moved))
    bench.check("after the state was moved")


def delete_last_commits(checkpoint: Path, count: int) -> list[int]:
    """As if the driver had died after the sink's commit and before Spark's own."""
    folder = checkpoint / "commits"
    numbers = sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    for number in numbers[-count:]:
        for path in (folder / str(number), folder / f".{number}.crc"):
            path.unlink(missing_ok=True)
    return numbers[-count:]


def test_replay_when_sink_has_the_batch_but_spark_has_not_then_nothing_is_lost_or_repeated(
    bench: Any,
) -> None:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 120, 900), files=2)
    bench.run(bench.join(memory=TINY))
    assert delete_last_commits(bench.checkpoint, 2)
    bench.run(bench.join(memory=TINY))  # replays the last batch, and there is no other
    bench.check(f"replay alone, seed {SEED}")
    assert delete_last_commits(bench.checkpoint, 1)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 120, 600), files=2)
    bench.run(bench.join(memory=TINY))  # replays the last batch, then takes the new files
    assert bench.progress().spilled_bytes > 0
    bench.check(f"replay and new files, seed {SEED}")


@pytest.mark.parametrize("cut", ["a data batch", "a tick"])
def test_replay_when_of_any_batch_then_delivers_the_same_rows_under_the_same_number(
    bench: Any, cut: str
) -> None:
    """A sink that remembers batch numbers gets the very same multiset again."""
    delivered: dict[int, list[Counter[str]]] = {}

    def sink(batch: DataFrame, number: int) -> None:
        rows = Counter(map(repr, batch.collect()))
        delivered.setdefault(number, []).append(rows)
        if number == stop_at and len(delivered[number]) == 1:
            raise RuntimeError("the sink has its rows, then the driver dies")

    def run() -> None:
        writer = bench.join(memory=TINY).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(bench.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 100, 900), files=3)
    stop_at = 2 if cut == "a data batch" else 3
    with pytest.raises(Exception, match="the sink has its rows"):
        run()
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 100, 300), files=1)
    run()
    first, second = delivered[stop_at]
    assert first, f"batch {stop_at} had no rows to tell apart, seed {SEED}"
    assert first == second, f"batch {stop_at} ({cut}) was replayed differently, seed {SEED}"
    total = sum((rows[-1] for rows in delivered.values()), Counter())
    expected = Counter(map(repr, bench.expected().collect()))
    assert total == expected, f"seed {SEED}"


def test_state_when_not_named_then_goes_below_the_session_checkpoints(
    bench: Any, conf: Any, same_rows: Any
) -> None:
    conf("spark.sql.streaming.checkpointLocation", str(bench.root / "all"))
    for side in ("left", "right"):
        bench.keyed(side, np.arange(100), files=1)
    tables: list[pa.Table] = []
    joined = bench.join(state=None, name="orders")
    writer = joined.writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow()))
    writer.queryName("orders_query").trigger(availableNow=True).start().awaitTermination()
    progress = dovetail.progress(bench.root / "all" / "dovetail" / "orders")
    assert progress.rows_in == (100, 100)
    same_rows(pa.concat_tables(tables), bench.expected(), "state by default")


def test_state_when_given_as_a_file_url_then_is_that_directory(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(100), files=1)
    folder = bench.root / "with blank"
    bench.run(bench.join(state=folder.as_uri()))
    assert dovetail.progress(folder).rows_in == (100, 100)
    bench.check("state as a URL")
