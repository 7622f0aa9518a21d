"""The page pool of INL: the leaves used last, in the lots in which they were read.

A leaf counts for what its rows and codes take, and for objects as if it had its own (`held`). It
goes alone, the one first whose last use is longest ago. Its memory does not: that is its lot's. So
a lot that has lost leaves is rewritten without them as soon as all lots together take more than the
leaves count for. That way the room for objects, which lots of many leaves hardly need, is what
lots may have in gaps. Lots that have become small are put together.

A rewrite copies no more leaves than fit into `lot_bytes`, or one lot; that is working memory.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.memory import Budget, Reservation
from dovetail.kernel.probing import Rows
from dovetail.semistream.inl.leaves import Lot
from dovetail.semistream.table.gathering import gathered, positions_of

OBJECT_BYTES = 2 << 10  #: of a leaf, besides its buffers
_MOST_LOTS = 64  # each is searched by itself
_ENTRY = np.dtype([(name, np.int64) for name in ("leaf", "stamp", "lot", "size")])


class Pool:
    """Leaves inside a share of a budget. Rows that come together `begin`, then use leaves."""

    def __init__(self, budget: Budget, most_bytes: int, lot_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._lot_bytes = lot_bytes
        self._budget = budget
        self._held = Reservation(budget, "page pool")
        self._lots: dict[int, Lot] = {}
        self._entries = np.zeros(0, dtype=_ENTRY)  # a leaf each, in their order
        self._stamp = 0  # of the next use
        self._begun = 0  # the first stamp of the rows at hand
        self._next = 0  # the number of the next lot

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self) -> None:
        """Begin a use: leaves used from now on stay, and earlier ones may be evicted."""
        self._begun = self._stamp

    def use(self, leaves: Rows) -> NDArray[np.bool_]:
        """Which of these leaves are here; those have been used now, in this order."""
        if not len(self):
            return np.zeros(len(leaves), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self._entries["leaf"], leaves), len(self) - 1)
        found = self._entries["leaf"][at] == leaves
        self._entries["stamp"][at[found]] = self._stamps(int(found.sum()))
        return np.asarray(found)

    def lots_of(self, leaves: Rows) -> Iterator[tuple[Lot, Rows]]:
        """The lots of leaves that are here, and which of the leaves each has."""
        lots = self._entries["lot"][np.searchsorted(self._entries["leaf"], leaves)]
        for number in np.unique(lots).tolist():
            yield self._lots[number], leaves[lots == number]

    def room_for(self, count: int, leaf_bytes: int) -> int:
        """Reserve for leaves of about this size: for all, or for as many as there can be room for.

        Others go for them, unless the rows at hand have used them.
        """
        each = leaf_bytes + OBJECT_BYTES
        free = self._free()
        unused = np.flatnonzero(self._entries["stamp"] < self._begun)
        unused = unused[np.argsort(self._entries["stamp"][unused])]
        gains = np.cumsum(self._entries["size"][unused] + OBJECT_BYTES)
        most = free + (int(gains[-1]) if len(gains) else 0)
        count = max(0, min(count, most // each))
        if count and count * each > free:
            self._forget(unused[: np.searchsorted(gains, count * each - free) + 1])
        self._held.grow(count * each)
        return count

    def add(self, lot: Lot, count: int, leaf_bytes: int) -> None:
        """Leaves that are not here yet, for so many of which there was room of that size.

        Those that find none, since they are larger, are not kept.
        """
        self._held.shrink(count * (leaf_bytes + OBJECT_BYTES))
        costs = np.cumsum(lot.sizes[:count] + OBJECT_BYTES)
        kept = int(np.searchsorted(costs, self._free(), side="right"))
        if not kept:
            return
        self._held.grow(int(costs[kept - 1]))
        fresh = np.empty(kept, dtype=_ENTRY)
        fresh["leaf"], fresh["size"] = lot.leaves[:kept], lot.sizes[:kept]
        fresh["stamp"], fresh["lot"] = self._stamps(kept), self._enter(lot)
        entries = np.concatenate([self._entries, fresh])
        self._entries = entries[np.argsort(entries["leaf"], kind="stable")]
        self._tidy()

    def forget_oldest(self) -> None:
        self._forget(np.array([np.argmin(self._entries["stamp"])]))

    def check(self) -> None:
        entries = self._entries
        assert self._held.nbytes == entries["size"].sum() + OBJECT_BYTES * len(self)
        assert (np.diff(entries["leaf"]) > 0).all()
        assert len(np.unique(entries["stamp"])) == len(self)
        assert set(self._lots) == set(entries["lot"].tolist())
        assert sum(lot.nbytes for lot in self._lots.values()) <= self._held.nbytes
        for number, lot in self._lots.items():
            mine = entries[entries["lot"] == number]
            at = np.searchsorted(lot.leaves, mine["leaf"])
            assert (lot.leaves[at] == mine["leaf"]).all()
            assert (lot.sizes[at] == mine["size"]).all()
            assert lot.starts[-1] == len(lot.codes) == lot.rows.num_rows
            assert (lot.codes[1:] >= lot.codes[:-1]).all()

    def _free(self) -> int:
        free = self.most_bytes - self._held.nbytes
        total = self._budget.total_bytes
        return free if total is None else min(free, total - self._budget.used_bytes)

    def _stamps(self, count: int) -> Rows:
        self._stamp += count
        return np.arange(self._stamp - count, self._stamp)

    def _enter(self, lot: Lot) -> int:
        self._next += 1
        self._lots[self._next] = lot
        return self._next

    def _forget(self, places: Rows) -> None:
        self._held.shrink(int(self._entries["size"][places].sum()) + OBJECT_BYTES * len(places))
        self._entries = np.delete(self._entries, places)
        self._tidy()

    # -- lots -------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Let gaps take no more than they may, and lots not be too many."""
        left = set(self._entries["lot"].tolist())
        self._lots = {number: lot for number, lot in self._lots.items() if number in left}
        while len(untidy := self._untidy()):
            self._rewrite(untidy)

    def _untidy(self) -> Rows:
        """The lots to put together next, if it is only one; none if all is well."""
        numbers, whose = np.unique(self._entries["lot"], return_inverse=True)
        lots = [self._lots[number] for number in numbers.tolist()]
        live = np.bincount(whose, self._entries["size"], len(lots)).astype(np.int64)
        gaps = np.array([lot.sizes.sum() for lot in lots], dtype=np.int64) - live
        taken = sum(lot.nbytes + OBJECT_BYTES for lot in lots)
        order = numbers[:0]
        if taken > self._held.nbytes and gaps.any():
            order = np.argsort(-gaps)[: np.count_nonzero(gaps)]
        elif len(lots) > _MOST_LOTS:
            order = np.argsort(live)
        fitting = int(np.searchsorted(np.cumsum(live[order]), self._lot_bytes, side="right"))
        chosen = order[: max(1, fitting)]
        if len(chosen) < 2 and not gaps[chosen].any():
            return numbers[:0]
        return np.asarray(numbers[chosen])

    def _rewrite(self, numbers: Rows) -> None:
        """Put what is left of some lots into one."""
        lots = [self._lots.pop(number) for number in numbers.tolist()]
        moved = np.flatnonzero(np.isin(self._entries["lot"], numbers))
        entries = self._entries[moved]
        whose = np.argmax(entries["lot"][:, None] == numbers, axis=1)
        begins, ends = np.empty_like(whose), np.empty_like(whose)
        for place, lot in enumerate(lots):
            mine = whose == place
            at = np.searchsorted(lot.leaves, entries["leaf"][mine])
            begins[mine], ends[mine] = lot.starts[at], lot.starts[at + 1]
        counts = ends - begins
        positions, numbered = positions_of(begins, counts), np.repeat(whose, counts)
        codes = np.empty(len(positions), dtype=np.int64)
        for place, lot in enumerate(lots):
            mine = numbered == place
            codes[mine] = lot.codes[positions[mine]]
        rows = gathered(
            positions, numbered, lots[0].rows.schema,
            lambda place, at: lots[place].rows.take(pa.array(at)),
        )  # fmt: skip
        lot = Lot.of(entries["leaf"].copy(), counts, codes, rows, entries["size"].copy())
        self._entries["lot"][moved] = self._enter(lot)
