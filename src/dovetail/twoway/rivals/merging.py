"""Sorted segments on disk, merged with a fan-in, with the results that this brings.

The merging phase of PMJ (Dittrich, Seeger and Taylor, 2002), which HMJ runs on each of its hash
partitions (Mokbel, Lu and Aref, 2004), as section 2 of the DINER paper retells both.

Vocabulary. A *segment* is a sorted sequence of blocks of either side: what one flush wrote, or what
a merge made of several. Segments have a *group*, and all pairs of rows whose segments share a group
have been emitted: the rows were in memory together, or a merge has joined them. So each pair once
is the papers' own rule: a merge joins a row with rows of other groups only. Symbols: the fan-in F
counts the blocks of both sides that are in memory at a time; a merge takes `fan_in` = F/2 segments.

A merge goes through the codes from below in *windows* `(after, high]` whose blocks fit in memory.
Each row of the left side in the window meets the right side's up to `high`, and, in a band join,
each row of the right side in it meets the left side's before it. While more than `fan_in`
segments are there, merged rows are written to a new segment. The last merge of a part, and any of
all its segments, writes nothing: its segments become one group. As in an external sort, the first
merge takes just so many segments that all later ones are full; those that have been through the
fewest merges go first.

Neither segments nor their blocks are few, and what is known of them is paged out (see `segments`):
in memory are the newest entries of each list, the segments of the merge in progress, and of those,
the blocks of a window.

Interruptions. A window is cut into tasks, each a group of outer blocks and one inner block, and a
merge can be left after any of them: its state is `after` and the number of tasks done, since the
tasks follow from the zone maps alone. Merged rows that do not fill a block yet are not
part of the state: what was written, `written`, says where to read them again.

Degenerate cases. A single code that fills more than a window's room is joined as a block nested
loop, and its rows are copied rather than merged. An endless band makes every window's inner side
all that lies before it.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.catalogue import Entries, Pages, concatenated
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.matching import Emitter, PairFilter
from dovetail.kernel.protocol import SIDES, Context
from dovetail.kernel.runs import Run, merge_runs
from dovetail.twoway.rivals.segments import Segment, Segments, pairs_met, rows_of
from dovetail.twoway.rivals.windows import (
    BOTTOM,
    TOP,
    BlockGroup,
    MergeSide,
    MergeWindow,
    Task,
    merge_side,
    next_high,
    tasks_of,
)  # fmt: skip

_MOST_FAN_IN = 5  # segments a side: F = 10, as in the experiments of the DINER paper


@dataclass
class Merge:
    """The progress of a merge: all codes up to `after` are done; None: none is."""

    part: int
    inputs: list[int]
    output: int | None  #: the segment that is written, if any
    depth: int  #: of that segment
    group: int  #: of the inputs or the output, when done
    room: int  #: bytes of either side that a window may have
    after: int | None = None
    done: int = 0  #: tasks of the window that begins there
    written: int | None = None  #: codes up to this are in the output; None: none is


class Merger(Segments):
    """The segments of all parts of one join, and the merge in progress.

    `keeps_pages`: pages of the catalogue that are kept have to fit the working memory, too; else
    they are accounted for like the rest of it. Whoever runs the steps does so after each.
    """

    def __init__(
        self, context: Context, pages: Pages, emitter: Emitter, codec: KeyCodec,
        working_bytes: int, fan_in: int | None = None, *, keeps_pages: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(context, pages, working_bytes)
        self._emitter = emitter
        self._keeps_pages = keeps_pages
        self._codec = codec
        self._asked_fan_in = fan_in
        self.merge: Merge | None = None
        self._inputs: list[np.void] = []  # the sealed segments that are being merged
        self._opened: list[Segment] = []  # the same, if they are open
        self._output: Segment | None = None
        self._sides: tuple[MergeSide, MergeSide] | None = None
        self._window: MergeWindow | None = None
        self._outer: tuple[BlockGroup, Run, NDArray[np.int64]] | None = None
        self._cache: dict[tuple[int, int], Run] = {}
        self._cached_bytes = 0
        self._merged: tuple[list[Run], list[Run]] | None = None

    @property
    def fan_in(self) -> int:
        """The fan-in of a merge: one block a side of each segment is in memory."""
        fitting = self._working_bytes // (6 * self.block_bytes)
        return self._asked_fan_in or max(2, min(_MOST_FAN_IN, fitting))

    def rest(self) -> None:
        """Give the working memory back."""
        self._pages.forget()
        self._cache.clear()
        self._cached_bytes = 0
        self._outer = None

    # -- merging ----------------------------------------------------------------------------

    def begin(self, part: int) -> None:
        """Start the next merge of a part."""
        assert self.merge is None
        tick = self._ctx.clock.tick
        self._inputs = self._take_inputs(part)
        numbers = [int(entry["dts"]) for entry in self._inputs]
        groups = {int(entry["code_min"]) for entry in self._inputs}
        output = tick() if len(self.parts[part]) else None
        # one that is written is a group of its own, unless it takes the place of a group's members
        group = groups.pop() if len(groups) == 1 else output or tick()
        depth = 1 + max(int(entry["side"]) for entry in self._inputs)
        room = max(self._working_bytes // 6, self.fan_in * self.block_bytes)
        self.merge = Merge(part, numbers, output, depth, group, room)
        if output is not None:
            self._output = Segment(self._pages, output, group)

    def _take_inputs(self, part: int) -> list[np.void]:
        """All segments of a part, or the smallest of those that may become one.

        These are segments that are groups of their own, or segments of one group: were a part of a
        group merged with others, what the rest of it has met could no longer be told.
        """
        known = self.parts[part]
        width = merge_width(len(known), self.fan_in)
        if width == len(known) or known.waiting >= 2:
            whole = width == len(known)
            found = known.pop(width)
            self._hold(len(found))
            if whole:
                found, known.joined = found + known.joined, []
            return found
        by_size = sorted(known.joined, key=lambda entry: sum(rows_of(entry, s) for s in SIDES))
        known.joined = by_size[width:]
        return by_size[:width]

    def steps(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rest of the merge in progress; each step is to be drained before the next."""
        while (at := self.merge) is not None:
            window = self._open_window(at)
            if window is None:
                self._finish(at)
                continue
            for task in window.tasks:
                yield self._run(at, task)
            self._close_window(at, window)

    def _run(self, at: Merge, task: Task) -> Iterator[pa.RecordBatch]:
        if task.inner is None:
            self._copy(at, task)
        else:
            yield from self._join(task, task.inner)
        at.done += 1

    def _open_window(self, at: Merge) -> MergeWindow | None:
        """The window that the merge is at, with its tasks; None when all codes are done."""
        if self._window is not None:
            return self._window
        if at.after == TOP:
            return None
        sides = self._open_sides()
        low = BOTTOM if at.after is None else at.after + 1
        found = next_high(sides, low, at.room)
        if found is None:
            return None
        high, single = found
        copying = single and at.output is not None
        tasks = tasks_of(sides, (low, high), self._codec, at.room, copying)
        self._window = MergeWindow(low, high, single, islice(tasks, at.done, None))
        return self._window

    def _join(self, task: Task, inner_block: np.void) -> Iterator[pa.RecordBatch]:
        assert self._window is not None
        outer, groups = self._outer_run(task, self._window)
        inner = _cut(self._read(inner_block), task.low, task.high)
        if not len(inner) or not len(outer):
            return
        low, high = self._codec.candidates(inner.codes)
        span = outer.probe(low, high)
        if span is not None:
            keep = _of_other_groups(groups, task.inner_group)
            yield from self._emitter.match(inner, outer, span, 1 - task.side, keep)

    def _outer_run(self, task: Task, window: MergeWindow) -> tuple[Run, NDArray[np.int64]]:
        """The outer rows of a task in the window as one run, and the group of each."""
        if self._outer is not None and self._outer[0] is task.outer:
            return self._outer[1:]
        self._outer = None
        blocks = task.outer
        runs = [_cut(self._read(block), window.low, window.high) for block in blocks.entries]
        lengths = [len(run) for run in runs]
        codes = np.concatenate([run.codes for run in runs])
        groups = np.repeat(blocks.groups, lengths)[np.argsort(codes, kind="stable")]
        self._outer = (blocks, merge_runs(runs), groups)
        return self._outer[1:]

    # -- output -----------------------------------------------------------------------------

    def _close_window(self, at: Merge, window: MergeWindow) -> None:
        if at.output is not None:
            merged = self._merged_rows(at)
            if window.single:
                at.written = window.high
            else:
                for side in SIDES:
                    merged[side].extend(self._window_rows(side, window.low, window.high))
                if max(sum(run.nbytes for run in runs) for runs in merged) >= self.block_bytes:
                    self._write(at, window.high)
        at.after, at.done = window.high, 0
        self._window = self._outer = None

    def _merged_rows(self, at: Merge) -> tuple[list[Run], list[Run]]:
        """The rows that are merged but not written; after a restore they are merged again."""
        if self._merged is None:
            self._merged = ([], [])
            if at.after is not None and at.after != at.written:
                low = BOTTOM if at.written is None else at.written + 1
                for side in SIDES:
                    self._merged[side].extend(self._window_rows(side, low, at.after))
        return self._merged

    def _window_rows(self, side: int, low: int, high: int) -> list[Run]:
        blocks = (b for entries, _ in self._open_sides()[side].within(low, high) for b in entries)
        runs = [run for block in blocks if len(run := _cut(self._read(block), low, high))]
        return [merge_runs(runs)] if runs else []

    def _write(self, at: Merge, until: int) -> None:
        """Write what is merged, all of it up to the code `until`."""
        assert self._output is not None
        for side, runs in enumerate(self._merged_rows(at)):
            if runs:
                self._append(at.part, side, merge_runs(runs), self._output)
        self._merged = ([], [])
        at.written = until

    def _copy(self, at: Merge, task: Task) -> None:
        """Copy one block's rows of the window, which all have one code."""
        assert self._window is not None
        assert self._output is not None
        if at.after is not None and at.written != at.after:
            self._write(at, at.after)
        run = _cut(self._read(task.outer.entries[0]), self._window.low, self._window.high)
        if len(run):
            self._append(at.part, task.side, run, self._output)

    def _finish(self, at: Merge) -> None:
        if at.after is not None and at.output is not None and at.written != at.after:
            self._write(at, at.after)
        known = self.parts[at.part]
        known.met -= pairs_met(self._inputs)
        of_one_group = len({int(entry["code_min"]) for entry in self._inputs}) == 1
        if self._output is None:
            for entry in self._inputs:
                entry["code_min"] = at.group
            known.met += pairs_met(self._inputs)
            known.joined += self._inputs
        else:
            entry = self._seal(at.part, self._output, at.depth)
            known.met += pairs_met([entry])
            self._hold(-len(self._inputs))
            if of_one_group:
                known.joined.append(entry)
                self._hold(1)
            else:
                known.push(self._pages, entry)
        self._forget()
        self._count(at.part)

    def _forget(self) -> None:
        """The merge is over."""
        for segment in self._opened:
            segment.forget()
        self._inputs, self._opened = [], []
        self.merge = self._output = self._sides = self._window = self._merged = None
        self.rest()

    # -- reading ----------------------------------------------------------------------------

    def _open_sides(self) -> tuple[MergeSide, MergeSide]:
        if self._sides is None:
            self._opened = [self.open(entry) for entry in self._inputs]
            left, right = (merge_side(self._opened, side) for side in SIDES)
            self._sides = (left, right)
        return self._sides

    def _read(self, block: np.void) -> Run:
        """A block's rows; the blocks used last stay in memory for the next window."""
        key = (int(block["side"]), int(block["offset"]))
        run = self._cache.pop(key, None)
        if run is None:
            self._cached_bytes += int(block["length"])
            room = self._working_bytes // 3
            room -= self._pages.kept_bytes if self._keeps_pages else 0
            while self._cache and self._cached_bytes > room:
                self._cached_bytes -= self._cache.pop(next(iter(self._cache))).nbytes
            run = self._ctx.store.read(block)
        self._cache[key] = run
        return run

    # -- state ------------------------------------------------------------------------------

    def _oldest(self) -> int:
        merging = [int(entry["dts"]) for entry in self._inputs]
        return min([super()._oldest(), *merging, *([self._output.number] if self._output else [])])

    def facts(self) -> dict[str, Any]:
        rows = None if self._output is None else self._output.counts
        merge = None if self.merge is None else asdict(self.merge)
        return {**super().facts(), "merge": merge, "output_rows": rows}

    def lists(self) -> Iterator[Entries]:
        yield from super().lists()
        yield np.array(self._inputs, dtype=BLOCK)
        yield concatenated(self._output.tails() if self._output is not None else [])

    def restore(self, facts: dict[str, Any], entries: Entries) -> Iterator[Entries]:
        lists = super().restore(facts, entries)
        self._inputs = list(next(lists).copy())
        self._hold(len(self._inputs))
        output = next(lists)
        if facts["merge"] is not None:
            self.merge = Merge(**facts["merge"])
            if self.merge.output is not None:
                self._output = Segment(self._pages, self.merge.output, self.merge.group)
                self._output.restore_tails(output)
                self._output.counts = list(facts["output_rows"])
        return lists

    def check(self) -> None:
        super().check()
        assert (self.merge is None) == (not self._inputs)
        assert (self._output is None) == (self.merge is None or self.merge.output is None)
        for segment in (*self._opened, *([self._output] if self._output else [])):
            segment.check()
        for part, known in self.parts.items():
            mine = self.merge is not None and self.merge.part == part
            entries = [*self.sealed(part), *(self._inputs if mine else [])]
            for side in SIDES:
                assert sum(rows_of(entry, side) for entry in entries) == known.rows[side]
            assert pairs_met(entries) == known.met
            assert len({int(entry["dts"]) for entry in entries}) == len(entries)


def merge_width(segments: int, fan_in: int) -> int:
    """The fan-in of the next merge: all segments, or so many that all later merges are full."""
    if segments <= fan_in:
        return segments
    return (segments - 2) % (fan_in - 1) + 2


def _cut(run: Run, low: int, high: int) -> Run:
    """The rows with codes in the inclusive range."""
    start = int(np.searchsorted(run.codes, low, side="left"))
    stop = int(np.searchsorted(run.codes, high, side="right"))
    return run if stop - start == len(run) else run.slice(start, stop)


def _of_other_groups(groups: NDArray[np.int64], group: int) -> PairFilter | None:
    other = groups != group
    return None if other.all() else lambda _, rows: other[rows]
