"""What a benchmark tells while it runs; all of it goes to standard error."""

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Reporter(Protocol):
    """Told how many runs there will be, which one is on, and how each came out."""

    def plan(self, runs: int) -> None:
        """So many more runs are to come."""

    def begin(self, what: str) -> None:
        """A run, or the preparation of one, has begun."""

    def end(self, line: str) -> None:
        """The run has ended; `line` says how."""


class Silent:
    """For tests and for use as a library."""

    def plan(self, runs: int) -> None: ...

    def begin(self, what: str) -> None: ...

    def end(self, line: str) -> None: ...


class Terminal:
    """A bar on a terminal; elsewhere a line for each run. Use it in a `with`."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._console = console
        self._task = self._bar.add_task("starting", total=0)
        self._runs = self._done = 0

    def __enter__(self) -> "Terminal":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def plan(self, runs: int) -> None:
        self._runs += runs
        self._bar.update(self._task, total=self._runs)

    def begin(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def end(self, line: str) -> None:
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        text = f"{self._done}/{self._runs}  {line}"
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
