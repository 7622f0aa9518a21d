"""The packets of a scan: stream rows that came together, and what they have met so far.

A snapshot has the rows of a packet as one block, written once. What it has met changes with every
page, but the table and the packet are both sorted: between two snapshots the scan touches one range
of the packet's rows, and only that is written. So all of it is written about once in a scan.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import RESIDENT, BlockStore
from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run
from dovetail.semistream.base import kept
from dovetail.semistream.cache.values import KEYS
from dovetail.semistream.spec import STREAM
from dovetail.semistream.table.gathering import NOTHING

BYTES_PER_ROW = 5  # whether it has matched, and how often
_MOST_WRITTEN = 2  # times a packet's rows: what was met is written anew rather than in more pieces


def packet_bytes(run: Run, *, ordered: bool, ranges: bool) -> int:
    """The bytes of a packet; with `ranges` it has the codes that its rows look for."""
    row_bytes = INDEX_BYTES_PER_ROW + BYTES_PER_ROW + (8 if ordered else 0) + (16 if ranges else 0)
    return int(run.rows.nbytes) + row_bytes * len(run)


@dataclass
class Packet:
    """Rows that came together."""

    run: Run
    low: Codes  #: the codes that each row looks for: equal to the run's unless it is a band join
    high: Codes
    start: int  #: the first page that it meets
    seen: int  #: how many pages it has met
    matched: NDArray[np.bool_]
    counts: NDArray[np.int32]  #: candidates so far, of each row
    first: Rows | None = None  #: with `ordered`: where each row's candidates begin, -1 for none yet
    kept: list[tuple[int, np.void]] = field(default_factory=list)  #: blocks, and their first rows
    fresh: tuple[int, int] | None = None  #: the rows that have met candidates since

    @property
    def nbytes(self) -> int:
        ordered, ranges = self.first is not None, self.low is not self.run.codes
        return packet_bytes(self.run, ordered=ordered, ranges=ranges)

    def meet(self, rows: Rows, low: Rows, high: Rows) -> None:
        """Note that rows, in order, have candidates from `low` up to `high`."""
        self.counts[rows] += (high - low).astype(np.int32)
        if self.first is not None:
            # the scan may have begun in the middle of a row's candidates: then they come last
            seen = self.first[rows]
            self.first[rows] = np.where(seen < 0, low, np.minimum(seen, low))
        start, stop = self.fresh or (len(self.run), 0)
        self.fresh = min(start, int(rows[0])), max(stop, int(rows[-1]) + 1)

    # -- state ------------------------------------------------------------------------------

    def persist(self, store: BlockStore, *, counts: bool) -> list[np.void]:
        """The blocks that hold it; with or without what its rows have met."""
        run = kept(self.run, STREAM, store)
        if counts and self.fresh is not None:
            start, stop = self.fresh
            written = sum(int(block["rows"]) for _, block in self.kept)
            if written + stop - start > _MOST_WRITTEN * len(self.run):
                start, stop, self.kept = 0, len(self.run), []
            count = self.counts[start:stop].astype(np.int64)
            first = count if self.first is None else self.first[start:stop]
            self.kept.append((start, store.append(Run(first, count, NOTHING), KEYS, RESIDENT)))
            self.fresh = None
        return [run, *(block for _, block in self.kept)]

    def recall(self, starts: list[int], blocks: Iterator[np.void], store: BlockStore) -> None:
        """Restore the candidates of a packet from the blocks that `persist` wrote."""
        for start in starts:
            block = next(blocks)
            met = store.read(block)
            self.counts[start : start + len(met)] = met.ats
            if self.first is not None:
                self.first[start : start + len(met)] = met.codes
            self.kept.append((start, block))

    def facts(self) -> dict[str, Any]:
        return {"start": self.start, "seen": self.seen, "kept": [start for start, _ in self.kept]}
