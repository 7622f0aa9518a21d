"""The phases of SSBJ, one cycle of the scan each: values are learned, collected, and cached.

`ssbj` says what is done in each of them and why, and leads from one to the next.
"""

from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Budget, Reservation
from dovetail.kernel.probing import Rows, probe_run
from dovetail.kernel.runs import Run
from dovetail.semistream.base import kept
from dovetail.semistream.cache.parts import KEY_BYTES
from dovetail.semistream.cache.values import KEYS, TABLE, Cache
from dovetail.semistream.table.gathering import NOTHING
from dovetail.semistream.table.reading import StagedTable

NOTE_BYTES = 16  #: what is remembered of a value that left the disk phase
_NONE: Rows = np.zeros(0, dtype=np.int64)


class Phase:
    """One cycle of the scan, and the memory that is there to be fast and may be given up."""

    component: ClassVar[str] = "notes"  #: of the budget

    def __init__(self, budget: Budget) -> None:
        self.held = Reservation(budget, self.component)

    def give_up(self) -> None:
        """Forget what was learned."""
        self.held.resize(0)

    def persist(self, _store: BlockStore) -> list[np.void]:
        """The blocks of what was learned."""
        return []


class Incrementing(Phase):
    """The `m` and `n` of values are noted as they leave the disk phase."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self.notes: list[Run] = []  #: codes, and m and n as the rows' numbers

    def note(self, keys: Codes, m: NDArray[np.int32], n: Rows) -> None:
        """Note values of one packet, each once and in order, if there is room for them."""
        if len(keys) and self.held.try_grow(NOTE_BYTES * len(keys)):
            self.notes.append(Run(keys, _packed(m, n), NOTHING))

    def learned(self) -> tuple[Codes, Rows, Rows]:
        """The values with their m and n, each once and in order."""
        codes = np.concatenate([note.codes for note in self.notes] or [_NONE])
        m, n = _unpacked(np.concatenate([note.ats for note in self.notes] or [_NONE]))
        keys, index, inverse = np.unique(codes, return_index=True, return_inverse=True)
        return keys, m[index], np.bincount(inverse, weights=n).astype(np.int64)

    def give_up(self) -> None:
        super().give_up()
        self.notes = []

    def persist(self, store: BlockStore) -> list[np.void]:
        return [kept(note, KEYS, store) for note in self.notes]

    def restore(self, blocks: list[np.void], store: BlockStore) -> None:
        """The notes for which there is room."""
        for block in blocks:
            if self.held.try_grow(NOTE_BYTES * int(block["rows"])):
                self.notes.append(store.read(block))


class Switching(Phase):
    """The rows of chosen values are collected in the switching buffer while their pages pass."""

    component: ClassVar[str] = "switching buffer"

    def __init__(self, budget: Budget, cache: Cache, table: StagedTable) -> None:
        super().__init__(budget)
        self._cache = cache
        self._table = table
        self._choose(_NONE, _NONE, _NONE)

    def _choose(self, keys: Codes, m: Rows, n: Rows, block: np.void | None = None) -> None:
        self.keys, self.m, self.n = keys, m, n
        self._block = block
        self.rows: list[Run] = []  #: table rows of these values, in code order
        self._rows_bytes = 0

    def choose(self, keys: Codes, m: Rows, n: Rows, nbytes: int) -> None:
        """Begin with these values, whose rows are expected to take so many bytes."""
        self.held.grow(nbytes)
        self._choose(keys, m, n)

    def collect(self, stored: Codes, base: int, most_pairs: int) -> None:
        """Take the rows of the pages just read, the first of which is at position `base`."""
        span = probe_run(stored, self.keys, self.keys)
        if span is None:
            return
        keys = self.keys
        for which, position in span.pairs(most_pairs):
            rows = self._fitting(base + position)
            if rows is None:
                self._keep_below(int(keys[which[0]]))
                break
            self.rows.append(Run(keys[which], keys[which], rows))
            self._rows_bytes += rows.nbytes

    def _fitting(self, positions: Rows) -> pa.RecordBatch | None:
        """Read table rows for the switching buffer; None if there is no room for them."""
        if self._table.uneven:  # else there are as many as fit working memory
            nbytes = int(self._table.row_sizes(positions).sum())
            if not self._fits(nbytes):
                return None
        rows = self._table.take(positions)
        return rows if self._fits(rows.nbytes) else None

    def _fits(self, nbytes: int) -> bool:
        """Whether there is room for so much too; the reservation is for rows of the mean size."""
        size = KEY_BYTES * len(self.keys) + self._rows_bytes + nbytes
        if self._cache.nbytes + size > self._cache.limit:
            return False
        return self.held.try_grow(max(0, 2 * size - self.held.nbytes))

    def _keep_below(self, code: int) -> None:
        """Switch only the values below this one: they are collected already."""
        count, self._block = int(np.searchsorted(self.keys, code)), None
        self.keys, self.m, self.n = self.keys[:count], self.m[:count], self.n[:count]
        ends = [int(np.searchsorted(run.codes, code)) for run in self.rows]
        self.rows = [
            run if end == len(run) else run.slice(0, end)
            for end, run in zip(ends, self.rows, strict=True)
            if end
        ]

    def switch(self, cycles: int) -> None:
        """Move the switching buffer into the cache, with the hits of so many cycles."""
        keys, m, hits = self.keys, self.m, self.n * cycles
        codes = np.concatenate([run.codes for run in self.rows] or [_NONE])
        counts = np.searchsorted(codes, keys, side="right") - np.searchsorted(codes, keys)
        assert (counts == m).all(), "a value's rows must be cached all at once"
        batches = [run.rows for run in self.rows]
        rows = pa.concat_batches(batches) if batches else self._table.take(_NONE)
        self.give_up()
        self._cache.admit(keys, counts, hits, rows)

    def give_up(self) -> None:
        super().give_up()
        self._choose(_NONE, _NONE, _NONE)

    def persist(self, store: BlockStore) -> list[np.void]:
        if not len(self.keys):
            return []
        if self._block is None:
            self._block = kept(Run(self.keys, _packed(self.m, self.n), NOTHING), KEYS, store)
        return [self._block, *(kept(run, TABLE, store) for run in self.rows)]

    def restore(self, blocks: list[np.void], store: BlockStore, room: int) -> None:
        """The values being switched and the switching buffer, if there is room for both."""
        size = 2 * sum(int(block["length"]) for block in blocks)
        if not blocks or size > room:
            return
        self.held.grow(size)
        chosen, *rows = (store.read(block) for block in blocks)
        m, n = _unpacked(chosen.ats)
        expected = 2 * int((m * self._table.row_bytes + KEY_BYTES).sum())
        if not self.held.try_grow(max(0, expected - size)):
            self.held.resize(0)
            return
        self._choose(chosen.codes, m, n, blocks[0])
        self.rows, self._rows_bytes = rows, sum(run.rows.nbytes for run in rows)


class PhaseOut(Phase):
    """Rows that came before the last switch finish in the disk phase."""


def _packed(m: NDArray[np.integer], n: Rows) -> Rows:
    """A value's `m` and `n`, each below 2^31, in one number."""
    return (m.astype(np.int64) << 32) | n


def _unpacked(packed: Rows) -> tuple[Rows, Rows]:
    return packed >> 32, packed & 0xFFFFFFFF
