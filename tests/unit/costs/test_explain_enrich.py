"""Explanations of a stream joined with a table: predictions, the choice, and what was assumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.costs.choice import Recorded, choose
from dovetail.costs.explain_enrich import explain_enrich
from dovetail.costs.explanation import Explanation
from dovetail.costs.predictions import STEP_SECONDS, Share, TableSize, predict
from dovetail.costs.skew import Skew
from dovetail.costs.storage import DISK_7200, OBJECT_STORE
from dovetail.semistream import ALGORITHMS
from support.plans import planned

PLAN = planned(state=Path("/ckpt/enrich"), state_note="new: made when the query starts")
NAMES = ["ameshjoin", "inl", "meshjoin", "seek", "ssbj"]


def section(explanation: Explanation, title: str) -> str:
    return "\n".join(dict(explanation.sections)[title])


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        (24_000_000, "22.9 MB in all, 50.0 % of the table,"),
        (48_000_000, "45.8 MB in all, as much as the table takes or more,"),
        (1 << 40, "1.0 TB in all, as much as the table takes or more,"),
    ],
)
def test_memory_when_the_table_is_smaller_then_its_share_is_put_in_words(
    memory: int, says: str
) -> None:
    assert says in section(explain_enrich(planned(memory_bytes=memory)), "memory")


def test_explain_when_printed_then_has_every_section() -> None:
    text = str(explain_enrich(PLAN))
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "enrich",
        "keys",
        "algorithm",
        "predictions",
        "partitions",
        "memory",
        "state",
        "output",
    ]
    assert "a stream and a table, left, where stream.id = table.key" in text
    assert "about 1,000,000 rows of 48 bytes, 45.8 MB: as staged, v000001" in text
    assert "3.8 MB in all, 8.3 % of the table" in text
    assert "id int64, amount double, key int64, name string, city string" in text
    assert "uniform keys" in text
    assert max(map(len, text.splitlines())) <= 100


def test_predict_when_there_is_a_budget_then_all_stay_inside_and_the_fastest_is_first() -> None:
    found = predict(PLAN)
    assert sorted(one.algorithm for one in found) == NAMES
    rates = [one.rate for one in found]
    assert rates == sorted(rates, reverse=True)
    for one in found:
        assert not one.problem
        assert 0 < one.memory_bytes <= 4_000_000
        assert one.wait_seconds > 0
        assert one.bytes_per_row > 0


def test_predict_when_keys_are_skewed_then_only_caches_gain() -> None:
    even = {one.algorithm: one.rate for one in predict(PLAN)}
    skewed = {one.algorithm: one.rate for one in predict(replace(PLAN, skew=Skew(1.0)))}
    for name in ("seek", "ssbj", "inl"):
        assert skewed[name] > 1.1 * even[name], name
    for name in ("meshjoin", "ameshjoin"):
        assert skewed[name] == pytest.approx(even[name]), name
    assert "Zipf with exponent 1" in str(explain_enrich(replace(PLAN, skew=Skew(1.0))))


def test_predict_when_partitions_outnumber_cores_then_take_turns() -> None:
    alone = {one.algorithm: one for one in predict(PLAN)}
    machine = replace(PLAN.machine, cores=1)
    shared = {one.algorithm: one for one in predict(replace(PLAN, machine=machine))}
    for name in NAMES:
        assert shared[name].rate == pytest.approx(alone[name].rate / 2)
        assert shared[name].wait_seconds == pytest.approx(alone[name].wait_seconds * 2)


def test_predict_when_nothing_of_the_table_is_shown_then_reads_codes_only() -> None:
    spec = replace(PLAN.spec, how="anti")
    pairs = {one.algorithm: one.bytes_per_row for one in predict(PLAN)}
    alone = {one.algorithm: one.bytes_per_row for one in predict(replace(PLAN, spec=spec))}
    assert pairs["meshjoin"] - alone["meshjoin"] == pytest.approx(48, rel=0.05)


def test_predict_when_the_table_is_huge_then_values_are_taken_together() -> None:
    huge = replace(PLAN, table=replace(PLAN.table, rows=400_000_000), skew=Skew(0.9))
    assert [one.algorithm for one in predict(huge) if one.problem] == []


def test_explain_when_the_algorithm_is_chosen_then_says_why() -> None:
    said = section(explain_enrich(replace(PLAN, why="predicted to be it")), "algorithm")
    assert said.startswith("seek, predicted to be it")
    asked = replace(PLAN, algorithm="meshjoin", asked_algorithm="meshjoin")
    assert section(explain_enrich(asked), "algorithm").startswith("meshjoin, as asked")
    assert "meshjoin *" in section(explain_enrich(asked), "predictions")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_explain_when_an_algorithm_is_asked_for_then_its_predictions_are_in_the_table(
    algorithm: str,
) -> None:
    asked = replace(PLAN, algorithm=algorithm, asked_algorithm=algorithm)
    lines = section(explain_enrich(asked), "predictions").splitlines()
    head = next(line for line in lines if line.startswith("algorithm "))
    (mine,) = (line for line in lines if line.startswith(f"{algorithm} *"))
    for title in ("memory", "rows a second", "longest wait", "read for a row"):
        end = head.index(title) + len(title)
        assert mine[end - 1] not in ("", " "), title  # right below its title
    found = choose(asked)
    assert (found.algorithm, found.why) == (algorithm, "as asked")
    told = found.predicted
    assert min(told.memory_bytes, told.rate, told.wait_seconds, told.bytes_per_row) > 0


def test_predict_when_seek_has_no_cache_then_is_slower_and_reads_more_with_skew() -> None:
    asked = replace(PLAN, algorithm="seek-uncached", skew=Skew(1.0))
    found = {one.algorithm: one for one in predict(asked)}
    assert found["seek-uncached"].rate < found["seek"].rate
    assert found["seek-uncached"].bytes_per_row > found["seek"].bytes_per_row
    assert found["seek-uncached"].memory_bytes <= 4_000_000


def test_explain_when_another_algorithm_is_faster_then_says_so() -> None:
    slow = replace(
        PLAN,
        machine=replace(PLAN.machine, storage=OBJECT_STORE),
        table=TableSize(1_000_000_000, 48.0, 1_300, "x"),
        memory_bytes=400_000_000,
    )
    fastest = predict(slow)[0]
    said = section(explain_enrich(slow), "algorithm")
    assert fastest.algorithm != "seek"
    assert f"{fastest.algorithm} is predicted to be" in said
    assert f"in a new state directory, algorithm='{fastest.algorithm}' asks for it" in said


def test_explain_when_another_storage_is_asked_for_then_predictions_are_for_it() -> None:
    large = replace(PLAN, table=TableSize(300_000_000, 48.0, 1_300, "x"), memory_bytes=64_000_000)
    asked = replace(large, profile=DISK_7200)
    disk = replace(large, machine=replace(PLAN.machine, storage=DISK_7200))
    said = explain_enrich(asked)
    numbers = section(said, "predictions")
    assert "storage: 7200 rpm disk, as asked, and not where this is; 13 ms" in numbers
    table = [line for line in numbers.splitlines() if line.startswith(tuple(NAMES))]
    there = section(explain_enrich(disk), "predictions").splitlines()
    assert table == [line for line in there if line.startswith(tuple(NAMES))]
    assert table != [
        line
        for line in section(explain_enrich(large), "predictions").splitlines()
        if line.startswith(tuple(NAMES))
    ]
    chosen = choose(disk)
    algorithm = section(said, "algorithm")
    assert algorithm.startswith("seek, as asked")  # what enrich would do here
    assert f"with storage='7200 rpm disk' auto would be {chosen.algorithm}:" in algorithm
    assert chosen.why in algorithm
    assert max(map(len, str(said).splitlines())) <= 100


def test_explain_when_no_storage_is_asked_for_then_names_the_machines() -> None:
    numbers = section(explain_enrich(PLAN), "predictions")
    assert "storage: ssd; 0.1 ms until a read begins" in numbers
    assert "as asked" not in numbers


def test_explain_when_the_budget_is_too_small_for_some_then_they_are_shown_as_such() -> None:
    tiny = replace(PLAN, memory_bytes=12_000, table=replace(PLAN.table, page_rows=600))
    said = section(explain_enrich(tiny), "predictions")
    assert "the budget is too small" in said


def test_explain_when_unbounded_or_a_batch_then_says_so() -> None:
    explanation = explain_enrich(replace(PLAN, memory_bytes=None, streaming=False, state=None))
    assert section(explanation, "memory") == "unbounded"
    assert "a temporary directory" in section(explanation, "state")
    assert "a batch input and a table" in section(explanation, "enrich")


def test_explain_when_the_table_is_empty_then_is_made_all_the_same() -> None:
    assert "about 0 rows" in str(explain_enrich(replace(PLAN, table=TableSize(0, 48.0, 600, "x"))))


def test_predictions_when_the_cache_holds_the_whole_table_then_a_row_still_waits_for_its_step() -> (
    None
):
    """As in examples/enrich.toml: a table of 3,000 rows in a megabyte."""
    table = TableSize(2_960, 48.0, 600, "as staged, v000001")
    plan = planned(memory_bytes=1 << 20, table=table, batch_rows=1_000)
    seek = next(one for one in predict(plan) if one.algorithm == "seek")
    assert seek.scanned_per_row == 0, "nothing is read in the long run"
    slice_seconds = Share(plan).slice_rows / (seek.rate / plan.partitions)
    assert seek.wait_seconds == pytest.approx(slice_seconds)
    assert Recorded.of(plan).choice.predicted.wait_seconds == seek.wait_seconds + STEP_SECONDS
    text = section(explain_enrich(plan), "predictions")
    (line,) = (line for line in text.splitlines() if line.startswith("seek"))
    assert "below" not in line
    assert "in the long run, when caches have learned" in text
    assert "but waits have 40 ms in them" in text
