"""`dovetail.progress` and the records that it reads."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail
from dovetail.spark.state.totals import own_rows

pytestmark = pytest.mark.spark

SEED = 55


@pytest.mark.parametrize("kind", ["band", "shares"])
def test_rows_in_when_rows_go_to_several_partitions_then_count_once_and_copies_by_themselves(
    bench: Any, kind: str
) -> None:
    rng = np.random.default_rng(SEED)
    names = ("left", "right") if kind == "band" else ("left", "middle", "right")
    for name in names:
        keys = pa.array(rng.integers(0, 400, 500), mask=rng.random(500) < 0.1)
        bench.write(name, pa.table({f"{name}_a": keys, f"{name}_b": rng.integers(0, 400, 500)}))
    if kind == "band":
        joined = bench.join(on=("left_a", "right_a"), within=9, partitions=4)
    else:
        on = [("left.left_a", "middle.middle_a"), ("middle.middle_b", "right.right_a")]
        streams = {name: bench.stream(name) for name in names}
        joined = dovetail.join_all(streams, on, state=bench.state, partitions=4)
    bench.run(joined)
    progress = bench.progress()
    counted = [bench.batch(name).where(f"{name}_a is not null").count() for name in names]
    assert list(progress.rows_in) == counted, "input rows count once, wherever they go"
    if kind == "band":
        assert progress.copies[0] == 0
        assert 0 < progress.copies[1] < counted[1]
    else:
        assert progress.identity["shares"] == [2, 2]
        assert progress.copies == (counted[0], 0, counted[2]), "each went to two partitions"
    records = list(progress.records())
    assert [sum(rows) for rows in zip(*map(own_rows, records), strict=True)] == counted
    both = [rows + copies for rows, copies in zip(progress.rows_in, progress.copies, strict=True)]
    assert [sum(rows) for rows in zip(*(r["rows_in"] for r in records), strict=True)] == both


def test_progress_when_query_has_run_then_tells_what_happened(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, pa.array(rng.integers(0, 150, 1500), mask=rng.random(1500) < 0.1))
    bench.run(bench.join(memory="250KB"))
    progress = bench.progress()
    valid = [bench.batch(side).where("k is not null").count() for side in ("left", "right")]
    results = bench.expected().count()
    about = f"seed {SEED}: {progress}"

    assert list(progress.rows_in) == valid, about
    assert sum(progress.rows_out.values()) == results, about
    assert set(progress.rows_out) <= {"arriving", "reactive", "cleanup"}, about
    assert progress.pending_rows == 0, about
    assert progress.spilled_bytes > 0, about
    assert progress.budget_bytes == 250 << 10, about
    assert {"rows", "working", "input", "catalogue", "total"} <= set(progress.memory), about
    assert 0 < progress.memory["total"] <= 250 << 10, about
    assert [part.partition for part in progress.partitions] == [0, 1], about
    assert all(part.phase == "idle" for part in progress.partitions), about
    assert progress.identity["algorithm"] == "diner", about
    assert "1,3" in str(progress) and f"{results:,} out" in str(progress), about  # noqa: PT018


def test_records_when_query_has_run_then_agree_with_the_totals(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 150, 1000), files=3)
    bench.run(bench.join(memory="200KB"))
    progress = bench.progress()
    records = list(progress.records())
    assert [r["time"] for r in records] == sorted(r["time"] for r in records)
    assert tuple(sum(r["rows_in"][side] for r in records) for side in (0, 1)) == progress.rows_in
    out = sum(sum(r["rows_out"].values()) for r in records)
    assert out == sum(progress.rows_out.values())
    assert sum(r["flushed_bytes"] for r in records) == progress.spilled_bytes
    assert all(0 < r["memory"]["total"] <= r["budget"] == 100 << 10 for r in records)
    assert all(r["memory_peak"] <= r["budget"] for r in records)
    assert {r["phase"] for r in records} <= {"arriving", "deferred", "idle"}
    assert len({(r["partition"], r["batch"]) for r in records}) == len(records)
    assert sum(part.totals.steps for part in progress.partitions) == len(records)
