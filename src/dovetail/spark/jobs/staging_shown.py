"""Says on a terminal that a table is being staged, where that takes more than a moment."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dovetail.kernel.memory import format_bytes

PATIENCE_SECONDS = 2.0  #: what takes less is not shown
_EVERY_SECONDS = 0.5


@contextmanager
def shown(root: Path) -> Iterator[None]:
    """Show how much is written below a directory, on standard error, while the body runs."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(root, over), name="staging shown", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(root: Path, over: threading.Event) -> None:
    started, width = time.monotonic(), 0
    wait = PATIENCE_SECONDS
    while not over.wait(wait):
        wait = _EVERY_SECONDS
        seconds = time.monotonic() - started
        line = f"Staging the table: {format_bytes(_written(root))} written, {seconds:.0f} s"
        width = max(width, len(line))
        sys.stderr.write(f"\r{line:<{width}}")
        sys.stderr.flush()
    if width:
        sys.stderr.write(f"\r{' ' * width}\r")
        sys.stderr.flush()


def _written(root: Path) -> int:
    """The bytes of all files below; one may be renamed or deleted meanwhile."""
    total = 0
    for path in root.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
