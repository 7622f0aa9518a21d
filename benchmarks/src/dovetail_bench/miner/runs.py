"""Multi-way joins under a virtual clock: the data of section 5.5, and what a join finds online.

The join is R1 - R2 - R3 - R4. R2 and R3 have Zipfian attributes of skew 1; R1 and R4 have a tenth
of their rows and each key value once, so that they add a foreign key join each and leave the number
of results as it is. With two inputs the join is R2 - R3, with three R1 comes first, with four R4
last. The paper's R2 and R3 have 100,000 rows: its 8.8 MB, a fifth of the input, are 220,000 rows of
200 bytes. In the star of Fig. 22 all four are joined on one attribute.

Rows are handed over in small batches in the order of their arrival. Time is virtual: with `Costs`
(those of the DINER figures), reading, writing and results take the time that they state, and in a
silence of all sources the join may do deferred work until more rows wait than MaxNewArr. Only the
processor's time is measured, which other processes hardly change.
Results are counted and not put together: there are 170 million of them at the paper's size.
"""

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Status
from dovetail.multiway import MIN_BYTES_PER_INPUT, MultiWayJoin, MultiWaySpec, make, multiway_spec
from dovetail.multiway.keyindex import BYTES_PER_ROW
from dovetail.multiway.mjoin import MJoin
from dovetail_bench.diner.simulate import BATCH_ROWS, MOST_WAITING, SILENCE_MS, Costs, Work
from dovetail_bench.diner.streams import TUPLE_BYTES, Batch, Rng, Times, steady, with_pauses
from dovetail_bench.miner.counting import count_only
from dovetail_bench.scratch import block_store

PAPER_ROWS = 100_000  #: of R2 and of R3
FEWER = 10  #: R1 and R4 have so many times fewer rows
Columns = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Inputs:
    """Relations in the order in which their rows come, when they do, and how they are joined."""

    spec: MultiWaySpec
    relations: tuple[pa.RecordBatch, ...]
    times: tuple[Times, ...]
    whole: int  #: results of the join

    @property
    def rows(self) -> int:
        return sum(relation.num_rows for relation in self.relations)

    @property
    def end(self) -> float:
        """When the last row comes."""
        return float(max(times[-1] for times in self.times))

    def budget(self, share: float) -> int:
        """That share of the input, but never less than a join needs."""
        least = MIN_BYTES_PER_INPUT * len(self.relations)
        return max(int(share * self.rows * TUPLE_BYTES), least)


@dataclass
class Found:
    """What a join did."""

    results: int = 0  #: until the last row came
    by_phase: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    flushed_rows: int = 0
    blocks_read: int = 0
    buffers: list[int] = field(default_factory=list)  #: rows that waited when it was called back
    rows_in_memory: int = 0  #: when the last row had come, and so the following
    index_bytes: int = 0  #: of the indexes
    bytes_beside_rows: int = 0  #: all that rows in memory have besides themselves
    cpu_seconds: float = 0.0
    by_buckets: dict[str, int] = field(default_factory=dict)  #: results of each variant of MJoin


# -- the data -------------------------------------------------------------------------------


def zipf(rng: Rng, rows: int, domain: int, skew: float = 1.0) -> NDArray[np.int64]:
    weights = np.arange(1, domain + 1, dtype=np.float64) ** -skew
    return rng.choice(domain, rows, p=weights / weights.sum())


def _renamed(rng: Rng, keys: NDArray[np.int64], domain: int) -> NDArray[np.int64]:
    """As frequent as before, but other values are: R2 and R3 have frequent values of their own."""
    return rng.permutation(domain)[keys]


def chain(
    rng: Rng, rows: int, inputs: int, pause: float = 0.0, *, own_ranks: bool = False
) -> Inputs:
    """The join of Figs. 20 and 21, of two to four inputs."""
    domain = max(2, rows // FEWER)
    columns: dict[str, Columns] = {
        "r1": {"a1": rng.permutation(domain)},
        "r2": {"a1": zipf(rng, rows, domain), "a2": zipf(rng, rows, domain)},
        "r3": {"a2": zipf(rng, rows, domain), "a3": zipf(rng, rows, domain)},
        "r4": {"a3": rng.permutation(domain)},
    }
    if own_ranks:
        columns["r3"]["a2"] = _renamed(rng, columns["r3"]["a2"], domain)
    names = {2: ("r2", "r3"), 3: ("r1", "r2", "r3"), 4: ("r1", "r2", "r3", "r4")}[inputs]
    on = [(f"r{i}.a{i}", f"r{i + 1}.a{i}") for i in (1, 2, 3) if {f"r{i}", f"r{i + 1}"} <= {*names}]
    return _inputs(rng, {name: columns[name] for name in names}, on, pause)


def star(rng: Rng, rows: int, *, own_ranks: bool = False, spread: bool = False) -> Inputs:
    """The join of Fig. 22: the same relations, all on one attribute.

    With `spread`, R1 and R4 come as slowly as they have fewer rows, over the whole time.
    """
    domain = max(2, rows // FEWER)
    columns: dict[str, Columns] = {
        "r1": {"a": rng.permutation(domain)},
        "r2": {"a": zipf(rng, rows, domain)},
        "r3": {"a": zipf(rng, rows, domain)},
        "r4": {"a": rng.permutation(domain)},
    }
    if own_ranks:
        columns["r3"]["a"] = _renamed(rng, columns["r3"]["a"], domain)
    found = _inputs(rng, columns, [(f"r{i}.a", f"r{i + 1}.a") for i in (1, 2, 3)])
    if not spread:
        return found
    times = tuple(some * (found.end / some[-1]) for some in found.times)
    return dataclasses.replace(found, times=times)


def even_chain(rng: Rng, rows: int, inputs: int) -> Inputs:
    """A chain of relations of one size, in which a row has one partner in the next on average."""
    columns: dict[str, Columns] = {}
    for i in range(1, inputs + 1):
        edges = [edge for edge in (i - 1, i) if 0 < edge < inputs]
        columns[f"r{i}"] = {f"a{edge}": rng.integers(0, rows, rows) for edge in edges}
    return _inputs(rng, columns, [(f"r{i}.a{i}", f"r{i + 1}.a{i}") for i in range(1, inputs)])


def even_star(rng: Rng, rows: int, inputs: int) -> Inputs:
    """The same as a star: the first relation has an attribute for each of the others."""
    edges = range(1, inputs)
    columns: dict[str, Columns] = {"r1": {f"a{i}": rng.integers(0, rows, rows) for i in edges}}
    columns |= {f"r{i + 1}": {f"a{i}": rng.integers(0, rows, rows)} for i in edges}
    return _inputs(rng, columns, [(f"r1.a{i}", f"r{i + 1}.a{i}") for i in edges])


def _inputs(
    rng: Rng, columns: dict[str, Columns], on: list[tuple[str, str]], pause: float = 0.0
) -> Inputs:
    relations = {name: _relation(name, keys) for name, keys in columns.items()}
    spec = multiway_spec({name: rows.schema for name, rows in relations.items()}, on)
    sizes = [relation.num_rows for relation in relations.values()]
    times = [with_pauses(rng, size, pause) if pause else steady(rng, size) for size in sizes]
    return Inputs(spec, tuple(relations.values()), tuple(times), _results(columns, on))


def _results(columns: dict[str, Columns], on: list[tuple[str, str]]) -> int:
    """How many results a tree has, its edges from the root outwards: a row has as many as its
    partners have, multiplied over its edges.
    """
    weights = {name: np.ones(len(next(iter(keys.values())))) for name, keys in columns.items()}
    for here, there in reversed(on):
        (one, a), (two, b) = here.split("."), there.split(".")
        size = 1 + max(int(columns[one][a].max()), int(columns[two][b].max()))
        by_value = np.bincount(columns[two][b], weights=weights[two], minlength=size)
        weights[one] = weights[one] * by_value[columns[one][a]]
    return int(weights[on[0][0].split(".")[0]].sum())


def _relation(name: str, keys: Columns) -> pa.RecordBatch:
    """Rows of `TUPLE_BYTES`: the keys, and what is left."""
    count = len(next(iter(keys.values())))
    rest = pa.binary(TUPLE_BYTES - 8 * len(keys))
    letters = np.full(count * rest.byte_width, ord("x"), dtype=np.uint8)
    payload = pa.Array.from_buffers(rest, count, [None, pa.py_buffer(letters)])
    return pa.RecordBatch.from_pydict({**keys, f"{name}_rest": payload})


def batches(inputs: Inputs) -> list[Batch]:
    """All rows in small batches, in the order in which these are complete; none across silences."""
    every = np.sort(np.concatenate(inputs.times))
    silent = every[1:][np.diff(every) > SILENCE_MS]  # the first rows after each
    found = []
    for side, times in enumerate(inputs.times):
        bursts = np.searchsorted(silent, times, side="right")
        edges = np.flatnonzero(np.diff(bursts)) + 1
        for begin, end in zip([0, *edges], [*edges, len(times)], strict=True):
            for start in range(int(begin), int(end), BATCH_ROWS):
                stop = min(start + BATCH_ROWS, int(end))
                found.append(Batch(side, start, stop, float(times[stop - 1]), int(bursts[start])))
    return sorted(found, key=lambda batch: (batch.burst, batch.time, batch.side))


# -- the runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What a join is given besides its input."""

    budget_bytes: int
    costs: Costs | None = None
    complete: bool = False  #: go on until all results are there

    def most_waiting(self, inputs: Inputs) -> int:
        """MaxNewArr, which is 1,000 rows at the paper's size."""
        paper = PAPER_ROWS * 2 * TUPLE_BYTES * (1 + 1 / FEWER) / 20
        return max(1, round(MOST_WAITING * min(1.0, self.budget_bytes / paper)))


def run(algorithm: str, inputs: Inputs, setting: Setting, buckets: int | None = None) -> Found:
    """Let a join take the inputs in; MJoin may be given a number of buckets."""
    with block_store(inputs.spec.schemas) as store:
        context = Context(Budget(setting.budget_bytes), store)
        join = (
            make(algorithm, inputs.spec, context)
            if buckets is None
            else type("MJoinOfBuckets", (MJoin,), {"buckets": buckets})(inputs.spec, context)
        )
        count_only(join)
        before = time.process_time()
        found = _Drive(join, inputs, setting).run()
        found.cpu_seconds = time.process_time() - before
        return found


class _Drive:
    """A join, its inputs, and the clock."""

    def __init__(self, join: MultiWayJoin, inputs: Inputs, setting: Setting) -> None:
        self._join = join
        self._inputs = inputs
        self._setting = setting
        self._most_waiting = setting.most_waiting(inputs)
        join.options = dataclasses.replace(join.options, max_new_arrivals=self._most_waiting)
        self._handed = [0] * len(inputs.relations)
        self._now = 0.0
        self._charged = Work()
        self._curve: list[tuple[float, int]] = [(0.0, 0)]
        self._found = Found()

    def run(self) -> Found:
        burst, before = 0, 0.0
        for batch in batches(self._inputs):
            if batch.burst > burst and self._setting.costs is not None:
                self._work_until_rows_wait(before + SILENCE_MS)
            self._hand_over(batch)
            burst, before = batch.burst, max(before, batch.time)
        self._note_memory()
        while self._setting.complete and self._join.status() is not Status.DONE:
            self._let_work(self._join.poll(1 << 12))
        return self._summary()

    def _note_memory(self) -> None:
        tables = self._join.tables
        self._found.rows_in_memory = sum(map(len, tables))
        self._found.index_bytes = sum(
            BYTES_PER_ROW * len(table.codes) * len(table) for table in tables
        )
        rows = sum(chunk.nbytes for table in tables for chunk in table.payload.chunks)
        self._found.bytes_beside_rows = sum(table.nbytes for table in tables) - rows

    def _hand_over(self, batch: Batch) -> None:
        rows = self._inputs.relations[batch.side].slice(batch.start, batch.stop - batch.start)
        self._now = max(self._now, batch.time)
        self._handed[batch.side] = batch.stop
        self._let_work(self._join.push(batch.side, rows))
        if batch.stop == self._inputs.relations[batch.side].num_rows:
            self._join.finish(batch.side)

    def _work_until_rows_wait(self, start: float) -> None:
        """Deferred work in a silence, if the join has nothing else to do when it begins."""
        self._now = max(self._now, start)
        if self._waiting():
            return
        while self._waiting() <= self._most_waiting:
            self._let_work(self._join.poll(1))
            if self._join.status() is not Status.MORE:
                return
        self._found.buffers.append(self._waiting())

    def _let_work(self, work: Iterable[pa.RecordBatch]) -> None:
        for _ in work:
            self._note()
        self._note()

    def _note(self) -> None:
        """Charge what was done since the last time, and keep how many results there are."""
        done = Work.of(self._join.ctx.counters)
        if self._setting.costs is not None:
            self._now += done.cost_since(self._charged, self._setting.costs)
        self._charged = done
        self._curve.append((self._now, done.results))

    def _waiting(self) -> int:
        """Rows that have come and were not handed over."""
        come = [int(np.searchsorted(t, self._now, side="right")) for t in self._inputs.times]
        return sum(come) - sum(self._handed)

    def _summary(self) -> Found:
        counters, found = self._join.ctx.counters, self._found
        found.by_phase = dict(counters.rows_out)
        end = self._inputs.end
        found.results = max(count for time, count in self._curve if time <= end)
        if self._setting.complete:  # without costs, what comes after the last row is at its time
            found.results = sum(counters.rows_out.get(p, 0) for p in ("arriving", "reactive"))
        found.peak_bytes = self._join.ctx.budget.peak_bytes
        found.flushed_rows = counters.flushed_rows
        found.blocks_read = counters.blocks_read
        return found
