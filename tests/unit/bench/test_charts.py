"""Charts that a result brings along."""

from pathlib import Path
from typing import Any

import pytest

from dovetail_bench.charts import draw_chart
from dovetail_bench.report import write_report
from dovetail_bench.result import Result, Spread

LINES = {"rpj": [[1, 2, 3], [40.0, 50.0, 60.0]], "hash": [[1, 2, 3], [0, 0, 5]]}
CHART: dict[str, Any] = {"title": "results", "x": "skew", "y": "%", "lines": LINES}


def axes() -> Any:
    figure = pytest.importorskip("matplotlib.figure")
    return figure.Figure().add_subplot()


def test_chart_when_drawn_then_has_its_lines_names_and_values() -> None:
    drawn = axes()
    draw_chart(drawn, CHART | {"dashed": ["hash"]})
    assert [line.get_label() for line in drawn.get_lines()] == ["rpj", "hash"]
    assert drawn.get_lines()[0].get_ydata().tolist() == [40, 50, 60]
    assert [line.get_linestyle() for line in drawn.get_lines()] == ["-", "--"]
    assert (drawn.get_xlabel(), drawn.get_ylabel()) == ("skew", "%")
    assert drawn.get_ylim()[0] == 0


def test_chart_when_its_axis_has_names_then_shows_them() -> None:
    drawn = axes()
    draw_chart(drawn, CHART | {"ticks": {"a": 1, "b": 3}, "points": True})
    assert [tick.get_text() for tick in drawn.get_xticklabels()] == ["a", "b"]
    assert {line.get_linestyle() for line in drawn.get_lines()} == {"None"}


def test_chart_when_logarithmic_then_both_axes_are() -> None:
    drawn = axes()
    draw_chart(drawn, CHART | {"log": True, "points": True})
    assert (drawn.get_xscale(), drawn.get_yscale()) == ("log", "log")
    assert drawn.get_ylim()[0] > 0


def test_chart_when_nothing_was_measured_then_is_drawn_empty() -> None:
    drawn = axes()
    draw_chart(drawn, CHART | {"lines": {}})
    assert not drawn.get_lines()


def test_report_when_a_result_has_charts_then_its_figure_is_taller(tmp_path: Path) -> None:
    ratios = {"rpj/1": Spread.of([2.0])}
    plain = Result("plain", ratios)
    charted = Result("charted", ratios, {"charts": [CHART, CHART]})
    [one, two, _] = write_report([plain, charted], tmp_path)
    heights = [int.from_bytes(path.read_bytes()[20:24], "big") for path in (one, two)]
    assert heights[1] > 3 * heights[0]
