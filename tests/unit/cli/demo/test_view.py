"""The demo's two joins drawn side by side, and what is said of them in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from dovetail.cli.demo import rival as rivals
from dovetail.cli.demo.data import Stream, Streams
from dovetail.cli.demo.join import outcome
from dovetail.cli.demo.rival import FILES_AT_ONCE, Moment, Rival
from dovetail.cli.demo.view import SideBySide, stacked
from dovetail.cli.views import Outlook
from dovetail.spark.state.metrics import progress

MakeState = Callable[..., Path]
MB = 1 << 20


def drawn(renderable: RenderableType) -> list[str]:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]


class FakeQuery:
    """Reports a state that grows by `MB` with every look at it."""

    def __init__(self) -> None:
        self.batch = -1
        self.stopped = False

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        self.batch += 1
        if not self.batch:
            return None
        used = {"memoryUsedBytes": self.batch * MB // 2}
        return {"batchId": self.batch - 1, "stateOperators": [used, used]}

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "_LOOK_EVERY_S", 0.0)


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([5, 0], "█████░░░░░"),
        ([5, 5], "█████▓▓▓▓▓"),
        ([0.01, 0], "█░░░░░░░░░"),
        ([9.4, 0.01], "█████████▓"),
        ([20, 1], "██████████"),
        ([0, 0], "░░░░░░░░░░"),
    ],
)
def test_stacked_when_drawn_then_has_its_width_and_shows_what_is_there(
    parts: list[float], shown: str
) -> None:
    signs = [(part, sign, "red") for part, sign in zip(parts, "█▓", strict=True)]
    assert stacked(signs, 10, width=10).plain == shown
    assert stacked(signs, 0, width=10).plain == "░░░░░░░░░░"


def test_rival_when_looked_at_then_has_what_it_held_after_how_many_files() -> None:
    rival = Rival(FakeQuery(), files=2 * FILES_AT_ONCE + 1)
    for _ in range(5):
        rival.look()
    assert rival.moments == [
        Moment(FILES_AT_ONCE, MB),
        Moment(2 * FILES_AT_ONCE, 2 * MB),
        Moment(2 * FILES_AT_ONCE + 1, 3 * MB),
    ]
    assert rival.at(FILES_AT_ONCE - 1) is None
    assert rival.at(2 * FILES_AT_ONCE - 1) == rival.moments[0]
    assert rival.at(99) == rival.moments[-1]
    assert not rival.given_up


def test_rival_when_it_holds_too_much_then_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "MOST_BYTES", MB)
    query = FakeQuery()
    rival = Rival(query, files=100)
    for _ in range(9):
        rival.look()
    assert query.stopped
    assert rival.given_up
    assert rival.moments[-1].held_bytes == 2 * MB


def side_by_side(*moments: Moment, given_up: bool = False, each: int = 1_000) -> SideBySide:
    """Ten files on each side, of so many rows each; `make_state` has 4,002 rows in."""
    payments, orders = (
        Stream(Path(name), 10 * each, 1 << 20, tuple(range(each, 10 * each + 1, each)))
        for name in ("payments", "orders")
    )
    streams = Streams(payments, orders, tuple(range(1_000, 10_001, 1_000)))
    return SideBySide(streams, Rival(None, 10, list(moments), given_up))


def test_frame_when_rows_arrive_then_shows_results_and_both_memories(
    make_state: MakeState,
) -> None:
    view = side_by_side(Moment(2, 8 * 800 << 10), Moment(6, 99 * MB))
    early = "█" * 6 + "▓" * 2 + "░" * 32
    lines = drawn(view.frame(progress(make_state()), Outlook(12.4, (4000, 4004))))
    assert lines == [
        "phase arriving batch 0, 12 s",
        f"rows in 4,002 {'█' * 20}{'░' * 20} 50.0 %",
        f"results 2,000 {early} 70.0 % while rows arrived",
        # on a scale of what Spark's join will hold, if it goes on like this
        f"Dovetail 800.0 KB █{'░' * 39} of 1000.0 KB",
        f"Spark's join 6.2 MB {'█' * 8}{'░' * 32} at no more rows",
    ]


def test_frame_when_results_are_put_off_then_shows_how_many(make_state: MakeState) -> None:
    view = side_by_side()
    more = replace(view.streams, pairs=tuple(range(2_000, 20_001, 2_000)))
    seen = progress(make_state())
    seen = replace(
        seen,
        partitions=[
            replace(part, totals=replace(part.totals, rows_out={"arriving": 1_000}))
            for part in seen.partitions
        ],
    )
    lines = drawn(SideBySide(more, view.rival).frame(seen, Outlook(1.0)))
    assert lines[2] == f"results 2,000 ████▒▒▒▒{'░' * 32} 50.0 % of what these rows have"


def test_frame_when_sparks_join_is_elsewhere_then_says_where(make_state: MakeState) -> None:
    seen = progress(make_state())
    assert drawn(side_by_side().frame(seen, Outlook(1.0)))[-1].startswith("Dovetail")
    behind = drawn(side_by_side(Moment(1, MB), each=400).frame(seen, Outlook(1.0)))[-1]
    assert behind.endswith("at 10.0 % of the rows")
    stopped = drawn(side_by_side(Moment(2, MB), given_up=True).frame(seen, Outlook(1.0)))[-1]
    assert stopped.endswith("when it was stopped, lest it fill the heap")
    assert drawn(side_by_side().frame(None, Outlook(3.0))) == ["phase starting 3 s"]


def test_line_when_printed_then_has_the_same(make_state: MakeState) -> None:
    seen = progress(make_state())
    assert side_by_side(Moment(2, 5 * MB)).line(seen, 7.25) == (
        "  7.2 s  arriving: 4,002 rows in, 2,000 of their 2,000 results out (100.0 %); "
        "memory 800.0 KB, Spark's own join 5.0 MB at no more rows"
    )
    assert side_by_side().line(seen, 7.25).endswith("Spark's own join has yet to begin")


def test_outcome_when_told_then_has_share_and_both_memories(make_state: MakeState) -> None:
    done = progress(make_state())
    view = side_by_side(Moment(2, MB), Moment(10, 5 * MB))
    said = outcome(done, view)
    assert "70.0 % of the results came while rows arrived" in said
    assert said.endswith("Spark's own join held 5.0 MB in the end.")
    assert [line.split(" ")[0] for line in drawn(view.outcome(done))] == [
        "results",
        "Dovetail",
        "Spark's",
    ]
    assert drawn(view.outcome(done))[-1] == f"Spark's join 5.0 MB {'█' * 40} in the end"
    assert "Spark" not in outcome(done, side_by_side())
    stopped = side_by_side(Moment(2, MB), given_up=True)
    assert outcome(done, stopped).endswith("held 1.0 MB at 20.0 % of the rows, and was stopped.")
    assert drawn(stopped.outcome(done))[-1].endswith("when it was stopped, at 20.0 %")
