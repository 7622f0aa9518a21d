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
merge takes just so many segments that all later ones are full.

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
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.matching import PairFilter
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES
from dovetail.kernel.runs import Run, merge_runs
from dovetail.twoway.segments import Owner, Segment, Segments
from dovetail.twoway.windows import (
    BOTTOM,
    TOP,
    Table,
    Task,
    Window,
    next_high,
    table_of,
    tasks_of,
)  # fmt: skip

_MOST_FAN_IN = 5  # segments a side: F = 10, as in the experiments of the DINER paper


@dataclass
class Merge:
    """Where a merge stands. All codes up to `after` are done; None: none is."""

    part: int
    inputs: list[int]
    output: int | None  #: the segment that is written, if any
    group: int  #: of the inputs or the output, when done
    room: int  #: bytes of either side that a window may have
    after: int | None = None
    done: int = 0  #: tasks of the window that begins there
    written: int | None = None  #: codes up to this are in the output; None: none is


class Merger(Segments):
    """The segments of all parts of one join, and the merge in progress."""

    def __init__(self, owner: Owner, codec: KeyCodec, fan_in: int | None = None) -> None:
        super().__init__(owner)
        self._codec = codec
        self._asked_fan_in = fan_in
        self.merge: Merge | None = None
        self._tables: tuple[Table, Table] | None = None
        self._window: Window | None = None
        self._outer: tuple[Task, Run, NDArray[np.int64]] | None = None
        self._cache: dict[tuple[int, int], Run] = {}
        self._cached_bytes = 0
        self._merged: tuple[list[Run], list[Run]] | None = None

    @property
    def fan_in(self) -> int:
        """How many segments one merge takes: a block a side of each is in memory."""
        fitting = self._owner.working_bytes // (6 * self.block_bytes)
        return self._asked_fan_in or max(2, min(_MOST_FAN_IN, fitting))

    def rest(self) -> None:
        """Give the working memory back."""
        self._cache.clear()
        self._cached_bytes = 0
        self._outer = None

    # -- merging ----------------------------------------------------------------------------

    def begin(self, part: int) -> None:
        """Start the next merge of a part."""
        assert self.merge is None
        inputs = self._next_inputs(part)
        all_of_them = len(inputs) == len(self.complete(part))
        output = None if all_of_them else self._owner.ctx.clock.tick()
        room = max(self._owner.working_bytes // 6, self.fan_in * self.block_bytes)
        groups = {segment.group for segment in inputs}
        group = groups.pop() if len(groups) == 1 else self._owner.ctx.clock.tick()
        self.merge = Merge(part, [segment.number for segment in inputs], output, group, room)
        self.unfinished = output
        self._tables = self._window = self._merged = None

    def _next_inputs(self, part: int) -> list[Segment]:
        """All segments of a part, or the smallest of those that may become one.

        These are segments that are groups of their own, or segments of one group: were a part of a
        group merged with others, what the rest of it has met could no longer be told.
        """
        known = sorted(self.complete(part), key=lambda s: s.rows(LEFT) + s.rows(RIGHT))
        width = merge_width(len(known), self.fan_in)
        if width == len(known):
            return known
        members: dict[int, list[Segment]] = {}
        for segment in known:
            members.setdefault(segment.group, []).append(segment)
        alone = [found[0] for found in members.values() if len(found) == 1]
        if len(alone) < 2:
            alone = max(members.values(), key=len)
        return alone[:width]

    def steps(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rest of the merge in progress; each step is to be drained before the next."""
        while (at := self.merge) is not None:
            window = self._open_window(at)
            if window is None:
                self._finish(at)
                continue
            for task in window.tasks[at.done :]:
                yield self._run(at, task)
            self._close_window(at, window)

    def _run(self, at: Merge, task: Task) -> Iterator[pa.RecordBatch]:
        if task.inner is None:
            self._copy(at, task)
        else:
            yield from self._join(task)
        at.done += 1

    def _open_window(self, at: Merge) -> Window | None:
        """The window that the merge is at, with its tasks; None when all codes are done."""
        if self._window is not None:
            return self._window
        if at.after == TOP:
            return None
        tables = self._open_tables(at)
        low = BOTTOM if at.after is None else at.after + 1
        found = next_high(tables, low, at.room)
        if found is None:
            return None
        self._window = Window(low, *found)
        copying = at.output is not None
        tasks = tasks_of(tables, self._window, self._codec, at.room, copying)
        self._window.tasks = list(tasks)
        return self._window

    def _join(self, task: Task) -> Iterator[pa.RecordBatch]:
        window = self._window
        assert self._tables is not None
        assert window is not None
        assert task.inner is not None
        outer, groups = self._outer_run(task, window)
        inner_side = 1 - task.side
        table = self._tables[inner_side]
        inner = _cut(self._read(table.entries[task.inner]), task.low, task.high)
        if not len(inner) or not len(outer):
            return
        low, high = self._codec.candidates(inner.codes)
        span = outer.probe(low, high)
        if span is not None:
            keep = _of_other_groups(groups, int(table.groups[task.inner]))
            yield from self._owner._emitter.match(inner, outer, span, inner_side, keep)

    def _outer_run(self, task: Task, window: Window) -> tuple[Run, NDArray[np.int64]]:
        """The outer rows of a task in the window as one run, and the group of each."""
        if self._outer is not None and self._outer[0].side == task.side and (
            np.array_equal(self._outer[0].outer, task.outer)
        ):  # fmt: skip
            return self._outer[1:]
        self._outer = None
        assert self._tables is not None
        table = self._tables[task.side]
        runs = [_cut(self._read(table.entries[i]), window.low, window.high) for i in task.outer]
        lengths = [len(run) for run in runs]
        codes = np.concatenate([run.codes for run in runs])
        groups = np.repeat(table.groups[task.outer], lengths)[np.argsort(codes, kind="stable")]
        self._outer = (task, merge_runs(runs), groups)
        return self._outer[1:]

    # -- output -----------------------------------------------------------------------------

    def _close_window(self, at: Merge, window: Window) -> None:
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
        """What is merged but not written; after a restore, it is merged again."""
        if self._merged is None:
            self._merged = ([], [])
            if at.after is not None and at.after != at.written:
                low = BOTTOM if at.written is None else at.written + 1
                for side in SIDES:
                    self._merged[side].extend(self._window_rows(side, low, at.after))
        return self._merged

    def _window_rows(self, side: int, low: int, high: int) -> list[Run]:
        assert self._tables is not None
        table = self._tables[side]
        runs = [_cut(self._read(table.entries[i]), low, high) for i in table.within(low, high)]
        runs = [run for run in runs if len(run)]
        return [merge_runs(runs)] if runs else []

    def _write(self, at: Merge, until: int) -> None:
        """Write what is merged, all of it up to the code `until`."""
        assert at.output is not None
        for side, runs in enumerate(self._merged_rows(at)):
            if runs:
                self.add(at.part, side, merge_runs(runs), at.output, at.group)
        self._merged = ([], [])
        at.written = until
        self._owner._account()

    def _copy(self, at: Merge, task: Task) -> None:
        """Copy one block's rows of the window, which all have one code."""
        assert self._tables is not None
        assert self._window is not None
        assert at.output is not None
        if at.after is not None and at.written != at.after:
            self._write(at, at.after)
        block = self._tables[task.side].entries[int(task.outer[0])]
        run = _cut(self._read(block), self._window.low, self._window.high)
        if len(run):
            self.add(at.part, task.side, run, at.output, at.group)
            self._owner._account()

    def _finish(self, at: Merge) -> None:
        known = self.parts[at.part]
        if at.output is None:
            for segment in known:
                if segment.number in at.inputs:
                    segment.group = at.group
        else:
            if at.after is not None and at.written != at.after:
                self._write(at, at.after)
            known[:] = [segment for segment in known if segment.number not in at.inputs]
        self.merge = self.unfinished = None
        self._tables = self._window = self._merged = None
        self.rest()
        self.count(at.part)
        self._owner._account()

    # -- reading ----------------------------------------------------------------------------

    def _open_tables(self, at: Merge) -> tuple[Table, Table]:
        if self._tables is None:
            inputs = [s for s in self.parts[at.part] if s.number in at.inputs]
            left, right = (table_of(inputs, side) for side in SIDES)
            self._tables = (left, right)
        return self._tables

    def _read(self, block: np.void) -> Run:
        """A block's rows; the blocks used last stay in memory for the next window."""
        key = (int(block["file"]), int(block["offset"]))
        run = self._cache.pop(key, None)
        if run is None:
            self._cached_bytes += int(block["length"])
            while self._cache and self._cached_bytes > self._owner.working_bytes // 3:
                self._cached_bytes -= self._cache.pop(next(iter(self._cache))).nbytes
            run = self._owner.ctx.store.read(block)
        self._cache[key] = run
        return run

    # -- state ------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "merge": None if self.merge is None else asdict(self.merge)}

    def restore(self, facts: dict[str, Any], blocks: NDArray[np.void]) -> None:
        if facts["merge"] is not None:
            self.merge = Merge(**facts["merge"])
        super().restore(facts, blocks)

    def check(self) -> None:
        super().check()
        if self.merge is not None:
            assert self.merge.output == self.unfinished
            numbers = {segment.number for segment in self.parts[self.merge.part]}
            assert set(self.merge.inputs) <= numbers


def merge_width(segments: int, fan_in: int) -> int:
    """How many segments the next merge takes: all, or so many that all later merges are full."""
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
