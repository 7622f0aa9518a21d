"""Seek: a scan of the sorted table that skips every page without a waiting row.

Beyond the papers. MESHJOIN reads every page for every row, because it assumes no order. Staged
pages are sorted, so the fences say which pages can hold a row's matches. Rows wait until there is
no memory for more, or until nothing more comes; then the pages that they need are read in order,
each once, neighbours in one request. Rows that come while such a sweep is under way join it, if
their pages still lie ahead (see `sweep`). Under load that is MESHJOIN's shared sequential scan, for
a quiet stream it is an index lookup, and in between it reads what is needed.

A row is settled when its own pages have been read, so no match bits or packet queue are needed. All
rows of one code lie together: a code that fills many pages needs its first and last page only.
Waiting rows are settled some thousands at a time, those with the lowest codes first. Their codes
are looked up each once, in stretches of pages that are as long as mapped pages may stay.

In front of it stands a cache (see `cache`): the join values with the most hits for a byte. Values
that the table does not have are cached as such. What misses it is noted while the cache learns (see
`notes`).

Cache and window share the budget. If a sweep was made for lack of memory, the cache has to be worth
its own: without it, the window would have to be larger by as much as the cache settles rows, for as
many rows to share a sweep. SSBJ's inequality asks of each value that it takes no more memory than
it saves in this way, which is right where a scan is all that costs. Here a row that misses is also
fetched by itself, so that all values together have to save a quarter of what they take; those with
the fewest hits for a byte go if they do not.

With `ordered`, rows wait in the order in which they came and there is no cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Run
from dovetail.semistream.base import SemiStreamJoin, kept
from dovetail.semistream.cache.notes import Missed, Notes
from dovetail.semistream.cache.parts import firsts_of
from dovetail.semistream.cache.values import Cache
from dovetail.semistream.seek.sweep import Sweep, up_to
from dovetail.semistream.spec import STREAM, SemiStreamSpec
from dovetail.semistream.table.reading import CODE_BYTES, StagedTable

CACHE_SHARE = 3 / 8
NOTES_SHARE = 1 / 32
_SETTLED_ROWS = 1 << 13  # at least so many together, if there are as many
_UNBOUNDED_CACHE_BYTES = 1 << 30

GAP_BYTES = 192 << 10  #: of codes without a waiting row that are read through rather than skipped


def gap_pages(page_rows: int, gap_bytes: int = GAP_BYTES) -> int:
    """The pages without a waiting row that are read through: a request more costs as much."""
    return max(2, gap_bytes // (CODE_BYTES * page_rows))


@dataclass
class Lap:
    """The facts of one sweep by which the cache is sized."""

    learns: bool  #: whether values that miss are noted
    found_before: int  #: rows that the cache had settled when it began
    missed: int  #: rows that wait for this sweep, or the next
    full_bytes: int = 0  #: that waited when there was no memory for more; 0: there always was


class Seek(SemiStreamJoin):
    """Equality joins; the pages that are needed, and a cache."""

    name: ClassVar[str] = "seek"
    caches: ClassVar[bool] = True
    gap_bytes: ClassVar[int] = GAP_BYTES
    #: how far a piece of a sweep goes at most, for drivers that have new rows between any two
    sweep_pages: int | None = None

    def __init__(
        self,
        spec: SemiStreamSpec,
        context: Context,
        table: StagedTable,
        snapshot: Snapshot | None = None,
    ) -> None:
        super().__init__(spec, context, table, snapshot)
        self._sweep = Sweep(self._window)
        total = context.budget.total_bytes
        limit = _UNBOUNDED_CACHE_BYTES if total is None else int(total * CACHE_SHARE)
        noted = 0 if total is None else int(total * NOTES_SHARE)
        if not self.caches or spec.ordered:
            limit = noted = 0
        self._notes = Notes(noted, Reservation(context.budget, "notes"))
        self.cache = Cache(spec.table, limit, Reservation(context.budget, "cache"))
        self._begin_sweep()
        self._piece_pages = max(4, table.mapped.most_bytes // (CODE_BYTES * table.page_rows))
        self._gap_pages = gap_pages(table.page_rows, self.gap_bytes)
        if snapshot is not None:
            self._restore(snapshot)

    def pending(self) -> int:
        return len(self._sweep)

    def oldest(self) -> int | None:
        return self._sweep.oldest()

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        if self.cache.most:
            run = yield from self._past(self.cache, run)
            if not len(run):
                return
        # the memory that the cache may still take is left to it
        while self.pending() and not self.ctx.budget.has_room(run.nbytes + self.cache.room_bytes):
            yield from self._make_room()
        yield from self._hold(run)
        self._lap.missed += len(run)
        self._sweep.add(run)

    def _waiting_bytes(self, run: Run) -> int:
        return run.nbytes

    def _can_make_room(self) -> bool:
        return bool(self.cache.parts) or super()._can_make_room()

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        """Rows that wait go first; then the cache gives way."""
        if self.pending():
            self._lap.full_bytes = max(self._lap.full_bytes, self._window.nbytes)
            yield from super()._make_room()
        else:
            self.cache.halve()

    # -- settling ---------------------------------------------------------------------------

    def _work(self) -> Iterator[pa.RecordBatch]:
        if self.spec.ordered:
            yield from self._settle_first()
        else:
            yield from self._settle_piece()
        if self._sweep.position is None and self.cache.most:
            self._end_sweep()

    def _settle_piece(self) -> Iterator[pa.RecordBatch]:
        """Settle the rows ahead that have the lowest codes."""
        self._sweep.merge(self.working_bytes // 4)
        heads, cut = self._sweep.heads(_SETTLED_ROWS)
        sought = (
            heads[0][firsts_of(heads[0])] if len(heads) == 1 else np.unique(np.concatenate(heads))
        )
        if self.sweep_pages is not None and self.table.pages:
            first, stop = self.table.pages_of(sought, sought)
            most = int(np.searchsorted(stop, first[0] + self.sweep_pages, side="right"))
            if most < len(sought):
                sought = sought[: max(1, most)]
                cut = int(sought[-1])
                heads = up_to(heads, cut)
        low, high = self._locate(sought)
        for one, head in zip(self._sweep.ahead, heads, strict=True):
            if len(head):
                at = np.searchsorted(sought, head)
                if self._lap.learns:
                    missed = _missed(head, low[at], high[at])
                    self._notes.add(missed, self.cache.limit // 2)
                yield from self._settle_run(one.run, low[at], high[at], self.table, one.settled)
        self._sweep.settle([len(head) for head in heads], cut)

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
        run = self._sweep.ahead[0].run
        sought = run.codes[firsts_of(run.codes)]
        low, high = self._locate(sought)
        at = np.searchsorted(sought, run.codes)
        yield from self._settle_run(run, low[at], high[at], self.table)
        self._sweep.settle([len(run), *(0 for _ in self._sweep.ahead[1:])], None)

    # -- the cache --------------------------------------------------------------------------

    def _begin_sweep(self) -> None:
        learns = self.cache.most > 0 and self.cache.is_due()
        self._lap = Lap(learns, self.cache.found, self.pending())

    def _end_sweep(self) -> None:
        """Let the cache have the values that missed it, if they are worth it, and weigh it."""
        if self._lap.learns:
            self.cache.consider(self._notes.take(self.arrived), self.table)
        if self._lap.full_bytes:
            hits = self.cache.found - self._lap.found_before
            self.cache.weigh(self._lap.full_bytes * hits / max(1, self._lap.missed))
        else:
            self.cache.widen()
        self._begin_sweep()

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        blocks = [kept(one.run, STREAM, self.ctx.store) for one in self._sweep.all]
        blocks += self.cache.persist(self.ctx.store)
        meta = {
            **self._meta(),
            "settled": [one.settled for one in self._sweep.all],
            "ahead": len(self._sweep.ahead),
            "position": self._sweep.position,
            "cache": self.cache.meta(),
        }
        return Snapshot(meta, np.array(blocks, dtype=BLOCK))

    def _restore(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        settled = list(meta["settled"])
        waiting, cached = np.split(snapshot.blocks, [len(settled)])
        runs = (self.ctx.store.read(block) for block in waiting)
        self._sweep.restore(zip(runs, settled, strict=True), meta["ahead"], meta["position"])
        self.cache.restore(meta["cache"], list(cached), self.ctx.store)
        self._begin_sweep()

    def check(self) -> None:
        super().check()
        self._sweep.check()
        self.cache.check()


def _missed(codes: Codes, low: Rows, high: Rows) -> Missed:
    """Rows in code order, and where the table rows of each are, by value."""
    firsts = firsts_of(codes)
    hits = np.diff(firsts, append=len(codes))
    return Missed(codes[firsts], low[firsts], high[firsts], hits)


class SeekUncached(Seek):
    """Seek without a cache, to see what the cache is worth."""

    name: ClassVar[str] = "seek-uncached"
    caches: ClassVar[bool] = False
