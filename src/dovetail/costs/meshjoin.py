"""Cost model of MESHJOIN, and the settings that fit a rate or a budget.

After Polyzotis et al., "Meshing Streaming Updates with Persistent Data in an Active Data
Warehouse" (TKDE 2008), sections 3.2 and 3.3. A table is scanned in a circle, `pages` pages at a
time; with each read, `batch_rows` stream rows enter a window, and they leave it once they have met
the whole table. A bigger window shares each read among more rows, and takes more memory.

The paper's symbols: w `batch_rows`, b `pages`, N_R `table_pages`, v_S `stream_row_bytes`, v_R
`table_row_bytes`, v_P `page_bytes`, σ `selectivity`, f `fudge`, λ and μ `rate`, c_loop
`loop_seconds`, c_I/O `Storage.read_seconds`; c_E, c_S, c_A, c_H, c_O are the `MeshFactors`.

Where we differ:

- A scan takes ceil(N_R / b) loops. The paper has N_R / b and assumes that b divides N_R; otherwise
  its window would be too small by up to half. So the least b of all with the same number of loops
  is the best of them in every respect, and a search over those, about 2 sqrt(N_R), is exact.
- σ, the results of a table row, does not grow with the window in (2), though more rows in the
  window find more matches. `results_per_row`, the results of a stream row, is the other way to
  say it, and does: set one of the two.
- (4) counts pages; a read of b pages is one request of our storage. The paper names the two
  quotients of (4) the other way round in its Table 1.
- (2) counts rows. A loop of ours also calls a step for each packet that waits (`call`), looks
  stream rows up in pages rather than the reverse (`lookup`), and fetches what matched chunk by
  chunk (`chunk`): of `chunk_pages` pages each, a packet meets every chunk of a read, or as many as
  it has matches, whichever are fewer. With these factors at 0, the default, (2) is as printed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.costs.storage import Floats, Number, Storage
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.memory import format_bytes


@dataclass(frozen=True)
class MeshFactors:
    """The costs of the steps of a loop, each in seconds per row."""

    expire: float  #: take a stream row out of the window
    receive: float  #: read a stream row from its buffer
    add: float  #: put a stream row into the window
    probe: float  #: look a table row up in the window
    output: float  #: make a result
    lookup: float = 0.0  #: look a stream row up in sorted codes
    call: float = 0.0  #: a step, however few rows; seconds each
    chunk: float = 0.0  #: a chunk that is fetched from; seconds each

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (0 <= value < math.inf):
                raise ArgumentError(f"{name}={value}: a cost is 0 seconds per row or more")

    @property
    def per_stream_row(self) -> float:
        return self.expire + self.receive + self.add + self.lookup


@dataclass(frozen=True)
class Workload:
    """A table, a stream, and how rows are kept."""

    table_rows: int
    table_row_bytes: float
    page_bytes: int
    stream_row_bytes: float
    selectivity: float = 0.0  #: results of a table row each time it is read
    results_per_row: float = 0.0  #: results of a stream row
    pointer_bytes: int = 8  #: of a row in the queue
    fudge: float = 1.0  #: bytes that the index holds for a byte of rows
    chunk_pages: int = 0  #: of matching rows that are fetched apart from the pages; 0: they are not

    def __post_init__(self) -> None:
        positive = ("table_rows", "table_row_bytes", "page_bytes", "stream_row_bytes", "fudge")
        for name, value in vars(self).items():
            if not (0 <= value < math.inf) or (name in positive and not value):
                least = "above 0" if name in positive else "0 or more"
                raise ArgumentError(f"{name}={value}: must be {least}")

    @property
    def table_pages(self) -> int:
        return max(1, math.ceil(self.table_rows * self.table_row_bytes / self.page_bytes))

    @property
    def rows_per_page(self) -> float:
        return self.page_bytes / self.table_row_bytes

    @property
    def window_row_bytes(self) -> float:
        """The bytes of a row in the window: itself with its index, and its part of the queue."""
        return self.fudge * self.stream_row_bytes + self.pointer_bytes

    def loops(self, pages: Number) -> Number:
        """The number of reads of so many pages in a scan of the table."""
        return -(-self.table_pages // pages)

    @property
    def requests(self) -> int:
        """Of a loop: the pages, and what matched, if that is apart from them."""
        return 2 if self.chunk_pages else 1

    def chunks(self, pages: Number) -> Number:
        """The mean number of chunks that so many pages, read together, lie in."""
        if not self.chunk_pages:
            return 0 * pages
        # reads that divide the table begin at the same places in every scan, at some chunks' too
        whole = np.asarray(pages).astype(np.int64)
        divides = self.table_pages % whole == 0
        aligned: Any = np.where(divides, np.gcd(whole, self.chunk_pages), 1)
        chunks: Number = 1 + (pages - aligned) / self.chunk_pages
        return chunks

    def page_choices(self) -> Floats:
        """The least number of pages for each possible number of loops, and few more; ascending."""
        total = self.table_pages
        # of pages and loops, one is at most about the root of the total: try both ways round
        few = np.arange(1, min(total, math.isqrt(total) + 1) + 1, dtype=np.int64)
        return np.union1d(few, -(-total // few)).astype(np.float64)


@dataclass(frozen=True)
class MeshPlan:
    """Settings, and what they lead to."""

    batch_rows: int
    pages: int
    memory_bytes: int
    rate: float  #: stream rows a second, at most
    wait_seconds: float  #: from a row's arrival to its last result, at most


@dataclass(frozen=True)
class MeshModel:
    """The cost model. Its methods take one setting, or arrays of them."""

    workload: Workload
    factors: MeshFactors
    storage: Storage

    def memory_bytes(self, batch_rows: Number, pages: Number) -> Number:
        """Equation (1): the buffers of both inputs, the queue and the window."""
        return pages * self.workload.page_bytes + batch_rows * self._bytes_per_batch_row(pages)

    def loop_seconds(self, batch_rows: Number, pages: Number) -> Number:
        """Equation (2): read pages, exchange a batch of the window, probe, make results."""
        few = self._fixed_seconds(pages) + batch_rows * self._row_seconds_apart
        many = self._fixed_seconds(pages) + self._chunk_seconds(pages)
        many = many + batch_rows * self.seconds_per_row
        loop: Number = np.minimum(few, many)
        return loop

    def rate(self, batch_rows: Number, pages: Number) -> Number:
        """Equation (3): the stream rows a second that are kept up with."""
        return batch_rows / self.loop_seconds(batch_rows, pages)

    def page_reads_per_row(self, batch_rows: Number, pages: Number) -> Number:
        """Equation (4), first half: pages read for a stream row."""
        return pages / batch_rows

    def page_reads_per_second(self, batch_rows: Number, pages: Number) -> Number:
        """Equation (4), second half."""
        return pages / self.loop_seconds(batch_rows, pages)

    def wait_seconds(self, batch_rows: Number, pages: Number) -> Number:
        """From a row's arrival to its last result, at most.

        One scan, after the loop during which it arrived.
        """
        return (self.workload.loops(pages) + 1) * self.loop_seconds(batch_rows, pages)

    @property
    def seconds_per_row(self) -> float:
        """The cost of a stream row however many share a read: its inverse limits the rate."""
        return self.factors.per_stream_row + self.workload.results_per_row * self.factors.output

    def plan(self, batch_rows: int, pages: int) -> MeshPlan:
        """The costs with these settings."""
        setting = float(batch_rows), float(pages)
        return MeshPlan(
            batch_rows=batch_rows,
            pages=pages,
            memory_bytes=math.ceil(self.memory_bytes(*setting)),
            rate=self.rate(*setting),
            wait_seconds=self.wait_seconds(*setting),
        )

    def _bytes_per_batch_row(self, pages: Number) -> Number:
        work = self.workload
        return work.stream_row_bytes + work.loops(pages) * work.window_row_bytes

    def _fixed_seconds(self, pages: Number) -> Number:
        """The cost of a loop whatever the batch."""
        work, factors = self.workload, self.factors
        per_row = factors.probe + work.selectivity * factors.output
        per_page = work.rows_per_page * per_row
        calls = (1 + work.loops(pages)) * factors.call
        read = self.storage.read_seconds(work.requests, pages * work.page_bytes)
        return read + pages * per_page + calls

    @property
    def _row_seconds_apart(self) -> float:
        """The cost of a stream row if its matches lie in chunks that no other row asks for."""
        alone = self.workload.results_per_row * self.factors.chunk
        return self.seconds_per_row + (alone if self.workload.chunk_pages else 0.0)

    def _chunk_seconds(self, pages: Number) -> Number:
        """The cost of opening chunks if every packet asks for every chunk of a read."""
        work = self.workload
        return work.loops(pages) * work.chunks(pages) * self.factors.chunk


def least_memory(model: MeshModel, rate: float, latency: float | None = None) -> MeshPlan:
    """The settings that keep up with `rate` stream rows a second in the least memory.

    With `latency`, no row may wait longer than so many seconds. Raises `ArgumentError` if no
    memory would do.
    """
    plan = try_least_memory(model, rate, latency)
    if plan is not None:
        return plan
    if rate * model.seconds_per_row >= 1:
        raise ArgumentError(
            f"no memory is enough for {rate:,.0f} rows a second: a row alone takes "
            f"{model.seconds_per_row:.3g} s, which limits the rate to "
            f"{1 / model.seconds_per_row:,.0f}; split the stream over more partitions"
        )
    pages = model.workload.page_choices()
    batch_rows = _rows_for_rate(model, rate, pages)
    shortest = float(model.wait_seconds(batch_rows, pages).min())
    raise ArgumentError(
        f"at {rate:,.0f} rows a second a row waits {shortest:.3g} s or longer, however much memory "
        f"there is; latency={latency} cannot be kept"
    )


def try_least_memory(
    model: MeshModel, rate: float, latency: float | None = None
) -> MeshPlan | None:
    """As `least_memory`, but None if no memory would do."""
    if not (0 <= rate < math.inf):
        raise ArgumentError(f"rate={rate}: must be 0 or more rows a second")
    _check_latency(latency)
    if rate * model.seconds_per_row >= 1:
        return None
    pages = model.workload.page_choices()
    batch_rows = _rows_for_rate(model, rate, pages)
    memory = model.memory_bytes(batch_rows, pages)
    if latency is not None:
        memory[model.wait_seconds(batch_rows, pages) > latency] = np.inf
    best = int(memory.argmin())
    return model.plan(int(batch_rows[best]), int(pages[best])) if memory[best] < np.inf else None


def best_rate(
    model: MeshModel,
    memory_bytes: float,
    latency: float | None = None,
    most_rows: float = math.inf,
) -> MeshPlan:
    """The settings with the highest rate inside `memory_bytes`.

    With `latency`, no row may wait longer than so many seconds; a batch has no more than
    `most_rows`, which is what comes at a time. Raises `MemoryBudgetError`, which
    names the least that would do, if not even a batch of one row fits; `ArgumentError` if a row
    has to wait longer than `latency` in any memory.
    """
    _check_latency(latency)
    pages = model.workload.page_choices()
    room = memory_bytes - pages * model.workload.page_bytes
    batch_rows = _largest(
        room / model._bytes_per_batch_row(pages),
        lambda rows: model.memory_bytes(rows, pages) <= memory_bytes,
    )
    if latency is not None:
        batch_rows = np.minimum(batch_rows, _rows_for_wait(model, latency, pages))
    rate = np.full_like(pages, -1.0)
    batch_rows = np.minimum(batch_rows, max(1.0, math.floor(min(most_rows, 1e15))))
    fits = batch_rows >= 1
    rate[fits] = model.rate(batch_rows[fits], pages[fits])
    best = int(rate.argmax())
    if fits[best]:
        return model.plan(int(batch_rows[best]), int(pages[best]))
    raise _too_small(model, memory_bytes, latency)


def _too_small(
    model: MeshModel, memory_bytes: float, latency: float | None
) -> MemoryBudgetError | ArgumentError:
    """The error when not even a batch of one row is possible."""
    pages = model.workload.page_choices()
    one = np.ones_like(pages)
    wait = model.wait_seconds(one, pages)
    quick = wait <= (np.inf if latency is None else latency)
    if not quick.any():
        return ArgumentError(
            f"a row waits {float(wait.min()):.3g} s or longer, however much memory there is: "
            f"latency={latency} cannot be kept"
        )
    least = math.ceil(model.memory_bytes(one, pages)[quick].min())
    within = "" if latency is None else f" and a wait of {latency} s"
    return MemoryBudgetError(
        f"{format_bytes(int(memory_bytes))} are too little for a mesh join with this table"
        f"{within}: even with one row a batch it takes {format_bytes(least)} "
        f"({least:,} bytes). Raise memory=, or make the pages smaller."
    )


def _check_latency(latency: float | None) -> None:
    if latency is not None and not latency > 0:
        raise ArgumentError(f"latency={latency}: must be above 0 seconds")


def _rows_for_rate(model: MeshModel, rate: float, pages: Floats) -> Floats:
    """Equation (5): the least batch, of a row or more, for a rate that is below the limit."""
    fixed, shared = model._fixed_seconds(pages), model._chunk_seconds(pages)
    about = rate * (fixed + shared) / (1 - rate * model.seconds_per_row)
    if rate * model._row_seconds_apart < 1:  # a loop takes the lesser of two times: either will do
        about = np.minimum(about, rate * fixed / (1 - rate * model._row_seconds_apart))
    # minus the largest of the negative numbers
    least = -_largest(-about, lambda rows: model.rate(np.maximum(-rows, 0), pages) >= rate)
    return np.maximum(1, least)


def _rows_for_wait(model: MeshModel, latency: float, pages: Floats) -> Floats:
    """The largest batch with which no row waits longer; below 1 where there is none."""
    spare = latency / (model.workload.loops(pages) + 1) - model._fixed_seconds(pages)
    if not model._row_seconds_apart:
        return np.where(spare >= 0, np.inf, 0.0)
    about = np.maximum(spare, 0) / model._row_seconds_apart
    if model.seconds_per_row:  # a loop takes the lesser of two times: either will do
        shared = np.maximum(spare - model._chunk_seconds(pages), 0) / model.seconds_per_row
        about = np.maximum(about, shared)
    return _largest(
        about,
        lambda rows: model.wait_seconds(rows, pages) <= latency,
    )


def _largest(about: Floats, allowed: Callable[[Floats], NDArray[np.bool_]]) -> Floats:
    """The largest whole numbers that are allowed, which are `about` rounded down.

    But for the rounding of `about` itself, which may put it on the wrong side of a whole number.
    """
    found = np.floor(about) - 1
    for _ in range(2):
        found += allowed(found + 1)
    return found
