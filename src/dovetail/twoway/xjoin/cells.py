"""The cells of XJoin: the blocks of a cell on disk, and which pairs of blocks are done.

Vocabulary and rules are in the docstring of `xjoin`. Blocks and marks are lists that only grow, so
both are catalogues that page themselves out; what is asked of them all the time (how many rows are
left to a pass, where it goes on) is kept beside them in a few numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK, IN_LOG, NEVER
from dovetail.kernel.catalogue import Catalogue, Entries, Pages
from dovetail.kernel.matching import PairFilter
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES
from dovetail.kernel.runs import Run

MARK = 64  #: the kind of a mark that was paged out, beside those of blocks
_MARK_BYTES = 160  # a tuple of two integers in a list


@dataclass
class Cleaning:
    """The progress of the cleanup of one cell.

    The rectangle `target[LEFT] x target[RIGHT]` of blocks is worked off as two strips: first the
    left side's new blocks against all of the right's, then the right's new blocks against the
    left's old ones. A strip's `outer` side is read in groups `[start, stop)` that fit the working
    memory, and each group meets the inner blocks from `inner` on.
    """

    part: int
    target: tuple[int, int]
    rows: tuple[int, int]  #: in the blocks of the target
    dts: tuple[int, int]  #: no block of the target was flushed later
    outer: int = LEFT
    start: int = 0
    stop: int = 0
    inner: int = 0


class Marks:
    """The marks `(dts, tick)` of one side's blocks, the ticks ascending."""

    def __init__(self, pages: Pages, part: int, side: int) -> None:
        self.recent: list[tuple[int, int]] = []
        self.older = Catalogue(pages)
        self._pages = pages
        self._where = (part, side)

    @property
    def last_tick(self) -> int:
        return self.recent[-1][1] if self.recent else -1

    def add(self, dts: int, tick: int, flushed: int) -> None:
        """Record a pass over rows flushed at `flushed` last.

        Earlier marks that this one covers are dropped.
        """
        before = len(self.recent)
        while self.recent and self.recent[-1][0] <= dts and self.recent[-1][1] > flushed:
            self.recent.pop()
        self.recent.append((dts, tick))
        if len(self.recent) > self._pages.fan_out:
            self.older.append(self._entry(*self.recent.pop(0)))
        self._pages.tail_bytes += _MARK_BYTES * (len(self.recent) - before)

    def prune(self, tick: int) -> None:
        """Drop marks up to this tick; some may stay, which does no harm."""
        before = len(self.recent)
        self.recent[:] = [mark for mark in self.recent if mark[1] > tick]
        self._pages.tail_bytes += _MARK_BYTES * (len(self.recent) - before)
        last = self.older.last
        if last is not None and last["ats_max"] <= tick:
            self.older.clear()

    def latest(self, dts: int, before: int) -> int:
        """The last tick below `before` of a mark with this `dts` or a later one; -1 if none."""
        for mark, tick in reversed(self.recent):
            if mark >= dts and tick < before:
                return tick
        if not len(self.older):
            return -1
        found = self.older.newest(lambda m: (m["dts"] >= dts) & (m["ats_min"] < before))
        return -1 if found is None else int(found["ats_min"])

    def restore(self, recent: list[list[int]]) -> None:
        self.recent[:] = [(dts, tick) for dts, tick in recent]
        self._pages.tail_bytes += _MARK_BYTES * len(recent)

    def check(self) -> None:
        ticks = [tick for _, tick in self.recent]
        assert ticks == sorted(ticks)
        assert self.older.last is None or int(self.older.last["ats_max"]) <= min(ticks)
        self.older.check()

    def _entry(self, dts: int, tick: int) -> np.void:
        entry = np.zeros((), dtype=BLOCK)
        entry["file"], entry["kind"] = IN_LOG, MARK
        entry["part"], entry["side"] = self._where
        entry["dts"] = dts
        entry["ats_min"] = entry["ats_max"] = tick
        return entry[()]  # type: ignore[return-value]


class Cell:
    """One cell: its blocks, its marks, and the progress of its passes."""

    def __init__(self, pages: Pages, part: int) -> None:
        self.rows = [0, 0]  # in memory
        self.arrived = [0, 0]  # tick of the last arrival
        self.flushed = [0, 0]  # tick of the last flush
        self.blocks = (Catalogue(pages), Catalogue(pages))  # in the order of their DTS
        self.disk_rows = [0, 0]  # in those blocks
        self.first_dts = [NEVER, NEVER]  # of the first block
        #: what the last pass left: blocks it has met with all before, rows in them, next one's DTS
        self.passed = [0, 0]
        self.passed_rows = [0, 0]
        self.next_dts = [NEVER, NEVER]
        self.joined = [0, 0]  # the finished rectangle of blocks
        self.joined_rows = [0, 0]  # the rows in its sides
        self.marks = (Marks(pages, part, LEFT), Marks(pages, part, RIGHT))  # by the blocks' side

    _FACTS = (
        "arrived", "flushed", "disk_rows", "first_dts", "passed", "passed_rows", "next_dts",
        "joined", "joined_rows",
    )  # fmt: skip

    def add_block(self, side: int, block: np.void) -> None:
        if not len(self.blocks[side]):
            self.first_dts[side] = int(block["dts"])
        self.blocks[side].append(block)
        self.disk_rows[side] += int(block["rows"])

    def next_reactive(self, side: int) -> int | None:
        """The first block of `side` that has not met all of the other side's memory part."""
        arrived = self.arrived[1 - side]
        if not self.rows[1 - side]:
            return None
        # a block flushed after the last arrival met all that arrived while it was in memory
        if self.marks[side].last_tick >= arrived:
            return self.passed[side] if self.next_dts[side] <= arrived else None
        return 0 if self.first_dts[side] <= arrived else None

    def mark(self, side: int, flush: Entries, start: int, tick: int) -> None:
        """Record that these blocks, from `start` on all that one flush wrote, were met."""
        before = self.passed_rows[side] if start else 0
        stop = start + len(flush)
        self.passed[side] = stop
        self.passed_rows[side] = before + int(flush["rows"].sum())
        blocks = self.blocks[side]
        # of a block that is yet to come, none of the rows in memory now needs to be shown
        self.next_dts[side] = int(blocks.entry(stop)["dts"]) if stop < len(blocks) else NEVER
        self.marks[side].add(int(flush["dts"][0]), tick, self.flushed[1 - side])

    def unclean(self) -> bool:
        """Whether blocks of both sides exist that have not met each other."""
        left, right = len(self.blocks[LEFT]), len(self.blocks[RIGHT])
        return bool(left and right) and (self.joined[LEFT] < left or self.joined[RIGHT] < right)

    def pending(self) -> int:
        """Rows on disk that are to be read again."""
        rows = 0
        unclean = self.unclean()
        for side in SIDES:
            start = self.next_reactive(side)
            if start is not None:
                rows += self.disk_rows[side] - (self.passed_rows[side] if start else 0)
            if unclean:
                rows += self.disk_rows[side] - self.joined_rows[side]
        return rows

    def cleaning(self, part: int) -> Cleaning:
        """The start of a cleanup of all that is on disk now."""
        target = (len(self.blocks[LEFT]), len(self.blocks[RIGHT]))
        rows, dts = self.disk_rows, self.flushed
        return Cleaning(
            part, target, (rows[LEFT], rows[RIGHT]), (dts[LEFT], dts[RIGHT]),
            start=self.joined[LEFT],
        )  # fmt: skip

    def cleaned(self, done: Cleaning) -> None:
        """Record a finished rectangle; marks about rows that were flushed into it can go."""
        self.joined[:], self.joined_rows[:] = done.target, done.rows
        for side in SIDES:
            self.marks[side].prune(done.dts[1 - side])

    def unjoined(
        self, probing_side: int, probing: np.void, stored: np.void
    ) -> tuple[int, int] | None:
        """The bounds above which pairs of two blocks are unjoined, by zone maps and marks.

        Only pairs whose rows (probing, stored) have an ATS above the two numbers may be new. None:
        no pair is.
        """
        if probing["code_max"] < stored["code_min"] or stored["code_max"] < probing["code_min"]:
            return None
        probing_dts, stored_dts = int(probing["dts"]), int(stored["dts"])
        stored_after = self.marks[probing_side].latest(probing_dts, before=stored_dts)
        probing_after = self.marks[1 - probing_side].latest(stored_dts, before=probing_dts)
        if probing["ats_max"] <= probing_after or stored["ats_max"] <= stored_after:
            return None
        if probing["ats_max"] < stored_dts and stored["ats_max"] < probing_dts:
            return None  # every pair of these was in memory together
        return probing_after, stored_after

    # -- state ------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        known: dict[str, Any] = {name: list(getattr(self, name)) for name in self._FACTS}
        return {**known, "marks": [marks.recent for marks in self.marks]}

    def tails(self) -> Iterator[Entries]:
        for side in SIDES:
            yield from self.blocks[side].tails
            yield from self.marks[side].older.tails

    def restore(self, facts: dict[str, Any]) -> None:
        for name in self._FACTS:
            getattr(self, name)[:] = facts[name]
        for side in SIDES:
            self.marks[side].restore(facts["marks"][side])

    def restore_tail(self, entries: Entries) -> None:
        """One of `tails`, in their order."""
        side, kind = int(entries[0]["side"]), int(entries[0]["kind"])
        known = self.blocks[side] if kind < MARK else self.marks[side].older
        known.restore_tail(entries)

    def check(self) -> None:
        for side in SIDES:
            blocks = self.blocks[side]
            blocks.check()
            self.marks[side].check()
            entries = np.concatenate(blocks.tails[::-1]) if len(blocks) else np.zeros(0, BLOCK)
            assert (np.diff(entries["dts"]) >= 0).all()
            assert (entries["ats_max"] < entries["dts"]).all()
            assert self.joined[side] <= len(blocks)
            assert self.joined_rows[side] <= self.disk_rows[side]
            assert self.passed[side] <= len(blocks)
            assert (self.first_dts[side] == NEVER) == (not len(blocks))


def arrived_after(stored: Run, tick: int) -> PairFilter:
    return lambda _, rows: stored.ats[rows] > tick


def not_yet_joined(
    probing: Run,
    block: np.void,
    stored: Run,
    origin: NDArray[np.int16],
    stored_dts: NDArray[np.int64],
    limits: list[tuple[int, int] | None],
) -> PairFilter:
    """Which pairs are new, for one block against a merged group of blocks.

    `origin` is the number of the block in the group that each of the stored rows is from; `limits`
    are what `Cell.unjoined` says of each.
    """
    dts = int(block["dts"])
    probing_after = np.array([NEVER if limit is None else limit[0] for limit in limits])
    stored_after = np.array([NEVER if limit is None else limit[1] for limit in limits])

    def keep(probing_rows: Rows, stored_rows: Rows) -> NDArray[np.bool_]:
        probing_ats, stored_ats = probing.ats[probing_rows], stored.ats[stored_rows]
        source = origin[stored_rows]
        together = (probing_ats < stored_dts[source]) & (stored_ats < dts)
        new = (probing_ats > probing_after[source]) & (stored_ats > stored_after[source])
        return np.asarray(new & ~together)

    return keep
