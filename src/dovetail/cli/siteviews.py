"""What a query over several sites looks like on a terminal."""

from collections.abc import Mapping

from rich import box
from rich.console import Group
from rich.table import Table

from dovetail.kernel.memory import format_bytes
from dovetail.sites.live.client import Status


def status_tables(statuses: Mapping[str, Status]) -> list[Table]:
    """Streams, then links, of all sites."""
    return [_streams(statuses), _links(statuses)]


def live_view(statuses: Mapping[str, Status], seconds: float) -> Group:
    """The same, with a line on top."""
    rows = sum(status.result_rows for status in statuses.values())
    line = f"{seconds:.0f} s, {rows:,} results, all of them up to interval {settled(statuses):,}"
    return Group(line, *status_tables(statuses))


def settled(statuses: Mapping[str, Status]) -> int:
    """The last interval all of whose results have been emitted."""
    return min(s.settled for status in statuses.values() for s in status.streams.values())


def left_out(statuses: Mapping[str, Status]) -> str | None:
    """What to say of rows that came too late."""
    late = {n: s.late for status in statuses.values() for n, s in status.streams.items() if s.late}
    if not late:
        return None
    rows = ", ".join(f"{count:,} of {name}" for name, count in late.items())
    return f"Rows were left out because their interval was over ({rows}): see lateness."


def complaint(statuses: Mapping[str, Status]) -> str | None:
    """What to say of results that may be missing, because messages took longer than `delta`."""
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
    """What to say of sites that do not take what others send, and will not by waiting."""
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


def _streams(statuses: Mapping[str, Status]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("stream", "site"):
        table.add_column(name)
    for name in ("rows", "late", "interval", "done", "too late", "window", "kept", "results"):
        table.add_column(name, justify="right")
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
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("from", "to"):
        table.add_column(name)
    for name in ("messages", "rows", "bytes", "waiting", "sent again", "delay"):
        table.add_column(name, justify="right")
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
