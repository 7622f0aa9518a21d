"""Watches a running query until it ends or the user stops watching."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live

from dovetail.cli.stopping import stop_request
from dovetail.cli.views import Outlook, announce, live_line, live_view
from dovetail.errors import StateError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.spark.state.metrics import Progress

POLL_S = 0.25
LINE_EVERY_S = 5.0  #: between two lines of plain output


@dataclass(frozen=True)
class Watched:
    """A running query and the state directory of its join."""

    query: "StreamingQuery"
    state: Path
    expected: tuple[int, int] | None = None  #: rows to come in on each side, if that is known
    frame: "Callable[[Progress | None, Outlook], RenderableType]" = live_view
    line: "Callable[[Progress, float], str]" = live_line
    beside: Callable[[], None] = lambda: None  #: what else to do at every look


def look(state: Path) -> "Progress | None":
    """The progress of a join; None while it has none, or while a step is just replacing files."""
    from dovetail.spark.state.metrics import progress

    try:
        return progress(state)
    except StateError:
        return None


def watch(console: Console, watched: Watched) -> int | None:
    """Show a query's progress until it ends. The signal that ended it; None: it did by itself.

    A query that failed raises its own exception here, once the screen has been tidied up.
    """
    display = _live if console.is_terminal else _lines
    with stop_request() as asked:
        try:
            display(console, watched, asked.event)
            if asked.number is None:
                watched.query.awaitTermination()
                return None
            with announce(console, "Stopping"):
                watched.query.stop()
        except Exception:
            if asked.number is None:
                raise
            # the signal went to Spark, too; what is committed is safe
    return asked.number


def _live(console: Console, watched: Watched, stop: threading.Event) -> None:
    """On a terminal: a display that is redrawn in place, and gone at the end."""
    started, most_pending = time.monotonic(), 0
    seen = None
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while watched.query.isActive and not stop.is_set():
            watched.beside()
            seen = look(watched.state) or seen  # rather the last frame than none
            most_pending = max(most_pending, seen.pending_rows if seen else 0)
            outlook = Outlook(time.monotonic() - started, watched.expected, most_pending)
            live.update(watched.frame(seen, outlook))
            stop.wait(POLL_S)


def _lines(console: Console, watched: Watched, stop: threading.Event) -> None:
    """Elsewhere: a line of text now and then."""
    started = last = time.monotonic()
    while watched.query.isActive and not stop.is_set():
        watched.beside()
        now = time.monotonic()
        if now - last >= LINE_EVERY_S and (seen := look(watched.state)) and seen.partitions:
            console.print(watched.line(seen, now - started), soft_wrap=True, markup=False)
            last = now
        stop.wait(POLL_S)
