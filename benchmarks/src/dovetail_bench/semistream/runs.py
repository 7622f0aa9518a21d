"""Joins of a stream with a staged table under a virtual clock, for the `ssbj-*` and `mesh-*` runs.

The rows are those of both papers: 20 bytes in the stream, 120 in the table. A join is driven
iteration by iteration: it gets as many rows as an iteration can take, and what it did is counted.
A `Tally` turns the counts into seconds under a storage profile:

- a seek for every iteration of a scan, however many pieces it is read in, and for every leaf of
  index nested loops that does not follow on the leaf before;
- the bytes of the pages or leaves, codes and payload: the papers' pages hold whole rows, while our
  scan reads codes alone and fetches the payload of matches;
- the steps of the papers' cost models, at the fixed `FACTORS`: round numbers, so that virtual
  seconds do not depend on the machine.

At the end of a run the join is drained; there must be as many results as the keys say.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.costs.ssbj import SsbjFactors
from dovetail.costs.storage import DISK_7200, OBJECT_STORE, Storage
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream import (
    ALGORITHMS,
    KEYS_SCHEMA,
    SemiStreamJoin,
    StagedTable,
)
from dovetail.semistream.scan.meshjoin import MeshJoin
from dovetail.semistream.scan.ssbj import Ssbj
from dovetail.semistream.spec import STREAM
from dovetail_bench.measure import expect_rows
from dovetail_bench.scratch import block_store
from dovetail_bench.semistream.relation import STREAM_ROW_BYTES, Feed, Law, Listed, Relation

SSD = Storage("NVMe SSD", 100e-6, 2e9, "a typical one: 0.1 ms, 2 GB/s; not measured")
SSD_DEEP = Storage(
    "NVMe SSD, 32 reads at once", 100e-6 / 32, 2e9, "the same with a queue of 32 reads that overlap"
)
STORAGES = {"disk": DISK_7200, "object-store": OBJECT_STORE, "ssd": SSD, "ssd-32": SSD_DEEP}
FACTORS = SsbjFactors(
    expire=40e-9, receive=5e-9, add=100e-9, probe=50e-9, output=100e-9, switch=5e-9
)
VIRTUAL = (
    "seconds are virtual: a seek and the bytes of whole pages (codes and payload) as counted, "
    "under a storage profile, and fixed seconds per row for the steps of the cost models"
)
_FUEL = 1 << 20
_FAR = 1 << 62  # behind everything
_MOST_HITS = 64  # rows taken for one that misses, when nearly all are cached


class CountingTable(StagedTable):
    """Counts the rows of the pages and leaves that are read, and the seeks to get to them.

    Checksums, which a process checks when it first reads a page, are left out: a run is short, and
    they would be most of its wall time.
    """

    seeks = 0
    scanned = 0
    reach = 0  #: rows ahead that are let pass, and count as read, rather than sought
    _next = _FAR  # where the last read ended

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        super().__init__(directory, schema)
        self._page_seen[:] = self._chunk_seen[:] = True

    def _count_read(self, begin: int, end: int) -> None:
        gap = begin - self._next
        near = 0 <= gap <= self.reach
        self.seeks += not near
        self.scanned += end - begin + (gap if near else 0)
        self._next = end
        super()._count_read(begin, end)

    def interrupt(self) -> None:
        """Other work comes between: the next read has to be sought."""
        self._next = _FAR


@dataclass(frozen=True)
class Tally:
    """What was done between two moments."""

    iterations: int = 0
    rows: int = 0
    cached: int = 0  #: rows that the cache settled
    results: int = 0
    scanned: int = 0  #: rows of the pages read
    seeks: int = 0
    wall_seconds: float = 0.0
    processor_seconds: float = 0.0  #: of this thread

    def __sub__(self, earlier: "Tally") -> "Tally":
        names = [field.name for field in fields(self)]
        return Tally(*(getattr(self, name) - getattr(earlier, name) for name in names))

    def seconds(self, storage: Storage, relation: Relation, *, scans: bool = True) -> float:
        """Virtual seconds; `scans` is whether table rows look stream rows up or the reverse."""
        page_bytes = self.scanned * (relation.table_row_bytes + 8)
        waited = self.rows - self.cached
        compute = self.rows * FACTORS.receive + self.results * FACTORS.output
        if scans:
            compute += waited * (FACTORS.add + FACTORS.expire)
            compute += (self.scanned + self.cached) * FACTORS.probe
        else:
            compute += self.rows * FACTORS.probe
        return storage.read_seconds(self.seeks, float(page_bytes)) + compute


class Run:
    """One join with one stream."""

    def __init__(self, operator: SemiStreamJoin, table: CountingTable, feed: Feed) -> None:
        self.operator = operator
        self.table = table
        self.feed = feed
        self._iterations = 0
        self._wall = self._processor = 0.0

    @property
    def tally(self) -> Tally:
        counters = self.operator.ctx.counters
        return Tally(
            iterations=self._iterations,
            rows=counters.rows_in[STREAM],
            cached=self.operator.cache.found if isinstance(self.operator, Ssbj) else 0,
            results=sum(counters.rows_out.values()),
            scanned=self.table.scanned,
            seeks=self.table.seeks,
            wall_seconds=self._wall,
            processor_seconds=self._processor,
        )

    def push(self, rows: int, *, iterates: bool = True) -> None:
        """One batch, which for a scan is one iteration, unless that waits for its packet's end."""
        batch = self.feed.take(rows)
        scanned = self.table.scanned
        self._consume(self.operator.push(STREAM, batch))
        self._iterations += 1
        if iterates and self.table.scanned == scanned:
            self.work(1)

    def work(self, fuel: int) -> None:
        """Deferred work, as much as there is fuel for."""
        self._consume(self.operator.poll(fuel))

    def _consume(self, results: Iterator[pa.RecordBatch]) -> None:
        wall, processor = time.perf_counter(), time.thread_time()
        for _ in results:
            pass
        self._wall += time.perf_counter() - wall
        self._processor += time.thread_time() - processor
        self.table.interrupt()

    def scan(self, rows: "Callable[[Run], int]", *, iterates: bool = True) -> Tally:
        """Batches until the scan is round once; `rows` says how many rows each has."""
        before = self.tally
        goal = self.table.scanned + self.table.rows
        while self.table.scanned < goal:
            self.push(rows(self), iterates=iterates)
        return self.tally - before

    def until_waiting(self, wanted: int) -> int:
        """How many of the next rows to take so that `wanted` of them have to wait."""
        operator = self.operator
        if not isinstance(operator, Ssbj) or not operator.cache.parts:
            return wanted
        count = 4 * wanted
        while True:
            misses = np.flatnonzero(~_cached(operator, self.feed.peek(count)))
            if len(misses) >= wanted:
                return int(misses[wanted - 1]) + 1
            if count >= _MOST_HITS * wanted:
                return count
            count *= 2

    def as_it_likes(self) -> int:
        """As many rows as the operator wants inside its budget."""
        operator = self.operator
        assert isinstance(operator, MeshJoin)
        return self.until_waiting(operator.w)

    def filling(self, memory_bytes: int, loops: int) -> int:
        """As many rows as fill `memory_bytes` when a scan takes so many iterations."""
        row_bytes = self.waiting_row_bytes
        cache_bytes = self.held_bytes - self.window_bytes
        steady = (memory_bytes - cache_bytes) / (loops * row_bytes)
        free = (memory_bytes - self.held_bytes) / row_bytes + steady  # a packet leaves, too
        return self.until_waiting(max(1, int(min(steady, free))))

    @property
    def waiting_row_bytes(self) -> float:
        """What a row takes up while it waits."""
        operator = self.operator
        assert isinstance(operator, MeshJoin)
        if operator.packets:
            return operator.packets[0].nbytes / len(operator.packets[0].run)
        return STREAM_ROW_BYTES + INDEX_BYTES_PER_ROW

    @property
    def window_bytes(self) -> int:
        return self.operator.ctx.budget.components.get("window", 0)

    @property
    def held_bytes(self) -> int:
        """What rows that wait take up, and the cache with what it needs to change."""
        held = self.operator.ctx.budget.components
        names = ("window", "cache", "notes", "switching buffer")
        return sum(held.get(name, 0) for name in names)

    @property
    def cached_rows(self) -> int:
        """Table rows in the cache of SSBJ."""
        operator = self.operator
        parts = operator.cache.parts if isinstance(operator, Ssbj) else []
        return sum(part.rows.num_rows for part in parts)

    def drain(self) -> None:
        """Finish what waits, and see that there were as many results as there had to be."""
        while self.operator.pending():
            self.work(_FUEL)
        expect_rows(self.tally.results, self.feed.expected)


def _cached(operator: Ssbj, codes: Codes) -> NDArray[np.bool_]:
    found = np.zeros(len(codes), dtype=np.bool_)
    for part in operator.cache.parts:
        at = np.minimum(np.searchsorted(part.keys, codes), len(part.keys) - 1)
        found |= part.keys[at] == codes
    return found


@contextmanager
def opened(
    algorithm: str | type[SemiStreamJoin],
    relation: Relation,
    law: Law | Listed,
    seed: list[int],
    budget_bytes: int | None = None,
    **options: Any,
) -> Iterator[Run]:
    """A new join with a new stream."""
    kind = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    table = CountingTable(relation.directory, relation.spec.table)
    try:
        with block_store((*relation.spec.schemas, KEYS_SCHEMA)) as store:
            context = Context(Budget(budget_bytes), store)
            operator = kind(relation.spec, context, table, **options)
            yield Run(operator, table, Feed(relation, law, seed))
    finally:
        table.close()


def pages_for(relation: Relation, loops: int) -> int:
    """The `b` with which a scan of the table takes about so many iterations."""
    table = StagedTable(relation.directory, relation.spec.table)
    pages = table.pages
    table.close()
    return -(-pages // loops)
