"""A two-way join under a virtual clock: what it has found by the time that the last row comes.

Rows are handed over in small batches, in the order of their arrival. Nothing is timed. Without
`Costs`, work takes no time at all: results online are those found while rows arrived. With them,
reading, writing and results take the time that they state; the clock goes on meanwhile, rows wait
in the input buffer, and what is found after the last row came was not found online.

In a silence of both sources that is longer than `silence_ms` the join may do deferred work, one
piece after another, until more than `most_waiting` rows wait (the paper's MaxNewArr) or nothing is
left to do. DINER has that rule itself: it can ask how many rows wait, has ample fuel, and leaves
when it has seen enough of them. The others know no such rule, and the driver applies it for them
after each piece. The joins of `rivals.WHOLE_TASKS` go by the paper's.

The hashing joins choose the number of their partitions by the budget, for blocks that suit a disk.
How much they find hangs on that number, so they also run with others (`FINER_PARTITIONS`); of a
rival's variants the best one counts.

Results are counted, not made (`CountingEmitter`), which would take most of the real time.
"""

import dataclasses
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.matching import Emitter, PairFilter
from dovetail.kernel.memory import Budget
from dovetail.kernel.probing import Span
from dovetail.kernel.protocol import SIDES, Context, Counters, Status
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run
from dovetail.twoway import ALGORITHMS, Diner, TwoWayJoin, TwoWaySpec, XJoin
from dovetail.twoway.base import MIN_BUDGET_BYTES, WORKING_SHARE
from dovetail_bench.diner.rivals import JOINS, OUTER_BLOCKS, WHOLE_TASKS
from dovetail_bench.diner.streams import PAPER_ROWS, TUPLE_BYTES, Batch, Streams, batches
from dovetail_bench.scratch import block_store

PAGE_BYTES = 10 << 10
BATCH_ROWS = 25
SILENCE_MS = 25.0  #: the paper's WaitThresh
MOST_WAITING = 1_000  #: the paper's MaxNewArr, at its size
PAPER_BUDGET_BYTES = PAPER_ROWS * 2 * TUPLE_BYTES // 20
IN_MEMORY_ONLY = ("shj",)  # they hold both inputs whole
#: Numbers of partitions to try. RPJ's estimates are by the partition, so it gains the most, and
#: which number is best depends on the keys.
FINER_PARTITIONS = {
    **dict.fromkeys(("rpj", "rpj-history", "rpj-paper"), (8, 16, 32, 64)),
    "dphj": (16, 64),
}
_FINER = (16,)


_MOST_PAIRS = 1 << 17  # that are looked at together
_MOST_HELD = 1_000  # results that wait for others: they take a virtual millisecond
_AMPLE_FUEL = 1 << 62  # more than any silence lasts


class CountingEmitter(Emitter):
    """Lets each result be a null. The keys are integers: every candidate is a match."""

    _pairs = 0

    def match(
        self, probing: Run, stored: Run, span: Span, side: int, keep: PairFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        if keep is None:
            self._pairs += int((span.high - span.low).sum())
        else:
            for rows in span.pairs(_MOST_PAIRS):
                self._pairs += int(np.count_nonzero(keep(*rows)))
        if self._pairs >= _MOST_HELD:
            yield from self.drain()

    def drain(self) -> Iterator[pa.RecordBatch]:
        pairs, self._pairs = self._pairs, 0
        if pairs:
            yield pa.RecordBatch.from_pydict({"result": pa.nulls(pairs)})


@dataclass(frozen=True)
class Costs:
    """Milliseconds of virtual time."""

    transfer: float = 2.0  #: to read or write a block; one larger than `PAGE_BYTES` counts as more
    result: float = 0.001


@dataclass(frozen=True)
class Setting:
    """What a join is given besides its input."""

    budget_bytes: int
    costs: Costs | None = None
    horizon: float = 1.0  #: how long to go on, in terms of the time of the last row

    @property
    def capacity_rows(self) -> int:
        """The most rows that can be in memory: what is not working memory, and no waste."""
        room = self.budget_bytes - int(self.budget_bytes * WORKING_SHARE)
        return room // (TUPLE_BYTES + INDEX_BYTES_PER_ROW)

    @property
    def scale(self) -> float:
        """The memory in terms of the paper's."""
        return self.budget_bytes / PAPER_BUDGET_BYTES

    @property
    def most_waiting(self) -> int:
        return round(MOST_WAITING * self.scale)

    def outer_blocks(self, papers: int) -> int:
        """A MaxOuterMem of the paper's, in blocks for this memory."""
        return max(1, round(papers * self.scale))


@dataclass(frozen=True)
class Curve:
    """The results that there are by these times, which ascend."""

    times: NDArray[np.float64]
    counts: NDArray[np.int64]

    def until(self, time: float) -> int:
        """The results found by then."""
        place = int(np.searchsorted(self.times, time, side="right"))
        return int(self.counts[place - 1]) if place else 0

    @property
    def first(self) -> float | None:
        """When there is a result."""
        some = np.flatnonzero(self.counts)
        return float(self.times[some[0]]) if len(some) else None


@dataclass
class Online:
    """What a join did."""

    results: int = 0  #: until the last row came
    by_phase: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    flushed_rows: int = 0
    blocks_read: int = 0
    blocks_written: int = 0
    largest_buffer: int = 0  #: rows that had come when the join left its deferred work
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  #: results until then

    @property
    def curve(self) -> Curve:
        return Curve(np.array(self.times), np.array(self.counts))


def budget(streams: Streams, share: float) -> int:
    """That share of the input, but never less than a join needs."""
    return max(int(share * streams.rows * TUPLE_BYTES), MIN_BUDGET_BYTES)


def contenders(*, band: bool = False, variants: bool = False) -> tuple[str, ...]:
    """The library's joins that can do it within a budget, DINER first; variants if asked for."""
    names = [
        name
        for name, kind in ALGORITHMS.items()
        if name not in IN_MEMORY_ONLY
        and (kind.joins_bands or not band)
        and (variants or not name.startswith(f"{Diner.name}-"))
    ]
    return tuple(sorted(names, key=lambda name: name != Diner.name))


def variants(algorithm: str) -> tuple[int | None, ...]:
    """Numbers of partitions to try; None is the algorithm's own choice."""
    hashes = issubclass(JOINS[algorithm], XJoin)
    return (None, *FINER_PARTITIONS.get(algorithm, _FINER)) if hashes else (None,)


def run_online(
    algorithm: str, streams: Streams, setting: Setting, partitions: int | None = None
) -> Online:
    """Let a join take the streams in."""
    spec = streams.spec
    with block_store(spec.schemas) as store:
        context = Context(Budget(setting.budget_bytes), store)
        operator = _make(algorithm, spec, context, partitions)
        if isinstance(operator, Diner):
            _scale_options(operator, setting)
        most_waiting = 0 if algorithm in WHOLE_TASKS else setting.most_waiting
        return _Drive(operator, streams, setting, most_waiting).run()


def _make(algorithm: str, spec: TwoWaySpec, context: Context, partitions: int | None) -> TwoWayJoin:
    kind = JOINS[algorithm]
    differing: dict[str, Any] = {"emitter_kind": CountingEmitter}
    if partitions is not None:
        differing["partition_count"] = partitions
    operator: TwoWayJoin = type(kind.name, (kind,), differing)(spec, context)
    return operator


def _scale_options(operator: Diner, setting: Setting) -> None:
    """The paper's parameters are for its amount of memory."""
    operator.options = dataclasses.replace(
        operator.options,
        max_outer_blocks=setting.outer_blocks(getattr(operator, "outer_blocks", OUTER_BLOCKS)),
        max_new_arrivals=setting.most_waiting,
    )


@dataclass(frozen=True)
class Work:
    """How much a join has done so far."""

    blocks: int = 0
    nbytes: int = 0
    results: int = 0

    @classmethod
    def of(cls, counters: Counters) -> "Work":
        return cls(
            counters.blocks_read + counters.blocks_written,
            counters.bytes_read + counters.flushed_bytes,
            sum(counters.rows_out.values()),
        )

    def cost_since(self, before: "Work", costs: Costs) -> float:
        """Milliseconds for what was done since."""
        pages = round((self.nbytes - before.nbytes) / PAGE_BYTES)
        transfers = max(self.blocks - before.blocks, pages)
        return costs.transfer * transfers + costs.result * (self.results - before.results)


class _Drive:
    """A join, its input, and the clock."""

    def __init__(
        self, operator: TwoWayJoin, streams: Streams, setting: Setting, most_waiting: int
    ) -> None:
        self._operator = operator
        self._streams = streams
        self._setting = setting
        self._most_waiting = most_waiting
        self._handed = [0, 0]  # rows that the join has
        self._now = 0.0
        self._charged = Work()
        self._found = Online()
        if isinstance(operator, Diner):
            drive = weakref.proxy(self)  # a cycle would keep the memory of a join that is done
            operator.waiting = lambda: drive._waiting_by_now()  # noqa: PLW0108  the same

    def run(self) -> Online:
        burst, before = 0, 0.0
        for batch in batches(self._streams, BATCH_ROWS, SILENCE_MS):
            if batch.burst > burst and self._setting.costs is not None:
                self._work_until_rows_wait(before + SILENCE_MS)
            self._hand_over(batch)
            burst, before = batch.burst, max(before, batch.time)
        if self._setting.horizon > 1:
            self._clean_up(self._setting.horizon * self._streams.end)
        return self._summary()

    def _hand_over(self, batch: Batch) -> None:
        rows = self._streams.relations[batch.side].slice(batch.start, batch.stop - batch.start)
        self._now = max(self._now, batch.time)
        self._handed[batch.side] = batch.stop
        self._let_work(self._operator.push(batch.side, rows))
        if batch.stop == len(self._streams.keys[batch.side]):
            self._operator.finish(batch.side)

    def _work_until_rows_wait(self, start: float) -> None:
        """Deferred work in a silence, if the join has nothing else to do when it begins."""
        self._now = max(self._now, start)
        if self._waiting():
            return
        fuel = _AMPLE_FUEL if isinstance(self._operator, Diner) else 1
        while self._waiting() <= self._most_waiting:
            self._let_work(self._operator.poll(fuel))
            if self._operator.status() is not Status.MORE:
                break
        self._found.largest_buffer = max(self._found.largest_buffer, self._waiting())

    def _clean_up(self, until: float) -> None:
        while self._now < until and self._operator.status() is not Status.DONE:
            self._let_work(self._operator.poll(1))

    def _let_work(self, work: Iterable[pa.RecordBatch]) -> None:
        for _ in work:
            self._note()
        self._note()

    def _note(self) -> None:
        """Charge what was done since the last time, and keep how many results there are."""
        done = Work.of(self._operator.ctx.counters)
        if self._setting.costs is not None:
            self._now += done.cost_since(self._charged, self._setting.costs)
        self._charged = done
        self._found.times.append(self._now)
        self._found.counts.append(done.results)

    def _waiting(self) -> int:
        """Rows that have come and were not handed over."""
        come = [
            int(np.searchsorted(self._streams.times[side], self._now, side="right"))
            for side in SIDES
        ]
        return sum(come) - sum(self._handed)

    def _waiting_by_now(self) -> int:
        """The same, for a join that asks in the middle of its work: what it did takes time."""
        self._note()
        return self._waiting()

    def _summary(self) -> Online:
        counters, found = self._operator.ctx.counters, self._found
        found.by_phase = dict(counters.rows_out)
        found.results = found.curve.until(self._streams.end)
        found.peak_bytes = self._operator.ctx.budget.peak_bytes
        found.flushed_rows = counters.flushed_rows
        found.blocks_read = counters.blocks_read
        found.blocks_written = counters.blocks_written
        return found
