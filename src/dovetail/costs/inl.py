"""Cost model of index nested loops: a read for each stream row whose page is not cached.

The baseline of the MESHJOIN paper (sections 1 and 5). An index tells the page of a stream row; the
page is read from where the table lies, with a seek, or found in a cache of the hottest pages,
which is the best that any cache can do for a stream whose rows are independent of each other. The
index itself is taken to be in memory and is not counted.

A page here is what the index points to and the cache keeps: of our own joins a leaf, about 8 KB of
a staged page (`semistream.inl.leaves`). They take `batch_rows` rows at a time and need a page once
for all of them: a page with the probability p is needed by a batch of n with 1 - (1 - p)^n. And
they settle the rows of `pages_at_once` pages together, for which they open every one of `chunks`
that some of these pages lie in once. With the first two at 1 and no chunks it is the paper's.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.costs.meshjoin import MeshFactors, Workload
from dovetail.costs.storage import Floats, Storage, hit_at_random
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.memory import format_bytes


@dataclass(frozen=True)
class InlPlan:
    """A size of the cache, and what it leads to."""

    cached_pages: int
    memory_bytes: int
    rate: float  #: stream rows a second, at most
    page_reads_per_row: float
    page_reads_per_second: float  #: at that rate


@dataclass(frozen=True, eq=False)
class InlModel:
    """The cost model, for a stream that asks for each page with a known probability.

    Of the factors, a row costs `receive`, `probe`, `lookup`, and `output` for each of its results;
    pages that are used together cost a `call`, and what is opened to read them, a `chunk` each.
    """

    workload: Workload
    factors: MeshFactors
    storage: Storage
    page_probability: Floats
    batch_rows: float = 1.0  #: that come together and share a page
    requests_per_page: int = 1  #: 2 where codes and rows lie apart
    pages_at_once: float = 1.0  #: that rows are settled from in one step
    chunks: int = 0  #: that the table's pages lie in; 0: each page is one

    def __post_init__(self) -> None:
        for name in ("batch_rows", "pages_at_once"):
            if not getattr(self, name) >= 1:
                raise ArgumentError(f"{name}={getattr(self, name)}: must be 1 or more")
        shares = self.page_probability
        if shares.ndim != 1 or not ((shares >= 0).all() and math.isclose(shares.sum(), 1)):
            raise ArgumentError("the probabilities of the pages must be 0 or more and add up to 1")

    def page_reads_per_row(self, cached_pages: int) -> float:
        """The pages that a row is expected to read: the share that the cache misses."""
        return float(self._misses[min(max(cached_pages, 0), len(self._misses) - 1)])

    def seconds_per_row(self, cached_pages: int) -> float:
        """Computing, and waiting for the page with the probability that it is not cached."""
        return self._compute_seconds + self.page_reads_per_row(cached_pages) * self._read_seconds

    def rate(self, cached_pages: int) -> float:
        """The stream rows a second that are kept up with."""
        seconds = self.seconds_per_row(cached_pages)
        return 1 / seconds if seconds else math.inf

    def memory_bytes(self, cached_pages: int) -> int:
        """The cache, one page to read into, and the row at hand."""
        work = self.workload
        return (cached_pages + 1) * work.page_bytes + math.ceil(work.stream_row_bytes)

    def plan(self, cached_pages: int) -> InlPlan:
        """The costs with a cache of this size."""
        reads, rate = self.page_reads_per_row(cached_pages), self.rate(cached_pages)
        return InlPlan(
            cached_pages=cached_pages,
            memory_bytes=self.memory_bytes(cached_pages),
            rate=rate,
            page_reads_per_row=reads,
            page_reads_per_second=reads * rate if reads else 0.0,
        )

    @cached_property
    def _misses(self) -> Floats:
        """The probability of a miss with 0, 1, 2... of the hottest pages cached; 0 at the end."""
        with np.errstate(divide="ignore"):  # a page that every row asks for
            never = self.batch_rows * np.log1p(-np.minimum(self.page_probability, 1.0))
        coldest_first = np.sort(-np.expm1(never)) / self.batch_rows
        left = np.insert(np.cumsum(coldest_first), 0, 0.0)
        return left[::-1] if self.batch_rows > 1 else left[::-1] / float(left[-1])

    @property
    def _compute_seconds(self) -> float:
        factors = self.factors
        results = self.workload.results_per_row
        found = factors.probe + factors.lookup
        # a step for each lot of pages, and at least one for a batch
        calls = max(float(self._misses[0]) / self.pages_at_once, 1 / self.batch_rows)
        return factors.receive + found + results * factors.output + calls * factors.call

    @property
    def _read_seconds(self) -> float:
        page_bytes = float(self.workload.page_bytes)
        read = self.storage.read_seconds(self.requests_per_page, page_bytes)
        return read + self._chunks_per_page * self.factors.chunk

    @property
    def _chunks_per_page(self) -> float:
        """The chunks that are opened for a page that is read, with those that are read with it."""
        if not self.chunks:
            return 1.0
        together = max(1.0, min(self.pages_at_once, float(self._misses[0]) * self.batch_rows))
        return hit_at_random(self.chunks, together) / together


def least_memory(model: InlModel, rate: float) -> InlPlan:
    """The smallest cache that keeps up with `rate` stream rows a second.

    Raises `ArgumentError` if even a cache of the whole table does not.
    """
    if not (0 <= rate < math.inf):
        raise ArgumentError(f"rate={rate}: must be 0 or more rows a second")
    pages = len(model.page_probability)
    if rate > model.rate(pages):
        raise ArgumentError(
            f"no memory is enough for {rate:,.0f} rows a second: even with every page cached the "
            f"rate is {model.rate(pages):,.0f}; split the stream over more partitions"
        )
    seconds = model._compute_seconds + model._misses * model._read_seconds
    enough = rate * seconds <= 1
    cached = int(enough.argmax()) if enough.any() else pages  # any: but for rounding
    return model.plan(cached)


def best_rate(model: InlModel, memory_bytes: float) -> InlPlan:
    """The largest cache inside `memory_bytes`, and no larger than the table.

    Raises `MemoryBudgetError`, which names the least that would do, if no page fits.
    """
    least = model.memory_bytes(0)
    if memory_bytes < least:
        raise MemoryBudgetError(
            f"{format_bytes(int(memory_bytes))} are too little for index nested loops: one page "
            f"and one row take {format_bytes(least)} ({least:,} bytes). Raise memory=, or make "
            "the pages smaller."
        )
    cached = int((memory_bytes - least) // model.workload.page_bytes)
    return model.plan(min(cached, len(model.page_probability)))
