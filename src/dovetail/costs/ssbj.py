"""Cost model of SSBJ: a mesh join with a cache of the table rows asked for most.

After Naeem, Weber and Lutteroth, "A Memory-Optimal Many-To-Many Semi-Stream Join" (2018), sections
3 and 3.2. A join value is handled where it takes less memory: in the window, as the stream rows
that wait for a scan of the table to pass, or in the cache, as the table rows that match it. With
the distribution of the stream known, that settles what the cache holds, and so memory and rate.

The paper's symbols, beyond those of `meshjoin`: w_S, the part `disk_share` of w, `batch_rows`, and
w_N, the rest of it; h_R `cached_table_rows`; R_t `table_rows`; s_f `switching`; m `matches`; n, the
rows of a value in a scan, is its probability times `window_rows`; c_B `SsbjFactors.switch`. We
count b in pages, as for MESHJOIN, and all rows are expected values, not whole numbers: SSBJ takes
as many as have arrived.

Where we differ:

- (1) leaves out the buffer of the stream. Then a cache of the whole table would make any batch
  free, and no rate would be the best. We count it, as MESHJOIN's (1) does; so with nothing cached
  the two are the same.
- (1) charges a row of the window for its pointer in the queue, the cache inequality
  n v_S > s_f m v_R does not. So the least memory is not at s_f = 1 but at `balanced_switching`,
  f v_S / (f v_S + pointer), the default here, where both sides are what (1) counts.
- (2) charges rows of the disk phase for no look-up in the cache, but Algorithm 1 has to look there
  to find out that they are not. We charge every row.
- (2) has one result a row; we take the mean of the matches.
- A value without matches is kept in the cache as a bare key of `key_bytes`, also in the inequality.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.costs.meshjoin import MeshFactors, Workload
from dovetail.costs.storage import Floats, Number, Storage
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.memory import format_bytes

_JUST_ABOVE = 1 + 1e-12  # a value is cached above its threshold, not at it


@dataclass(frozen=True)
class SsbjFactors(MeshFactors):
    """MESHJOIN's, and what it costs to get table rows into the cache."""

    switch: float = field(kw_only=True)  #: for a table row that is read, whether it moves or not

    @classmethod
    def of(cls, factors: MeshFactors, switch: float) -> Self:
        """MESHJOIN's factors as they were measured, and the one that SSBJ adds."""
        return cls(**vars(factors), switch=switch)


@dataclass(frozen=True, eq=False)
class Stream:
    """The demand of a stream: how often each join value comes, and how many rows it matches."""

    probability: Floats
    matches: Floats

    def __post_init__(self) -> None:
        if self.probability.ndim != 1 or self.probability.shape != self.matches.shape:
            raise ArgumentError("probability and matches must be two arrays of the same length")
        if not ((self.probability >= 0).all() and math.isclose(self.probability.sum(), 1)):
            raise ArgumentError("the probabilities of a stream must be 0 or more and add up to 1")
        if not (self.matches >= 0).all():
            raise ArgumentError("a join value cannot match fewer than 0 rows")

    @classmethod
    def of(cls, probability: ArrayLike, matches: ArrayLike = 1) -> Self:
        """From anything array-like; one number of matches stands for all values."""
        shares = np.asarray(probability, dtype=np.float64)
        return cls(shares, np.broadcast_to(np.asarray(matches, np.float64), shares.shape))

    @property
    def mean_matches(self) -> float:
        """The results of a stream row."""
        return float(self.probability @ self.matches)


def zipf(values: int, exponent: float) -> Floats:
    """Probabilities that fall with the rank's power; exponent 0 is uniform."""
    weights: Floats = np.arange(1, values + 1, dtype=np.float64) ** -exponent
    return weights / float(weights.sum())


@dataclass(frozen=True)
class SsbjState:
    """The steady state under one setting."""

    batch_rows: float
    pages: int
    cached_values: int
    cached_table_rows: float
    disk_share: float  #: of the stream rows, those that have to wait for the table
    memory_bytes: float
    loop_seconds: float
    wait_seconds: float  #: from a row's arrival to its last result, at most

    @property
    def rate(self) -> float:
        """Equations (3) and (4): the stream rows a second that are kept up with."""
        return self.batch_rows / self.loop_seconds


@dataclass(frozen=True, eq=False)
class _Ladder:
    """Values in the order in which a growing window puts them into the cache.

    Entry i of `disk_share`, `cached_bytes` and `cached_table_rows` is for i cached values, which
    is for windows above `threshold[i - 1]` and up to `threshold[i]`.
    """

    threshold: Floats  #: window rows, ascending
    disk_share: Floats
    cached_bytes: Floats
    cached_table_rows: Floats


@dataclass(frozen=True)
class SsbjModel:
    """The cost model for a stream of a known distribution."""

    workload: Workload
    factors: SsbjFactors
    storage: Storage
    stream: Stream
    switching: float | None = None  #: None: the balanced one; 1 is the paper's
    key_bytes: int = 8  #: of a cached value that matches nothing
    cached_row_bytes: float | None = None  #: of a table row in the cache; None: as in the pages

    def __post_init__(self) -> None:
        if self.switching is not None and not (0 < self.switching < math.inf):
            raise ArgumentError(f"switching={self.switching}: must be above 0")
        rows = float(self.stream.matches.sum())
        if rows > self.workload.table_rows * (1 + 1e-9):
            raise ArgumentError(
                f"the values of the stream match {rows:,.0f} rows, but the table has only "
                f"{self.workload.table_rows:,}"
            )

    @property
    def balanced_switching(self) -> float:
        """The switching factor with which the memory of (1) is least."""
        return self.workload.fudge * self.workload.stream_row_bytes / self.workload.window_row_bytes

    def is_cached(self, window_rows: float) -> NDArray[np.bool_]:
        """The cache inequality for each join value: whether it takes less memory in the cache.

        `window_rows` are all the stream rows, cached or not, that arrive during a scan.
        """
        return window_rows * self.stream.probability > self._break_even_rows

    def memory_bytes(self, batch_rows: Number, pages: Number) -> Number:
        """Equation (1), and the buffer of the stream."""
        loops = self.workload.loops(pages)
        cached = self._cached_values(batch_rows * loops)
        cached_bytes: Number = self._ladder.cached_bytes[cached]
        disk_share: Number = self._ladder.disk_share[cached]
        window_bytes = batch_rows * self._bytes_per_batch_row(disk_share, loops)
        return pages * self.workload.page_bytes + cached_bytes + window_bytes

    def loop_seconds(self, batch_rows: Number, pages: Number) -> Number:
        """Equation (2): read pages, probe the window with them, and take the batch in."""
        cached = self._cached_values(batch_rows * self.workload.loops(pages))
        disk_share: Number = self._ladder.disk_share[cached]
        chunks = np.minimum(
            batch_rows * disk_share * self.stream.mean_matches,
            self.workload.loops(pages) * self.workload.chunks(pages),
        )
        seconds: Number = self._fixed_seconds(pages) + chunks * self.factors.chunk
        return seconds + batch_rows * self._seconds_per_row(disk_share)

    def rate(self, batch_rows: Number, pages: Number) -> Number:
        """Equations (3) and (4): the stream rows a second that are kept up with."""
        return batch_rows / self.loop_seconds(batch_rows, pages)

    def steady_state(self, batch_rows: float, pages: int) -> SsbjState:
        """The costs with the cache that the inequality leads to."""
        loops = self.workload.loops(float(pages))
        cached = int(self._cached_values(batch_rows * loops))
        disk_share = float(self._ladder.disk_share[cached])
        loop_seconds = float(self.loop_seconds(batch_rows, float(pages)))
        # the loop during which a row arrives, and a scan, or the one loop that finds it cached
        waited_loops = 1 + (loops if disk_share else 1)
        return SsbjState(
            batch_rows=batch_rows,
            pages=pages,
            cached_values=cached,
            cached_table_rows=float(self._ladder.cached_table_rows[cached]),
            disk_share=disk_share,
            memory_bytes=float(self.memory_bytes(batch_rows, float(pages))),
            loop_seconds=loop_seconds,
            wait_seconds=waited_loops * loop_seconds,
        )

    @property
    def main_memory_bytes(self) -> float:
        """A cache of everything that the stream can ask for: a main-memory join (Theorem 3)."""
        return float(self._ladder.cached_bytes[-1])

    def main_memory_rate(self, pages: int) -> float:
        """The rate above which everything is cached with this many pages, λ_max of Theorem 3."""
        window_rows = float(self._ladder.threshold[-1])
        least_batch = _JUST_ABOVE * window_rows / self.workload.loops(float(pages))
        return float(self.rate(least_batch, float(pages)))

    @property
    def rate_limit(self) -> float:
        """The rate that no memory exceeds: that of rows that are all cached."""
        return 1 / self._seconds_per_row(0.0) if self._seconds_per_row(0.0) else math.inf

    @property
    def _break_even_rows(self) -> Floats:
        """For each value, the rows in a scan above which it is cached."""
        switching = self.balanced_switching if self.switching is None else self.switching
        rows: Floats = switching * self._entry_bytes / self.workload.stream_row_bytes
        return rows

    @property
    def _entry_bytes(self) -> Floats:
        matches = self.stream.matches
        row_bytes = self.cached_row_bytes or self.workload.table_row_bytes
        return np.where(matches > 0, matches * row_bytes, self.key_bytes)

    @cached_property
    def _ladder(self) -> _Ladder:
        comes = np.flatnonzero(self.stream.probability)
        shares = self.stream.probability[comes]
        threshold = self._break_even_rows[comes] / shares
        order = np.argsort(threshold, kind="stable")
        left = np.cumsum(shares[order][::-1])[::-1]
        cached_bytes = np.cumsum(self._entry_bytes[comes][order]) * self.workload.fudge
        return _Ladder(
            threshold=threshold[order],
            disk_share=np.append(left / left[0], 0.0),
            cached_bytes=np.insert(cached_bytes, 0, 0.0),
            cached_table_rows=np.insert(np.cumsum(self.stream.matches[comes][order]), 0, 0.0),
        )

    def _cached_values(self, window_rows: Number) -> Any:  # an index of the ladder, or several
        return np.searchsorted(self._ladder.threshold, window_rows, side="left")

    def _seconds_per_row(self, disk_share: Number) -> Number:
        factors = self.factors
        found = factors.probe + factors.lookup
        always = factors.receive + found + self.stream.mean_matches * factors.output
        return always + disk_share * (factors.expire + factors.add + factors.lookup)

    def _fixed_seconds(self, pages: Number) -> Number:
        work = self.workload
        per_page = work.rows_per_page * (self.factors.probe + self.factors.switch)
        calls = (1 + work.loops(pages)) * self.factors.call
        read = self.storage.read_seconds(work.requests, pages * work.page_bytes)
        return read + pages * per_page + calls

    def _bytes_per_batch_row(self, disk_share: Number, loops: Number) -> Number:
        work = self.workload
        return work.stream_row_bytes + loops * disk_share * work.window_row_bytes


def least_memory(model: SsbjModel, rate: float) -> SsbjState:
    """The steady state that keeps up with `rate` stream rows a second in the least memory.

    Exact, and never less for a higher rate, with the balanced switching factor or a smaller one;
    with a larger one, values stay out of the cache that would take less memory in it. Raises
    `ArgumentError` if no memory would do.
    """
    if not (0 <= rate < math.inf):
        raise ArgumentError(f"rate={rate}: must be 0 or more rows a second")
    if rate >= model.rate_limit:
        raise ArgumentError(
            f"no memory is enough for {rate:,.0f} rows a second: even with the whole table cached "
            f"the rate is below {model.rate_limit:,.0f}; split the stream over more partitions"
        )
    ladder = model._ladder
    pages = model.workload.page_choices()
    loops = model.workload.loops(pages)
    # rate * loop_seconds <= batch_rows, solved for the window: fixed <= window_rows * idle
    idle = 1 - rate * model._seconds_per_row(ladder.disk_share)
    # all chunks of a read: where rows are so few that they ask for fewer, it is too much
    chunks = loops * model.workload.chunks(pages) * model.factors.chunk
    fixed = rate * (model._fixed_seconds(pages) + chunks) * loops
    ends = np.append(ladder.threshold, np.inf)
    reach = np.full_like(idle, -np.inf)
    np.multiply(ends, idle, out=reach, where=idle > 0)
    step = np.searchsorted(np.maximum.accumulate(reach), fixed, side="left")
    starts = np.insert(ladder.threshold, 0, 0.0) * _JUST_ABOVE
    window_rows = np.maximum(np.maximum(fixed / idle[step], starts[step]), loops)
    batch_rows = window_rows / loops
    best = int(model.memory_bytes(batch_rows, pages).argmin())
    return model.steady_state(float(batch_rows[best]), int(pages[best]))


def best_rate(
    model: SsbjModel,
    memory_bytes: float,
    pages_read: int | None = None,
    most_rows: float = math.inf,
) -> SsbjState:
    """The steady state with the highest rate inside `memory_bytes`.

    With `pages_read`, of those with so many pages a read; a batch has no more than `most_rows`,
    which is what comes at a time.

    This is what equation (6) must mean. As printed it divides bytes by seconds and calls that rows
    a second. What it wants is (5), λ = (w_N + w_S) / c_loop, with the rows that the memory has room
    for. Of the memory, the buffer of the table and the cache are spoken for; what is left holds
    batches, of which the share q that is not cached stays for R_t / b loops:

        λ = w / c_loop,  w = (M - (b + h_R f) v_R) / (v_S + q (R_t / b) (v_P + f v_S))

    rows a second (v_P being the pointer). h_R and q follow from w by the cache inequality, hence
    the search. Exact, and never lower for more memory, under the same condition as `least_memory`.
    Raises `MemoryBudgetError`, which names the least that would do, if one row does not fit.
    """
    choices = model.workload.page_choices()
    pages = choices if pages_read is None else np.array([float(pages_read)])
    loops = model.workload.loops(pages)
    window_rows = _largest_window(model, memory_bytes - pages * model.workload.page_bytes, loops)
    batch_rows = np.clip(window_rows / loops, 1, max(1.0, most_rows))
    fits = model.memory_bytes(batch_rows, pages) <= memory_bytes * (1 + 1e-9)  # rounding
    if not fits.any():
        least = math.ceil(model.memory_bytes(np.ones_like(pages), pages).min())
        raise MemoryBudgetError(
            f"{format_bytes(int(memory_bytes))} are too little for a balanced join with this "
            f"table: even with one row a batch it takes {format_bytes(least)} "
            f"({least:,} bytes). Raise memory=, or make the pages smaller."
        )
    rate = np.where(fits, model.rate(batch_rows, pages), -1.0)
    best = int(rate.argmax())
    return model.steady_state(float(batch_rows[best]), int(pages[best]))


def _largest_window(model: SsbjModel, spare_bytes: Floats, loops: Floats) -> Floats:
    """The rows of the largest window that fits, with its cache; below 0 where none does."""
    ladder = model._ladder
    steps = len(ladder.threshold)

    def bytes_per_row(step: NDArray[np.intp]) -> Floats:
        return model._bytes_per_batch_row(ladder.disk_share[step], loops) / loops

    # bisection, for all numbers of loops at once: the first step whose largest window is too large,
    # unless everything fits into the cache, which with a large switching factor is beyond a hill
    high = np.full(len(loops), steps, dtype=np.intp)
    all_cached = (spare_bytes - ladder.cached_bytes[-1]) / bytes_per_row(high)
    low = np.where(all_cached > ladder.threshold[-1], steps, 0)
    for _ in range(steps.bit_length()):
        middle = np.minimum((low + high) // 2, steps - 1)
        full = ladder.cached_bytes[middle] + ladder.threshold[middle] * bytes_per_row(middle)
        fits = full <= spare_bytes
        low = np.where((low < high) & fits, middle + 1, low)
        high = np.where((low < high) & ~fits, middle, high)
    window_rows = (spare_bytes - ladder.cached_bytes[low]) / bytes_per_row(low)
    starts = np.insert(ladder.threshold, 0, -np.inf)
    return np.maximum(window_rows, starts[low]) / _JUST_ABOVE
