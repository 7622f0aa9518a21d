"""Reports of what is done with, from one site to the owners of windows."""

from collections.abc import Callable
from typing import Any

from dovetail.multisite.messages import Kind
from dovetail.multisite.reports import Reports
from dovetail.sites import Algorithm, Plan, Step, TimeWindow

SIDES = [(1, range(6), 4, TimeWindow(25))] * 3
SEQUENCES = {
    "A": (Step("B", Algorithm.SP_S), Step("C", Algorithm.SP_D)),
    "B": (Step("A", Algorithm.SP_D), Step("C", Algorithm.SP_S)),
    "C": (Step("B", Algorithm.SP_S), Step("A", Algorithm.SP_S)),
}


def test_reports_when_taken_then_say_each_step_and_interval_to_its_owner_once(
    make: Callable[..., Any],
) -> None:
    query, _ = make(*SIDES)
    placed = Plan(query, SEQUENCES).placed
    reports = Reports(query, "A")
    for interval in (3, 70_000):
        reports.add(placed["A"][0], interval)
    reports.add(placed["A"][1], 3)
    again = Reports(query, "A")
    again.restore(reports.snapshot())
    said = {}
    for message in again.take(9):
        assert (message.header.kind, message.header.interval) == (Kind.PASSED, 9)
        owner = query.names[message.header.receiver]
        said[owner] = list(Reports(query, owner).heard(message.array("passed")))
    assert said == {"B": [(("A", 0), 3), (("A", 0), 70_000)], "C": [(("A", 1), 3)]}
    assert again.take(10) == []
