"""`dovetail.progress` and the records that it reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dovetail
from dovetail.errors import StateMissingError
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Counters
from dovetail.spark.state import prepare
from dovetail.spark.state.metrics import FILE, append_record
from dovetail.spark.state.totals import Totals, own_rows

SEED = 55


def test_totals_when_steps_are_added_then_sum_up_and_peaks_stay() -> None:
    first = Counters(rows_in=[3, 4], rows_out={"arriving": 5}, flushed_rows=2, flushed_bytes=20)
    second = Counters(rows_in=[1, 0], rows_out={"arriving": 1, "cleanup": 9}, bytes_read=7)
    budget = Budget(100)
    budget.reserve("rows", 60)
    start = Totals()
    one = start.after(first, budget, 0.5)
    budget.release("rows", 50)
    budget.reset_peaks()
    two = one.after(second, budget, 0.25)
    assert start == Totals(), "the totals before a step are left as they were"
    assert two.rows_in == (4, 4)
    assert two.rows_out == {"arriving": 6, "cleanup": 9}
    assert (two.flushed_rows, two.flushed_bytes, two.bytes_read) == (2, 20, 7)
    assert (two.steps, two.seconds) == (2, 0.75)
    assert two.memory_peak == {"rows": 60, "total": 60}


def test_own_rows_when_copies_were_counted_then_are_left_out() -> None:
    came = Counters(rows_in=[30, 40, 50])
    totals = Totals().after(came, Budget(None), 0.5, copies=[0, 15, 25])
    totals = totals.after(came, Budget(None), 0.5, copies=[0, 20, 25])
    assert totals.own_rows == [60, 45, 50]
    assert totals.rows_in == (60, 80, 100)
    facts = totals.facts()
    assert Totals.of(json.loads(json.dumps(facts))) == totals
    del facts["copies"]
    assert own_rows(facts) == [60, 80, 100]
    old = Totals.of(facts)
    assert old.own_rows == [60, 80, 100], "an older version does not tell copies apart"
    after = old.after(came, Budget(None), 0.5, copies=[0, 20, 25])
    assert after.own_rows == [90, 100, 125]


@pytest.mark.spark
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


def test_records_when_file_grows_too_large_then_is_turned_over(tmp_path: Path) -> None:
    for number in range(3):
        append_record(tmp_path, {"number": number, "filler": "x" * 700_000})
    kept = [json.loads(line)["number"] for line in (tmp_path / FILE).read_text().splitlines()]
    old = (tmp_path / f"{FILE}.1").read_text().splitlines()
    assert kept == [2]
    assert [json.loads(line)["number"] for line in old] == [0, 1]


def test_record_when_it_cannot_be_written_then_is_dropped(tmp_path: Path) -> None:
    append_record(tmp_path / "nowhere", {"number": 1})


@pytest.mark.spark
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


@pytest.mark.spark
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


def test_progress_when_query_has_not_begun_then_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        StateMissingError, match=r"is not a Dovetail state directory.*identity\.json"
    ):
        dovetail.progress(tmp_path)
    prepare(tmp_path, 2)
    with pytest.raises(StateMissingError, match="has not run yet: its state is prepared"):
        dovetail.progress(tmp_path)
    (tmp_path / "p00001" / f"v{3:012d}").touch()
    with pytest.raises(StateMissingError, match=r"it has no identity\.json"):
        dovetail.progress(tmp_path)
