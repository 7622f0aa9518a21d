"""Line charts that a result may bring along, drawn above its ratios.

`facts["charts"]` is a list of `{"title", "x", "y", "lines": {name: [[x, ...], [y, ...]]}}`. A chart
may have `ticks` (`{label: x}`, for an axis that has names), `dashed` (lines of reference), `points`
(marks without lines between them) and `log` (both axes are logarithmic).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 3.6  #: inches
_MANY_TICKS = 8


def line_chart(
    title: str, x: str, y: str, lines: Mapping[str, Sequence[tuple[float, float]]], **more: Any
) -> dict[str, Any]:
    """An entry of `facts["charts"]`, of lines through points."""
    drawn = {name: [[a for a, _ in line], [b for _, b in line]] for name, line in lines.items()}
    return {"title": title, "x": x, "y": y, "lines": drawn, **more}


def draw_chart(axes: "Axes", chart: Mapping[str, Any]) -> None:
    """One chart."""
    dashed = chart.get("dashed", ())
    for name, (places, values) in chart["lines"].items():
        style = {"linestyle": "--", "alpha": 0.7} if name in dashed else {"marker": "o"}
        if chart.get("points"):
            style["linestyle"] = ""
        axes.plot(places, values, label=name, markersize=3.5, linewidth=1.3, **style)
    ticks = chart.get("ticks")
    if ticks:
        upright = 90 if len(ticks) > _MANY_TICKS else 0
        axes.set_xticks(list(ticks.values()), labels=list(ticks), rotation=upright, fontsize=8)
    if chart.get("log"):
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(chart["x"])
    axes.set_ylabel(chart["y"])
    axes.set_title(chart["title"], loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    if chart["lines"]:
        axes.legend(fontsize=8, ncols=2)
