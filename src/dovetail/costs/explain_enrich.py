"""What a join of a stream with a table will do, in words and with predicted numbers.

The predictions are those of the cost models beside this file, for one partition's share of the
budget, times the partitions that run at once. They know what the staged table is like: a scan reads
codes alone, 8 bytes a row, and table rows are fetched for matches only. What they do not know they
assume, and the explanation says so: one match for a row, and keys as skewed as `skew` says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from dovetail.costs import inl, meshjoin, seek, ssbj
from dovetail.costs.explain import Explanation, RowWidth, columns_of, keys_of, row_width
from dovetail.costs.meshjoin import MeshFactors, MeshModel, MeshPlan, Workload
from dovetail.costs.ssbj import Stream
from dovetail.costs.storage import Storage
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.memory import format_bytes
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream import SemiStreamSpec
from dovetail.semistream.base import WORKING_SHARE
from dovetail.semistream.cache import KEY_BYTES
from dovetail.semistream.overload import Shedding
from dovetail.semistream.table import CHUNK_PAGES, CODE_BYTES

_MOST_VALUES = 1 << 20  # more join values are taken together, neighbours by rank
_MOST_ALIKE = 1 << 14  # where all values come as often, there is less to tell apart
_PACKET_BYTES = 13  # of a row in a scan's window, besides itself and its index
ALIKE = 1.5  #: rates closer than this are the same: predictions are off by half as a rule
_WHY = {
    "seek": "reads the pages that hold a waiting row, in order, behind a cache of hot values",
    "seek-uncached": "reads the pages that hold a waiting row, in order; no cache",
    "ssbj": "scans the table in a circle, behind a cache of the values that pay for their room",
    "ameshjoin": "scans the table in a circle, with batches and reads of the best sizes",
    "meshjoin": "scans the table in a circle, with batches and reads of fixed sizes",
    "inl": "reads the page of each row, unless it is in a pool of pages",
}

_KEPT = {
    "keep": "keep: those that came first",
    "sample": "sample: any, by chance",
    "topw": "topw: those with the most results",
    "cluster": "cluster: by chance, the more results the more likely",
}


@dataclass(frozen=True)
class TableSize:
    """How large the table is, over all partitions."""

    rows: int
    row_bytes: float
    page_rows: int
    source: str  #: where the numbers come from


@dataclass(frozen=True)
class Machine:
    """What was measured where the join will run."""

    factors: MeshFactors
    storage: Storage
    cores: int


@dataclass(frozen=True)
class PlannedEnrich:
    """An enrichment as it would run, and how its settings came about."""

    spec: SemiStreamSpec
    algorithm: str
    asked_algorithm: str
    memory_bytes: int | None
    partitions: int
    asked_partitions: int | None
    streaming: bool
    table: TableSize
    machine: Machine
    skew: float = 0.0  #: of the stream's keys: a Zipf exponent, 0 is uniform
    state: Path | None = None
    state_note: str = ""
    sample: pa.Table | None = None  #: some rows of the stream
    batch_rows: int = 10_000  #: that Spark hands over at a time, at most
    drain_seconds: float = 0.0  #: that a step goes on for, to settle the rows that it was given
    why: str = ""  #: the algorithm is the one that it is
    latency: float | None = None  #: seconds that a row may wait
    pages: int = 0  #: of the table that a step scans for that; 0 without a scan
    shedding: Shedding | None = None


@dataclass(frozen=True)
class Prediction:
    """What one algorithm would do, over all partitions. A `problem` stands for all of it."""

    algorithm: str
    memory_bytes: float = 0.0
    rate: float = 0.0  #: stream rows a second, at most
    wait_seconds: float = 0.0  #: from a row's arrival to its last result, at most
    bytes_per_row: float = 0.0  #: read for a stream row
    scanned_per_row: float = 0.0  #: of these, all but the table rows that matched
    problem: str = ""


def explain_enrich(plan: PlannedEnrich) -> Explanation:
    """Say what an enrichment will do, and why."""
    predictions = predict(plan)
    sections = [
        ("enrich", _inputs(plan)),
        ("keys", keys_of(plan.spec.codec)),
        ("algorithm", _algorithm(plan, predictions)),
        ("predictions", [*_assumptions(plan), *_rows(plan, predictions)]),
        ("partitions", _partitions(plan)),
        ("memory", _memory(plan)),
        *((("waits", _waits(plan)),) if plan.latency is not None else ()),
        *((("shedding", _shedding(plan.shedding)),) if plan.shedding is not None else ()),
        ("state", _state(plan)),
        ("output", [columns_of(plan.spec.layout.schema)]),
    ]
    return Explanation(tuple((title, tuple(lines)) for title, lines in sections))


def predict(plan: PlannedEnrich) -> list[Prediction]:
    """What each algorithm would do with the budget, fastest first."""
    share = _Share(plan)
    ways: dict[str, Callable[[], Prediction]] = {
        "seek": share.seek,
        "ssbj": share.ssbj,
        "ameshjoin": share.ameshjoin,
        "meshjoin": share.meshjoin,
        "inl": share.inl,
    }
    found = []
    for name, way in ways.items():
        try:
            found.append(share.over_all(way()))
        except MemoryBudgetError:
            found.append(Prediction(name, problem="the budget is too small"))
        except ArgumentError:  # of the settings that a latency allows
            found.append(Prediction(name, problem="rows would wait too long"))
    return sorted(found, key=lambda one: -one.rate)


class _Share:
    """One partition: its part of the table and of the budget."""

    def __init__(self, plan: PlannedEnrich) -> None:
        self.plan = plan
        self.rows = max(1, plan.table.rows // plan.partitions)
        self.row_bytes = plan.table.row_bytes
        self.memory = _budget(plan) / plan.partitions
        self.working = self.memory * WORKING_SHARE
        self.stream_bytes = max(1.0, _stream_width(plan).nbytes)
        self.room = self._window_bytes()
        taken_in = self.working / 4 / (self.stream_bytes + 2 * INDEX_BYTES_PER_ROW)
        self.slice_rows = max(1.0, min(taken_in, plan.batch_rows))
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
        best = seek.best_rate(model, self.memory, caches=not self.plan.spec.ordered)
        read = best.bytes_per_row
        scanned = read - (1 - best.cache_share) * self.stream.mean_matches * self.fetched
        return Prediction("seek", best.memory_bytes, best.rate, best.wait_seconds, read, scanned)

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
        best = ssbj.best_rate(model, self.room, self.pages_read, self.slice_rows)
        scanned = best.pages * self.scanned.page_bytes / best.batch_rows
        read = scanned + best.disk_share * self.fetched
        rate = self._drained(best.rate, best.wait_seconds)
        return self._in_time(
            Prediction("ssbj", best.memory_bytes, rate, best.wait_seconds, read, scanned)
        )

    def ameshjoin(self) -> Prediction:
        latency = None if self.plan.latency is None else self.plan.latency / self.turns
        best = meshjoin.best_rate(self.mesh, self.room, latency, self.slice_rows)
        return self._meshed("ameshjoin", best)

    def meshjoin(self) -> Prediction:
        """With the settings that the operator begins with."""
        work, pages = self.scanned, self.pages_read
        loops = -(-work.table_pages // pages)
        room = self.room - pages * work.page_bytes
        batch = room / (work.stream_row_bytes + loops * work.window_row_bytes)
        if batch < 1:
            raise MemoryBudgetError("not one row a batch")
        return self._meshed("meshjoin", self.mesh.plan(int(min(batch, self.slice_rows)), pages))

    def inl(self) -> Prediction:
        page_rows = self.plan.table.page_rows
        width = CODE_BYTES + self.row_bytes
        work = replace(
            self.scanned, table_row_bytes=width, page_bytes=max(1, int(page_rows * width))
        )
        shares = seek.spread_over_pages(self.stream.probability, work.table_pages)
        factors = self.plan.machine.factors
        model = inl.InlModel(
            work, factors, self.storage, shares, self.slice_rows, requests_per_page=2
        )
        best = inl.best_rate(model, self.memory / 2)  # the pool's share
        read = best.page_reads_per_row * work.page_bytes
        wait = self.slice_rows / best.rate
        return Prediction("inl", best.memory_bytes, best.rate, wait, read, read)

    def _in_time(self, one: Prediction) -> Prediction:
        """The same, unless its rows wait longer than they may."""
        if self.plan.latency is not None and one.wait_seconds * self.turns > self.plan.latency:
            raise ArgumentError(f"rows wait {one.wait_seconds * self.turns:.3g} s")
        return one

    def _meshed(self, name: str, best: MeshPlan) -> Prediction:
        scanned = best.pages * self.scanned.page_bytes / best.batch_rows
        read = scanned + self.fetched
        rate = self._drained(best.rate, best.wait_seconds)
        return self._in_time(
            Prediction(name, best.memory_bytes, rate, best.wait_seconds, read, scanned)
        )

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
        return Stream.of(ssbj.zipf(values, self.plan.skew))

    @property
    def chunk_pages(self) -> int:
        """Of the rows that are fetched for results."""
        return CHUNK_PAGES if self.fetched else 0

    @property
    def pages_read(self) -> int:
        """By a scan at a time, unless it is told otherwise."""
        work = self.scanned
        return max(1, min(work.table_pages, int(self.working / 4 / work.page_bytes)))

    @property
    def grouped(self) -> float:
        """How many join values are taken as one."""
        return max(1.0, self.rows / (_MOST_VALUES if self.plan.skew else _MOST_ALIKE))


def partitions_at_once(plan: PlannedEnrich) -> int:
    """The partitions that run at the same time."""
    return min(plan.partitions, plan.machine.cores)


def _budget(plan: PlannedEnrich) -> float:
    """The budget, or without one what is as good: room for everything."""
    if plan.memory_bytes is not None:
        return float(plan.memory_bytes)
    return max(1 << 26, 4 * plan.table.rows * (plan.table.row_bytes + KEY_BYTES)) + plan.partitions


def _stream_width(plan: PlannedEnrich) -> RowWidth:
    return row_width(plan.spec.stream, plan.sample)


def _inputs(plan: PlannedEnrich) -> list[str]:
    spec, table, width = plan.spec, plan.table, _stream_width(plan)
    pairs = zip(spec.stream_keys, spec.table_keys, strict=True)
    matches = " and ".join(f"stream.{a} = table.{b}" for a, b in pairs)
    kind = "a stream" if plan.streaming else "a batch input"
    total = format_bytes(int(table.rows * table.row_bytes))
    return [
        f"{kind} and a table, {spec.how}, where {matches}",
        f"stream: {columns_of(spec.stream)}",
        f"  about {width.nbytes:.0f} bytes a row, {width.source}",
        f"table: {columns_of(spec.table)}",
        f"  about {table.rows:,} rows of {table.row_bytes:.0f} bytes, {total}: {table.source}",
    ]


def _algorithm(plan: PlannedEnrich, predictions: list[Prediction]) -> list[str]:
    lines = [f"{plan.algorithm}, {plan.why or 'as asked'}", _WHY[plan.algorithm]]
    rates = {one.algorithm: one.rate for one in predictions}
    mine = rates.pop(plan.algorithm, 0.0)
    rival = max(rates, key=lambda name: rates[name])
    if mine and rates[rival] > ALIKE * mine:
        # as far as is known now, with this skew; what a state directory has it keeps
        lines.append(
            f"{rival} is predicted to be {rates[rival] / mine:.1f} times as fast here: in a new "
            f"state directory, algorithm={rival!r} asks for it"
        )
    return lines


def _assumptions(plan: PlannedEnrich) -> list[str]:
    keys = "uniform keys" if not plan.skew else f"keys skewed like Zipf with exponent {plan.skew:g}"
    storage = plan.machine.storage
    return [
        f"of the join alone, without Spark's own work; for {keys}, one match for a row, "
        f"{plan.machine.cores} cores; storage with "
        f"{storage.seek_seconds * 1000:.2g} ms until a read begins and "
        f"{format_bytes(int(storage.bytes_per_second))} a second"
        + (f" ({storage.note})" if storage.note else ""),
    ]


def _rows(plan: PlannedEnrich, predictions: list[Prediction]) -> list[str]:
    names = ("algorithm", "memory", "rows a second", "longest wait", "read for a row")
    lines = [f"{names[0]:<12}{names[1]:>12}{names[2]:>16}{names[3]:>16}{names[4]:>16}"]
    for one in predictions:
        mark = " *" if one.algorithm == plan.algorithm else ""
        name = f"{one.algorithm}{mark}"
        if one.problem:
            lines.append(f"{name:<12}  {one.problem}")
            continue
        lines.append(
            f"{name:<12}{format_bytes(int(one.memory_bytes)):>12}{_rounded(one.rate):>16}"
            f"{_duration(one.wait_seconds):>16}{format_bytes(int(one.bytes_per_row)):>16}"
        )
    return lines


def _rounded(number: float) -> str:
    """Two digits: more would claim too much."""
    if not 0 < number < math.inf:
        return "unlimited" if number else "0"
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return f"{round(number / unit) * unit:,}" if number >= 1 else f"{number:.2g}"


def _duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{_rounded(seconds * 1000)} ms" if seconds >= 1e-3 else "below 1 ms"


def _partitions(plan: PlannedEnrich) -> list[str]:
    why = "as asked" if plan.asked_partitions else "the parallelism of the Spark session"
    fixed = "; fixed for the life of the state directory" if plan.streaming else ""
    return [f"{plan.partitions}, {why}{fixed}", "rows are split by a hash of the key"]


def _memory(plan: PlannedEnrich) -> list[str]:
    if plan.memory_bytes is None:
        return ["unbounded"]
    size = plan.table.rows * plan.table.row_bytes
    part = f", {100 * plan.memory_bytes / size:.1f} % of the table" if size else ""
    share = plan.memory_bytes // plan.partitions
    return [
        f"{format_bytes(plan.memory_bytes)} in all{part}, {format_bytes(share)} for each partition",
        f"  {format_bytes(int(share * WORKING_SHARE)):>9}  working memory",
        "the rest holds the cache, the rows that wait, and the input batch",
    ]


def _waits(plan: PlannedEnrich) -> list[str]:
    assert plan.latency is not None
    how = "rows are settled in the step that takes them in"
    if plan.pages:
        how = (
            f"a step scans {plan.pages:,} pages of each partition or more; from then on as many as "
            "it takes, by how often steps come"
        )
    return [f"a row is to be settled within {_duration(plan.latency)}", how]


def _shedding(shedding: Shedding) -> list[str]:
    lines = [
        "while rows come faster than they are served, each step keeps as many as it can serve:",
        _KEPT[shedding.strategy],
    ]
    gone = "the others are counted, and gone: shed_to= keeps them"
    lines.append(gone if shedding.to is None else f"the others go to {shedding.to}, as Parquet")
    return lines


def _state(plan: PlannedEnrich) -> list[str]:
    if plan.state is None:
        return ["a temporary directory, for the staged table: a batch join keeps nothing else"]
    return [str(plan.state), plan.state_note]
