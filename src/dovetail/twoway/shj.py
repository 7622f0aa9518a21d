"""Symmetric hash join (SHJ), as sections 1 and 2 of the DINER paper describe it.

Both relations stay in memory; each arriving row is joined with the other side's rows and stored.
There is no second phase and nothing is deferred. When the budget is used up the join stops with
an error that names the algorithms that spill: what it has emitted so far is right, and its last
snapshot can be carried on with more memory.

The index here is sorted rather than hashed, so a band join is the same probe with a wider range.
"""

from typing import ClassVar, NoReturn

import numpy as np

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.memory import format_bytes
from dovetail.kernel.protocol import Snapshot
from dovetail.kernel.shell import Pieces, quietly
from dovetail.twoway.base import TwoWayJoin


class SymmetricHashJoin(TwoWayJoin):
    """Equality and band joins of relations that fit in memory."""

    name: ClassVar[str] = "shj"
    joins_bands: ClassVar[bool] = True

    def _deferred(self) -> Pieces:
        return iter(())

    def pending(self) -> int:
        return 0

    def snapshot(self) -> Snapshot:
        blocks = self._persist_memory()
        meta = {"tick": self.ctx.clock.now, "widest": self.wide.widest}
        return Snapshot(meta, np.array(blocks, dtype=BLOCK))

    def _restore(self, snapshot: Snapshot) -> None:
        self.ctx.clock.now = snapshot.meta["tick"]
        for block in snapshot.blocks:
            self.memory[int(block["side"])].runs.append(self.ctx.store.read(block))
        quietly(self._settle_rows())

    def _make_room(self, wanted: int = 0) -> bool:
        return False

    def _refuse(self, nbytes: int, what: str) -> NoReturn:
        budget = self.ctx.budget
        raise MemoryBudgetError(
            f"algorithm 'shj' keeps every row in memory and this partition's share of the budget "
            f"({format_bytes(budget.total_bytes or 0)}) is used up: "
            f"{format_bytes(budget.used_bytes)} are held and {what} of {format_bytes(nbytes)} "
            "came. Raise memory=, or choose an algorithm that spills to disk: "
            "algorithm='xjoin' (equality joins) or 'diner' (bands too)."
        )
