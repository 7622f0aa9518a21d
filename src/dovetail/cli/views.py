"""Views of a join's progress on a terminal: bars, sparklines and tables.

Everything here turns a `Progress` into something Rich can print, on a terminal or as plain text.
Nothing here waits, reads a clock or looks at Spark.
"""

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.kernel.memory import format_bytes
from dovetail.kernel.protocol import SIDE_NAMES

if TYPE_CHECKING:
    from dovetail.spark.state.metrics import Cost, PartitionProgress, Progress

PLAIN_WIDTH = 100  #: of output that does not go to a terminal
DEFERRED_PHASES = ("reactive", "cleanup")  #: of a join, in the order they run
COMPONENTS = {  # of what memory is reserved for, in plain words
    "rows": "rows and their index",
    "loaded": "rows kept from disk",
    "outer": "blocks being joined",
    "wide rows": "copies of very wide rows",
    "sorting": "list of sorted blocks",
    "cache": "cached table rows",
    "window": "waiting rows",
    "frequencies": "how often the table has a key",
    "shedding": "rows to be chosen from",
    "notes": "notes for the cache",
    "switching buffer": "table rows on their way to the cache",
    "page pool": "cached pages",
    "leaf index": "index of pages",
    "working": "working space",
    "input": "input batch",
    "page index": "index of pages",
    "catalogue": "list of blocks on disk",
}
CAUGHT_UP = "caught up"  #: every row so far has been joined
_PHASES = ("arriving", "deferred", *DEFERRED_PHASES, CAUGHT_UP)
#: when results came
_WHEN = {
    "arriving": "as rows came in",
    "deferred": "after that",
    "reactive": "in silences",
    "cleanup": "at the end",
}
_SPARKS = "▁▂▃▄▅▆▇█"


def make_console(*, stderr: bool = False, plain: bool = False) -> Console:
    """A console, wide enough for the tables where there is no terminal; `plain`: as if none."""
    terminal = False if plain else None
    console = Console(stderr=stderr, highlight=False, force_terminal=terminal)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


@contextmanager
def announce(console: Console, what: str) -> Iterator[None]:
    """Say what is going on: a spinner on a terminal, one plain line elsewhere."""
    if console.is_terminal:
        with console.status(f"{what} …"):
            yield
    else:
        console.print(f"{what} …")
        yield


def bar(share: float, width: int = 20) -> Text:
    """A part of a whole, `share` from 0 to 1; what lies outside is cut off."""
    full = round(max(0.0, min(share, 1.0)) * width)
    return Text("█" * full, "cyan") + Text("░" * (width - full), "dim")


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The last `width` values, the largest of them at full height."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _SPARKS[0] * len(shown)
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[round(max(0.0, value) / top * steps)] for value in shown)


def percent(part: float, whole: float | None) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _count(number: int, thing: str, plural: str = "s") -> str:
    return f"{number:,} {thing}{'' if number == 1 else plural}"


def phase_of(part: "PartitionProgress", record: Mapping[str, Any] | None) -> str:
    """The phase of a partition; deferred work is told apart by what it produced last."""
    if not part.pending_rows:
        return CAUGHT_UP
    if part.phase != "deferred" or record is None:
        return part.phase
    produced = [phase for phase in DEFERRED_PHASES if record["rows_out"].get(phase)]
    return produced[-1] if produced else part.phase


def last_records(progress: "Progress") -> dict[int, dict[str, Any]]:
    """The newest record of each partition."""
    return {record["partition"]: record for record in progress.records()}


def overall_phase(progress: "Progress", records: Mapping[int, Mapping[str, Any]]) -> str:
    """The phase of the join: the earliest among the partitions that stepped last."""
    phases = [
        phase_of(part, records.get(part.partition))
        for part in progress.partitions
        # a partition that got no row made no version, and says nothing of what goes on now
        if part.version == progress.version
    ]
    known = [phase for phase in _PHASES if phase in phases]
    return (known or phases or ["starting"])[0]


def memory_now(records: Mapping[int, Mapping[str, Any]]) -> int:
    """The most that the newest step of each partition held, summed."""
    return sum(int(record["memory_peak"]) for record in records.values())


@dataclass(frozen=True)
class Outlook:
    """Rates and estimates of a running join, besides its progress."""

    seconds: float  #: since it was started
    expected: tuple[int, int] | None = None  #: rows to come in on each side
    most_pending: int = 0  #: rows that have been pending at once so far


def _enriches(identity: Mapping[str, Any]) -> bool:
    """Whether a state is that of a stream joined with a table, which spills nothing."""
    return bool(identity["job"] == "enrich")


def rows_in(identity: Mapping[str, Any], rows: Sequence[int]) -> str:
    """The rows that came in: of both sides, or of the stream."""
    shown = rows[:1] if _enriches(identity) else rows
    return " + ".join(f"{count:,}" for count in shown)


def facts(name_width: int, value_width: int) -> Table:
    """A table without lines, to be filled with names, values and what is to be said of them."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=name_width)
    grid.add_column(justify="right", min_width=value_width)
    grid.add_column()
    return grid


def live_view(progress: "Progress | None", outlook: Outlook) -> Table:
    """A running join in six lines."""
    grid = facts(8, 19)
    clock = f"{outlook.seconds:.0f} s"
    if progress is None or not progress.partitions:
        grid.add_row("phase", "first micro-batch", Text(clock, "dim"))
        return grid
    records = last_records(progress)
    phase = overall_phase(progress, records)
    grid.add_row("phase", Text(phase, "bold"), Text(f"batch {progress.version}, {clock}", "dim"))
    done = _part_done(sum(progress.rows_in), outlook.expected)
    grid.add_row("rows in", rows_in(progress.identity, progress.rows_in), done)
    out = progress.rows_out
    grid.add_row("rows out", f"{sum(out.values()):,}", Text(by_phase(out), "dim"))
    used = memory_now(records)
    budget = progress.budget_bytes
    limit = Text("unbounded", "dim")
    if budget:
        limit = bar(used / budget) + Text(f"  of {format_bytes(budget)}", "dim")
    grid.add_row("memory", format_bytes(used), limit)
    if not _enriches(progress.identity):
        grid.add_row("spilled", format_bytes(progress.spilled_bytes), "")
    pending, most = progress.pending_rows, outlook.most_pending
    # while rows come, there is ever more to do: a bar would run backwards
    settled = phase != "arriving" and most > 0
    worked_off = _part_done(most - pending, (most, 0)) if settled else Text()
    grid.add_row("pending", f"{pending:,} rows", worked_off)
    return grid


def _part_done(done: int, expected: tuple[int, int] | None) -> Text:
    if not expected or not sum(expected):
        return Text()
    share = done / sum(expected)
    return bar(share) + Text(f"  {100 * share:.0f} %", "dim")


def live_line(progress: "Progress", seconds: float) -> str:
    """One line of progress, for output that is not a terminal."""
    records = last_records(progress)
    identity, budget = progress.identity, progress.budget_bytes
    limit = "" if budget is None else f" of {format_bytes(budget)}"
    shed = f"{progress.rows_shed:,} left out, " if progress.rows_shed else ""
    spilled = f"{format_bytes(progress.spilled_bytes)} spilled, "
    return (
        f"{seconds:5.1f} s  batch {progress.version}, {overall_phase(progress, records)}: "
        f"{rows_in(identity, progress.rows_in)} rows in, {shed}"
        f"{sum(progress.rows_out.values()):,} out, "
        f"{format_bytes(memory_now(records))}{limit}, "
        f"{'' if _enriches(identity) else spilled}{progress.pending_rows:,} pending"
    )


def by_phase(out: Mapping[str, int]) -> str:
    """When the results came, in shares; empty if there is nothing to tell apart."""
    total = sum(out.values())
    parts = [f"{percent(out[p], total)} {when}" for p, when in _WHEN.items() if out.get(p)]
    return ", ".join(parts) if len(parts) > 1 else ""


def summary(
    progress: "Progress",
    seconds: float,
    inputs: Sequence[str] = SIDE_NAMES,
    keyless: Sequence[int] = (),
    *,
    ended: bool = True,
    before: int = -1,
) -> Table:
    """The summary of a join, from its state.

    keyless: rows of each input with a null key, which the join never sees.
    ended: whether its inputs have ended, rather than the query been stopped.
    before: the version that it went on from, -1 if it is new.
    """
    table = _plain_table()
    came = itertools.zip_longest(inputs, progress.rows_in, progress.copies, keyless, fillvalue=0)
    for name, rows, copies, nulls in came:
        notes = [f"{nulls:,} with a null key, which matches nothing"] if nulls else []
        notes += [f"and {copies:,} copies for more partitions"] if copies else []
        table.add_row(f"rows in, {name}", f"{rows + nulls:,}", ", ".join(notes))
    table.add_row("rows out", f"{sum(progress.rows_out.values()):,}", "")
    table.add_section()
    _add_results(table, progress, ended)
    table.add_section()
    _add_memory(table, progress)
    table.add_section()
    rows = sum(part.totals.flushed_rows for part in progress.partitions)
    spilled = f"{rows:,} rows" if rows else "everything stayed in memory"
    table.add_row("spilled to disk", format_bytes(progress.spilled_bytes), spilled)
    _add_time(table, progress, seconds, before)
    return table


def enrich_summary(
    progress: "Progress", seconds: float, staging_seconds: float | None = None, before: int = -1
) -> Table:
    """The summary of a join of a stream with a table, from its state.

    staging_seconds: how long the table took to stage, if that is known.
    before: as for `summary`.
    """
    table = _plain_table()
    out = progress.rows_out
    total, arriving = sum(out.values()), out.get("arriving", 0)
    table.add_row("rows in", f"{progress.rows_in[0]:,}", f"how: {progress.identity['how']}")
    if progress.rows_shed:
        came = progress.rows_in[0] + progress.rows_shed
        share = f"{percent(progress.rows_shed, came)} of what came"
        table.add_row("rows left out", f"{progress.rows_shed:,}", share)
    table.add_row("rows out", f"{total:,}", "")
    table.add_section()
    cached = progress.rows_cached
    share = f"{percent(cached, progress.rows_in[0])} of the rows that came in"
    table.add_row("rows settled by the cache", f"{cached:,}", share)
    at_once = f"{percent(arriving, total)}: cached, or to make room"
    table.add_row("results while rows came in", f"{arriving:,}", at_once)
    table.add_row("results after that", f"{total - arriving:,}", percent(total - arriving, total))
    read = sum(part.totals.bytes_read for part in progress.partitions)
    table.add_row("read of the staged table", format_bytes(read), "besides the rows that matched")
    _add_costs(table, progress)
    table.add_section()
    _add_memory(table, progress)
    table.add_section()
    if staging_seconds is not None:
        table.add_row("time to stage the table", f"{staging_seconds:.1f} s", "once")
    _add_time(table, progress, seconds, before)
    return table


def _add_time(table: Table, progress: "Progress", seconds: float, before: int) -> None:
    # Spark also numbers micro-batches without rows, which a query that goes on from has had
    count = _count(progress.version + 1, "micro-batch", "es")
    done = count if before < 0 else f"this run, up to batch {progress.version}"
    table.add_row("time", f"{seconds:.1f} s", done)


def _add_costs(table: Table, progress: "Progress") -> None:
    """Measured, with what was predicted beside it."""
    told, found = progress.predicted, progress.measured
    if found is None:
        return
    beside = [f"predicted: {value}" for value in _costs(told)] if told else ("", "", "")
    names = "could take, joining alone", "longest wait of a row", "read for a row"
    for row in zip(names, _costs(found), beside, strict=True):
        table.add_row(*row)


def costs_line(progress: "Progress") -> Text:
    """Rate, wait and bytes read for a row, measured and predicted; empty if nothing is known."""
    told, found = progress.predicted, progress.measured
    known = {"measured": found, "predicted": told}
    parts = [f"{label} {', '.join(_costs(cost))}" for label, cost in known.items() if cost]
    return Text("  ·  ".join(parts), "dim")


def _costs(cost: "Cost") -> tuple[str, str, str]:
    rate = "any rate" if cost.rate == float("inf") else f"{cost.rate:,.3g} rows/s"
    if 1000 <= cost.rate < float("inf"):
        rate = f"{float(f'{cost.rate:.2g}'):,.0f} rows/s"
    return rate, f"{cost.wait_seconds:.2g} s", f"{format_bytes(int(cost.bytes_per_row))} a row"


def _plain_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    return table


def _add_results(table: Table, progress: "Progress", ended: bool) -> None:
    out = progress.rows_out
    total = sum(out.values())
    later = sum(out.get(phase, 0) for phase in DEFERRED_PHASES)
    arriving = out.get("arriving", 0)
    before, after = (
        ("before the inputs ended", "after the inputs ended")
        if ended
        else ("as rows came in", "while the inputs were silent")
    )
    table.add_row(f"results {before}", f"{arriving:,}", percent(arriving, total))
    table.add_row(f"results {after}", f"{later:,}", percent(later, total))
    for phase in DEFERRED_PHASES:
        if out.get(phase):
            table.add_row(f"  {phase}", f"{out[phase]:,}", percent(out[phase], total))


def _add_memory(table: Table, progress: "Progress") -> None:
    budget = progress.budget_bytes
    peaks = dict(progress.memory)
    total = peaks.pop("total", 0)
    for component in [*(c for c in COMPONENTS if c in peaks), *(set(peaks) - set(COMPONENTS))]:
        used = peaks[component]
        name = COMPONENTS.get(component, component)
        table.add_row(f"memory: {name}, at most", format_bytes(used), percent(used, budget))
    table.add_row(
        "[bold]memory: all together, at most[/bold]", format_bytes(total), percent(total, budget)
    )
    limit = "unbounded" if budget is None else format_bytes(budget)
    identity = progress.identity
    # the grid of a join of several inputs may have fewer than were asked for
    count = math.prod(identity.get("shares") or [identity["partitions"]])
    table.add_row("budget", limit, f"over {_count(count, 'partition')}")
