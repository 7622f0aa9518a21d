"""Charts and a table of the saved results.

A ratio is a bar from 1 to its median on a logarithmic scale, so that twice as fast and half as
fast look alike, with whiskers to the least and the greatest value. A run that failed is drawn as
failed.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import ArgumentError
from dovetail_bench.charts import HEIGHT, draw_chart
from dovetail_bench.result import Result, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT = "REPORT.md"
FIGURES = "figures"
_GOOD, _BAD, _FAILED, _LINE = "#2a7f9e", "#c4622d", "#b00020", "#333333"


def read_results(directory: Path) -> list[Result]:
    """All saved results, by name. None at all is an error."""
    paths = sorted(directory.glob("*.json"))
    if not paths:
        raise ArgumentError(
            f"there are no results in {directory}; make some with: dovetail bench run NAME"
        )
    return [Result.from_json(path.read_text(encoding="utf-8"), str(path)) for path in paths]


def write_report(results: list[Result], out: Path) -> list[Path]:
    """A chart for each result, and the table of all; returns what was written."""
    figures = out / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    written = []
    sections = []
    for result in results:
        path = figures / f"{result.name}.png"
        draw(result, path)
        sections.append(section(result, f"{FIGURES}/{path.name}"))
        written.append(path)
    intro = (
        "# Benchmarks\n\n"
        "Every ratio is written so that above 1 is good for Dovetail: the rival's time over ours, "
        "or our rate over the rival's. Contenders run interleaved in one process tree, and a ratio "
        "compares two runs of one repetition. Made by `dovetail bench report` from `results/`.\n"
    )
    report = out / REPORT
    report.write_text("\n".join([intro, *sections]), encoding="utf-8")
    return [*written, report]


def section(result: Result, figure: str) -> str:
    """A result as Markdown."""
    lines = [f"## {result.name}\n"]
    if not result.ok:
        lines.append("**This run failed.** What is below is what could be measured.\n")
    lines += [f"![{result.name}]({figure})\n", "| ratio | median | min | max | n | goal |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    aims: dict[str, Any] = dict(result.facts.get("goals", {}))
    for label, spread in result.ratios.items():
        cells = [_number(spread.median), _number(spread.min), _number(spread.max), str(spread.n)]
        lines.append(f"| `{label}` | {' | '.join(cells)} | {_aim(aims.pop(label, None))} |")
    for name, aim in aims.items():  # goals about more than one ratio
        lines.append(f"| {name} | {_number(aim['reached'])} | | | | {_aim(aim)} |")
    lines.append("")
    for failure in result.failures:
        where = "" if failure.repetition is None else f", repetition {failure.repetition}"
        error = " ".join(failure.error.split())
        lines.append(f"- failed: {failure.contender}{where}: {error[:500]}")
    lines += [_machine(result.machine), "", f"    {result.command}", ""]
    return "\n".join(lines)


def draw(result: Result, path: Path) -> None:
    """The ratios of a result as a PNG, below the charts that it has."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = result.facts.get("charts", [])
    heights = [*(HEIGHT for _ in charts), 1.4 + 0.42 * max(len(result.ratios), 1)]
    # not through pyplot, which would keep the figure and might look for a screen
    figure = Figure(figsize=(8, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    for place, chart in enumerate(charts):
        draw_chart(figure.add_subplot(grid[place]), chart)
    axes = figure.add_subplot(grid[-1])
    aims = result.facts.get("goals", {})
    for row, (label, spread) in enumerate(result.ratios.items()):
        _draw_ratio(axes, row, spread)
        if label in aims:
            axes.plot(aims[label]["goal"], row, marker="D", color=_LINE, markersize=5, zorder=4)
    axes.axvline(1, color=_LINE, linewidth=1.2, zorder=3)
    axes.set_xscale("log")
    axes.set_xlim(*_limits(result))
    axes.set_yticks(range(len(result.ratios)), labels=list(result.ratios))
    axes.invert_yaxis()
    _label_ticks(axes)
    legend = "ratio, above 1 is good for Dovetail; whiskers: least and greatest"
    axes.set_xlabel(legend + ("; diamond: goal" if aims else ""))
    axes.set_title(result.name if result.ok else f"{result.name}: FAILED", loc="left")
    figure.savefig(path, dpi=120)


def _draw_ratio(axes: "Axes", row: int, spread: Spread) -> None:
    if spread.median is None or spread.min is None or spread.max is None:
        _write_beside(axes, row, 1, "failed", _FAILED)
        return
    colour = _GOOD if spread.median >= 1 else _BAD
    axes.barh(row, spread.median - 1, left=1, height=0.6, color=colour, alpha=0.85)
    axes.hlines(row, spread.min, spread.max, color=_LINE, linewidth=1.4, zorder=3)
    axes.plot([spread.min, spread.max], [row, row], "|", color=_LINE, markersize=9, zorder=3)
    _write_beside(axes, row, max(spread.max, 1), f"{spread.median:.2f}", _LINE)


def _write_beside(axes: "Axes", row: int, place: float, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (place, row),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=colour,
    )


def _limits(result: Result) -> tuple[float, float]:
    """A range that holds every bar, whisker and goal, with room for the numbers."""
    values = [1.0]
    for spread in result.ratios.values():
        values += [end for end in (spread.min, spread.max) if end is not None and end > 0]
    aims = result.facts.get("goals", {})
    values += [aim["goal"] for label, aim in aims.items() if label in result.ratios]
    return min(min(values) / 1.15, 0.5), max(max(values) * 1.5, 2.0)


def _label_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = axes.get_xlim()
    places = [10.0**power * step for power in range(-4, 5) for step in (1, 2, 5)]
    axes.xaxis.set_major_locator(FixedLocator([x for x in places if low <= x <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f}"


def _aim(aim: dict[str, Any] | None) -> str:
    if aim is None:
        return ""
    if aim["reached"] is None:
        return f"{aim['goal']:g} not measured"
    return f"{aim['goal']:g} {'met' if aim['met'] else 'missed'}"


def _machine(machine: Any) -> str:
    parts = [f"{machine.get('cores')} cores of {machine.get('cpu')}"]
    if machine.get("memory"):
        parts.append(f"{machine['memory'] / 1e9:.0f} GB")
    parts += [
        f"{name} {machine[name]}"
        for name in ("python", "pyspark", "pyarrow", "numpy", "duckdb", "polars", "java")
        if machine.get(name)
    ]
    return f"On {', '.join(parts)}:"
