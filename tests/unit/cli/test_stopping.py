"""A signal ends a command with one line and its exit code, whatever it is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable

import pytest
import typer

from dovetail.cli.stopping import Stopped, handlers_kept, stop_request, stoppable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ends_of(command: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what it said."""
    with pytest.raises(typer.Exit) as ended:
        stoppable(command)()
    return ended.value.exit_code, capsys.readouterr().err


@pytest.mark.parametrize("number", SIGNALS)
def test_command_when_a_signal_comes_then_ends_in_one_line(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    undone = []

    def command() -> None:
        try:
            os.kill(os.getpid(), number)
            undone.append("work")
        finally:
            undone.append("tidied up")

    assert ends_of(command, capsys) == (128 + number, "Stopped.\n")
    assert undone == ["tidied up"]
    assert signal.getsignal(number) is before


def test_command_when_errors_follow_the_signal_then_they_are_not_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Stopped:
            raise ConnectionRefusedError from None

    def swallowing() -> None:
        with contextlib.suppress(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)

    for command in (failing, swallowing):
        assert ends_of(command, capsys) == (143, "Stopped.\n")


def test_command_when_it_says_how_it_was_stopped_then_that_is_the_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command() -> None:
        raise Stopped(signal.SIGINT, "Stopped before it began.")

    assert ends_of(command, capsys) == (130, "Stopped before it began.\n")


def test_command_when_no_signal_comes_then_errors_and_results_are_its_own() -> None:
    stoppable(lambda: None)()
    with pytest.raises(KeyError):
        stoppable(lambda: {}["x"])()
    done = []
    thread = threading.Thread(target=stoppable(lambda: done.append(1)))
    thread.start()
    thread.join()
    assert done == [1], "only the main thread can handle signals"


def test_stop_request_when_signals_come_then_notes_one_and_raises_at_the_second() -> None:
    with stop_request() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.event.wait(5)
        assert asked.number == signal.SIGTERM
        with pytest.raises(Stopped) as raised:
            os.kill(os.getpid(), signal.SIGINT)
        assert raised.value.exit_code == 130


def test_handlers_when_a_library_sets_its_own_then_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with handlers_kept():
        signal.signal(signal.SIGINT, lambda *_: None)
    assert signal.getsignal(signal.SIGINT) is before
