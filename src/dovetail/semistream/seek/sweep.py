"""The rows that wait for Seek, in the order in which a sweep over the table comes to them.

A sweep goes through the sorted table once, from the lowest code that is waited for to the highest.
Rows whose code still lies ahead join the sweep that is under way; the others wait for the next one.
So a row waits for half a sweep on average, like a passenger of a lift that goes one way only, and
its memory is free for another row as soon as its own pages have been read: the same window serves
up to twice the rows that it would if all of it were filled first and emptied then.

Runs are settled from their beginning on. The memory of settled rows is given back when half of a
run is: what is left is then copied, so a row is copied once more on average, or less.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.runs import Run, merge_runs
from dovetail.semistream.base import first_number


@dataclass
class Waiting:
    """Some rows that wait, sorted by code."""

    run: Run
    held: int  #: bytes of the window, settled rows included
    settled: int = 0  #: of its first rows, those that are done

    def __len__(self) -> int:
        return len(self.run) - self.settled

    def rest(self) -> "Waiting":
        """The rows that are left, in memory of their own."""
        run = _copy(self.run, self.settled, len(self.run))
        return Waiting(run, min(self.held, run.nbytes))


class Sweep:
    """Rows that wait, and how far the sweep has come."""

    def __init__(self, window: Reservation) -> None:
        self.ahead: list[Waiting] = []
        self.behind: list[Waiting] = []
        #: lower codes are settled, and this one's rows as far as they were in the last piece; None:
        #: the sweep has not begun
        self.position: int | None = None
        self._window = window

    def __len__(self) -> int:
        return sum(len(one) for one in self.all)

    @property
    def all(self) -> Sequence[Waiting]:
        return [*self.ahead, *self.behind]

    def oldest(self) -> int | None:
        return first_number((one.run, one.settled) for one in self.all)

    def add(self, run: Run) -> None:
        """Rows whose memory has been reserved from the window, `run.nbytes` of it."""
        passed = 0
        if self.position is not None:
            passed = int(np.searchsorted(run.codes, self.position, side="right"))
        if 0 < passed < len(run):
            first = _copy(run, 0, passed)
            held = min(run.nbytes, first.nbytes)
            self.behind.append(Waiting(first, held))
            self.ahead.append(Waiting(_copy(run, passed, len(run)), run.nbytes - held))
        else:
            (self.behind if passed else self.ahead).append(Waiting(run, run.nbytes))

    def heads(self, most: int) -> tuple[list[Codes], int | None]:
        """Codes ahead, the lowest ones of each run, and the last of them that all runs are cut at.

        Up to `most` of each run; None if these are all there are.
        """
        heads = [one.run.codes[one.settled : one.settled + most] for one in self.ahead]
        cut = [
            int(head[-1])
            for head, one in zip(heads, self.ahead, strict=True)
            if len(head) < len(one)
        ]
        if not cut:
            return heads, None
        # no code beyond the first head that does not go on to the end of its run
        return up_to(heads, min(cut)), min(cut)

    def settle(self, counts: Sequence[int], position: int | None) -> None:
        """Mark the first rows of each run ahead as settled, those with codes up to `position`.

        None: all of them are, and the next sweep begins.
        """
        left = []
        for one, count in zip(self.ahead, counts, strict=True):
            one.settled += count
            if not len(one):
                self._window.shrink(one.held)
                continue
            if 2 * one.settled >= len(one.run):
                rest = one.rest()
                self._window.shrink(one.held - rest.held)
                one = rest
            left.append(one)
        self.ahead, self.position = left, position
        if not self.ahead:
            self.ahead, self.behind, self.position = self.behind, [], None

    def merge(self, limit: int) -> None:
        """Make long runs of short ones: what a piece costs, it costs for every run.

        None is longer than `limit` bytes. A merge holds its rows thrice, of which the window has
        one.
        """
        short = [one for one in self.ahead if one.held <= limit // 2]
        if len(short) < 2:
            return
        merged = [one for one in self.ahead if one.held > limit // 2]
        group: list[Waiting] = []
        for one in short:
            if group and sum(other.held for other in group) + one.held > limit:
                merged.append(self._merged(group))
                group = []
            group.append(one)
        self.ahead = [*merged, self._merged(group)]

    def _merged(self, group: list[Waiting]) -> Waiting:
        """Merge what is left of several runs into one."""
        if len(group) == 1:
            return group[0]
        held = sum(one.held for one in group)
        run = merge_runs([one.run.slice(one.settled, len(one.run)) for one in group])
        self._window.shrink(max(0, held - run.nbytes))
        return Waiting(run, min(held, run.nbytes))

    def restore(self, runs: Iterator[tuple[Run, int]], ahead: int, position: int | None) -> None:
        """Runs and how many rows of each are done; the first `ahead` of them lie ahead."""
        found = [Waiting(run, run.nbytes, settled) for run, settled in runs]
        self._window.grow(sum(one.held for one in found))
        self.ahead, self.behind, self.position = found[:ahead], found[ahead:], position

    def check(self) -> None:
        assert self._window.nbytes == sum(one.held for one in self.all)
        assert self.ahead or not self.behind
        for one in self.all:
            assert 0 <= one.settled < len(one.run)
            assert (one.run.codes[1:] >= one.run.codes[:-1]).all()
        if self.position is not None:
            assert all(one.run.codes[one.settled] >= self.position for one in self.ahead)
            assert all(one.run.codes[-1] <= self.position for one in self.behind)
            assert not any(one.settled for one in self.behind)


def up_to(heads: list[Codes], last: int) -> list[Codes]:
    """The codes of each that are no higher than this one."""
    return [head[: np.searchsorted(head, last, side="right")] for head in heads]


def _copy(run: Run, start: int, stop: int) -> Run:
    """Some rows of a run, in memory of their own."""
    rows = run.gather(np.arange(start, stop))
    return Run(run.codes[start:stop].copy(), run.ats[start:stop].copy(), rows)
