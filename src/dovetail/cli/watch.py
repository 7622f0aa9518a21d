"""Looking at a query while it runs, until it ends or the user has had enough."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from dovetail.cli.views import Outlook, announce, live_line, live_view
from dovetail.errors import StateError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.spark.metrics import Progress

POLL_S = 0.25
LINE_EVERY_S = 5.0  #: between two lines of plain output


@dataclass(frozen=True)
class Watched:
    """A running query and the state directory of its join."""

    query: "StreamingQuery"
    state: Path
    expected: tuple[int, int] | None = None  #: rows to come in on each side, if that is known


def look(state: Path) -> "Progress | None":
    """The progress of a join; None while it has none, or while a step is just replacing files."""
    from dovetail.spark.metrics import progress

    try:
        return progress(state)
    except StateError:
        return None


def watch(console: Console, watched: Watched) -> bool:
    """Show a query's progress until it ends. Whether it ended by itself rather than by a signal.

    A query that failed raises its own exception here, once the screen has been tidied up.
    """
    display = _live if console.is_terminal else _lines
    with _stop_signals() as stop:
        display(console, watched, stop)
        if stop.is_set():
            with announce(console, "Stopping"):
                watched.query.stop()
            return False
    watched.query.awaitTermination()
    return True


def _live(console: Console, watched: Watched, stop: threading.Event) -> None:
    """On a terminal: a display that is redrawn in place, and gone at the end."""
    started, most_pending = time.monotonic(), 0
    seen = None
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while watched.query.isActive and not stop.is_set():
            seen = look(watched.state) or seen  # rather the last frame than none
            most_pending = max(most_pending, seen.pending_rows if seen else 0)
            outlook = Outlook(time.monotonic() - started, watched.expected, most_pending)
            live.update(live_view(seen, outlook))
            stop.wait(POLL_S)


def _lines(console: Console, watched: Watched, stop: threading.Event) -> None:
    """Elsewhere: a line of text now and then."""
    started = last = time.monotonic()
    while watched.query.isActive and not stop.is_set():
        now = time.monotonic()
        if now - last >= LINE_EVERY_S and (seen := look(watched.state)) and seen.partitions:
            console.print(live_line(seen, now - started), soft_wrap=True, markup=False)
            last = now
        stop.wait(POLL_S)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second one interrupts at once.

    Spark's own handler would cancel the running jobs, and the query would fail rather than stop.
    """
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:  # noqa: ARG001  the shape of a handler
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
