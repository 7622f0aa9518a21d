"""What the join of streams as in life looks like: when results came, and two joins' memory.

Results are one bar: those that came while rows arrived, those that came later, those that are put
off though their rows are there, and room for those of rows to come. Dovetail's memory and that of
Spark's own join are two bars of one scale.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dovetail.cli.demo.data import Streams
from dovetail.cli.demo.rival import FILES_AT_ONCE, Moment, Rival
from dovetail.cli.views import Outlook, facts, last_records, memory_now, overall_phase, percent
from dovetail.kernel.memory import format_bytes

if TYPE_CHECKING:
    from dovetail.spark.state.metrics import Progress

WIDTH = 40  #: of the bars
Part = tuple[float, str, str]  #: how much, a character, and its colour


@dataclass(frozen=True)
class SideBySide:
    """The two joins, drawn."""

    streams: Streams
    rival: Rival

    def frame(self, progress: "Progress | None", outlook: Outlook) -> Table:
        """Both joins as they are now, for a terminal."""
        grid = facts(12, 9)
        clock = f"{outlook.seconds:.0f} s"
        if progress is None or not progress.partitions:
            grid.add_row("phase", Text("starting", "bold"), Text(clock, "dim"))
            return grid
        phase = overall_phase(progress, last_records(progress))
        clock = f"batch {progress.version}, {clock}"
        grid.add_row("phase", Text(phase, "bold"), Text(clock, "dim"))
        came, expected = sum(progress.rows_in), sum(outlook.expected or ())
        share = _note(percent(came, expected))
        grid.add_row("rows in", f"{came:,}", stacked([(came, "█", "cyan")], expected) + share)
        self._add_results(grid, progress)
        ours = memory_now(last_records(progress))
        limit = f"of {format_bytes(progress.budget_bytes or 0)}"
        moment = self._moment(progress)
        # what there may be in the end, so that the bar grows as the rows come
        scale = moment.held_bytes * self.streams.files / moment.files if moment else 0.0
        self._add_memory(grid, (ours, limit), moment, self._when(progress), scale)
        return grid

    def outcome(self, progress: "Progress") -> Table:
        """Both joins as they ended."""
        grid = facts(12, 9)
        self._add_results(grid, progress)
        ours = progress.memory.get("total", 0)
        theirs = self.rival.moments[-1] if self.rival.moments else None
        note = "in the end"
        if theirs and self.rival.given_up:
            note = f"when it was stopped, at {percent(theirs.files, self.streams.files)}"
        self._add_memory(grid, (ours, "at most"), theirs, note)
        return grid

    def line(self, progress: "Progress", seconds: float) -> str:
        """The state of both joins as one line, for output that is not a terminal."""
        out, due = sum(progress.rows_out.values()), self._due(progress)
        records, moment = last_records(progress), self._moment(progress)
        beside = "has yet to begin"
        if moment is not None:
            beside = f"{format_bytes(moment.held_bytes)} {self._when(progress)}"
        return (
            f"{seconds:5.1f} s  {overall_phase(progress, records)}: "
            f"{sum(progress.rows_in):,} rows in, {out:,} of their {due:,} results out "
            f"({percent(out, due) or 'none yet'}); "
            f"memory {format_bytes(memory_now(records))}, Spark's own join {beside}"
        )

    def _add_results(self, grid: Table, progress: "Progress") -> None:
        early, later = when(progress)
        out, due = early + later, self._due(progress)
        bar = stacked(
            [(early, "█", "green"), (later, "▓", "yellow"), (due - out, "▒", "yellow")],
            self.streams.pairs[-1],
        )
        told = f"{percent(out, due)} of what these rows have" if due else ""
        if later:
            told = f"{percent(early, out)} while rows arrived"
        grid.add_row("results", f"{out:,}", bar + _note(told))

    @staticmethod
    def _add_memory(
        grid: Table, ours: tuple[int, str], theirs: Moment | None, note: str, scale: float = 0.0
    ) -> None:
        held, told = ours
        scale = max(held, theirs.held_bytes if theirs else 0, scale)
        bar = stacked([(held, "█", "cyan")], scale)
        grid.add_row("Dovetail", format_bytes(held), bar + _note(told))
        if theirs is not None:
            bar = stacked([(theirs.held_bytes, "█", "red")], scale)
            grid.add_row("Spark's join", format_bytes(theirs.held_bytes), bar + _note(note))

    def _due(self, progress: "Progress") -> int:
        """Results that the rows have which are in; a partition may be ahead of the others."""
        files = self._files(progress)
        due = self.streams.pairs[files - 1] if files else 0
        return max(due, sum(progress.rows_out.values()))

    def _files(self, progress: "Progress") -> int:
        return self.streams.files_with(sum(progress.rows_in))

    def _moment(self, progress: "Progress") -> Moment | None:
        return self.rival.at(self._files(progress))

    def _when(self, progress: "Progress") -> str:
        """At which rows Spark's join held that, seen from where Dovetail is."""
        moment = self._moment(progress)
        if moment is None:
            return ""
        if self.rival.given_up and moment is self.rival.moments[-1]:
            return "when it was stopped, lest it fill the heap"
        # it goes by more files at once: what is known may be of a few files less
        if self._files(progress) - moment.files < FILES_AT_ONCE:
            return "at no more rows"
        return f"at {percent(moment.files, self.streams.files)} of the rows"


def when(progress: "Progress") -> tuple[int, int]:
    """Results that came while rows arrived, and those that came later."""
    out = progress.rows_out
    early = out.get("arriving", 0)
    return early, sum(out.values()) - early


def stacked(parts: list[Part], whole: float, width: int = WIDTH) -> Text:
    """Parts of a whole in one bar; what is more than nothing can be seen, if there is room."""
    text, drawn, total = Text(), 0, 0.0
    for size, character, colour in parts:
        total += size
        end = min(width, round(total / whole * width)) if whole else 0
        if whole and size and end <= drawn < width:
            end = drawn + 1
        text.append(character * (end - drawn), colour)
        drawn = max(end, drawn)
    return text.append("░" * (width - drawn), "dim")


def _note(said: str) -> Text:
    return Text(f"  {said}" if said else "", "dim")
