"""Cost model of Seek: pages that waiting rows need, behind a cache of hot join values.

Beyond the papers, as `semistream.seek` is. Rows that miss the cache wait in a window. When it is
full, the pages that hold a waiting row are read in order, in a sweep; others take the memory of
rows that it has settled, and join it if their pages lie ahead. A row waits for half a sweep, and
up to half of a run is rows that are settled already, a quarter on average: so `TURNOVER` times as
many rows share a sweep as fit the window. A sweep for n rows costs, with p_i the probability that a
row that missed needs page i,

- pages: `touched` = sum of 1 - (1 - p_i)^n, and the short gaps between them that are read through;
- requests: one for each stretch of pages whose codes are read, and one for each row that matched,
  or what lies between two such rows passes, if that takes less time;
- bytes: 8 a row of every page read, and the width of every table row that matched;
- computing: each stream row is received and looked up in the cache; one that misses is put into the
  window and looked up in the pages too; each result is made;
- calls: for each slice of the input and each part of the cache that settles some of it, for each
  stretch, and for the rows that are settled together; and the chunks that matched rows lie in.

Where a key lies tells nothing of how often it is asked for: hot values are spread over the pages
by chance. A table row is found once for each result; the reads are taken to be one after the other.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.ssbj import Stream
from dovetail.costs.storage import Floats, Storage, hit_at_random
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.memory import format_bytes
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream.base import WORKING_SHARE
from dovetail.semistream.cache.parts import KEY_BYTES
from dovetail.semistream.cache.values import LEAST, WORTH
from dovetail.semistream.seek.operator import CACHE_SHARE, NOTES_SHARE, gap_pages
from dovetail.semistream.table.reading import CODE_BYTES

WAITING_BYTES = INDEX_BYTES_PER_ROW  #: of a waiting row, besides itself
TURNOVER = 2 * 3 / 4  #: rows that a sweep settles, for each that fits the window
RUNS = 4  #: that a full window is merged into, each of which fetches for itself
_SETTLED_ROWS = 1 << 13  # together
_CACHE_PARTS = 3  # that settle some rows of a slice, or so


@dataclass(frozen=True)
class SeekTable:
    """The staged table, as far as its cost goes."""

    rows: int
    row_bytes: float  #: of what is fetched for a match; 0 if nothing is
    page_rows: int
    chunk_pages: int = 0  #: of the rows that are fetched; 0: they lie in the pages

    def __post_init__(self) -> None:
        if self.rows < 0 or self.page_rows < 1 or not (0 <= self.row_bytes < math.inf):
            raise ArgumentError(
                f"a table of {self.rows} rows of {self.row_bytes} bytes, {self.page_rows} a page, "
                "cannot be"
            )

    @property
    def pages(self) -> int:
        return max(1, -(-self.rows // self.page_rows))


@dataclass(frozen=True)
class SeekPlan:
    """Sizes of window and cache, and what they lead to."""

    sweep_rows: int  #: rows that share a sweep, those that the cache settles left out
    cached_values: int
    cache_share: float  #: of the stream rows, those that the cache settles
    memory_bytes: int
    rate: float  #: stream rows a second, at most
    wait_seconds: float  #: from a row's arrival to its last result, at most
    pages_per_sweep: float
    requests_per_sweep: float
    bytes_per_row: float  #: read for a stream row


@dataclass(frozen=True, eq=False)
class SeekModel:
    """The cost model for a stream of a known distribution, in one partition."""

    table: SeekTable
    stream: Stream
    stream_row_bytes: float
    factors: MeshFactors
    storage: Storage
    cached_row_bytes: float = 0.0  #: of a table row in the cache
    cached_key_bytes: float = KEY_BYTES  #: of a value in the cache, besides its table rows
    slice_rows: float = math.inf  #: that are taken in at a time

    def pages_touched(self, sweep_rows: float, cached_values: int = 0) -> float:
        """The mean number of pages that a sweep for so many rows needs."""
        pages = self._page_probability(cached_values)
        # log1p keeps the precision of the many pages that are hardly ever asked for
        with np.errstate(divide="ignore"):
            return float(-np.expm1(sweep_rows * np.log1p(-np.minimum(pages, 1.0))).sum())

    def chunks_touched(self, fetched_rows: float) -> float:
        """The mean number of chunks that so many table rows lie in; hot or not, they are apart."""
        if not self.table.chunk_pages:
            return 0.0
        return hit_at_random(-(-self.table.pages // self.table.chunk_pages), fetched_rows)

    def stretches(self, touched: float, through: int) -> tuple[float, float]:
        """The number of reads for so many pages, and of pages read.

        Gaps of up to `through` pages are read as well.
        """
        if touched <= 0:
            return 0.0, 0.0
        pages = self.table.pages
        density = min(1.0, touched / pages)
        free = 1 - density
        gaps = sum(gap * free**gap * density for gap in range(1, through + 1))
        between = max(0.0, touched - 1)
        requests = 1 + between * free ** (through + 1)
        return requests, min(float(pages), touched + between * gaps)

    def _fetches(self, rows: float) -> tuple[float, float]:
        """The requests that fetch so many rows, in order, and the bytes that pass in between."""
        if not rows or not self.table.row_bytes:
            return 0.0, 0.0
        between = max(0.0, self.table.rows / rows - 1) * self.table.row_bytes
        if self.storage.read_seconds(1, 0.0) < self.storage.read_seconds(0, between):
            return rows, 0.0
        return 1.0, rows * between

    def miss_share(self, cached_values: int) -> float:
        """The share of the stream rows that the hottest values, cached, leave over."""
        return float(self._misses[min(max(cached_values, 0), len(self._misses) - 1)])

    def cached_values(self, cache_bytes: float) -> int:
        """The number of values, those with the most hits for a byte first, that fit."""
        return int(np.searchsorted(self._cache_bytes, cache_bytes, side="right"))

    def plan(self, sweep_rows: int, cached_values: int) -> SeekPlan:
        """The costs with these sizes."""
        if sweep_rows < 1:
            raise ArgumentError(f"sweep_rows={sweep_rows}: must be 1 or more")
        values = min(cached_values, len(self._order))
        missed = self.miss_share(values)
        cached_bytes = float(self._cache_bytes[values - 1]) if values else 0.0
        results, factors = self.stream.mean_matches, self.factors
        found = factors.probe + factors.lookup
        per_row = factors.receive + found + results * factors.output
        touched = self.pages_touched(sweep_rows, values) if missed else 0.0
        requests, pages = self.stretches(touched, gap_pages(self.table.page_rows))
        # of the rows that come, those that miss share the sweep
        rows = sweep_rows / missed if missed else float(sweep_rows)
        waiting = sweep_rows if missed else 0
        read = pages * self.table.page_rows * CODE_BYTES + waiting * results * self.table.row_bytes
        fetches, passed = self._fetches(waiting * results)
        seconds = rows * per_row + waiting * (factors.add + found)
        slices = rows / self.slice_rows * (1 + (_CACHE_PARTS if values else 0))
        settled = RUNS * (1 + waiting / _SETTLED_ROWS) if waiting else 0.0
        seconds += (slices + requests + settled) * factors.call
        seconds += RUNS * self.chunks_touched(waiting * results / RUNS) * factors.chunk
        seconds += self.storage.read_seconds(requests + fetches, read + passed)
        held = max(waiting / TURNOVER, min(waiting, 1)) * (self.stream_row_bytes + WAITING_BYTES)
        return SeekPlan(
            sweep_rows=waiting,
            cached_values=values,
            cache_share=1 - missed,
            memory_bytes=math.ceil(cached_bytes + held),
            rate=rows / seconds if seconds else math.inf,
            # what the cache settles waits for the slice that it came with
            wait_seconds=2 * seconds if missed else seconds * min(1.0, self.slice_rows / rows),
            pages_per_sweep=pages,
            requests_per_sweep=requests + fetches,
            bytes_per_row=read / rows,
        )

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """The values by hits for a byte, the best first."""
        return np.argsort(-self.stream.probability / self._entry_bytes, kind="stable")

    @property
    def _entry_bytes(self) -> Floats:
        return self.stream.matches * self.cached_row_bytes + self.cached_key_bytes

    @cached_property
    def _misses(self) -> Floats:
        left = np.insert(1 - np.cumsum(self.stream.probability[self._order]), 0, 1.0)
        left[-1] = 0.0  # but for rounding
        return np.maximum(left, 0.0)

    @cached_property
    def _cache_bytes(self) -> Floats:
        """The bytes of the first values together: entry i is for i + 1 of them."""
        return np.cumsum(self._entry_bytes[self._order])

    def _page_probability(self, cached_values: int) -> Floats:
        """Of a row that missed the cache, the probability of each page."""
        return spread_over_pages(
            self.stream.probability[self._order[cached_values:]], self.table.pages
        )


def spread_over_pages(shares: Floats, pages: int) -> Floats:
    """The probability of each page, of values that are spread over the pages by chance."""
    # values that are as many as the pages, or fewer, stand for many values each
    if len(shares) <= pages or np.ptp(shares) == 0:
        return np.full(pages, 1 / pages)
    lots = np.random.default_rng(0).integers(0, pages, len(shares))
    found = np.bincount(lots, weights=shares, minlength=pages)
    return found / float(found.sum())


def best_rate(model: SeekModel, memory_bytes: float, *, caches: bool = True) -> SeekPlan:
    """What Seek does with so much memory: shares of it for the cache and for working, and the rest,
    less an eighth of the whole for the input batch, for the window. Without a cache it is window.

    A cache that is not worth its memory is smaller, as in `Cache.weigh`, but by halves.
    `SeekPlan.memory_bytes` leaves out the working memory. Raises `MemoryBudgetError` if not even
    one row may wait.
    """
    noted = NOTES_SHARE if caches else 0
    share = CACHE_SHARE if caches else 0.0
    while True:
        cached = model.cached_values(memory_bytes * share)
        room = memory_bytes * (1 - share - noted - WORKING_SHARE - 1 / 8)
        missed = model.miss_share(cached)
        saved, needed = room * (1 - missed), WORTH * missed * share * memory_bytes
        if saved >= needed or share <= CACHE_SHARE * LEAST:
            break
        share /= 2
    row_bytes = model.stream_row_bytes + WAITING_BYTES
    if room < row_bytes:
        least = math.ceil(row_bytes * memory_bytes / room) if room > 0 else 0
        raise MemoryBudgetError(
            f"{format_bytes(int(memory_bytes))} are too little for seek: one waiting row takes "
            f"{format_bytes(least)} of budget. Raise memory=."
        )
    return model.plan(int(TURNOVER * room / row_bytes), cached)
