"""Seek: a scan of the sorted table that skips every page without a waiting row.

Beyond the papers. MESHJOIN reads every page for every row, because it assumes no order. Staged
pages are sorted, so the fences say which pages can hold a row's matches. Rows wait until there is
no memory for more, or until nothing more comes; then the pages that they need are read in order,
each once, neighbours in one request. Under load that is MESHJOIN's shared sequential scan, for a
quiet stream it is an index lookup, and in between it reads what is needed.

A row is settled when its own pages have been read, so no match bits or packet queue are needed. All
rows of one code lie together: a code that fills many pages needs its first and last page only.

In front of it stands a cache (see `cache`): the join values with the most hits for a byte. Values
that the table does not have are cached as such.

With `ordered`, rows wait in the order in which they came and there is no cache.
"""

import itertools
from collections.abc import Callable, Iterator
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
_LEARNED_BYTES = 40  # what is noted of a row that missed the cache
_UNBOUNDED_CACHE_BYTES = 1 << 30

GAP_BYTES = 48 << 10  #: of codes without a waiting row that are read through rather than skipped

Spans = Callable[[Codes], tuple[Rows, Rows]]  #: codes to the positions [low, high) of each


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
        self._learned: list[tuple[Codes, Rows, Rows]] = []  # codes, low, high
        total = context.budget.total_bytes
        limit = _UNBOUNDED_CACHE_BYTES if total is None else int(total * CACHE_SHARE)
        if not self.caches or spec.ordered:
            limit = 0
        self.cache = Cache(spec.table, limit, Reservation(context.budget, "cache"))
        piece = self.working_bytes // 4 // (CODE_BYTES * table.page_rows)
        self._piece_pages = max(4, piece)
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
            for part, chosen, low, high in self.cache.lookup(run.codes):
                missed[chosen] = False
                self.ctx.counters.rows_cached += len(chosen)
                yield from self._settle(run.rows, chosen, low, high, part)
            if not missed.any():
                return
            if not missed.all():
                rows = run.rows.filter(pa.array(missed))
                run = Run(run.codes[missed], run.ats[missed], rows)
        yield from self._hold(run.nbytes + _LEARNED_BYTES * len(run))
        self._waiting.append(run)
        self._settled.append(0)

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
        """Settle the rows with the lowest codes: those of a few reads together."""
        self._merge_waiting()
        ends = list(self._settled)
        spans: list[list[tuple[Rows, Rows]]] = [[] for _ in ends]
        found = 0
        while found < _SETTLED_ROWS:
            runs = [(run, end) for run, end in zip(self._waiting, ends, strict=True)]
            left = [(run, end) for run, end in runs if end < len(run)]
            if not left:
                break
            code = min(int(run.codes[end]) for run, end in left)
            first, stop = self._piece(code, left)
            lookup = self._spans(code) if stop == first else self._spans_within(first, stop)
            for index, (run, end) in enumerate(runs):
                codes = run.codes[end : end + self._reach(run.codes[end:], code, first, stop)]
                if len(codes):
                    low, high = lookup(codes)
                    spans[index].append((low, high))
                    ends[index] += len(codes)
                    found += len(codes)
                    if self.cache.limit:
                        self._learned.append((codes, low, high))
        for index, (run, start) in enumerate(zip(self._waiting, self._settled, strict=True)):
            if spans[index]:
                low, high = (np.concatenate(ends_of) for ends_of in zip(*spans[index], strict=True))
                yield from self._settle_run(run, low, high, self.table, start)
        self._settled = ends
        for index in reversed(range(len(ends))):
            if ends[index] == len(self._waiting[index]):
                del self._waiting[index], self._settled[index]

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

    def _piece(self, code: int, runs: list[tuple[Run, int]]) -> tuple[int, int]:
        """The pages to read next; an empty range if `code` alone would take more than a piece."""
        fences = self.table.fences
        if not len(fences):
            return 0, 0
        first = int(self.table.pages_of(np.array([code]), np.array([code]))[0][0])
        last = first + self._piece_pages
        beyond = int(fences[last]) if last < len(fences) else None
        if beyond is not None and code >= beyond:
            return first, first
        last = min(last, len(fences))
        # a page is needed for the codes from its own fence to the next one, that included
        own, following = fences[first + 1 : last], fences[first + 1 : last + 1]
        idle = np.ones(last - first, dtype=np.bool_)
        for run, start in runs:
            codes = run.codes[start:]
            if beyond is not None:
                codes = codes[: np.searchsorted(codes, beyond)]
            begins, ends = np.zeros(len(idle), dtype=np.int64), np.full(len(idle), len(codes))
            begins[1:] = np.searchsorted(codes, own, side="left")
            ends[: len(following)] = np.searchsorted(codes, following, side="right")
            idle &= begins == ends
        # the first gap that is worth skipping ends the piece
        wide = np.convolve(idle, np.ones(self._gap_pages + 1), "valid") > self._gap_pages
        gap = int(wide.argmax()) if len(wide) and wide.any() else len(idle)
        used = np.flatnonzero(~idle[:gap])
        return first, first + int(used[-1]) + 1

    def _reach(self, codes: Codes, code: int, first: int, stop: int) -> int:
        """How many of these rows the piece serves."""
        fences = self.table.fences
        if stop == first and len(fences):
            return int(np.searchsorted(codes, code, side="right"))
        if stop >= len(fences):
            return len(codes)
        return int(np.searchsorted(codes, fences[stop], side="left"))

    def _spans_within(self, first: int, stop: int) -> Spans:
        stored = self.table.codes(first, stop)
        base = self.table.page_start(first)

        def spans(codes: Codes) -> tuple[Rows, Rows]:
            starts = firsts_of(codes)
            sought = codes[starts]  # each once
            low = np.searchsorted(stored, sought, side="left")
            high = low.copy()
            if len(stored):
                found = np.flatnonzero(stored[np.minimum(low, len(stored) - 1)] == sought)
                high[found] += 1
                more = found[high[found] < len(stored)]
                more = more[stored[high[more]] == sought[more]]
                high[more] = np.searchsorted(stored, sought[more], side="right")
            counts = np.diff(starts, append=len(codes))
            return base + np.repeat(low, counts), base + np.repeat(high, counts)

        return spans

    def _spans(self, code: int) -> Spans:
        """For a code that fills more pages than a piece has."""
        if not len(self.table.fences):
            return lambda codes: (np.zeros(len(codes), dtype=np.int64),) * 2
        sought = np.array([code])
        first, stop = (int(pages[0]) for pages in self.table.pages_of(sought, sought))
        head = self.table.codes(first, min(first + 2, self.table.pages))
        tail = self.table.codes(stop - 1, stop)
        low = self.table.page_start(first) + int(np.searchsorted(head, code, side="left"))
        high = self.table.page_start(stop - 1) + int(np.searchsorted(tail, code, side="right"))
        return lambda codes: (np.full(len(codes), low), np.full(len(codes), high))

    def _settle_first(self) -> Iterator[pa.RecordBatch]:
        """Settle the oldest waiting run, in its own order."""
        run = self._waiting[0]
        low, high = np.zeros(len(run), dtype=np.int64), np.zeros(len(run), dtype=np.int64)
        done = 0
        while done < len(run):
            code = int(run.codes[done])
            first, stop = self._piece(code, [(run, done)])
            lookup = self._spans(code) if stop == first else self._spans_within(first, stop)
            end = done + self._reach(run.codes[done:], code, first, stop)
            low[done:end], high[done:end] = lookup(run.codes[done:end])
            done = end
        yield from self._settle_run(run, low, high, self.table)
        del self._waiting[0], self._settled[0]

    def _learn(self) -> None:
        """Let the cache have the values that missed it, if they are worth it."""
        learned, self._learned = self._learned, []
        if learned and self.cache.limit:
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
        blocks = iter(snapshot.blocks)
        for block in itertools.islice(blocks, len(self._settled)):
            run = self.ctx.store.read(block)
            self._waiting.append(run)
            self._window.grow(run.nbytes + _LEARNED_BYTES * len(run))
        self.cache.restore(snapshot.meta["cache"], list(blocks), self.ctx.store)

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
