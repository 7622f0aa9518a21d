"""Ctrl-C and SIGTERM end a command in good order, with one line that names the signal.

`stoppable` is around all of a command: a signal interrupts whatever it does. `stop_request` is
around the time in which a query runs, which is to be stopped rather than torn down. After the first
signal, errors are consequences: the system may have sent it to Spark's processes as well.
"""

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import ParamSpec

import typer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

P = ParamSpec("P")
Handler = Callable[[int, FrameType | None], None]


class Stopped(BaseException):
    """A signal came, by its number; the message is the last line of the command.

    (No `KeyboardInterrupt`: of that, the bridge to the JVM logs a traceback.)
    """

    def __init__(self, number: int, message: str = "Stopped.") -> None:
        super().__init__(message)
        self.exit_code = 128 + number  #: as a shell tells that a signal ended a command


@dataclass
class StopRequest:
    """Whether a signal came, and which."""

    event: threading.Event = field(default_factory=threading.Event)
    number: int | None = None


def stoppable(command: Callable[P, None]) -> Callable[P, None]:
    """A command that a signal ends with one line and the exit code for it."""

    @functools.wraps(command)
    def stopping(*args: P.args, **kwargs: P.kwargs) -> None:
        asked = StopRequest()

        def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            asked.number = number
            raise Stopped(number)

        try:
            with _handled_by(interrupt):
                command(*args, **kwargs)
            if asked.number is not None:  # what a library does in the background may swallow it
                raise Stopped(asked.number)
        except Exception:
            if asked.number is None:
                raise
            stopped = Stopped(asked.number)
        except Stopped as error:
            stopped = error
        else:
            return
        typer.echo(str(stopped), err=True)
        raise typer.Exit(stopped.exit_code)

    return stopping


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Note the first signal, for somebody to look at; a second one interrupts at once."""
    asked = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if asked.number is not None:
            raise Stopped(number)
        asked.number = number
        asked.event.set()

    with _handled_by(note):
        yield asked


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    """Let a function handle the signals; in the main thread, no other can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put the handlers back: Spark's own for Ctrl-C asks the JVM, which may be gone."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, known in before.items():
                signal.signal(number, known)
