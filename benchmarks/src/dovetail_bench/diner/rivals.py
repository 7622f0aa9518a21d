"""Joins that take part in the figures beside the library's own: rivals taken at the papers' word.

The library's RPJ and HMJ are given what their papers do not have, so that they are no strawmen; the
figures also have them without it.

`rpj-history`: the probabilities of arrival are of all rows so far. The library's ages them
(`rpj.AGEING`), so that they follow an input that changes; the DINER paper does not tell that RPJ
does.

`rpj-paper`, `hmj-paper`: deferred work is looked up from after a whole task only, which is a pass
over the disk part of a cell or the join of two disk parts (RPJ), or a merge of F segments (HMJ);
section 2 of the DINER paper. If any row waits then, it is left. MaxNewArr is DINER's.

`diner-9` and so on: DINER with another MaxOuterMem.
"""

from collections.abc import Iterator
from itertools import chain
from typing import ClassVar

import pyarrow as pa

from dovetail.twoway import ALGORITHMS, Diner, HashMergeJoin, RateBasedJoin, TwoWayJoin
from dovetail.twoway.rivals.rpj import DISK

OUTER_BLOCKS = 19  #: the paper's MaxOuterMem, of the 200 blocks that its memory holds
OTHER_OUTER_BLOCKS = (9, 29, 39, 49, 59)
HISTORY = "rpj-history"
WHOLE_TASKS = ("rpj-paper", "hmj-paper")

Pieces = Iterator[tuple[str, Iterator[pa.RecordBatch]]]


class RateByHistoryJoin(RateBasedJoin):
    """RPJ whose estimate is of all rows that have come."""

    name: ClassVar[str] = HISTORY

    def _estimate(self) -> None:
        self.arrivals = self.recent / max(1, int(self.recent.sum()))


class RateByTaskJoin(RateBasedJoin):
    """RPJ that leaves a task at its end only."""

    name: ClassVar[str] = "rpj-paper"

    def _deferred(self) -> Pieces:
        if self.cleanup.at is not None:
            yield self._whole()
        while tasks := self._tasks():
            part, side = tasks[0]
            if side == DISK:
                self._wanted = part
                yield self._whole()
            else:
                yield "reactive", self._pass(part, side)

    def _whole(self) -> tuple[str, Iterator[pa.RecordBatch]]:
        """The disk parts of a cell that are to meet, or are about to, do so to the end."""
        phase = "cleanup" if all(self.ended) else "reactive"
        return phase, chain.from_iterable(work for _, work in self._join_disk())

    def _pass(self, part: int, side: int) -> Iterator[pa.RecordBatch]:
        while (index := self.cells[part].next_reactive(side)) is not None:
            yield from self._meet(part, side, index)


class HashByMergeJoin(HashMergeJoin):
    """HMJ that leaves a merge at its end only."""

    name: ClassVar[str] = "hmj-paper"

    def _deferred(self) -> Pieces:
        if all(self.ended):
            yield from super()._deferred()
            return
        while self.merger.merge is not None or self.merger.unjoined:
            if self.merger.merge is None:
                self.merger.begin(self._next_part())
            yield "reactive", chain.from_iterable(self.merger.steps())


def _with_outer(blocks: int) -> type[Diner]:
    name = f"{Diner.name}-{blocks}"
    what = f"DINER with a MaxOuterMem of {blocks} blocks."
    return type(name, (Diner,), {"name": name, "outer_blocks": blocks, "__doc__": what})


OTHER_DINERS = tuple(_with_outer(blocks) for blocks in OTHER_OUTER_BLOCKS)
_BESIDES: tuple[type[TwoWayJoin], ...] = (
    RateByHistoryJoin, RateByTaskJoin, HashByMergeJoin, *OTHER_DINERS,
)  # fmt: skip
JOINS = {**ALGORITHMS, **{kind.name: kind for kind in _BESIDES}}
