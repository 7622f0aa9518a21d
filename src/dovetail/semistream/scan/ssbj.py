"""SSBJ: MESHJOIN with a cache whose content is provably the best.

Source: Naeem, Weber and Lutteroth, "A Memory-Optimal Many-to-Many Semi-Stream Join" (SSBJ),
section 3: Algorithm 1, Theorems 1 to 3.

Cache phase. A row whose join value is cached is settled at once. Any other goes on to the disk
phase, which is MESHJOIN. A row is handled by one of them, so each pair is emitted once.

The inequality. A value with `m` table rows, and `n` stream rows in a cycle of the scan, takes
`m * v_R` bytes if cached and `n * v_S` bytes if it waits for the scan. It belongs in the cache if
`n * v_S > s_f * m * v_R`. Decided for each value by itself, this makes the whole as small as it can
be (Theorem 1). A value without any table row has m = 0 and is cached as such.

Its entry in the cache takes memory too, with table rows or without. The paper leaves that out; here
it is on the cached side of the inequality (`KEY_BYTES`). Without it every value that the table does
not have would be cached when it first comes, and these would crowd out the rest.

And `n` is a sample. Of values that all come equally seldom some come twice in a cycle by chance,
and of many such values these are many. Cached, they do not pay, and they crowd out rows that wait.
So `n` has to be above the break-even by its standard deviation, `sqrt(n)` of a Poisson count;
eviction, which goes by ten cycles, needs no such margin. Nor is learning free: where the notes of
values took more memory than what was learned gives back in eight cycles (`_PAYBACK`), fewer are
taken, of another quarter or sixteenth of the values each time, until that pays. The result of
`ssbj-rate` has the rate beside MESHJOIN's over the skew, and beside that with the best cache there
can be; `_PAYBACK` was chosen on it, so it is rather favourable.

The states, one cycle of the scan each:
1. incrementing: learn `m` and `n` of the values that pass through the disk phase;
2. switching: the values that the inequality favours are collected in the switching buffer while
   their pages pass;
3. phase-out: they are in the cache from the start of this cycle; rows that came before finish in
   the disk phase.
Every tenth cycle, values whose hits no longer pay for their memory are evicted.

What is done differently, and why. The paper counts `m` from when a value first waits, and may
switch a value whose pages passed before it came; "all or none of a value's rows" then fails. Here
`m` and `n` are taken when a packet leaves, after exactly one whole cycle: both are exact, and
n is the number of rows that came in one cycle. And a value that is admitted in the middle of a
ten-cycle period is credited with the hits that it would have had; else it would be evicted for
being new.

Theorem 3: at a high enough rate the inequality favours every value, the disk phase runs dry and
this is a main-memory join; a test shows it.

On failure: a restored operator goes on where it was, with its cache, its notes and its switching
buffer, as far as the budget has room for them. Else a scan longer than a step would never learn
anything where operators are restored in every step.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.probing import Rows, probe_run
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run
from dovetail.semistream.base import kept
from dovetail.semistream.cache.parts import KEY_BYTES
from dovetail.semistream.cache.values import KEYS, TABLE, Cache
from dovetail.semistream.scan.meshjoin import AMeshJoin
from dovetail.semistream.scan.packets import NO_COLUMNS, Packet
from dovetail.semistream.spec import SemiStreamSpec
from dovetail.semistream.table.reading import StagedTable

EVICTION_CYCLES = 10
INCREMENTING, SWITCHING, PHASE_OUT = 1, 2, 0
_LEAST_MISS_SHARE = 1 / 32
_NOTE_BYTES = 16  # what is remembered of a value that left the disk phase
_PARTS = 16  # of the values, by hash: all or some are noted in a cycle
_PAYBACK = 8  # times what was learned, a cycle: what its notes may take up
_FEW_NOTES = 1 << 10  # which may be taken in any case


class Ssbj(AMeshJoin):
    """Equality joins."""

    name: ClassVar[str] = "ssbj"
    joins_conditions: ClassVar[bool] = False
    counts_matches: ClassVar[bool] = True
    #: what a cached value costs in the inequality besides its table rows; the paper has 0
    key_bytes: ClassVar[int] = KEY_BYTES
    #: standard deviations by which a count has to be above the break-even; the paper has 0
    noise: ClassVar[float] = 1.0

    def __init__(
        self,
        spec: SemiStreamSpec,
        context: Context,
        table: StagedTable,
        snapshot: Snapshot | None = None,
        *,
        w: int | None = None,
        b: int | None = None,
        switching_factor: float = 1.0,
    ) -> None:
        total = context.budget.total_bytes
        limit = (1 << 62) if total is None else total * 5 // 8
        self.cache = Cache(spec.table, limit, Reservation(context.budget, "cache"))
        self.switching_factor = switching_factor
        self.cycle = INCREMENTING  #: counts cycles; modulo 3 it is the state
        self._notes: list[Run] = []  # values that left: codes, and m and n as the rows' numbers
        self._noted = Reservation(context.budget, "notes")
        self._watched = _PARTS  # how many of them are noted
        self._chosen: tuple[Codes, Rows, Rows] | None = None  # values being switched: code, m, n
        self._chosen_block: np.void | None = None
        self._buffer: list[Run] = []  # table rows of these values, in code order
        self._buffer_bytes = 0  # of the rows in it
        self._buffered = Reservation(context.budget, "switching buffer")
        self._miss_share = 1.0  # of the rows that came lately, those that were not cached
        super().__init__(spec, context, table, snapshot, w=w, b=b)

    @property
    def state(self) -> int:
        return self.cycle % 3

    @property
    def _stream_cost(self) -> float:
        """v_S: what a waiting row takes up."""
        return self._stream_row_bytes + INDEX_BYTES_PER_ROW

    def _window_bytes(self) -> int:
        total = self.ctx.budget.total_bytes
        if total is None:
            return 1 << 30
        fixed = self.working_bytes + self.table.nbytes + self.aside_bytes + self.cache.nbytes
        return max(1, (total - fixed) * 5 // 8)  # the rest: input batch and switching buffer

    # -- cache phase ------------------------------------------------------------------------

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        if not self.spec.ordered:
            came = len(run)
            run = yield from self._past(self.cache, run)
            self._miss_share += (len(run) / came - self._miss_share) / 4
        if len(run):
            yield from super()._take_in(run)

    def _slice_rows(self) -> int:
        """The number of rows of which the misses about fill the open packet."""
        room = (self.w - self._open_rows) / max(self._miss_share, _LEAST_MISS_SHARE)
        return max(1, int(room))

    # -- disk phase -------------------------------------------------------------------------

    def _dequeue(self, packet: Packet) -> Iterator[pa.RecordBatch]:
        yield from super()._dequeue(packet)
        if self.state == INCREMENTING and not self.spec.ordered:
            keys, index, n = np.unique(packet.run.codes, return_index=True, return_counts=True)
            watched = self._is_watched(keys)
            keys, index, n = keys[watched], index[watched], n[watched]
            if len(keys) and self._noted.try_grow(_NOTE_BYTES * len(keys)):
                self._notes.append(Run(keys, _packed(packet.counts[index], n), NO_COLUMNS))

    def _is_watched(self, keys: Codes) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which values are noted in this cycle; if not all, others in every cycle."""
        part = (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(60)
        turn = self.cycle // 3 * self._watched
        return np.asarray((part.astype(np.int64) + turn) % _PARTS < self._watched)

    def _scanned(self, stored: Codes, base: int) -> Iterator[pa.RecordBatch]:
        if self._chosen is not None:
            span = probe_run(stored, self._chosen[0], self._chosen[0])
            if span is not None:
                keys = self._chosen[0]
                for which, position in span.pairs(self._most_pairs()):
                    rows = self._fitting(base + position)
                    if rows is None:
                        self._choose_below(int(keys[which[0]]))
                        break
                    self._buffer.append(Run(keys[which], keys[which], rows))
                    self._buffer_bytes += rows.nbytes
        return iter(())

    def _fitting(self, positions: Rows) -> pa.RecordBatch | None:
        """Read table rows for the switching buffer; None if there is no room for them."""
        if self.table.uneven:  # else there are as many as fit working memory
            nbytes = int(self.table.row_sizes(positions).sum())
            if not self._buffer_fits(nbytes):
                return None
        rows = self.table.take(positions)
        return rows if self._buffer_fits(rows.nbytes) else None

    def _buffer_fits(self, nbytes: int) -> bool:
        """Whether there is room for so much too; the reservation is for rows of the mean size."""
        assert self._chosen is not None
        size = KEY_BYTES * len(self._chosen[0]) + self._buffer_bytes + nbytes
        if self.cache.nbytes + size > self.cache.limit:
            return False
        return self._buffered.try_grow(max(0, 2 * size - self._buffered.nbytes))

    def _choose_below(self, code: int) -> None:
        """Switch only the values below this one: they are collected already."""
        assert self._chosen is not None
        count = int(np.searchsorted(self._chosen[0], code))
        keys, m, n = self._chosen
        self._chosen, self._chosen_block = (keys[:count], m[:count], n[:count]), None
        ends = [int(np.searchsorted(run.codes, code)) for run in self._buffer]
        self._buffer = [
            run if end == len(run) else run.slice(0, end)
            for end, run in zip(ends, self._buffer, strict=True)
            if end
        ]

    def _new_cycle(self) -> Iterator[pa.RecordBatch]:
        self.cycle += 1
        if self.cycle % EVICTION_CYCLES == 0:
            self._evict()  # before values are switched, which have no hits yet
        if self.state == SWITCHING:
            self._choose()
        elif self.state == PHASE_OUT:
            self._switch()
        return iter(())

    def _choose(self) -> None:
        """Apply the inequality to the values that left the disk phase in the last cycle."""
        notes, self._notes = self._notes, []
        if notes:
            codes = np.concatenate([note.codes for note in notes])
            m, n = _unpacked(np.concatenate([note.ats for note in notes]))
            keys, index, inverse = np.unique(codes, return_index=True, return_inverse=True)
            m = m[index]
            n = np.bincount(inverse, weights=n).astype(np.int64)
            costs = m * self.table.row_bytes + self.key_bytes
            waiting = (n - self.noise * np.sqrt(n)) * self._stream_cost
            favoured = waiting > self.switching_factor * costs
            favoured &= ~self.cache.holds(keys)
            gain = float((waiting - costs)[favoured].sum())
            pays = len(codes) <= _FEW_NOTES or _NOTE_BYTES * len(codes) < _PAYBACK * gain
            self._watched = _PARTS if pays else max(1, self._watched // 4)
            keys, m, n, costs = keys[favoured], m[favoured], n[favoured], costs[favoured]
            sizes = 2 * (
                costs - self.key_bytes + KEY_BYTES
            )  # twice: while the buffer moves into the cache
            order = np.argsort(-n / (sizes + 1), kind="stable")
            fits = np.sort(order[np.cumsum(sizes[order]) <= self._room()])
            if len(fits):
                self._buffered.grow(int(sizes[fits].sum()))
                self._buffer_bytes = 0
                self._chosen, self._chosen_block = (keys[fits], m[fits], n[fits]), None
        self._noted.resize(0)

    def _room(self) -> int:
        """The bytes that the switching buffer may take."""
        total = self.ctx.budget.total_bytes
        if total is None:
            return 1 << 62
        free = total - self.ctx.budget.used_bytes
        return int(min(free // 2, 2 * (self.cache.limit - self.cache.nbytes)))

    def _switch(self) -> None:
        """Move the switching buffer into the cache."""
        if self._chosen is None:
            return
        keys, m, n = self._chosen
        codes = np.concatenate([run.codes for run in self._buffer] or [keys[:0]])
        batches = [run.rows for run in self._buffer]
        self._chosen, self._buffer = None, []
        counts = np.searchsorted(codes, keys, side="right") - np.searchsorted(codes, keys)
        assert (counts == m).all(), "a value's rows must be cached all at once"
        rows = pa.concat_batches(batches) if batches else self.table.take(keys[:0])
        self._buffered.resize(0)
        self.cache.admit(keys, counts, n * (self.cycle % EVICTION_CYCLES), rows)

    def _evict(self) -> None:
        """Let go of the values that take more memory in the cache than they would waiting."""
        keep = []
        for part in self.cache.parts:
            cached = np.diff(part.starts) * self.table.row_bytes + self.key_bytes
            waiting = part.hits / EVICTION_CYCLES * self._stream_cost
            keep.append(~(cached >= self.switching_factor * waiting))
            part.hits[:] = 0
        self.cache.evict(keep)

    # -- memory -----------------------------------------------------------------------------

    def _can_make_room(self) -> bool:
        more = self._chosen is not None or bool(self._notes) or bool(self.cache.parts)
        return more or super()._can_make_room()

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        """Rows that wait go first; what is only there to be fast gives way to input after that."""
        if self.pending():
            yield from super()._make_room()
        elif self._chosen is not None or self._notes:
            self._chosen, self._buffer, self._notes = None, [], []
            self._buffered.resize(0)
            self._noted.resize(0)
        else:
            self.cache.halve()

    # -- state ------------------------------------------------------------------------------

    def _more_blocks(self) -> list[np.void]:
        store = self.ctx.store
        blocks = self.cache.persist(store) + [kept(note, KEYS, store) for note in self._notes]
        if self._chosen is not None and len(self._chosen[0]):
            if self._chosen_block is None:
                keys, m, n = self._chosen
                self._chosen_block = kept(Run(keys, _packed(m, n), NO_COLUMNS), KEYS, store)
            blocks += [self._chosen_block, *(kept(run, TABLE, store) for run in self._buffer)]
        return blocks

    def _more_meta(self) -> dict[str, Any]:
        """After `_more_blocks`."""
        known = {"cycle": self.cycle, "watched": self._watched, "notes": len(self._notes)}
        return {**known, "cache": self.cache.meta()}

    def _restore(self, meta: dict[str, Any], blocks: Iterator[np.void]) -> None:
        super()._restore(meta, blocks)
        self.cycle, self._watched = int(meta["cycle"]), int(meta["watched"])
        count = sum(meta["cache"]["blocks"])
        self.cache.restore(meta["cache"], list(islice(blocks, count)), self.ctx.store)
        for block in islice(blocks, meta["notes"]):
            if self._noted.try_grow(_NOTE_BYTES * int(block["rows"])):
                self._notes.append(self.ctx.store.read(block))
        self._restore_chosen(list(blocks))

    def _restore_chosen(self, blocks: list[np.void]) -> None:
        """The values being switched and the switching buffer, if there is room for both."""
        size = 2 * sum(int(block["length"]) for block in blocks)
        if not blocks or size > self._room():
            return
        self._buffered.grow(size)
        chosen, *buffer = (self.ctx.store.read(block) for block in blocks)
        m, n = _unpacked(chosen.ats)
        expected = 2 * int((m * self.table.row_bytes + KEY_BYTES).sum())
        if not self._buffered.try_grow(max(0, expected - size)):
            self._buffered.resize(0)
            return
        self._chosen, self._chosen_block = (chosen.codes, m, n), blocks[0]
        self._buffer, self._buffer_bytes = buffer, sum(run.rows.nbytes for run in buffer)

    def check(self) -> None:
        super().check()
        self.cache.check()
        assert self._chosen is None or self.state == SWITCHING
        assert not self._notes or self.state == INCREMENTING
        assert not self._buffer or self._chosen is not None
        if self._chosen is not None:
            assert not self.cache.holds(self._chosen[0]).any()


def _packed(m: "np.ndarray[Any, np.dtype[Any]]", n: Rows) -> Rows:
    """A value's `m` and `n`, each below 2^31, in one number."""
    return (m.astype(np.int64) << 32) | n


def _unpacked(packed: Rows) -> tuple[Rows, Rows]:
    return packed >> 32, packed & 0xFFFFFFFF
