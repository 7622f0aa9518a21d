"""A cache of table rows by join value.

A value is cached whole, with all of its table rows, or not at all; a value that the table does not
have is cached as having none. The cache is a list of parts, each sorted by code: a part is added
when values come in, filtered when values go, and small parts are merged.

Which values. Seek keeps those with the most hits for a byte (`consider`): that is what settles the
most rows without a read, and the greedy choice is the best one but for the last value that does
not quite fit. SSBJ decides by its own inequality, and only uses `admit` and `evict`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.blocks import RESIDENT, BlockStore
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.runs import Rows, Run, Span
from dovetail.semistream.table import StagedTable, take_rows

KEY_BYTES = 40  # of a cached value: code, start, hits, and room for merging
TABLE, KEYS = 1, 2  #: the block store's second and third schema
KEYS_SCHEMA = pa.schema([])
_MOST_PARTS = 6
_STICKINESS = 2.0  # a cached value gives way only to one that is this much better
_NONE: Rows = np.zeros(0, dtype=np.int64)


@dataclass
class Part:
    """Some of the cached values, by code."""

    keys: Codes  #: each once
    starts: Rows  #: where a value's rows begin; one more than there are keys
    hits: Rows  #: stream rows that each value has settled, recent ones counting more
    rows: pa.RecordBatch
    blocks: list[np.void] | None = None

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes) + KEY_BYTES * len(self.keys)

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        return take_rows(self.rows, positions, columns)

    def only(self, keep: NDArray[np.bool_]) -> "Part":
        counts = np.diff(self.starts)
        rows = self.rows.filter(pa.array(np.repeat(keep, counts)))
        return Part(self.keys[keep], _starts(counts[keep]), self.hits[keep], rows)


class Cache:
    """The cached values, never more than `limit` bytes of them."""

    def __init__(self, schema: pa.Schema, limit: int, held: Reservation) -> None:
        self.limit = limit
        self.parts: list[Part] = []
        self._schema = schema
        self._held = held
        self.found = 0  #: stream rows whose value was cached
        self._seen = 0  # rows since hits were halved

    def __len__(self) -> int:
        return sum(len(part.keys) for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def lookup(self, codes: Codes) -> Iterator[tuple[Part, Rows, Rows, Rows]]:
        """For the rows with these codes, in order, that are cached: part, rows, low, high."""
        self._seen += len(codes)
        rest = np.arange(len(codes))
        for part in self.parts:
            if not len(rest) or not len(part.keys):
                continue
            sought = codes[rest]
            at = np.minimum(np.searchsorted(part.keys, sought), len(part.keys) - 1)
            found = part.keys[at] == sought
            if found.any():
                at, chosen, rest = at[found], rest[found], rest[~found]
                self.found += len(at)
                np.add.at(part.hits, at, 1)
                yield part, chosen, part.starts[at], part.starts[at + 1]

    def admit(self, keys: Codes, counts: Rows, hits: Rows, rows: pa.RecordBatch) -> None:
        """Add values that are not cached yet; `keys` sorted, `rows` in their order."""
        if not len(keys):
            return
        self.parts.append(Part(keys, _starts(counts), hits.copy(), rows))
        self.parts.sort(key=lambda part: part.nbytes, reverse=True)
        while len(self.parts) > _MOST_PARTS:
            self.parts[-2:] = [_merged(self.parts[-2], self.parts[-1])]
        self._held.resize(self.nbytes)

    def evict(self, keep: list[NDArray[np.bool_]]) -> None:
        """Keep these values of each part."""
        parts = [
            part if mask.all() else part.only(mask)
            for part, mask in zip(self.parts, keep, strict=True)
        ]
        self.parts = [part for part in parts if len(part.keys)]
        self._held.resize(self.nbytes)

    def consider(self, codes: Codes, low: Rows, high: Rows, table: StagedTable) -> None:
        """Values that missed, once for each row that did, and where their table rows are."""
        keys, index, hits = np.unique(codes, return_index=True, return_counts=True)
        low, counts = low[index], (high - low)[index]
        costs = counts * table.row_bytes + KEY_BYTES
        if self._seen > 8 * max(len(self), 1024):
            for part in self.parts:
                part.hits //= 2
            self._seen = 0
        order = np.argsort(-hits / costs, kind="stable")
        room = min(self.limit - self.nbytes, self.limit // 4)
        fits = order[: np.searchsorted(np.cumsum(costs[order]), room, side="right")]
        if len(fits) < len(order):
            better = self._replace(order[len(fits) :], hits, costs)
            fits = np.sort(np.concatenate([fits, better]))
        else:
            fits = np.sort(fits)
        self._fetch(keys[fits], low[fits], counts[fits], hits[fits], table)

    def _replace(self, rest: Rows, hits: Rows, costs: NDArray[Any]) -> Rows:
        """Which of the values that find no room are better than cached ones; evicts those."""
        rest = rest[hits[rest] > 1]  # a value that came once may never come again
        if not len(rest) or not self.parts:
            return _NONE
        row_bytes = self.nbytes / max(1, sum(int(p.starts[-1]) for p in self.parts))
        cached = np.concatenate([p.hits for p in self.parts])
        cached_costs = np.concatenate(
            [np.diff(p.starts) * row_bytes + KEY_BYTES for p in self.parts]
        )
        scores = np.concatenate([_STICKINESS * cached / cached_costs, hits[rest] / costs[rest]])
        sizes = np.concatenate([cached_costs, costs[rest]])
        order = np.argsort(-scores, kind="stable")
        kept = np.zeros(len(scores), dtype=np.bool_)
        kept[order[: np.searchsorted(np.cumsum(sizes[order]), 0.97 * self.limit)]] = True
        better = rest[kept[len(cached) :]]
        better = better[np.cumsum(costs[better]) <= self.limit // 4]
        if not len(better):
            return _NONE
        # let go of no more than comes in
        worst = np.argsort(_STICKINESS * cached / cached_costs, kind="stable")
        gone = worst[: np.searchsorted(np.cumsum(cached_costs[worst]), costs[better].sum()) + 1]
        keep = np.ones(len(cached), dtype=np.bool_)
        keep[gone] = False
        self.evict(np.split(keep, np.cumsum([len(p.keys) for p in self.parts])[:-1]))
        return better

    def _fetch(self, keys: Codes, low: Rows, counts: Rows, hits: Rows, table: StagedTable) -> None:
        if not len(keys):
            return
        expected = int(counts.sum() * table.row_bytes) + KEY_BYTES * len(keys)
        if not self._held.try_grow(2 * expected):  # once more while pieces are put together
            return
        span = Span(np.arange(len(keys)), low, low + counts)
        pieces = [table.take(positions) for _, positions in span.pairs(1 << 16)]
        rows = pa.concat_batches(pieces) if pieces else _no_rows(self._schema)
        self.admit(keys, counts, hits, rows)

    # -- state ------------------------------------------------------------------------------

    def persist(self, store: BlockStore) -> list[np.void]:
        """The blocks that hold the cache; those of unchanged parts are there already."""
        blocks = []
        for part in self.parts:
            if part.blocks is None:
                empty = pa.RecordBatch.from_arrays([], schema=KEYS_SCHEMA)
                part.blocks = [store.append(Run(part.keys, part.hits, empty), KEYS, RESIDENT)]
                if part.rows.num_rows:
                    codes = np.repeat(part.keys, np.diff(part.starts))
                    run = Run(codes, np.zeros(len(codes), dtype=np.int64), part.rows)
                    part.blocks.append(store.append(run, TABLE, RESIDENT))
            blocks += part.blocks
        return blocks

    def meta(self) -> dict[str, Any]:
        return {"seen": self._seen, "blocks": [len(part.blocks or []) for part in self.parts]}

    def restore(self, meta: dict[str, Any], blocks: list[np.void], store: BlockStore) -> None:
        self._seen = meta["seen"]
        for count in meta["blocks"]:
            mine, blocks = blocks[:count], blocks[count:]
            keys = store.read(mine[0])
            rows = _no_rows(self._schema)
            counts = np.zeros(len(keys), dtype=np.int64)
            if count > 1:
                run = store.read(mine[1])
                rows = run.rows
                first = np.searchsorted(run.codes, keys.codes, side="left")
                counts = np.searchsorted(run.codes, keys.codes, side="right") - first
            part = Part(keys.codes, _starts(counts), keys.ats.copy(), rows, list(mine))
            if self.nbytes + part.nbytes <= self.limit and self._held.try_grow(part.nbytes):
                self.parts.append(part)  # with less memory than before, what fits
        self._held.resize(self.nbytes)

    def check(self) -> None:
        assert self.nbytes <= self._held.nbytes
        keys = [part.keys for part in self.parts]
        assert not keys or len(np.unique(np.concatenate(keys))) == len(self)
        for part in self.parts:
            assert (part.keys[1:] > part.keys[:-1]).all()
            assert len(part.starts) == len(part.keys) + 1 == len(part.hits) + 1
            assert part.starts[-1] == part.rows.num_rows


def _starts(counts: Rows) -> Rows:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _merged(one: Part, two: Part) -> Part:
    keys = np.concatenate([one.keys, two.keys])
    order = np.argsort(keys, kind="stable")
    counts = np.concatenate([np.diff(one.starts), np.diff(two.starts)])
    begins = np.concatenate([one.starts[:-1], two.starts[:-1] + one.rows.num_rows])
    span = Span(np.arange(len(order)), begins[order], (begins + counts)[order])
    rows = pa.concat_batches([one.rows, two.rows])
    positions = [position for _, position in span.pairs(1 << 62)] or [_NONE]
    rows = rows.take(pa.array(np.concatenate(positions)))
    hits = np.concatenate([one.hits, two.hits])[order]
    return Part(keys[order], _starts(counts[order]), hits, rows)
