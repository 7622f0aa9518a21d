"""`dovetail top`: a live view of a join, from its state directory alone."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dovetail.api import progress as read_progress
from dovetail.cli.examples import examples
from dovetail.cli.job.places import state_at
from dovetail.cli.views import (
    bar,
    by_phase,
    costs_line,
    live_line,
    make_console,
    percent,
    phase_of,
    rows_in,
    sparkline,
)
from dovetail.cli.watch import look
from dovetail.kernel.memory import format_bytes

if TYPE_CHECKING:
    from dovetail.spark.state.metrics import Progress

NAME = "top"
EXAMPLES = examples(
    ("dovetail top ckpt/join", "live, until Ctrl-C"),
    ("dovetail top job.toml", "the join of a job file"),
    ("dovetail top ckpt/join --once", "one look"),
    ("dovetail top ckpt/join --interval 5", "every five seconds"),
)
WINDOW_S = 30.0  #: rates are averages over this much of the recent past
_SPARKS = 40


@dataclass(frozen=True)
class Rate:
    """Recent rates of rows in and out, from the records of the steps."""

    rows_in: float  #: a second
    rows_out: float
    age_s: float | None  #: of the newest record; None without any
    history_in: Sequence[float]  #: rows a second by micro-batch, oldest first
    history_out: Sequence[float]


def command(
    state: Annotated[
        Path,
        typer.Argument(
            metavar="WHERE", help="The join's state directory, its query's checkpoint, or job file."
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks.")
    ] = 1.0,
) -> None:
    """Watch a join: totals, rates, and what each partition is doing."""
    console = make_console()
    root = state_at(state)
    if once:
        console.print(frame(read_progress(root), console.height, time.time()))
        return
    try:
        _follow(console, root, interval)
    except KeyboardInterrupt:
        return


def _follow(console: Console, root: Path, interval: float) -> None:
    if not console.is_terminal:
        _print_lines(console, root, interval)
        return
    waiting = Spinner("dots", Text(f"Waiting for a join's state at {root} (Ctrl-C to end)"))
    with Live(waiting, console=console, screen=False, refresh_per_second=8) as live:
        while True:
            seen = look(root)
            if seen is not None:
                live.update(frame(seen, console.height, time.time()))
            time.sleep(interval)


def _print_lines(console: Console, root: Path, interval: float) -> None:
    """Without a terminal: a line whenever something has changed."""
    started, last = time.monotonic(), None
    if look(root) is None:
        console.print(f"Waiting for a join's state at {root} …", markup=False, soft_wrap=True)
    while True:
        seen = look(root)
        if seen is not None and seen.version != last:
            line = live_line(seen, time.monotonic() - started)
            console.print(line, markup=False, soft_wrap=True)
            last = seen.version
        time.sleep(interval)


def frame(progress: "Progress", height: int, now: float) -> RenderableType:
    """One frame: header, totals, rates and the partitions, cut to the height of the terminal."""
    records = list(progress.records())
    room = max(3, height - 13)
    return Group(
        _header(progress),
        _totals(progress, rate(records, now)),
        _partitions(progress, records, room),
    )


def rate(records: Sequence[Mapping[str, Any]], now: float) -> Rate:
    """Recent speed. Records are those of `Progress.records`, oldest first."""
    from dovetail.spark.state.totals import own_rows

    if not records:
        return Rate(0.0, 0.0, None, (), ())
    batches = list(_by_batch(records))
    newest = float(records[-1]["time"])
    recent = [r for r in records if float(r["time"]) > newest - WINDOW_S]
    begun = min(float(r["time"]) - float(r["seconds"]) for r in recent)
    span = max(newest - begun, 1e-3)
    return Rate(
        sum(sum(own_rows(r)) for r in recent) / span,
        sum(sum(r["rows_out"].values()) for r in recent) / span,
        max(0.0, now - newest),
        [rows_in / seconds for rows_in, _, seconds in batches],
        [rows_out / seconds for _, rows_out, seconds in batches],
    )


def _by_batch(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int, float]]:
    """Rows in, rows out and seconds of the recent micro-batches; partitions run side by side."""
    from dovetail.spark.state.totals import own_rows

    grouped: dict[int, list[Mapping[str, Any]]] = {}
    for record in records:
        grouped.setdefault(int(record["batch"]), []).append(record)
    for _, steps in sorted(grouped.items())[-_SPARKS:]:
        yield (
            sum(sum(own_rows(step)) for step in steps),
            sum(sum(step["rows_out"].values()) for step in steps),
            max(1e-3, *(float(step["seconds"]) for step in steps)),
        )


def _header(progress: "Progress") -> Text:
    identity = progress.identity
    pairs = zip(*identity["on"], strict=True)
    keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in pairs)
    within = identity.get("within")  # an enrichment has none
    band = "" if within is None else f" within {within}"
    budget = progress.budget_bytes
    limit = "no budget" if budget is None else f"budget {format_bytes(budget)}"
    title = Text.assemble(("dovetail ", "bold cyan"), (str(identity["algorithm"]), "bold"))
    facts = f" on {keys}{band}  ·  batch {progress.version}  ·  {limit}\n{progress.state}"
    return title + Text(facts, "dim")


def _totals(progress: "Progress", speed: Rate) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right", min_width=19)
    grid.add_column(justify="right", style="dim", min_width=11)
    grid.add_column(style="cyan", no_wrap=True)
    came = rows_in(progress.identity, progress.rows_in)
    out = sum(progress.rows_out.values())
    history_in, history_out = (sparkline(h, _SPARKS) for h in (speed.history_in, speed.history_out))
    grid.add_row("rows in", came, f"{speed.rows_in:,.0f} /s", history_in)
    if progress.rows_shed:
        arrived = progress.rows_in[0] + progress.rows_shed
        share = Text(f"{percent(progress.rows_shed, arrived)} of what came", "dim")
        grid.add_row("left out", f"{progress.rows_shed:,}", "", share)
    grid.add_row("rows out", f"{out:,}", f"{speed.rows_out:,.0f} /s", history_out)
    grid.add_row(
        "pending", f"{progress.pending_rows:,} rows", "", Text(by_phase(progress.rows_out), "dim")
    )
    age = "" if speed.age_s is None else f"last step {speed.age_s:,.0f} s ago"
    if progress.longest_wait_s:
        age += f"  ·  a row waited {progress.longest_wait_s:,.2g} s at most"
    grid.add_row("spilled", format_bytes(progress.spilled_bytes), "", Text(age, "dim"))
    if progress.identity["job"] == "enrich":
        cached = percent(progress.rows_cached, progress.rows_in[0])
        grid.add_row("cached", f"{progress.rows_cached:,}", cached, costs_line(progress))
    return grid


def _partitions(progress: "Progress", records: Sequence[dict[str, Any]], room: int) -> Table:
    newest = {int(record["partition"]): record for record in records}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("part", "phase", "batch", "pending", "memory", "in", "out", "spilled"):
        table.add_column(title, justify="left" if title in ("phase", "memory") else "right")
    # those with the most work first, when there is no room for all
    shown = sorted(progress.partitions, key=lambda part: -part.pending_rows)[:room]
    for part in sorted(shown, key=lambda part: part.partition):
        record = newest.get(part.partition)
        table.add_row(
            str(part.partition),
            phase_of(part, record),
            str(part.version),
            f"{part.pending_rows:,}",
            _memory(record),
            rows_in(progress.identity, part.rows_in),
            f"{sum(part.totals.rows_out.values()):,}",
            format_bytes(part.totals.flushed_bytes),
        )
    hidden = len(progress.partitions) - len(shown)
    if hidden:
        table.caption = f"and {hidden} more"
    return table


def _memory(record: Mapping[str, Any] | None) -> Text:
    if record is None:
        return Text("")
    used, budget = int(record["memory_peak"]), record["budget"]
    size = Text(format_bytes(used))
    return bar(used / budget, 12) + Text(" ") + size if budget else size
