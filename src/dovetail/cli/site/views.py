"""Views of a query over several sites on a terminal."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dovetail.kernel.memory import format_bytes
from dovetail.multisite.live.client import Status

_BETWEEN = 3  # characters around each column of a table


def status_tables(statuses: Mapping[str, Status]) -> list[Table]:
    """Streams, then links, of all sites."""
    return [_streams(statuses), _links(statuses)]


def live_view(statuses: Mapping[str, Status], seconds: float) -> Group:
    """The live view: a line of totals above `status_tables`."""
    rows = sum(status.result_rows for status in statuses.values())
    line = f"{seconds:.0f} s, {rows:,} results, all of them up to interval {settled(statuses):,}"
    return Group(line, *status_tables(statuses))


def settled(statuses: Mapping[str, Status]) -> int:
    """The last interval all of whose results have been emitted."""
    return min(s.settled for status in statuses.values() for s in status.streams.values())


def left_out(statuses: Mapping[str, Status]) -> str | None:
    """The message about rows that came too late."""
    late = {n: s.late for status in statuses.values() for n, s in status.streams.items() if s.late}
    if not late:
        return None
    rows = ", ".join(f"{count:,} of {name}" for name, count in late.items())
    return f"Rows were left out because their interval was over ({rows}): see lateness."


def complaint(statuses: Mapping[str, Status]) -> str | None:
    """The message about results that may be missing, as messages took longer than `delta`."""
    late = {
        host: count
        for host, status in statuses.items()
        if (count := sum(stream.late_messages for stream in status.streams.values()))
    }
    if not late:
        return None
    where = ", ".join(f"{count:,} at {host!r}" for host, count in late.items())
    return (
        f"messages came too late ({where}): results may be missing. Raise delta above the delays "
        'of the links, or write pace = "heartbeats", which waits for messages as long as they take'
    )


def refusals(statuses: Mapping[str, Status]) -> str | None:
    """The message about sites that refuse what others send, for good."""
    found = [
        f"{host!r} cannot send to {peer!r}: {link.error}"
        for host, status in statuses.items()
        for peer, link in status.links.items()
        if link.refused
    ]
    if not found:
        return None
    return (
        f"sites do not work together: {'; '.join(found)}. Nothing is lost: they go on when that "
        "has been put right"
    )


def sample_table(rows: pa.RecordBatch, width: int) -> Table:
    """Some results: a line for each, or, where that is too wide, a column for each that has room.

    Names are never cut: `north.dest` and `north.bytes` would look the same.
    """
    table = Table(box=box.SIMPLE_HEAD, title="Some of them")
    names = rows.schema.names
    columns = [[_shown(value) for value in column.to_pylist()] for column in rows.columns]
    if _fits([[name, *column] for name, column in zip(names, columns, strict=True)], width):
        for name in names:
            table.add_column(name, no_wrap=True)
        for row in zip(*columns, strict=True):
            table.add_row(*map(Text, row))
        return table
    found = list(zip(*columns, strict=True))
    while len(found) > 1 and not _fits([names, *found], width):
        found.pop()
    table.add_column("", no_wrap=True)
    for number in range(1, len(found) + 1):
        table.add_column(f"{number}", overflow="fold")
    for name, *values in zip(names, *found, strict=True):
        table.add_row(*map(Text, (name, *values)))
    return table


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _fits(columns: Sequence[Sequence[str]], width: int) -> bool:
    """Whether columns of these texts have room, with what is between them."""
    return sum(max(map(cell_len, texts)) + _BETWEEN for texts in columns) + _BETWEEN <= width


def _streams(statuses: Mapping[str, Status]) -> Table:
    numbers = ("rows", "late", "interval", "done", "too late", "window", "kept", "results")
    table = _table(("stream", "site"), numbers)
    for host, status in statuses.items():
        for index, (name, stream) in enumerate(status.streams.items()):
            table.add_row(
                name,
                host,
                f"{stream.rows:,}",
                f"{stream.late:,}",
                f"{stream.ticked:,}",
                f"{stream.settled:,}",
                f"[red]{stream.late_messages:,}[/red]" if stream.late_messages else "0",
                f"{stream.window_rows:,}",
                format_bytes(stream.kept_bytes),
                f"{status.result_rows:,}" if index == 0 else "",
            )
        if status.error:
            table.add_row("", host, f"[red]{status.error}[/red]")
    return table


def _links(statuses: Mapping[str, Status]) -> Table:
    numbers = ("messages", "rows", "bytes", "waiting", "sent again", "delay")
    table = _table(("from", "to"), numbers)
    table.add_column("")
    for host, status in statuses.items():
        for peer, link in status.links.items():
            table.add_row(
                host,
                peer,
                f"{link.messages:,}",
                f"{link.rows:,}",
                format_bytes(link.nbytes),
                format_bytes(link.waiting_bytes),
                f"{link.resent:,}",
                f"{1000 * link.delay:.0f} ms",
                f"[red]{link.error}[/red]" if link.error else "",
            )
    return table


def _table(texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(*texts, box=box.SIMPLE_HEAD)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
