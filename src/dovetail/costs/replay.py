"""Predicts a join of the whole input by running the operator on a sample.

The operator that would run takes the sampled keys in, in the order of their arrival, and cleans up.
It has the sample's share of the budget, so that as large a part of the input fits in memory. Rows
are as wide as the input's, times a factor that is the same for all: an operator chooses its blocks
and partitions by the bytes that it has, and with the few bytes of a small sample would choose
coarser ones than it will. What is counted is then scaled back, see `keysample`.

What it takes for granted: that there is no pause that the join could use, and that rows come in the
order in which they were sampled. If it is known which of them a micro-batch brings, those of one
side come before those of the other in each; if not, both inputs come evenly mixed, from their first
to their last rows.

The same is done with parts of the sample that have no rows in common. How far these differ tells
how far the estimate may be off by chance; not, that the future may differ from the sample.
"""

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.costs.keysample import Chosen, KeySample
from dovetail.costs.widths import filler
from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context, Status
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.twoway import ALGORITHMS, Diner, TwoWayJoin, TwoWaySpec, make
from dovetail.twoway.base import MIN_BUDGET_BYTES, WORKING_SHARE

PARTS = 3
FEW_ROWS = 300  #: of the sample in memory: the estimate is rough
_LEAST_ROWS = 30  # likewise: it would be of no use
STAMP_BYTES = 16  #: of a row on disk besides the row: its code and its tick
_LIKE_REAL_BYTES = 2 << 20  # from about here on blocks are as small a part of memory as ever
# DINER judges regions by what was joined between two blocks, and with a few rows in a block is led
# by chance; its blocks have 10 KB or more
_WIDEST_IN_DINER = 512
_MOST_PAIRS = 2_000_000
_MOST_BYTES = 256 << 20  # of all rows together
_MOST_BATCHES = 400
_FLAG_BYTES = 1
_FUEL = 1 << 16
_KEY, _LEFT_FLAG, _RIGHT_FLAG, _REST = "key", "l", "r", "rest"


@dataclass(frozen=True)
class Setting:
    """The join that is asked about."""

    algorithm: str
    within: int | float | None
    memory_bytes: int | None
    partitions: int
    batch_rows: int
    row_bytes: tuple[float, float]

    @property
    def held_bytes(self) -> tuple[float, float]:
        """Of a row in memory."""
        left, right = self.row_bytes
        return left + INDEX_BYTES_PER_ROW, right + INDEX_BYTES_PER_ROW


@dataclass(frozen=True)
class Forecast:
    """The prediction for the whole input; rows and bytes are over all partitions."""

    input_rows: tuple[int, int]
    sampled_rows: tuple[int, int]
    fraction: float  #: of the input that the join was played through with
    online: float = 0.0  #: results found while rows arrive
    later: float = 0.0  #: results found after the last row
    shares: tuple[float, ...] = ()  #: of results online, in parts of the sample
    in_turn: bool = False  #: played through as micro-batches bring rows, and not evenly mixed
    mixed_share: float | None = None  #: then, of results online if they came evenly mixed
    kept_rows: tuple[float, float] = (0.0, 0.0)  #: in memory when the last row has come
    kept_bytes: tuple[float, float] = (0.0, 0.0)
    sampled_kept: int = 0  #: rows of the sample that were in memory then
    spilled_rows: float = 0.0
    spilled_bytes: float = 0.0
    rewritten_bytes: float = 0.0  #: to disk, after the last row
    read_rows: float = 0.0  #: from disk, after the last row
    read_bytes: float = 0.0
    read_blocks: float = 0.0
    stopped: float | None = None  #: after this share of the rows, as memory was full
    why_stopped: str = ""

    @property
    def results(self) -> float:
        return self.online + self.later

    @property
    def online_share(self) -> float:
        return self.online / self.results if self.results else 1.0


def foresee(setting: Setting, sample: KeySample) -> Forecast | None:
    """Play the join through with the sample, and with parts of it.

    None: the sample says nothing, as it is empty or memory would hold next to none of its rows.
    """
    if not all(map(len, sample.sides)):
        return None
    fraction = _bounded(setting, sample)
    if _capacity_rows(setting, fraction) < _LEAST_ROWS:
        return None
    whole = _Replay(setting, sample, 0.0, fraction).run()
    if setting.memory_bytes is None or whole.stopped is not None or not whole.spilled_rows:
        return whole
    edges = np.linspace(0.0, fraction, PARTS + 1)
    parts = [
        _Replay(setting, sample, float(low), float(high)).run()
        for low, high in itertools.pairwise(edges)
    ]
    shares = tuple(part.online_share for part in parts if part.stopped is None and part.results)
    if not sample.in_turn:
        return replace(whole, shares=shares)
    # where memory holds about as much as a micro-batch brings, little changes decide for much
    mixed = _Replay(setting, sample.mixed(), 0.0, fraction).run()
    return replace(whole, shares=shares, mixed_share=mixed.online_share)


def _bounded(setting: Setting, sample: KeySample) -> float:
    """So much of the sample that its pairs can be made in a few seconds."""
    fraction = sample.fraction
    codec = _spec(setting, sample, (0, 0)).codec
    while True:
        codes = []
        for side, chosen in zip(sample.sides, sample.part(0.0, fraction), strict=True):
            found, valid = codec.encode([side.keys.take(pa.array(chosen.rows))])
            codes.append(found if valid is None else found[valid])
        low, high = codec.candidates(codes[LEFT])
        ordered = np.sort(codes[RIGHT])
        first = np.searchsorted(ordered, low, side="left")
        pairs = int((np.searchsorted(ordered, high, side="right") - first).sum())
        if pairs <= _MOST_PAIRS:
            return fraction
        fraction /= 2


@dataclass
class _Seen:
    """Pairs of the sample, by whether the left row was taken by chance and the right certainly."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, dtype=np.int64))

    def add(self, out: pa.RecordBatch) -> None:
        left, right = (np.asarray(out.column(name)) for name in (_LEFT_FLAG, _RIGHT_FLAG))
        self.counts += np.bincount(2 * left + right, minlength=4)

    def scaled(self, fraction: float) -> float:
        by_chance = float(self.counts[2])
        return (float(self.counts.sum()) - by_chance) / fraction + by_chance / fraction**2


class _Replay:
    """One operator, and one part of the sample."""

    def __init__(self, setting: Setting, sample: KeySample, low: float, high: float) -> None:
        self.setting = setting
        self.sample = sample
        self.fraction = high - low
        self.chosen = sample.part(low, high)
        self.rows = sum(len(chosen.rows) for chosen in self.chosen)
        self.width = self._width_factor()
        key_bytes = int(sample.left.keys.type.bit_width) // 8
        self.rest = tuple(
            max(0, round(self.width * held - INDEX_BYTES_PER_ROW) - key_bytes - _FLAG_BYTES)
            for held in setting.held_bytes
        )
        self.spec = _spec(setting, sample, self.rest)
        self.row_bytes = [key_bytes + _FLAG_BYTES + rest for rest in self.rest]
        self.budget_bytes = None
        if setting.memory_bytes is not None:
            self.budget_bytes = int(setting.memory_bytes * self.fraction * self.width)

    def run(self) -> Forecast:
        with tempfile.TemporaryDirectory(prefix="dovetail-explain-") as directory:
            store = BlockStore(Path(directory), self.spec.schemas, "sample")
            try:
                context = Context(Budget(self.budget_bytes), store)
                return self._drive(make(self.setting.algorithm, self.spec, context))
            finally:
                store.close()

    def _width_factor(self) -> float:
        """The width of sample rows, in widths of the input's rows."""
        setting = self.setting
        key_bytes = float(self.sample.left.keys.type.bit_width) / 8
        least = (key_bytes + _FLAG_BYTES + INDEX_BYTES_PER_ROW) / min(setting.held_bytes)
        factor = max(1.0, least)
        if setting.memory_bytes is None:
            return factor
        room = setting.memory_bytes * self.fraction
        share = setting.memory_bytes // setting.partitions
        total = sum(
            len(chosen.rows) * held
            for chosen, held in zip(self.chosen, setting.held_bytes, strict=True)
        )
        wanted = min(min(share, _LIKE_REAL_BYTES) / room, _MOST_BYTES / max(1.0, total))
        if issubclass(ALGORITHMS[setting.algorithm], Diner):
            wanted = min(wanted, _WIDEST_IN_DINER / max(setting.held_bytes))
        # a budget that no operator would take is of no use, however many bytes it saves
        return max(factor, wanted, (MIN_BUDGET_BYTES + 1) / room)

    def _drive(self, operator: TwoWayJoin) -> Forecast:
        online, later = _Seen(), _Seen()
        came = 0
        try:
            for side, batch in self._arrivals():
                for out in operator.push(side, batch):
                    online.add(out)
                came += batch.num_rows
        except MemoryBudgetError as error:
            stopped = self._forecast(online, later)
            return replace(stopped, stopped=came / self.rows, why_stopped=str(error))
        kept = [len(operator.memory[side]) for side in SIDES]
        counters = operator.ctx.counters
        before = replace(counters)  # as they are now
        for side in SIDES:
            operator.finish(side)
        while operator.status() is not Status.DONE:
            for out in operator.poll(_FUEL):
                later.add(out)
        read = counters.bytes_read - before.bytes_read
        blocks = counters.blocks_read - before.blocks_read
        return replace(
            self._forecast(online, later, kept),
            spilled_rows=before.flushed_rows / self.fraction,
            spilled_bytes=before.flushed_bytes * self._disk_scale,
            rewritten_bytes=(counters.flushed_bytes - before.flushed_bytes) * self._disk_scale,
            read_rows=read / self._disk_row / self.fraction,
            read_bytes=read * self._disk_scale,
            # as many in each partition, whose blocks are as large in terms of its share
            read_blocks=float(blocks * self.setting.partitions),
        )

    @property
    def _disk_row(self) -> float:
        """The mean bytes of a row on disk, as it was played through."""
        return self._mean(self.row_bytes) + STAMP_BYTES

    @property
    def _disk_scale(self) -> float:
        """From bytes on disk to those of the whole input: sides are taken to be mixed as there."""
        return (self._mean(self.setting.row_bytes) + STAMP_BYTES) / self._disk_row / self.fraction

    def _mean(self, widths: Sequence[float]) -> float:
        rows = [len(chosen.rows) for chosen in self.chosen]
        return float(np.dot(rows, widths)) / max(1, self.rows)

    def _forecast(self, online: _Seen, later: _Seen, kept: Sequence[int] = (0, 0)) -> Forecast:
        """But for what was on disk."""
        fraction, held = self.fraction, self.setting.held_bytes
        left, right = (len(chosen.rows) for chosen in self.chosen)
        return Forecast(
            input_rows=self.sample.input_rows,
            sampled_rows=(left, right),
            fraction=fraction,
            online=online.scaled(fraction),
            later=later.scaled(fraction),
            kept_rows=(kept[LEFT] / fraction, kept[RIGHT] / fraction),
            kept_bytes=(kept[LEFT] * held[LEFT] / fraction, kept[RIGHT] * held[RIGHT] / fraction),
            sampled_kept=sum(kept),
            in_turn=self.sample.in_turn,
        )

    def _arrivals(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches as a partition gets them."""
        wanted = self.setting.batch_rows * self.fraction * self.setting.partitions
        step = max(1, round(wanted), -(-self.rows // _MOST_BATCHES))
        for side, first, last in self._in_turn(step) if self.sample.in_turn else self._mixed(step):
            yield side, self._batch(side, self.chosen[side], first, last)

    def _in_turn(self, step: int) -> Iterator[tuple[int, int, int]]:
        """Order rows as micro-batches bring them: in each, one side's rows, then the other's."""
        turns = [
            np.asarray(side.turns)[chosen.rows]
            for side, chosen in zip(self.sample.sides, self.chosen, strict=True)
        ]
        for turn in np.unique(np.concatenate(turns)):
            for side in SIDES:
                first, last = np.searchsorted(turns[side], [turn, turn + 1])
                for start in range(int(first), int(last), step):
                    yield side, start, min(start + step, int(last))

    def _mixed(self, step: int) -> Iterator[tuple[int, int, int]]:
        """Evenly, from the first rows of both sides to their last."""
        when = [(np.arange(len(c.rows)) + 0.5) / max(1, len(c.rows)) for c in self.chosen]
        order = np.argsort(np.concatenate(when), kind="stable")
        is_right = order >= len(when[LEFT])
        ends = [np.concatenate([[0], np.cumsum(of)]) for of in (~is_right, is_right)]
        for start in range(0, self.rows, step):
            stop = min(start + step, self.rows)
            for side in SIDES:
                first, last = int(ends[side][start]), int(ends[side][stop])
                if first < last:
                    yield side, first, last

    def _batch(self, side: int, chosen: Chosen, first: int, last: int) -> pa.RecordBatch:
        keys = self.sample.sides[side].keys.take(pa.array(chosen.rows[first:last]))
        columns = [keys, pa.array(chosen.flags[first:last].astype(np.int8))]
        if self.rest[side]:
            columns.append(filler(self.rest[side], last - first))
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.schemas[side])


def _spec(setting: Setting, sample: KeySample, rest: tuple[int, ...]) -> TwoWaySpec:
    """A join of keys, flags, and bytes that make rows as wide as they are to be."""
    schemas = []
    for side, flag in enumerate((_LEFT_FLAG, _RIGHT_FLAG)):
        fields = [(_KEY, sample.sides[side].keys.type), (flag, pa.int8())]
        if rest[side]:
            fields.append((f"{flag}_{_REST}", pa.binary(rest[side])))
        schemas.append(pa.schema(fields))
    return TwoWaySpec(schemas[LEFT], schemas[RIGHT], (_KEY,), (_KEY,), setting.within)


def _capacity_rows(setting: Setting, fraction: float) -> float:
    """The most rows of a sample that fit in memory; without limit if the join has none."""
    if setting.memory_bytes is None:
        return math.inf
    room = setting.memory_bytes * fraction * (1 - WORKING_SHARE)
    return room / max(setting.held_bytes)
