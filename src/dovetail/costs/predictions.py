"""Predictions of each algorithm for a join of a stream with a table, side by side.

The predictions are those of the cost models beside this file, for one partition's share of the
budget, times the partitions that run at once. They know what the staged table is like: a scan reads
codes alone, 8 bytes a row, and table rows are fetched for matches only. What they do not know they
assume: one match for a row, and keys as skewed as `skew` says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import pyarrow as pa

from dovetail.costs import inl, meshjoin, seek, ssbj
from dovetail.costs.explanation import Planned
from dovetail.costs.meshjoin import MeshFactors, MeshModel, MeshPlan, Workload
from dovetail.costs.skew import UNIFORM, Skew
from dovetail.costs.ssbj import SsbjState, Stream
from dovetail.costs.storage import Storage
from dovetail.costs.widths import RowWidth, row_width
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream import SemiStreamSpec
from dovetail.semistream.base import WORKING_SHARE
from dovetail.semistream.cache.parts import KEY_BYTES
from dovetail.semistream.inl.leaves import rows_of_leaf
from dovetail.semistream.inl.operator import INDEX_SHARE, leaves_at_once
from dovetail.semistream.inl.pool import OBJECT_BYTES
from dovetail.semistream.overload import Shedding
from dovetail.semistream.seek.operator import SeekUncached
from dovetail.semistream.table.reading import CODE_BYTES, chunk_pages

_MOST_VALUES = 1 << 20  # more join values are taken together, neighbours by rank
_MOST_ALIKE = 1 << 14  # where all values come as often, there is less to tell apart
_PACKET_BYTES = 13  # of a row in a scan's window, besides itself and its index
#: of a step besides its joining, on two cores: rows are handed over, results are committed
STEP_SECONDS = 0.04
ALIKE = 1.5  #: rates closer than this are the same: predictions are off by half as a rule


@dataclass(frozen=True)
class TableSize:
    """The size of the table, over all partitions."""

    rows: int
    row_bytes: float
    page_rows: int
    source: str  #: where the numbers come from


@dataclass(frozen=True)
class Machine:
    """The measurements of the machine that the join will run on."""

    factors: MeshFactors
    storage: Storage
    cores: int


@dataclass(frozen=True, kw_only=True)
class PlannedEnrich(Planned):
    """An enrichment as it would run, and how its settings came about."""

    spec: SemiStreamSpec
    table: TableSize
    machine: Machine
    skew: Skew = UNIFORM  #: of the stream's keys
    sample: pa.Table | None = None  #: some rows of the stream
    drain_seconds: float = 0.0  #: that a step goes on for, to settle the rows that it was given
    why: str = ""  #: the algorithm is the one that it is
    latency: float | None = None  #: seconds that a row may wait
    pages: int = 0  #: of the table that a step scans for that; 0 without a scan
    shedding: Shedding | None = None
    profile: Storage | None = None  #: storage to predict for, if not the machine's

    @property
    def foreseen(self) -> "PlannedEnrich":
        """The same where predictions are asked for."""
        if self.profile is None:
            return self
        return replace(self, machine=replace(self.machine, storage=self.profile), profile=None)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one algorithm, over all partitions; or its `problem` instead."""

    algorithm: str
    memory_bytes: float = 0.0
    rate: float = 0.0  #: stream rows a second, at most
    wait_seconds: float = 0.0  #: from a row's arrival to its last result, at most, by joining alone
    bytes_per_row: float = 0.0  #: read for a stream row
    scanned_per_row: float = 0.0  #: of these, all but the table rows that matched
    problem: str = ""

    @property
    def on_spark(self) -> Self:
        """The same with Spark's part in it: a row waits for the step that settles it to end."""
        return (
            self if self.problem else replace(self, wait_seconds=self.wait_seconds + STEP_SECONDS)
        )


def predict(plan: PlannedEnrich) -> list[Prediction]:
    """Predict each algorithm with the budget, fastest first.

    Seek without its cache, which is there to compare with, only if it is the plan's.
    """
    share = Share(plan)
    ways: dict[str, Callable[[], Prediction]] = {
        "seek": share.seek,
        "ssbj": share.ssbj,
        "ameshjoin": share.ameshjoin,
        "meshjoin": share.meshjoin,
        "inl": share.inl,
    }
    if plan.algorithm == SeekUncached.name:
        ways[plan.algorithm] = share.seek_uncached
    found = []
    for name, way in ways.items():
        try:
            found.append(share.over_all(way()))
        except MemoryBudgetError:
            found.append(Prediction(name, problem="the budget is too small"))
        except ArgumentError:  # of the settings that a latency allows
            found.append(Prediction(name, problem="rows would wait too long"))
    return sorted(found, key=lambda one: -one.rate)


class Share:
    """One partition: its part of the table and of the budget."""

    def __init__(self, plan: PlannedEnrich) -> None:
        self.plan = plan
        self.rows = max(1, plan.table.rows // plan.partitions)
        self.row_bytes = plan.table.row_bytes
        self.memory = _budget(plan) / plan.partitions
        self.working = self.memory * WORKING_SHARE
        self.stream_bytes = max(1.0, stream_width(plan).nbytes)
        self.room = self._window_bytes()
        taken_in = self.working / 4 / (self.stream_bytes + 2 * INDEX_BYTES_PER_ROW)
        self.slice_rows = max(1.0, min(taken_in, plan.batch_rows))
        # a packet is filled slice by slice, but a step that goes on to settle its rows closes it
        self.packet_rows = float(plan.batch_rows)
        self.storage = plan.machine.storage
        fetched = self.row_bytes if plan.spec.how in ("inner", "left") else 0.0
        factors = plan.machine.factors
        self.fetched = fetched
        # a result is made of a table row that is read for it
        self.factors = replace(
            factors, output=factors.output + fetched / self.storage.bytes_per_second
        )

    def _window_bytes(self) -> float:
        """What a scan has for its window: the input batch takes a quarter of the rest, or more."""
        rest = self.memory - self.working
        left = rest - self.plan.batch_rows * self.stream_bytes
        return max(rest / 8, min(rest * 3 / 4, left))

    def over_all(self, one: Prediction) -> Prediction:
        """The same over all partitions; those that share a core take turns."""
        return replace(
            one,
            memory_bytes=(one.memory_bytes + self.working) * self.plan.partitions,
            rate=one.rate * partitions_at_once(self.plan),
            wait_seconds=one.wait_seconds * self.turns,
        )

    @property
    def turns(self) -> int:
        """The partitions that share a core."""
        return math.ceil(self.plan.partitions / partitions_at_once(self.plan))

    def seek(self) -> Prediction:
        return self._sought("seek", caches=not self.plan.spec.ordered)

    def seek_uncached(self) -> Prediction:
        return self._sought(SeekUncached.name, caches=False)

    def _sought(self, name: str, *, caches: bool) -> Prediction:
        model = seek.SeekModel(
            table=seek.SeekTable(
                self.rows, self.fetched, self.plan.table.page_rows, self.chunk_pages
            ),
            stream=self.stream,
            stream_row_bytes=self.stream_bytes,
            factors=self.plan.machine.factors,
            storage=self.storage,
            cached_row_bytes=self.grouped * self.row_bytes,
            cached_key_bytes=self.grouped * KEY_BYTES,
            slice_rows=self.slice_rows,
        )
        best = seek.best_rate(model, self.memory, caches=caches)
        read = best.bytes_per_row
        scanned = read - (1 - best.cache_share) * self.stream.mean_matches * self.fetched
        return Prediction(name, best.memory_bytes, best.rate, best.wait_seconds, read, scanned)

    def ssbj(self) -> Prediction:
        if self.plan.spec.ordered:  # nothing is cached then
            return replace(self.meshjoin(), algorithm="ssbj")
        factors = ssbj.SsbjFactors.of(self.factors, switch=0.0)
        model = ssbj.SsbjModel(
            self.scanned,
            factors,
            self.storage,
            self.stream,
            key_bytes=int(self.grouped * KEY_BYTES),
            cached_row_bytes=self.grouped * (self.row_bytes + KEY_BYTES),
        )
        best = ssbj.best_rate(model, self.room, self.pages_read, self.packet_rows)
        return self._scan("ssbj", best, best.disk_share)

    def ameshjoin(self) -> Prediction:
        latency = None if self.plan.latency is None else self.plan.latency / self.turns
        best = meshjoin.best_rate(self.mesh, self.room, latency, self.packet_rows)
        return self._scan("ameshjoin", best)

    def meshjoin(self) -> Prediction:
        """With the settings that the operator begins with."""
        work, pages = self.scanned, self.pages_read
        loops = -(-work.table_pages // pages)
        room = self.room - pages * work.page_bytes
        batch = room / (work.stream_row_bytes + loops * work.window_row_bytes)
        if batch < 1:
            raise MemoryBudgetError("not one row a batch")
        return self._scan("meshjoin", self.mesh.plan(int(min(batch, self.packet_rows)), pages))

    def inl(self) -> Prediction:
        page_rows, width = self.plan.table.page_rows, CODE_BYTES + self.row_bytes
        rows = rows_of_leaf(self.rows, self.row_bytes, page_rows, self.memory * INDEX_SHARE)
        work = replace(self.scanned, table_row_bytes=width, page_bytes=max(1, int(rows * width)))
        index = CODE_BYTES * work.table_pages if rows < page_rows else 0
        shares = seek.spread_over_pages(self.stream.probability, work.table_pages)
        factors = self.plan.machine.factors
        together = leaves_at_once(self.working, work.page_bytes)
        chunks = -(-self.rows // (page_rows * chunk_pages(max(1, int(page_rows * self.row_bytes)))))
        model = inl.InlModel(
            work, factors, self.storage, shares, self.slice_rows, 2, together, chunks
        )  # fmt: skip
        pool = (self.memory - index) / 2
        best = inl.best_rate(model, pool / (1 + OBJECT_BYTES / work.page_bytes))
        read = best.page_reads_per_row * work.page_bytes
        wait = self.slice_rows / best.rate
        return Prediction("inl", best.memory_bytes + index, best.rate, wait, read, read)

    def _scan(self, name: str, best: MeshPlan | SsbjState, disk_share: float = 1.0) -> Prediction:
        """The prediction of a scan, unless its rows wait longer than they may.

        disk_share: of the stream rows, those whose matches are not cached.
        """
        wait = best.wait_seconds
        if self.plan.latency is not None and wait * self.turns > self.plan.latency:
            raise ArgumentError(f"rows wait {wait * self.turns:.3g} s")
        scanned = best.pages * self.scanned.page_bytes / best.batch_rows
        read, rate = scanned + disk_share * self.fetched, self._drained(best.rate, wait)
        return Prediction(name, best.memory_bytes, rate, wait, read, scanned)

    def _drained(self, rate: float, scan_seconds: float) -> float:
        """The rate of a scan that settles a batch before the next one comes.

        A stream without pauses shares every scan among all rows that wait. A step of Spark does
        not know what comes next, and goes on round the table for the last of its rows.
        """
        rows = self.plan.batch_rows
        return rows / (rows / rate + min(scan_seconds, self.plan.drain_seconds))

    @property
    def mesh(self) -> MeshModel:
        return MeshModel(self.scanned, self.factors, self.storage)

    @property
    def scanned(self) -> Workload:
        """The table as a scan sees it: codes."""
        return Workload(
            table_rows=self.rows,
            table_row_bytes=CODE_BYTES,
            page_bytes=CODE_BYTES * self.plan.table.page_rows,
            stream_row_bytes=self.stream_bytes,
            results_per_row=1.0,
            pointer_bytes=INDEX_BYTES_PER_ROW + _PACKET_BYTES,
            chunk_pages=self.chunk_pages,
        )

    @cached_property
    def stream(self) -> Stream:
        values = max(1, int(self.rows / self.grouped))
        return Stream.of(ssbj.zipf(values, self.plan.skew.exponent))

    @property
    def chunk_pages(self) -> int:
        """Of the rows that are fetched for results."""
        return chunk_pages(int(self.plan.table.page_rows * self.row_bytes)) if self.fetched else 0

    @property
    def pages_read(self) -> int:
        """By a scan at a time, unless it is told otherwise."""
        work = self.scanned
        return max(1, min(work.table_pages, int(self.working / 4 / work.page_bytes)))

    @property
    def grouped(self) -> float:
        """The number of join values that are taken as one."""
        return max(1.0, self.rows / (_MOST_VALUES if self.plan.skew.exponent else _MOST_ALIKE))


def partitions_at_once(plan: PlannedEnrich) -> int:
    """The partitions that run at the same time."""
    return min(plan.partitions, plan.machine.cores)


def _budget(plan: PlannedEnrich) -> float:
    """The budget, or without one what is as good: room for everything."""
    if plan.memory_bytes is not None:
        return float(plan.memory_bytes)
    return max(1 << 26, 4 * plan.table.rows * (plan.table.row_bytes + KEY_BYTES)) + plan.partitions


def stream_width(plan: PlannedEnrich) -> RowWidth:
    return row_width(plan.spec.stream, plan.sample)


def rounded(number: float) -> str:
    """Two digits: more would claim too much."""
    if not 0 < number < math.inf:
        return "unlimited" if number else "0"
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return f"{round(number / unit) * unit:,}" if number >= 1 else f"{number:.2g}"


def duration(seconds: float) -> str:
    """A time as people read it, with as many digits."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{rounded(seconds * 1000)} ms" if seconds >= 1e-3 else "below 1 ms"
