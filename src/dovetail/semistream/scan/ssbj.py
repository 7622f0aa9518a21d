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

The phases, one cycle of the scan each (`phases`):
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

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run
from dovetail.semistream.cache.parts import KEY_BYTES
from dovetail.semistream.cache.values import Cache
from dovetail.semistream.scan.meshjoin import AMeshJoin
from dovetail.semistream.scan.packets import Packet
from dovetail.semistream.scan.phases import NOTE_BYTES, Incrementing, Phase, PhaseOut, Switching
from dovetail.semistream.spec import SemiStreamSpec
from dovetail.semistream.table.reading import StagedTable

EVICTION_CYCLES = 10
_LEAST_MISS_SHARE = 1 / 32
_PARTS = 16  # of the values, by hash: all or some are noted in a cycle
_PAYBACK = 8  # times what was learned, a cycle: what its notes may take up
_FEW_NOTES = 1 << 10  # which may be taken in any case


class Ssbj(AMeshJoin):
    """Equality joins."""

    name: ClassVar[str] = "ssbj"
    joins_conditions: ClassVar[bool] = False
    counts_matches: ClassVar[bool] = True
    window_share: ClassVar[float] = 5 / 8  #: the rest is for input and the switching buffer
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
        self.cycle = 1
        self.phase: Phase = Incrementing(context.budget)
        self._watched = _PARTS  # how many parts of the values are noted
        self._miss_share = 1.0  # of the rows that came lately, those that were not cached
        super().__init__(spec, context, table, snapshot, w=w, b=b)

    @property
    def _stream_cost(self) -> float:
        """v_S: what a waiting row takes up."""
        return self._stream_row_bytes + INDEX_BYTES_PER_ROW

    def _fixed_bytes(self) -> int:
        return super()._fixed_bytes() + self.cache.nbytes

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
        if isinstance(self.phase, Incrementing) and not self.spec.ordered:
            keys, index, n = np.unique(packet.run.codes, return_index=True, return_counts=True)
            watched = self._is_watched(keys)
            self.phase.note(keys[watched], packet.counts[index[watched]], n[watched])

    def _is_watched(self, keys: Codes) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which values are noted in this cycle; if not all, others in every cycle."""
        part = (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(60)
        turn = self.cycle // 3 * self._watched
        return np.asarray((part.astype(np.int64) + turn) % _PARTS < self._watched)

    def _scanned(self, stored: Codes, base: int) -> None:
        if isinstance(self.phase, Switching):
            self.phase.collect(stored, base, self._most_pairs())

    def _new_cycle(self) -> None:
        """Lead from one phase to the next."""
        self.cycle += 1
        if self.cycle % EVICTION_CYCLES == 0:
            self._evict()  # before values are switched, which have no hits yet
        done, self.phase = self.phase, self._phase_of(self.cycle)
        if isinstance(done, Incrementing) and isinstance(self.phase, Switching):
            self._choose(done, self.phase)
        elif isinstance(done, Switching):
            done.switch(self.cycle % EVICTION_CYCLES)
        done.give_up()

    def _phase_of(self, cycle: int) -> Phase:
        """The phase of a cycle, as it begins."""
        if cycle % 3 == 1:
            return Incrementing(self.ctx.budget)
        if cycle % 3 == 2:
            return Switching(self.ctx.budget, self.cache, self.table)
        return PhaseOut(self.ctx.budget)

    def _choose(self, done: Incrementing, switching: Switching) -> None:
        """Apply the inequality to the values that left the disk phase in the last cycle."""
        if not done.notes:
            return
        keys, m, n = done.learned()
        costs = m * self.table.row_bytes + self.key_bytes
        waiting = (n - self.noise * np.sqrt(n)) * self._stream_cost
        favoured = waiting > self.switching_factor * costs
        favoured &= ~self.cache.holds(keys)
        gain = float((waiting - costs)[favoured].sum())
        noted = sum(map(len, done.notes))
        pays = noted <= _FEW_NOTES or NOTE_BYTES * noted < _PAYBACK * gain
        self._watched = _PARTS if pays else max(1, self._watched // 4)
        keys, m, n, costs = keys[favoured], m[favoured], n[favoured], costs[favoured]
        # twice: while the buffer moves into the cache
        sizes = 2 * (costs - self.key_bytes + KEY_BYTES)
        order = np.argsort(-n / (sizes + 1), kind="stable")
        fits = np.sort(order[np.cumsum(sizes[order]) <= self._room()])
        if len(fits):
            switching.choose(keys[fits], m[fits], n[fits], int(sizes[fits].sum()))

    def _room(self) -> int:
        """The bytes that the switching buffer may take."""
        total = self.ctx.budget.total_bytes
        if total is None:
            return 1 << 62
        free = total - self.ctx.budget.used_bytes
        return int(min(free // 2, 2 * (self.cache.limit - self.cache.nbytes)))

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
        return bool(self.phase.held.nbytes or self.cache.parts) or super()._can_make_room()

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        """Rows that wait go first; what is only there to be fast gives way to input after that."""
        if self.pending():
            yield from super()._make_room()
        elif self.phase.held.nbytes:
            self.phase.give_up()
        else:
            self.cache.halve()

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        scan, store = super().snapshot(), self.ctx.store
        blocks = [*self.cache.persist(store), *self.phase.persist(store)]
        notes = len(self.phase.notes) if isinstance(self.phase, Incrementing) else 0
        known = {"cycle": self.cycle, "watched": self._watched, "notes": notes}
        meta = {**scan.meta, **known, "cache": self.cache.meta()}
        return Snapshot(meta, np.concatenate([scan.blocks, np.array(blocks, dtype=BLOCK)]))

    def _restore(self, meta: dict[str, Any], blocks: Iterator[np.void]) -> None:
        super()._restore(meta, blocks)
        self.cycle, self._watched = int(meta["cycle"]), int(meta["watched"])
        count = sum(meta["cache"]["blocks"])
        self.cache.restore(meta["cache"], list(islice(blocks, count)), self.ctx.store)
        self.phase = self._phase_of(self.cycle)
        if isinstance(self.phase, Incrementing):
            self.phase.restore(list(blocks), self.ctx.store)
        elif isinstance(self.phase, Switching):
            self.phase.restore(list(blocks), self.ctx.store, self._room())

    def check(self) -> None:
        super().check()
        self.cache.check()
        assert type(self.phase) is type(self._phase_of(self.cycle))
        if isinstance(self.phase, Switching):
            assert not self.cache.holds(self.phase.keys).any()
