"""The runner: which points are measured how often, in order, and what becomes of failures."""

from __future__ import annotations

from operator import getitem

import pytest

from dovetail_bench import runner
from dovetail_bench.measure import Measured, Runs
from dovetail_bench.progress import Silent
from dovetail_bench.registry import Config
from dovetail_bench.runner import Points, numbered, over_points, side_by_side


class Lines(Silent):
    """What was said, and how many runs were announced."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.planned = 0

    def plan(self, runs: int) -> None:
        self.planned += runs

    def end(self, line: str) -> None:
        self.lines.append(line)


#: What is at the number of a repetition is found there; `operator.getitem` is known everywhere, and
#: what a test module defines is not, in another process.
FOUND = (("a", "a1", "a2", "a3"), ("b", "b1", "b2"), ("z", "z1"))
BY_NAME = Points(FOUND, label=lambda at: at[0], group=lambda at: "z" if at[0] == "z" else "others")


@pytest.mark.parametrize("processes", [False, True])
def test_over_points_when_one_fails_then_it_is_kept_and_the_others_are_in_order(
    processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "available_cores", lambda: 2)
    lines = Lines()
    config = Config(1, 3, {"z": 1})
    found = over_points(BY_NAME, getitem, config, lines, tell=str.upper, processes=processes)
    assert list(found.at.items()) == [(one, list(one[1:])) for one in FOUND]
    (failure,) = found.failures
    assert (failure.contender, failure.repetition) == ("b", 3)
    assert failure.error == "IndexError: tuple index out of range"
    assert lines.planned == len(lines.lines) == 7
    assert "z, repetition 1: Z1" in lines.lines
    assert "b, repetition 3: FAILED, IndexError: tuple index out of range" in lines.lines
    assert not found.result("made-up", {}, {}).ok


def test_over_points_when_a_group_is_asked_for_then_others_are_left_out() -> None:
    found = over_points(BY_NAME, getitem, Config(1, 1, only="z"), Silent())
    assert found.at == {FOUND[-1]: ["z1"]}


def test_over_points_when_a_point_has_no_group_then_it_is_always_wanted() -> None:
    always = Points(("all",), group=lambda _: None)
    found = over_points(always, lambda *job: job, Config(1, 2, only="else"), Silent())
    assert found.at == {"all": [("all", 1), ("all", 2)]}


def test_over_points_when_times_are_given_then_repetitions_do_not_count() -> None:
    found = over_points(
        Points(("a",), times=lambda _: 4), lambda *job: job[1], Config(1, 2), Silent()
    )
    assert found.at == {"a": [1, 2, 3, 4]}


def test_side_by_side_when_settings_follow_each_other_then_all_runs_are_kept() -> None:
    def measure(number: int) -> Measured:
        if number == 2:
            raise ValueError("no")
        return Measured({"whole": 1.0}, {"number": number})

    runs = side_by_side(
        ("x", "y"), lambda setting: [numbered(f"join {setting}", measure)], 3, Silent()
    )
    assert {name: list(found) for name, found in runs.done.items()} == {
        "join x": [1, 3], "join y": [1, 3],
    }  # fmt: skip
    assert [failure.repetition for failure in runs.failures] == [2, 2]
    assert runs.median("join x", "number") == 2
    assert runs.median("join z", "number") is None
    result = runs.result("made-up", {}, {"more": 1})
    assert set(result.facts) == {"more", "contenders"}
    assert not result.ok


def test_take_when_contenders_are_others_then_joins_both() -> None:
    one, two = Runs({"a": {1: Measured({})}}), Runs({"b": {1: Measured({})}})
    one.take(two)
    assert set(one.done) == {"a", "b"}
