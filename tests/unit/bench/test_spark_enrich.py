"""Who is measured at what pace, and how long rows wait in a live stream."""

import time
from pathlib import Path

import pytest

from dovetail_bench.measure import Measured, Runs
from dovetail_bench.spark import enrich_turns as spark_enrich_turns
from dovetail_bench.spark.enrich import (
    GOALS,
    KEEPS_UP,
    SHARES,
    _far_behind,
    _pace,
    _that_keep_up,
)
from dovetail_bench.spark.enrich_turns import Feeder, MicroBatch, _waits


def test_goals_when_the_table_is_small_then_are_of_both_budgets() -> None:
    labels = {label for _, (label,) in GOALS.values()}
    for budget in SHARES:
        for clock in ("busy", "wait50"):
            assert f"spark-{clock}/3.5M-{budget}" in labels


@pytest.fixture
def all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_enrich_turns, "UNCOUNTED_FILES", 0)


@pytest.mark.usefixtures("all_counted")
def test_waits_when_files_share_a_micro_batch_then_each_counts_from_its_own_arrival() -> None:
    batches = [MicroBatch(10, 10, 1.0, 101.0), MicroBatch(20, 20, 2.0, 103.0)]
    waits = _waits(batches, [100.0, 100.5, 102.5], 10)
    assert waits["wait50"] == pytest.approx(1.0)  # of 1.0, 2.5 and 0.5
    assert waits["wait95"] == pytest.approx(2.35)


@pytest.mark.usefixtures("all_counted")
def test_waits_when_rows_come_out_later_then_until_the_micro_batch_that_emits_them() -> None:
    batches = [MicroBatch(10, 4, 1.0, 101.0), MicroBatch(0, 6, 1.0, 102.5)]
    assert _waits(batches, [100.0], 10)["wait50"] == pytest.approx(2.5)


def test_micro_batch_when_a_clock_ticks_beside_the_files_then_only_files_bring_rows() -> None:
    report = {
        "timestamp": "2026-11-01T10:00:00.000Z",
        "durationMs": {"triggerExecution": 1500},
        "sources": [
            {"description": "FileStreamSource[in]", "numInputRows": 70},
            {"description": "dovetail-clock", "numInputRows": 2},
        ],
        "sink": {"numOutputRows": 70},
    }
    batch = MicroBatch.of(report)
    assert (batch.rows_in, batch.rows_out, batch.seconds) == (70, 70, 1.5)
    assert batch.ended - int(batch.ended) == pytest.approx(0.5)


def test_feeder_when_it_runs_then_files_arrive_one_after_the_other(tmp_path: Path) -> None:
    later, into = tmp_path / "later", tmp_path / "in"
    later.mkdir()
    into.mkdir()
    files = [later / f"{number}.parquet" for number in range(3)]
    for file in files:
        file.touch()
    feeder = Feeder(files, into, 0.02)
    began = time.time()
    feeder.start()
    feeder.join()
    assert sorted(into.iterdir()) == feeder.written
    times = [path.stat().st_mtime_ns for path in feeder.written]
    assert times == sorted(times)
    assert feeder.arrived == sorted(feeder.arrived)
    assert feeder.arrived[2] - began >= 0.04


def test_rivals_when_one_is_far_behind_then_only_the_others_set_the_pace_and_run_live() -> None:
    busy = {"spark-a": 9.0, "spark-b": 2.0, "spark-c": 3.0, "no-join": 0.5, "dovetail-1%": 7.0}
    runs = Runs({name: {1: Measured({"busy": seconds})} for name, seconds in busy.items()})
    assert _far_behind(runs) == {"spark-a": 9.0}
    assert _pace(runs, 10) == KEEPS_UP * 10 * 2.0
    assert _that_keep_up(runs, KEEPS_UP * 2.0) == ["spark-b", "no-join", "dovetail-1%"]
