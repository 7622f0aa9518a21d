"""A cache of table rows by join value.

A value is cached whole, with all of its table rows, or not at all; a value that the table does not
have is cached as having none. The cache is a list of parts, each sorted by code: a part is added
when values come in, filtered when values go, and small parts are merged. One index of the keys of
all parts says where a value is.

Which values. Seek keeps those with the most hits for a byte (`consider`): that is what settles the
most rows without a read, and the greedy choice is the best one but for the last value that does
not quite fit. A full cache looks at a sample of the misses only: learning costs more than it brings
there. Where memory is short, `weigh` shrinks the cache to what is worth its bytes. SSBJ decides by
its own inequality, and only uses `admit` and `evict`.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.blocks import RESIDENT, BlockStore
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.probing import Rows, Span
from dovetail.kernel.runs import Run
from dovetail.kernel.slices import Sizes
from dovetail.semistream.cache.notes import Missed
from dovetail.semistream.cache.parts import KEY_BYTES, Part, firsts_of, merged, no_rows, starts_of
from dovetail.semistream.table.gathering import NOTHING, gathered, positions_of, sizes_at, take_rows
from dovetail.semistream.table.reading import StagedTable

TABLE, KEYS = 1, 2  #: the block store's second and third schema
KEYS_SCHEMA = NOTHING.schema
_MOST_PARTS = 6
_STICKINESS = 2.0  # a cached value gives way only to one that is this much better
_FILL = 0.97  # of the limit: what a value takes up is only known on average
WORTH = 1 / 4  #: of the memory that values take, what they save at least in rows that need not wait
LEAST = 1 / 32  #: of the most: so much stays, to see whether the stream has become more skewed
_SELDOM = 4  # a full cache learns after this many misses for each of its values
_FETCHED_ROWS = 1 << 13  # at a time
_NONE: Rows = np.zeros(0, dtype=np.int64)


class Cache:
    """The cached values, never more than `limit` bytes of them."""

    def __init__(self, schema: pa.Schema, limit: int, held: Reservation) -> None:
        self.limit = self.most = limit
        self.parts: list[Part] = []
        self._schema = schema
        self._held = held
        self.found = 0  #: stream rows whose value was cached
        self._seen = 0  # rows since hits were halved
        self._indexed: tuple[Codes, NDArray[np.int32]] | None = None
        self._missed = 0  # rows since values were last considered

    def __len__(self) -> int:
        return sum(len(part.keys) for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def room_bytes(self) -> int:
        """The bytes that the cache may still grow by."""
        return max(0, self.limit - self.nbytes)

    def lookup(self, codes: Codes) -> tuple[Rows, Rows, Rows]:
        """Which of the rows with these codes, in order, are cached, and `[low, high)` of each.

        These are positions for `take`. The rows of one part come together.
        """
        self._seen += len(codes)
        if not self.parts:
            self._missed += len(codes)
            return _NONE, _NONE, _NONE
        firsts = firsts_of(codes)
        sought = codes[firsts]
        keys, places = self._index()
        at = np.minimum(np.searchsorted(keys, sought), len(keys) - 1)
        hit = np.flatnonzero(keys[at] == sought)
        place = places[at[hit]]
        order = np.argsort(place, kind="stable")  # by part, and by code within each
        hit, place = hit[order], place[order]
        begins, times = firsts[hit], np.diff(firsts, append=len(codes))[hit]
        found = int(times.sum())
        self.found += found
        self._missed += len(codes) - found
        low, high = np.empty(len(place), dtype=np.int64), np.empty(len(place), dtype=np.int64)
        key, row = 0, 0
        for part in self.parts:
            mine = slice(*np.searchsorted(place, (key, key + len(part.keys))))
            at = place[mine] - key
            part.hits[at] += times[mine]
            low[mine], high[mine] = row + part.starts[at], row + part.starts[at + 1]
            key, row = key + len(part.keys), row + part.rows.num_rows
        return positions_of(begins, times), np.repeat(low, times), np.repeat(high, times)

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        """The rows at these positions of all parts, lined up; a negative one is a row of nulls."""
        bounds = np.cumsum([0, *(part.rows.num_rows for part in self.parts)])

        def fetch(number: int, at: Rows) -> pa.RecordBatch:
            return take_rows(self.parts[number].rows, at - bounds[number], columns)

        schema = self._schema
        if columns is not None:
            schema = pa.schema([schema.field(index) for index in columns])
        # a negative position lies before the first part
        whose = np.searchsorted(bounds, positions, side="right") - 1
        return gathered(positions, whose, schema, fetch)

    def row_sizes(self, positions: Rows) -> Sizes:
        """The bytes of the rows at these positions; positions as for `take`."""
        bounds = np.cumsum([0, *(part.rows.num_rows for part in self.parts)])
        sizes = np.zeros(len(positions), dtype=np.int64)
        for part, start, stop in zip(self.parts, bounds[:-1], bounds[1:], strict=True):
            mine = (start <= positions) & (positions < stop)
            if mine.any():
                sizes[mine] = sizes_at(part.rows, positions[mine] - start)
        return sizes

    def holds(self, keys: Codes) -> NDArray[np.bool_]:
        """Which of these values are cached."""
        if not self.parts:
            return np.zeros(len(keys), dtype=np.bool_)
        cached, _ = self._index()
        return np.asarray(
            cached[np.minimum(np.searchsorted(cached, keys), len(cached) - 1)] == keys
        )

    def _index(self) -> tuple[Codes, NDArray[np.int32]]:
        """The keys of all parts in order, and the place of each when parts are lined up."""
        if self._indexed is None:
            keys = np.concatenate([part.keys for part in self.parts])
            order = np.argsort(keys, kind="stable")  # a merge: the parts are sorted
            self._indexed = keys[order], order.astype(np.int32)
        return self._indexed

    def admit(self, keys: Codes, counts: Rows, hits: Rows, rows: pa.RecordBatch) -> None:
        """Add values that are not cached yet; `keys` sorted, `rows` in their order."""
        if not len(keys):
            return
        self.parts.append(Part(keys, starts_of(counts), hits.copy(), rows))
        self.parts.sort(key=lambda part: part.nbytes, reverse=True)
        self._indexed = None
        self._held.resize(self.nbytes)
        while len(self.parts) > _MOST_PARTS:
            # one behind the other, and once more in order; without room, more parts are only slower
            copies = 2 * (self.parts[-2].nbytes + self.parts[-1].nbytes)
            if not self._held.try_grow(copies):
                break
            self.parts[-2:] = [merged(self.parts[-2], self.parts[-1])]
            self._held.resize(self.nbytes)

    def evict(self, keep: list[NDArray[np.bool_]]) -> None:
        """Keep these values of each part.

        What is kept of a part is copied, one part at a time. The copy is reserved if the budget has
        room for it. It has to be made in any case, since evicting is what makes room: then that one
        copy is not counted.
        """
        self._indexed = None
        for place, mask in enumerate(keep):
            part = self.parts[place]
            if not mask.all():
                copy = int(part.nbytes * mask.mean())
                self._held.try_grow(copy)
                self.parts[place] = part.only(mask)
                self._held.resize(self.nbytes)
        self.parts = [part for part in self.parts if len(part.keys)]

    def halve(self) -> None:
        """Give up the half of the values that has the fewest hits."""
        hits = self._hits()
        keep = np.zeros(len(hits), dtype=np.bool_)
        keep[np.argsort(hits, kind="stable")[-(-len(hits) // 2) :]] = True
        self._keep(keep)

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        """Keep these values of all parts, lined up."""
        self.evict(np.split(keep, np.cumsum([len(part.keys) for part in self.parts])[:-1]))

    def _hits(self) -> Rows:
        return np.concatenate([part.hits for part in self.parts])

    def _sizes(self) -> NDArray[np.float64]:
        """About what each value takes up."""
        rows = max(1, sum(int(part.starts[-1]) for part in self.parts))
        row_bytes = (self.nbytes - KEY_BYTES * len(self)) / rows
        sizes = [np.diff(part.starts) * row_bytes + KEY_BYTES for part in self.parts]
        return np.concatenate(sizes)

    def weigh(self, saved_bytes: float) -> None:
        """Shrink to the values that, taken together, save `WORTH` of the memory that they take.

        `saved_bytes` is what all of them have saved, each by its hits. If that is twice as much as
        it has to be, the cache may grow again.
        """
        if saved_bytes >= WORTH * self.nbytes:
            if saved_bytes > 2 * WORTH * self.nbytes:
                self.widen()
            return
        hits, sizes = self._hits(), self._sizes()
        order = np.argsort(-hits / sizes, kind="stable")
        saved = np.cumsum(hits[order]) * (saved_bytes / max(1, int(hits.sum())))
        taken = np.cumsum(sizes[order])
        worth = np.flatnonzero(saved >= WORTH * taken)
        count = int(worth[-1]) + 1 if len(worth) else 0
        least = int(self.most * LEAST)
        count = max(count, int(np.searchsorted(taken, _FILL * least, side="right")))
        self.limit = max(least, int(taken[count - 1] / _FILL)) if count else least
        keep = np.zeros(len(hits), dtype=np.bool_)
        keep[order[:count]] = True
        self._keep(keep)

    def widen(self) -> None:
        """Allow twice as much, up to the most there may be."""
        self.limit = min(self.most, 2 * self.limit)

    def is_due(self) -> bool:
        """Whether values that miss from now on are to be considered.

        In a full cache little changes, and a sample of the misses will do.
        """
        return self._room() >= self.limit // 16 or self._missed >= _SELDOM * len(self)

    def _room(self) -> int:
        """The bytes that may be added at once without evicting anything."""
        return min(int(_FILL * self.limit) - self.nbytes, self.limit // 4)

    def consider(self, missed: Missed, table: StagedTable) -> None:
        """Take values that missed in, as far as they are worth it."""
        most, room = int(_FILL * self.limit), self._room()
        self._missed = 0
        # rows may have missed before others were learned from
        missed = missed.only(~self.holds(missed.keys))
        keys, low, hits = missed.keys, missed.low, missed.hits
        counts = missed.high - low
        costs = counts * table.row_bytes + KEY_BYTES
        if self._seen > 8 * max(len(self), 1024):
            for part in self.parts:
                part.hits //= 2
            self._seen = 0
        order = np.argsort(-hits / costs, kind="stable")
        fits = order[: np.searchsorted(np.cumsum(costs[order]), room, side="right")]
        if len(fits) < len(order):
            excess = self.nbytes + int(costs[fits].sum()) - most
            better = self._replace(order[len(fits) :], hits, costs, excess)
            fits = np.concatenate([fits, better])
        fits = np.sort(fits)
        self._fetch(keys[fits], low[fits], counts[fits], hits[fits], table)

    def _replace(self, rest: Rows, hits: Rows, costs: NDArray[Any], excess: int) -> Rows:
        """Which of the values that find no room are better than cached ones; evicts those.

        `rest` has the best first. The first of them take the room of the worst that are cached, and
        so on, until that would be no gain. `excess` is what has to go anyway, or if negative, the
        room that is left.
        """
        rest = rest[hits[rest] > 1]  # a value that came once may never come again
        rest = rest[np.cumsum(costs[rest]) <= self.limit // 4]
        if not len(rest) or not self.parts:
            return _NONE
        sizes = self._sizes()
        scores = _STICKINESS * self._hits() / sizes
        worst = np.argsort(scores)
        # of each value, the last one that has to go for it and for those before it
        last = np.searchsorted(np.cumsum(sizes[worst]), excess + np.cumsum(costs[rest]))
        rest = rest[last < len(worst)]
        last = last[: len(rest)]
        gain = hits[rest] / costs[rest] > scores[worst[last]]
        count = len(gain) if gain.all() else int(gain.argmin())
        if not count:
            return _NONE
        keep = np.ones(len(scores), dtype=np.bool_)
        keep[worst[: last[count - 1] + 1]] = False
        self._keep(keep)
        return rest[:count]

    def _fetch(self, keys: Codes, low: Rows, counts: Rows, hits: Rows, table: StagedTable) -> None:
        if not len(keys):
            return
        expected = int(counts.sum() * table.row_bytes) + KEY_BYTES * len(keys)
        if not self._held.try_grow(2 * expected):  # once more while pieces are put together
            return
        rows = self._read(low, counts, table, KEY_BYTES * len(keys))
        if rows is None:
            self._held.resize(self.nbytes)
        else:
            self.admit(keys, counts, hits, rows)

    def _read(
        self, low: Rows, counts: Rows, table: StagedTable, taken: int
    ) -> pa.RecordBatch | None:
        """Read the rows of values that take so many bytes besides; None if there is no room."""
        span = Span(low, low, low + counts)
        if table.uneven:  # find out before any of them is read
            parts = span.pairs(_FETCHED_ROWS)
            if not self._fits(sum(int(table.row_sizes(at).sum()) for _, at in parts)):
                return None
        pieces = []
        for _, positions in span.pairs(_FETCHED_ROWS):
            pieces.append(table.take(positions))
            taken += pieces[-1].nbytes
            if not self._fits(taken):  # these rows may be wider than the table's mean
                return None
        return pa.concat_batches(pieces) if pieces else no_rows(self._schema)

    def _fits(self, nbytes: int) -> bool:
        """Whether there is room for so much more, and once more while it is put together."""
        short = 2 * nbytes - (self._held.nbytes - self.nbytes)
        return self.nbytes + nbytes <= self.limit and (short <= 0 or self._held.try_grow(short))

    # -- state ------------------------------------------------------------------------------

    def persist(self, store: BlockStore) -> list[np.void]:
        """The blocks that hold the cache; those of unchanged parts are there already."""
        blocks = []
        for part in self.parts:
            hits = int(part.hits.sum())
            # hits change all the time; they are only written again once that makes a difference
            if part.blocks is None or not part.noted <= hits <= 1.25 * part.noted:
                rows = [] if part.blocks is None else part.blocks[1:]
                if part.blocks is None and part.rows.num_rows:
                    codes = np.repeat(part.keys, np.diff(part.starts))
                    run = Run(codes, np.zeros(len(codes), dtype=np.int64), part.rows)
                    rows = [store.append(run, TABLE, RESIDENT)]
                part.blocks = [
                    store.append(Run(part.keys, part.hits, NOTHING), KEYS, RESIDENT), *rows
                ]  # fmt: skip
                part.noted = hits
            blocks += part.blocks
        return blocks

    def meta(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "missed": self._missed,
            "limit": self.limit,
            "blocks": [len(part.blocks or []) for part in self.parts],
            "hits": [int(part.hits.sum()) for part in self.parts],
        }

    def restore(self, meta: dict[str, Any], blocks: list[np.void], store: BlockStore) -> None:
        self._seen, self._missed = meta["seen"], meta["missed"]
        self.limit = min(self.limit, meta["limit"])
        self._indexed = None
        for count, hits in zip(meta["blocks"], meta["hits"], strict=True):
            mine, blocks = blocks[:count], blocks[count:]
            keys, view = store.view(mine[0])
            rows = no_rows(self._schema)
            counts = np.zeros(len(keys), dtype=np.int64)
            if count > 1:
                run, rows_view = store.view(mine[1])
                rows = run.rows
                firsts = firsts_of(run.codes)
                every = len(firsts) == len(keys)  # no value without rows
                has = slice(None) if every else np.searchsorted(keys.codes, run.codes[firsts])
                counts[has] = np.diff(firsts, append=len(rows))
                rows_view.forget(run.codes)
            noted = int(keys.ats.sum())
            # hits since the blocks were written are taken to be spread like those before them
            spread = np.floor(np.cumsum(keys.ats) * (hits / max(1, noted))).astype(np.int64)
            spread = np.diff(spread, prepend=0)
            view.forget(keys.ats)
            part = Part(keys.codes, starts_of(counts), spread, rows, list(mine), noted)
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
