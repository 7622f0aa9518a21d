"""MJoin: a multi-way symmetric hash join, the rival of MINER.

Source: Viglas, Naughton and Burger's MJoin, as sections 2 and 5.5 of the DINER paper describe it. A
row that comes is stored in the hash table of its input and used to probe all others, the most
selective first (`probing`). When memory is exhausted, the *coordinated flushing policy* applies:
the largest hash bucket is picked, as in XJoin, and its rows of every input are flushed.

That works for joins of all inputs on one attribute. For the rest there is the naive extension: rows
are evicted at random. The relation is drawn by its share of the rows in memory, and of it a block
of random rows goes, so that every row in memory is as likely to go as any other.

What the paper leaves open is decided in MJoin's favour: the work on disk is MINER's own, with all
that goes beyond the paper, and buckets never meet other buckets. A bucket is large when its rows
of all inputs together are many. Buckets are as many as the paper's XJoin has partitions for such a
budget, so that a flush gives up no more memory than it must. Bands have no hash; they are evicted
at random.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes, spread
from dovetail.kernel.protocol import Snapshot
from dovetail.multiway.base import MultiWayJoin
from dovetail.multiway.blockjoins import MinerOptions

_FEWEST_BUCKETS, _MOST_BUCKETS = 4, 32
_BUDGET_OF_A_BUCKET = 128 << 10


class MJoin(MultiWayJoin):
    """A multi-way hash join with coordinated flushing, or random eviction where that cannot be."""

    name: ClassVar[str] = "mjoin"
    default_options: ClassVar[MinerOptions] = MinerOptions(keep_copies=False)
    buckets: ClassVar[int | None] = None  #: a power of two; None: by the budget

    @property
    def coordinated(self) -> bool:
        """Whether buckets are flushed, rather than rows at random."""
        return self.spec.joins_one_attribute

    def _cell_count(self, snapshot: Snapshot | None) -> int:
        if not self.coordinated:
            return 1
        if snapshot is not None:
            return len(list(snapshot.meta["cells"]))
        if self.buckets is not None:
            return self.buckets
        total = self.ctx.budget.total_bytes
        if total is None:
            return _MOST_BUCKETS
        wanted = 1 << max(1, total // _BUDGET_OF_A_BUCKET).bit_length()
        return max(_FEWEST_BUCKETS, min(wanted, _MOST_BUCKETS))

    def _cell_of(self, codes: Codes) -> NDArray[np.int64] | None:
        if len(self.cells) == 1:
            return None
        bits = len(self.cells).bit_length() - 1
        return np.asarray((spread(codes) >> np.int64(64 - bits)) + len(self.cells) // 2)

    def _make_room(self, wanted: int = 0) -> bool:
        if self._drop_copies():
            return True
        if not any(map(len, self.tables)):
            return False
        if self.coordinated:
            self._flush_bucket()
        else:
            self._evict_at_random()
        return True

    def _flush_bucket(self) -> None:
        """Flush the rows of the largest bucket, of every input."""
        counts = np.zeros(len(self.cells), dtype=np.int64)
        for relation in range(len(self.spec)):
            counts += np.bincount(self._numbers(relation), minlength=len(self.cells))
        bucket = int(counts.argmax())
        for relation in range(len(self.spec)):
            slots = np.flatnonzero(self._numbers(relation) == bucket)  # a flush may make more room
            if len(slots):
                order = np.argsort(self.tables[relation].codes[0].take(slots), kind="stable")
                self._flush(self.cells[bucket], relation, slots[order])

    def _numbers(self, relation: int) -> NDArray[np.int64]:
        found = self._cell_of(self.tables[relation].codes[0])
        assert found is not None
        return found

    def _evict_at_random(self) -> None:
        rows = np.array([len(table) for table in self.tables])
        victim = int(self.ctx.rng.choice(len(rows), p=rows / rows.sum()))
        count = min(self._rows_of(victim, self.block_bytes), int(rows[victim]))
        slots = self.ctx.rng.choice(int(rows[victim]), size=count, replace=False)
        order = np.argsort(self.tables[victim].codes[0].take(slots), kind="stable")
        self._flush(self.cells[0], victim, slots[order])

    def _facts(self) -> dict[str, Any]:
        return {"coordinated": self.coordinated}
