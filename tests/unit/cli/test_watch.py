"""A query is watched until it ends, fails, or is stopped by a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from dovetail.cli import watch as watching
from dovetail.cli.watch import Watched, look, watch
from dovetail.errors import DovetailError

MakeState = Callable[..., Path]


class FakeQuery:
    """Runs for some looks at it, then ends: well, or with an error."""

    def __init__(self, looks: int, error: Exception | None = None, on_look: Any = None) -> None:
        self.looks = looks
        self.error = error
        self.on_look = on_look
        self.stopped = False

    @property
    def isActive(self) -> bool:
        self.looks -= 1
        if self.on_look is not None:
            self.on_look()
        return self.looks >= 0 and not self.stopped

    def stop(self) -> None:
        self.stopped = True

    def awaitTermination(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_S", 0.001)
    monkeypatch.setattr(watching, "LINE_EVERY_S", 0.0)


@pytest.mark.parametrize("terminal", [True, False])
def test_watch_when_a_query_ends_then_has_shown_its_progress(
    terminal: bool, make_state: MakeState, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(width=120, force_terminal=terminal)
    query: Any = FakeQuery(3)
    assert watch(console, Watched(query, make_state(), (4000, 4004))) is None
    shown = capsys.readouterr().out
    assert "2,000 + 2,002" in shown
    assert ("\x1b" in shown) == terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_watch_when_there_is_a_view_of_its_own_then_shows_that_and_looks_at_what_is_beside(
    terminal: bool, make_state: MakeState, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[int] = []
    watched = Watched(
        cast("Any", FakeQuery(3)),
        make_state(),
        frame=lambda seen, outlook: f"frame of {seen is not None} {outlook.most_pending}",
        line=lambda seen, seconds: f"line of {seen.pending_rows} {seconds >= 0}",
        beside=lambda: looks.append(1),
    )
    console = Console(width=120, force_terminal=terminal, highlight=False)
    assert watch(console, watched) is None
    shown = capsys.readouterr().out
    assert ("frame of True 2468" if terminal else "line of 2468 True") in shown
    assert len(looks) == 3


def test_watch_when_a_query_fails_then_raises_its_error(
    make_state: MakeState, capsys: pytest.CaptureFixture[str]
) -> None:
    query: Any = FakeQuery(1, DovetailError("broken"))
    with pytest.raises(DovetailError, match="broken"):
        watch(Console(), Watched(query, make_state()))
    capsys.readouterr()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_when_a_signal_comes_then_stops_the_query_and_says_so(
    number: signal.Signals, make_state: MakeState, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    query: Any = FakeQuery(1000, on_look=lambda: os.kill(os.getpid(), number))
    query_once = query.on_look
    query.on_look = lambda: (query_once(), setattr(query, "on_look", None))
    assert watch(Console(force_terminal=False), Watched(query, make_state())) == number
    assert query.stopped
    assert "Stopping" in capsys.readouterr().out
    assert signal.getsignal(number) is before


def test_watch_when_a_signal_ends_spark_as_well_then_its_errors_are_not_told(
    make_state: MakeState, capsys: pytest.CaptureFixture[str]
) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ConnectionRefusedError(111, "Connection refused")

    query: Any = FakeQuery(1000, on_look=die)
    assert watch(Console(force_terminal=False), Watched(query, make_state())) == signal.SIGTERM
    capsys.readouterr()


def test_look_when_there_is_nothing_to_see_then_is_none(tmp_path: Path) -> None:
    assert look(tmp_path / "nothing") is None
