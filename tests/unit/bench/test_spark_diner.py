"""The parts of `spark-diner` that need no Spark; `tests/spark/test_bench_diner.py` has the rest."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail_bench import registry
from dovetail_bench.diner.streams import drifting
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result, Spread
from dovetail_bench.spark import diner as spark_diner
from dovetail_bench.spark import diner_cleanup as spark_diner_cleanup
from dovetail_bench.spark import diner_setup as spark_diner_setup
from dovetail_bench.spark.diner import relations_of, results_online, zipf_keys
from dovetail_bench.spark.diner_band import REACH, count_in_band, make_band_relations
from dovetail_bench.spark.diner_handover import (
    Arrival,
    Batch,
    HandoverError,
    Wait,
    batch_of,
    measured,
    waits_of,
)
from dovetail_bench.spark.diner_setup import Part, batch_rows, budget_of
from dovetail_bench.spark.runs import QueryRun, Trigger

ROWS = 4_000


def run(only: str, rows: int = ROWS) -> Result:
    benchmark = registry.find("spark-diner")
    return registry.run(benchmark, benchmark.configure(rows, ("1",), only=only), Silent())


# -- the rows and what is counted ---------------------------------------------------------------


def test_zipf_keys_when_drawn_then_the_second_is_half_as_frequent_as_the_first() -> None:
    keys = zipf_keys(np.random.default_rng(1), 200_000, 1_000)
    counts = np.bincount(keys, minlength=1_000)
    assert len(counts) == 1_000
    assert counts[:4] / counts[0] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], rel=0.05)
    assert counts[500:].min() > 0


@pytest.mark.parametrize(
    "draw", [lambda rng: zipf_keys(rng, 300, 90), lambda rng: drifting(rng, 300, 4.0)]
)
def test_relations_when_made_of_keys_then_keep_them_and_count_their_pairs(draw: Any) -> None:
    rng = np.random.default_rng(2)
    keys = draw(rng), draw(rng)
    relations = relations_of(keys, rng)
    assert relations.left["key"].to_pylist() == keys[0].tolist()
    assert relations.right["key"].to_pylist() == keys[1].tolist()
    assert relations.pairs == int((keys[0][:, None] == keys[1][None, :]).sum()) > 300
    assert relations.nbytes / 600 == pytest.approx(100, abs=0.1)


def test_results_online_when_work_is_left_then_ends_with_the_last_rows() -> None:
    came = [(50, 5), (0, 7), (50, 11), (0, 100), (0, 1000)]
    triggers = tuple(Trigger(n, rows, out, 1.0) for n, (rows, out) in enumerate(came))
    assert results_online(QueryRun(1.0, triggers, {})) == 5 + 7 + 11


def test_band_relations_when_made_then_have_as_many_pairs_as_a_nested_loop_finds() -> None:
    relations = make_band_relations(400, np.random.default_rng(3))
    left, right = relations.left.to_pylist(), relations.right.to_pylist()

    def pairs(same: Any) -> int:
        return sum(
            abs((a["left_ts"] - b["right_ts"]).total_seconds()) <= REACH
            and same(a["key"], b["key"])
            for a in left
            for b in right
        )

    assert relations.pairs == pairs(lambda a, b: a == b) >= 400
    assert count_in_band(relations, any_key=True) == pairs(lambda a, b: True) > 3 * relations.pairs
    # the time has to tell apart what the key does not
    assert sum(a["key"] == b["key"] for a in left for b in right) > 3 * relations.pairs


def test_budget_when_the_input_is_tiny_then_is_what_a_join_needs() -> None:
    assert budget_of(88_000_000, 0.05) == 4_400_000
    assert budget_of(1_000, 0.05, partitions=1) == spark_diner_setup.LEAST_BUDGET_BYTES
    assert budget_of(1_000, 0.05) > budget_of(1_000, 0.05, partitions=1)
    assert [batch_rows(rows) for rows in (10, 20_000, 1_000_000, 9_000_000)] == [
        1, 200, 10_000, 10_000,
    ]  # fmt: skip


# -- handover -----------------------------------------------------------------------------------


def test_waits_when_rows_are_taken_then_end_with_the_batch_that_took_the_last_of_them() -> None:
    batches = [
        Batch(100.0, 2.0, 1_000),
        Batch(102.0, 1.0, 0),  # deferred work
        Batch(103.0, 0.5, 20),
        Batch(103.5, 0.25, 10),  # the other side's file came a moment too late for the one before
        Batch(104.0, 2.0, 0),
        Batch(106.0, 0.5, 30),
    ]
    arrivals = [Arrival(102.5, 1_030, True), Arrival(105.0, 1_060, True)]
    assert waits_of(arrivals, batches) == [Wait(1.25, 0.25), Wait(1.5, 0.5)]


def test_waits_when_no_work_was_pending_then_do_not_count() -> None:
    arrivals = [Arrival(1.0, 10, True), Arrival(5.0, 20, False)]
    assert waits_of(arrivals, [Batch(1.5, 1.0, 10), Batch(5.0, 9.0, 10)]) == [Wait(1.5, 1.0)]


def test_waits_when_rows_were_never_taken_then_say_so() -> None:
    with pytest.raises(HandoverError, match="only 10 rows were taken in"):
        waits_of([Arrival(1.0, 20, True)], [Batch(1.0, 1.0, 10)])


def test_measured_when_rows_waited_then_allows_a_slice_and_a_typical_batch() -> None:
    found = measured([Wait(1.0, 0.3), Wait(2.9, 0.5), Wait(2.0, 0.4)], 2.0)
    assert found.seconds["allowed"] == pytest.approx(2.4)
    assert found.seconds["longest wait"] == 2.9
    assert found.facts["arrivals_with_work_pending"] == 3


def test_measured_when_nothing_was_pending_then_asks_for_more_rows() -> None:
    with pytest.raises(HandoverError, match="more --rows"):
        measured([], 2.0)


def test_batch_when_spark_reports_one_then_counts_the_rows_of_files_only() -> None:
    sources = [
        {"description": "FileStreamSource[file:/left]", "numInputRows": 7},
        {"description": "FileStreamSource[file:/right]", "numInputRows": 5},
        {"description": "PythonMicroBatchStream", "numInputRows": 2},
    ]
    report = {
        "timestamp": "1970-01-02T00:00:00.250Z",
        "durationMs": {"triggerExecution": 1500},
        "sources": sources,
    }
    assert batch_of(report) == Batch(86_400.25, 1.5, 12)


# -- groups -------------------------------------------------------------------------------------


def test_cleanup_when_tiny_then_compares_ours_with_the_faster_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_diner_setup, "LEAST_BUDGET_BYTES", 100_000)
    result = run("cleanup")
    assert result.ok, result.failures
    assert set(result.ratios) == {"loops/cleanup", "no-zone-maps/cleanup"}
    contenders = result.facts["cleanup"]["contenders"]
    assert set(contenders) == set(spark_diner_cleanup.OPTIONS)
    assert all(facts["spilled_bytes"] > 100_000 for facts in contenders.values())
    times = {name: facts["seconds"]["cleanup"]["median"] for name, facts in contenders.items()}
    ours = times.pop(spark_diner_cleanup.OURS)
    assert result.ratios["loops/cleanup"].median == pytest.approx(
        min(times.values()) / ours, rel=0.01
    )
    assert set(result.facts["goals"]) == {"loops/cleanup"}


def test_run_when_a_group_fails_then_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Part:
        raise RuntimeError("no disk")

    def fine(*_: Any) -> Part:
        return Part({"xjoin-online/zipf": Spread.of([2.0])}, {"rows": 1})

    bed = SimpleNamespace(facts=lambda: {"session": {}})
    monkeypatch.setattr(spark_diner, "spark_bed", lambda: contextlib.nullcontext(bed))
    monkeypatch.setattr(spark_diner, "SPARK_GROUPS", {"band": broken, "online": fine})
    monkeypatch.setattr(spark_diner, "cleanup", fine)
    benchmark = registry.find("spark-diner")
    result = registry.run(benchmark, benchmark.configure(ROWS), Silent())
    assert [(one.contender, one.error) for one in result.failures] == [
        ("band", "RuntimeError: no disk")
    ]
    assert result.facts["online"] == {"session": {}, "rows": 1}
    assert result.facts["goals"]["xjoin-online/zipf"]["met"]
