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
from dovetail.errors import MemoryBudgetError
from dovetail.kernel.memory import format_bytes
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream import SemiStreamSpec
from dovetail.semistream.base import WORKING_SHARE
from dovetail.semistream.cache import KEY_BYTES
from dovetail.semistream.table import CODE_BYTES

_MOST_VALUES = 1 << 20  # more join values are taken together, neighbours by rank
_PACKET_BYTES = 13  # of a row in a scan's window, besides itself and its index
_ALIKE = 1.1  # rates closer than this are the same: predictions are not that good
_WHY = {
    "seek": "reads the pages that hold a waiting row, in order, behind a cache of hot values",
    "seek-uncached": "reads the pages that hold a waiting row, in order; no cache",
    "ssbj": "scans the table in a circle, behind a cache of the values that pay for their room",
    "ameshjoin": "scans the table in a circle, with batches and reads of the best sizes",
    "meshjoin": "scans the table in a circle, with batches and reads of fixed sizes",
    "inl": "reads the page of each row, unless it is in a pool of pages",
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


@dataclass(frozen=True)
class Prediction:
    """What one algorithm would do, over all partitions. A `problem` stands for all of it."""

    algorithm: str
    memory_bytes: float = 0.0
    rate: float = 0.0  #: stream rows a second, at most
    wait_seconds: float = 0.0  #: from a row's arrival to its last result, at most
    bytes_per_row: float = 0.0  #: read for a stream row
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
    return sorted(found, key=lambda one: -one.rate)


class _Share:
    """One partition: its part of the table and of the budget."""

    def __init__(self, plan: PlannedEnrich) -> None:
        self.plan = plan
        self.rows = max(1, plan.table.rows // plan.partitions)
        self.row_bytes = plan.table.row_bytes
        self.memory = _budget(plan) / plan.partitions
        self.working = self.memory * WORKING_SHARE
        self.room = (self.memory - self.working) * 3 / 4  # the rest is for the input batch
        self.stream_bytes = max(1.0, _stream_width(plan).nbytes)
        self.storage = plan.machine.storage
        fetched = self.row_bytes if plan.spec.how in ("inner", "left") else 0.0
        factors = plan.machine.factors
        self.fetched = fetched
        # a result is made of a table row that is read for it
        self.factors = replace(
            factors, output=factors.output + fetched / self.storage.bytes_per_second
        )

    def over_all(self, one: Prediction) -> Prediction:
        """The same over all partitions; those that share a core take turns."""
        at_once = min(self.plan.partitions, self.plan.machine.cores)
        turns = math.ceil(self.plan.partitions / at_once)
        return replace(
            one,
            memory_bytes=(one.memory_bytes + self.working) * self.plan.partitions,
            rate=one.rate * at_once,
            wait_seconds=one.wait_seconds * turns,
        )

    def seek(self) -> Prediction:
        model = seek.SeekModel(
            table=seek.SeekTable(self.rows, self.fetched, self.plan.table.page_rows),
            stream=self.stream,
            stream_row_bytes=self.stream_bytes,
            factors=self.plan.machine.factors,
            storage=self.storage,
            cached_row_bytes=self.grouped * self.row_bytes,
            cached_key_bytes=self.grouped * KEY_BYTES,
        )
        best = seek.best_rate(model, self.memory)
        return Prediction(
            "seek", best.memory_bytes, best.rate, best.wait_seconds, best.bytes_per_row
        )

    def ssbj(self) -> Prediction:
        factors = ssbj.SsbjFactors.of(self.factors, switch=0.0)
        model = ssbj.SsbjModel(
            self.scanned,
            factors,
            self.storage,
            self.stream,
            key_bytes=int(self.grouped * KEY_BYTES),
            cached_row_bytes=self.grouped * (self.row_bytes + KEY_BYTES),
        )
        best = ssbj.best_rate(model, self.room)
        read = best.pages * self.scanned.page_bytes / best.batch_rows
        read += best.disk_share * self.fetched
        return Prediction("ssbj", best.memory_bytes, best.rate, best.wait_seconds, read)

    def ameshjoin(self) -> Prediction:
        best = meshjoin.best_rate(self.mesh, self.room)
        return self._meshed("ameshjoin", best)

    def meshjoin(self) -> Prediction:
        """With the settings that the operator begins with."""
        work = self.scanned
        pages = max(1, min(work.table_pages, int(self.working / 4 / work.page_bytes)))
        loops = -(-work.table_pages // pages)
        room = self.room - pages * work.page_bytes
        batch = room / (work.stream_row_bytes + loops * work.window_row_bytes)
        if batch < 1:
            raise MemoryBudgetError("not one row a batch")
        return self._meshed("meshjoin", self.mesh.plan(int(batch), pages))

    def inl(self) -> Prediction:
        page_rows = self.plan.table.page_rows
        width = CODE_BYTES + self.row_bytes
        work = replace(
            self.scanned, table_row_bytes=width, page_bytes=max(1, int(page_rows * width))
        )
        shares = seek.spread_over_pages(self.stream.probability, work.table_pages)
        model = inl.InlModel(work, self.plan.machine.factors, self.storage, shares)
        best = inl.best_rate(model, self.memory / 2)  # the pool's share
        read = best.page_reads_per_row * work.page_bytes
        return Prediction("inl", best.memory_bytes, best.rate, 1 / best.rate, read)

    def _meshed(self, name: str, best: MeshPlan) -> Prediction:
        read = best.pages * self.scanned.page_bytes / best.batch_rows + self.fetched
        return Prediction(name, best.memory_bytes, best.rate, best.wait_seconds, read)

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
        )

    @cached_property
    def stream(self) -> Stream:
        values = max(1, int(self.rows / self.grouped))
        return Stream.of(ssbj.zipf(values, self.plan.skew))

    @property
    def grouped(self) -> float:
        """How many join values are taken as one."""
        return max(1.0, self.rows / _MOST_VALUES)


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
    why = _WHY[plan.algorithm]
    if plan.asked_algorithm != "auto":
        return [f"{plan.algorithm}, as asked", why]
    rates = {one.algorithm: one.rate for one in predictions}
    mine = rates.pop(plan.algorithm, 0.0)
    rival = max(rates, key=lambda name: rates[name])
    lines = [f"{plan.algorithm}, the default", why]
    if not mine:
        return lines
    ratio = mine / rates[rival] if rates[rival] else math.inf
    if ratio < 1 / _ALIKE:
        lines.append(
            f"{rival} is predicted to be {1 / ratio:.1f} times as fast here: "
            f"algorithm={rival!r} asks for it"
        )
    elif rates[rival]:
        lines.append(
            f"predicted to be {mine / rates[rival]:.1f} times as fast as {rival}, the next"
        )
    else:
        lines.append("no other fits into the budget")
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


def _state(plan: PlannedEnrich) -> list[str]:
    if plan.state is None:
        return ["a temporary directory, for the staged table: a batch join keeps nothing else"]
    return [str(plan.state), plan.state_note]
