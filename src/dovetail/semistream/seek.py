"""Seek: a scan of the sorted table that skips every page without a waiting row.

Beyond the papers. MESHJOIN reads every page for every row, because it assumes no order. Staged
pages are sorted, so the fences say which pages can hold a row's matches. Rows wait until there is
no memory for more, or until nothing more comes; then the pages that they need are read in order,
each once, neighbours in one request. Under load that is MESHJOIN's shared sequential scan, for a
quiet stream it is an index lookup, and in between it reads what is needed.

A row is settled when its own pages have been read, so no match bits or packet queue are needed. All
rows of one code lie together: a code that fills many pages needs its first and last page only.
Waiting rows are settled some thousands at a time, those with the lowest codes first. Their codes
are looked up each once, in stretches of pages that are as long as mapped pages may stay.

In front of it stands a cache (see `cache`): the join values with the most hits for a byte. Values
that the table does not have are cached as such.

With `ordered`, rows wait in the order in which they came and there is no cache.
"""

import itertools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK, RESIDENT
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Rows, Run, merge_runs
from dovetail.semistream.base import SemiStreamJoin, first_number
from dovetail.semistream.cache import Cache, firsts_of
from dovetail.semistream.spec import STREAM, SemiStreamSpec
from dovetail.semistream.table import CODE_BYTES, StagedTable

CACHE_SHARE = 3 / 8
_SETTLED_ROWS = 1 << 13  # at least so many together, if there are as many
_LEARNED_BYTES = 40  # what is noted of a row that missed the cache, while the cache learns
_UNBOUNDED_CACHE_BYTES = 1 << 30

GAP_BYTES = 192 << 10  #: of codes without a waiting row that are read through rather than skipped


def gap_pages(page_rows: int, gap_bytes: int = GAP_BYTES) -> int:
    """The pages without a waiting row that are read through: a request more costs as much."""
    return max(2, gap_bytes // (CODE_BYTES * page_rows))


class Seek(SemiStreamJoin):
    """Equality joins; the pages that are needed, and a cache."""

    name: ClassVar[str] = "seek"
    caches: ClassVar[bool] = True
    gap_bytes: ClassVar[int] = GAP_BYTES

    def __init__(
        self,
        spec: SemiStreamSpec,
        context: Context,
        table: StagedTable,
        snapshot: Snapshot | None = None,
    ) -> None:
        super().__init__(spec, context, table, snapshot)
        self._waiting: list[Run] = []
        self._settled: list[int] = []  # of each waiting run, the rows that are done
        self._learns = False  # whether the cache is to consider the rows that wait
        self._learned: list[tuple[Codes, Rows, Rows]] = []  # codes, low, high
        total = context.budget.total_bytes
        limit = _UNBOUNDED_CACHE_BYTES if total is None else int(total * CACHE_SHARE)
        if not self.caches or spec.ordered:
            limit = 0
        self.cache = Cache(spec.table, limit, Reservation(context.budget, "cache"))
        self._piece_pages = max(4, table.release_bytes // (CODE_BYTES * table.page_rows))
        self._gap_pages = gap_pages(table.page_rows, self.gap_bytes)
        if snapshot is not None:
            self._restore(snapshot)

    def pending(self) -> int:
        return sum(len(run) for run in self._waiting) - sum(self._settled)

    def oldest(self) -> int | None:
        return first_number(zip(self._waiting, self._settled, strict=True))

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        if self.cache.limit:
            missed = np.ones(len(run), dtype=np.bool_)
            chosen, low, high = self.cache.lookup(run.codes)
            missed[chosen] = False
            self.ctx.counters.rows_cached += len(chosen)
            yield from self._settle(run.rows, chosen, low, high, self.cache)
            if not missed.any():
                return
            if not missed.all():
                rows = run.rows.filter(pa.array(missed))
                run = Run(run.codes[missed], run.ats[missed], rows)
        yield from self._hold(run)
        self._waiting.append(run)
        self._settled.append(0)

    def _waiting_bytes(self, run: Run) -> int:
        if not self._waiting:  # a new round begins
            self._learns = self.cache.limit > 0 and self.cache.is_due()
        return run.nbytes + _LEARNED_BYTES * len(run) * self._learns

    def _can_make_room(self) -> bool:
        return bool(self.cache.parts) or super()._can_make_room()

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        """Rows that wait go first; then the cache gives way."""
        if self.pending():
            yield from super()._make_room()
        else:
            self.cache.halve()

    # -- settling ---------------------------------------------------------------------------

    def _work(self) -> Iterator[pa.RecordBatch]:
        if self.spec.ordered:
            yield from self._settle_first()
        else:
            yield from self._settle_piece()
        if not self._waiting:
            self._window.resize(0)
            self._learn()

    def _settle_piece(self) -> Iterator[pa.RecordBatch]:
        """Settle the waiting rows with the lowest codes."""
        self._merge_waiting()
        waiting = list(zip(self._waiting, self._settled, strict=True))
        heads = [run.codes[start : start + _SETTLED_ROWS] for run, start in waiting]
        cut = [
            head[-1]
            for head, (run, at) in zip(heads, waiting, strict=True)
            if at + len(head) < len(run)
        ]
        if cut:  # no code beyond the first head that does not go on to the end of its run
            heads = [head[: np.searchsorted(head, min(cut), side="right")] for head in heads]
        sought = (
            heads[0][firsts_of(heads[0])] if len(heads) == 1 else np.unique(np.concatenate(heads))
        )
        low, high = self._locate(sought)
        for (run, start), head in zip(waiting, heads, strict=True):
            if len(head):
                at = np.searchsorted(sought, head)
                if self._learns:
                    self._learned.append((head, low[at], high[at]))
                yield from self._settle_run(run, low[at], high[at], self.table, start)
        ends = [start + len(head) for (_, start), head in zip(waiting, heads, strict=True)]
        left = [(run, end) for (run, _), end in zip(waiting, ends, strict=True) if end < len(run)]
        self._waiting = [run for run, _ in left]
        self._settled = [end for _, end in left]

    def _merge_waiting(self) -> None:
        """Make long runs of short ones: what a piece costs, it costs for every run.

        Working memory bounds their length: a merge holds its rows thrice, of which the window has
        one.
        """
        limit = self.working_bytes // 4
        short = [run.nbytes <= limit // 2 for run in self._waiting]
        if sum(short) < 2:
            return
        waiting = list(zip(self._waiting, self._settled, strict=True))
        merged = [pair for pair, is_short in zip(waiting, short, strict=True) if not is_short]
        group: list[tuple[Run, int]] = []
        nbytes = 0
        for pair in itertools.compress(waiting, short):
            if nbytes + pair[0].nbytes > limit:
                merged.append(_merged(group))
                group, nbytes = [], 0
            group.append(pair)
            nbytes += pair[0].nbytes
        merged.append(_merged(group))
        self._waiting = [run for run, _ in merged]
        self._settled = [settled for _, settled in merged]

    def _locate(self, sought: Codes) -> tuple[Rows, Rows]:
        """The positions `[low, high)` of the rows of some codes, each of which is given once."""
        low, high = np.zeros(len(sought), dtype=np.int64), np.zeros(len(sought), dtype=np.int64)
        if not self.table.pages:
            return low, high
        first, stop = self.table.pages_of(sought, sought)
        # a stretch ends where the next pages are so far off that they are better read by themselves
        gaps = np.flatnonzero(first[1:] - stop[:-1] > self._gap_pages) + 1
        begin = 0
        while begin < len(sought):
            most = np.searchsorted(stop, first[begin] + self._piece_pages, side="right")
            gap = np.searchsorted(gaps, begin, side="right")
            end = int(min(most, gaps[gap])) if gap < len(gaps) else int(most)
            if end <= begin:  # this code alone has more pages than a stretch
                end = begin + 1
                low[begin], high[begin] = self._ends(int(sought[begin]), first[begin], stop[begin])
            else:
                stretch = slice(begin, end)
                low[stretch], high[stretch] = self._found(
                    sought[stretch], int(first[begin]), int(stop[end - 1])
                )
            begin = end
        return low, high

    def _found(self, sought: Codes, first: int, stop: int) -> tuple[Rows, Rows]:
        """The same for codes that can only be in the pages `[first, stop)`."""
        stored, base = self.table.view(first, stop), self.table.page_start(first)
        low = np.searchsorted(stored, sought, side="left")
        high = low.copy()
        found = np.flatnonzero(stored[np.minimum(low, len(stored) - 1)] == sought)
        high[found] += 1
        more = found[high[found] < len(stored)]
        more = more[stored[high[more]] == sought[more]]
        high[more] = np.searchsorted(stored, sought[more], side="right")
        return base + low, base + high

    def _ends(self, code: int, first: int, stop: int) -> tuple[int, int]:
        """The same for a code that fills many pages: its first and its last ones tell."""
        head = self.table.view(int(first), min(int(first) + 2, self.table.pages))
        low = self.table.page_start(int(first)) + int(np.searchsorted(head, code, side="left"))
        tail = self.table.view(int(stop) - 1, int(stop))
        high = self.table.page_start(int(stop) - 1) + int(np.searchsorted(tail, code, side="right"))
        return low, high

    def _settle_first(self) -> Iterator[pa.RecordBatch]:
        """Settle the oldest waiting run, in its own order."""
        run = self._waiting[0]
        sought = run.codes[firsts_of(run.codes)]
        low, high = self._locate(sought)
        at = np.searchsorted(sought, run.codes)
        yield from self._settle_run(run, low[at], high[at], self.table)
        del self._waiting[0], self._settled[0]

    def _learn(self) -> None:
        """Let the cache have the values that missed it, if they are worth it."""
        learned, self._learned = self._learned, []
        if learned:
            codes, low, high = (np.concatenate(column) for column in zip(*learned, strict=True))
            self.cache.consider(codes, low, high, self.table)

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        blocks = []
        for run in self._waiting:
            if run.block is None:
                run.block = self.ctx.store.append(run, STREAM, RESIDENT)
            blocks.append(run.block)
        blocks += self.cache.persist(self.ctx.store)
        meta = {**self._meta(), "settled": self._settled, "cache": self.cache.meta()}
        return Snapshot(meta, np.array(blocks, dtype=BLOCK))

    def _restore(self, snapshot: Snapshot) -> None:
        self._arrived = snapshot.meta["arrived"]
        self._settled = list(snapshot.meta["settled"])
        waiting, cached = np.split(snapshot.blocks, [len(self._settled)])
        for block in waiting:
            run = self.ctx.store.read(block)
            self._waiting.append(run)
            self._window.grow(self._waiting_bytes(run))
        self.cache.restore(snapshot.meta["cache"], list(cached), self.ctx.store)

    def check(self) -> None:
        super().check()
        for run, settled in zip(self._waiting, self._settled, strict=True):
            assert 0 <= settled < len(run)
            assert (run.codes[1:] >= run.codes[:-1]).all()
        self.cache.check()


def _merged(runs: list[tuple[Run, int]]) -> tuple[Run, int]:
    """What is left of some runs as one."""
    if len(runs) == 1:
        return runs[0]
    return merge_runs([run.slice(start, len(run)) for run, start in runs]), 0


class SeekUncached(Seek):
    """The same without a cache, to see what the cache is worth."""

    name: ClassVar[str] = "seek-uncached"
    caches: ClassVar[bool] = False
