"""The form of a result, and the arithmetic behind it."""

import json

import pytest

from dovetail.errors import ArgumentError
from dovetail_bench.measure import Contender, Measured, Runs, expect_rows, interleaved
from dovetail_bench.progress import Silent
from dovetail_bench.result import Failure, Result, Spread, goals


def result(**changes: object) -> Result:
    values: dict[str, object] = {
        "name": "spark-two-way",
        "ratios": {"rocksdb/5%": Spread.of([2.0, 4.0, 3.0]), "inheap/5%": Spread.of([])},
        "facts": {"rows": 10},
        "machine": {"cores": 2},
        "command": "dovetail bench run spark-two-way",
        "seed": 7,
    }
    return Result(**{**values, **changes})  # type: ignore[arg-type]


def test_spread_when_values_are_given_then_has_median_ends_and_count() -> None:
    assert Spread.of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0, 3)
    assert Spread.of([4.0, 2.0]) == Spread(3.0, 2.0, 4.0, 2)


def test_spread_when_there_are_no_values_then_has_no_numbers() -> None:
    assert Spread.of([]).to_dict() == {"median": None, "min": None, "max": None, "n": 0}


def test_to_json_when_all_went_well_then_has_the_documented_form() -> None:
    found = json.loads(result().to_json())
    assert list(found)[:5] == ["name", "ok", "ratios", "facts", "machine"]
    assert found["ok"] is True
    assert found["ratios"]["rocksdb/5%"] == {"median": 3.0, "min": 2.0, "max": 4.0, "n": 3}
    assert (found["command"], found["seed"]) == ("dovetail bench run spark-two-way", 7)
    assert found["failures"] == []


def test_to_json_when_a_run_failed_then_is_not_ok_and_keeps_the_label() -> None:
    found = json.loads(result(failures=(Failure("inheap", 2, "out of memory"),)).to_json())
    assert found["ok"] is False
    assert found["ratios"]["inheap/5%"]["n"] == 0
    assert found["failures"] == [{"contender": "inheap", "repetition": 2, "error": "out of memory"}]


def test_to_json_when_a_fact_is_not_a_number_then_refuses() -> None:
    with pytest.raises(ValueError, match="JSON"):
        result(facts={"slope": float("nan")}).to_json()


def test_from_json_when_given_what_to_json_wrote_then_is_the_same() -> None:
    before = result(failures=(Failure("inheap", None, "wrong"),))
    assert Result.from_json(before.to_json(), "here") == before


@pytest.mark.parametrize("text", ["", "[]", '{"name": "x"}', '{"name": "x", "ratios": 3}'])
def test_from_json_when_the_text_is_something_else_then_names_the_file(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"results/x\.json"):
        Result.from_json(text, "results/x.json")


def test_goals_when_one_is_about_two_ratios_then_the_better_counts() -> None:
    ratios = {"duckdb/kernel": Spread.of([0.3]), "polars/kernel": Spread.of([0.1])}
    wanted = {
        "slower": (0.25, ("duckdb/kernel", "polars/kernel")),
        "polars": (0.25, ("polars/kernel",)),
        "absent": (1.0, ("rocksdb/5%",)),
    }
    found = goals(ratios, wanted)
    assert found["slower"] == {"goal": 0.25, "reached": 0.3, "met": True}
    assert found["polars"]["met"] is False
    assert found["absent"] == {"goal": 1.0, "reached": None, "met": False}


def runs(**seconds: dict[int, float]) -> Runs:
    return Runs(
        {
            name: {repetition: Measured({"warm": value}) for repetition, value in by_rep.items()}
            for name, by_rep in seconds.items()
        }
    )


def test_ratio_when_repetitions_differ_then_pairs_within_each() -> None:
    found = runs(rival={1: 10.0, 2: 40.0, 3: 9.0}, ours={1: 5.0, 2: 10.0, 3: 9.0})
    assert found.ratio(["rival"], "ours", "warm") == Spread(2.0, 1.0, 4.0, 3)


def test_ratio_when_a_run_is_missing_then_leaves_that_repetition_out() -> None:
    found = runs(rival={1: 10.0, 3: 9.0}, ours={2: 10.0, 3: 3.0})
    assert found.ratio(["rival"], "ours", "warm") == Spread(3.0, 3.0, 3.0, 1)
    assert found.ratio(["nobody"], "ours", "warm").n == 0


def test_ratio_when_a_rival_has_variants_then_the_fastest_counts() -> None:
    found = runs(one={1: 10.0, 2: 2.0}, two={1: 6.0, 2: 8.0}, ours={1: 2.0, 2: 2.0})
    assert found.ratio(["one", "two"], "ours", "warm") == Spread(2.0, 1.0, 3.0, 2)


def test_rate_ratio_when_rates_are_known_then_is_ours_over_theirs() -> None:
    found = Runs(
        {
            "rival": {1: Measured({}, {"rate": 10.0}), 2: Measured({}, {"rate": 20.0})},
            "ours": {1: Measured({}, {"rate": 30.0}), 3: Measured({}, {"rate": 1.0})},
        }
    )
    assert found.rate_ratio("rival", "ours", "rate") == Spread(3.0, 3.0, 3.0, 1)


def test_interleaved_when_run_then_each_repetition_begins_with_another() -> None:
    order: list[str] = []

    def contender(name: str) -> Contender:
        def run() -> Measured:
            order.append(name)
            return Measured({"whole": 1.0}, {"rows_per_s": 3.0})

        return Contender(name, run)

    found = interleaved([contender(name) for name in "abc"], 4, Silent())
    assert "".join(order) == "abcbcacababc"
    assert found.failures == []
    assert found.facts()["a"]["seconds"]["whole"]["n"] == 4
    assert found.facts()["a"]["rows_per_s"] == 3.0


def test_interleaved_when_one_contender_fails_then_the_others_go_on() -> None:
    def wrong() -> Measured:
        expect_rows(3, 4)
        return Measured({"whole": 1.0})

    contenders = [Contender("bad", wrong), Contender("good", lambda: Measured({"whole": 1.0}))]
    found = interleaved(contenders, 2, Silent())
    assert len(found.done["good"]) == 2
    assert [(f.contender, f.repetition) for f in found.failures] == [("bad", 1), ("bad", 2)]
    assert "3 result rows, but the join has 4" in found.failures[0].error
    assert found.ratio(["bad"], "good", "whole").n == 0
    assert found.facts()["bad"] == {"seconds": {}}


def test_runs_when_other_clocks_are_added_then_by_repetition_and_what_lacks_them_goes() -> None:
    runs = Runs({"a": {1: Measured({"busy": 1.0}), 2: Measured({"busy": 2.0})}, "b": {}})
    runs.add(Runs({"a": {2: Measured({"wait": 5.0}, {"x": 1.0})}}, [Failure("a", 1, "gone")]))
    assert runs.done == {"a": {2: Measured({"busy": 2.0, "wait": 5.0}, {"x": 1.0})}, "b": {}}
    assert [failure.repetition for failure in runs.failures] == [1]
