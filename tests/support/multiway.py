"""Multi-way joins under test: inputs of any join tree, the right answer, and a driver.

A case names its join graph by the parent of each input and by what the edges join on; rows and
scripts are drawn from its seed. The oracle finds the matching pairs of every edge by itself with
the nested loop of `oracle`, and puts them together by dictionaries.
"""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Counters, Snapshot, Status
from dovetail.multiway import ALGORITHMS, MinerOptions, MultiWayJoin, MultiWaySpec
from dovetail.twoway import TwoWaySpec
from support.arrivals import Crash, Finish, Habits, Poll, Push, Restore, Save, Script, Step
from support.conformance import identical
from support.generators import (
    KEY_TYPES,
    Distribution,
    draw_ranks,
    key_column,
    random_nans,
)
from support.oracle import nested_loop

ID = "id"
Combination = tuple[int, ...]  #: a row number of each input


def combinations(spec: MultiWaySpec, relations: Sequence[pa.RecordBatch]) -> Counter[Combination]:
    """Every combination of rows that matches, with how often it is to come, which is once."""
    found: list[dict[int, int]] = [{0: row} for row in range(relations[0].num_rows)]
    reached = {0}
    edges = list(spec.edges)
    while edges:
        edge = next(e for e in edges if (e.ends[0] in reached) != (e.ends[1] in reached))
        edges.remove(edge)
        a, b = edge.ends
        two = TwoWaySpec(spec.schemas[a], spec.schemas[b], *edge.columns, edge.within)
        partners: dict[int, list[int]] = defaultdict(list)
        known, new = (a, b) if a in reached else (b, a)
        for left, right in nested_loop(two, relations[a], relations[b]).tolist():
            partners[left if known == a else right].append(right if known == a else left)
        found = [{**one, new: row} for one in found for row in partners.get(one[known], ())]
        reached.add(new)
    return Counter(tuple(one[i] for i in range(len(spec))) for one in found)


@dataclass(frozen=True)
class Relation:
    """What one input looks like: key columns by name and type, and a text that makes it large."""

    rows: int
    keys: dict[str, str]  #: types from `KEY_TYPES`
    distribution: Distribution = "uniform"
    domain: int = 10
    null_share: float = 0.0
    nan_share: float = 0.0
    text_bytes: int = 0

    def make(self, rng: np.random.Generator) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for name, type_ in self.keys.items():
            ranks = draw_ranks(rng, self.rows, self.distribution, self.domain)
            columns[name] = self._spoil(rng, key_column(KEY_TYPES[type_], rng.permutation(ranks)))
        columns[ID] = pa.array(np.arange(self.rows))
        if self.text_bytes:
            lengths = rng.integers(0, 2 * self.text_bytes, self.rows)
            columns["text"] = pa.array(["x" * int(length) for length in lengths], pa.string())
        return pa.RecordBatch.from_pydict(columns)

    def _spoil(self, rng: np.random.Generator, column: pa.Array) -> pa.Array:
        if pa.types.is_floating(column.type) and self.nan_share:
            nans = pa.array(random_nans(rng, len(column))).cast(column.type)
            chosen = pa.array(rng.random(len(column)) < self.nan_share)
            column = pa.compute.if_else(chosen, nans, column)
        if self.null_share:
            gone = pa.array(rng.random(len(column)) < self.null_share)
            column = pa.compute.if_else(gone, pa.scalar(None, column.type), column)
        return column


def random_script(
    rng: np.random.Generator, rows: Sequence[int], habits: Habits | None = None
) -> list[Step]:
    """Any interleaving of all inputs: batches, work, ends that were none, saves and crashes."""
    habits = habits or Habits()
    script: list[Step] = []
    left = list(rows)
    names = ("polls", "finishes", "restores", "saves", "crashes")
    weights = np.array([1.0, *(getattr(habits, name) for name in names)])
    while any(left):
        kind = int(rng.choice(len(weights), p=weights / weights.sum()))
        side = int(rng.integers(0, len(rows)))
        if kind == 0:
            count = int(rng.integers(0, 2 * habits.batch_rows + 1))
            left[side] = max(0, left[side] - count)
            step: Step = Push(side, count)
        elif kind == 1:
            step = Poll(1 + int(rng.integers(0, habits.fuel)))
        elif kind == 2:
            # all ends at once let the cleanup begin although more rows will come
            if rng.random() < 0.5:
                script += [Finish(other) for other in range(len(rows)) if other != side]
            step = Finish(side)
        else:
            step = (Restore(), Save(), Crash())[kind - 3]
        script.append(step)
    script += [Finish(side) for side in range(len(rows))]
    for _ in range(int(rng.integers(0, 6))):
        script.append(Poll(1 + int(rng.integers(0, habits.fuel))))
        if rng.random() < 5 * (habits.restores + habits.crashes):
            script.append(Restore() if rng.random() < 0.5 else Crash())
    return script


@dataclass
class Outcome:
    """What an operator did in a script. Work that a crash undid is in the events only."""

    label: str
    spec: MultiWaySpec
    relations: Sequence[pa.RecordBatch]
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows_out: Counter[str] = field(default_factory=Counter)  #: by phase
    flushed_rows: int = 0
    blocks_read: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def found(self) -> Counter[Combination]:
        table = pa.Table.from_batches(self.batches, schema=self.spec.output)
        ids = [table[f"{name}_{ID}"].to_pylist() for name in self.spec.names]
        return Counter(zip(*ids, strict=True))

    def assert_exactly_once(self, expected: Counter[Combination]) -> None:
        """Every expected combination was emitted once, no other was, and no value was altered."""
        found = self.found()
        if found != expected:
            missing, extra = expected - found, found - expected
            raise AssertionError(
                f"{self.label}: {missing.total()} of {expected.total()} combinations are missing, "
                f"{extra.total()} are too many; for example {[*missing][:3]}, {[*extra][:3]}; "
                f"events {dict(self.events)}, rows out {dict(self.rows_out)}"
            )
        self._assert_values_unaltered()

    def _assert_values_unaltered(self) -> None:
        table = pa.Table.from_batches(self.batches, schema=self.spec.output).combine_chunks()
        position = 0
        for name, relation in zip(self.spec.names, self.relations, strict=True):
            rows = table[f"{name}_{ID}"].combine_chunks()
            for column in relation.columns:
                found = table.column(position).combine_chunks()
                position += 1
                if not identical(found, column.take(rows)):
                    raise AssertionError(f"{self.label}: a column of {name} was altered")


@dataclass(frozen=True)
class Trial:
    """What is run: an algorithm, its settings, and what happens to it."""

    algorithm: str
    spec: MultiWaySpec
    relations: Sequence[pa.RecordBatch]
    script: Script
    budget_bytes: int | None
    options: MinerOptions | None = None
    label: str = "case"
    #: whether what is left after the script is done in polls of least fuel, each by an operator
    #: that is restored from the last one's snapshot, as by workers that keep none
    forgetful: bool = False
    look: Callable[[MultiWayJoin], None] | None = None  #: at the operator, after every step

    def run(self, directory: Path) -> Outcome:
        """Run the script to its end and then to completion, in a directory of its own."""
        directory.mkdir(parents=True)
        drive = _Drive(self, directory)
        try:
            for step in self.script:
                drive.run(step)
            drive.complete()
        except (AssertionError, MemoryBudgetError) as error:
            error.add_note(f"{self.label}: {self.algorithm}, {list(self.script)}")
            raise
        finally:
            drive.close()
            shutil.rmtree(directory)
        return drive.outcome


class _Drive:
    """An operator under test, and what has to be known to take it through a script."""

    def __init__(self, trial: Trial, directory: Path) -> None:
        self.outcome = Outcome(trial.label, trial.spec, trial.relations)
        self._trial = trial
        self._directory = directory
        self._generation = 0
        self._sides = range(len(trial.spec))
        self._position = [0 for _ in self._sides]
        self._ended = [False for _ in self._sides]
        self._make(None, ())
        self._save()

    def run(self, step: Step) -> None:
        match step:
            case Push(side, rows):
                self._push(side, rows)
            case Poll(fuel):
                self._poll(fuel)
            case Finish(side):
                self._ended[side] = True
                self.operator.finish(side)
                self._check()
            case Save():
                self._save()
                self._check()
                self.outcome.events["saves"] += 1
            case Restore():
                self._count_interruption("restores")
                self._save()
                self._go_back()
            case Crash():
                self._count_interruption("crashes")
                self._go_back()

    def complete(self) -> None:
        """Push what is left, end all inputs, and poll until nothing is pending."""
        batch_rows = max((s.rows for s in self._trial.script if isinstance(s, Push)), default=40)
        while any(self._left(side) for side in self._sides):
            for side in self._sides:
                self._push(side, max(1, batch_rows))
        for side in self._sides:
            self.run(Finish(side))
        polls = 0
        while self.operator.status() is not Status.DONE:
            self._poll(1 if self._trial.forgetful else 1_000)
            if self._trial.forgetful:
                self.run(Restore())
            polls += 1
            assert polls < (1_000 if self._trial.forgetful else 10_000), "the work never ends"
        self.outcome.events["polls at the end"] = polls
        assert self.operator.pending() == 0
        assert list(self.operator.poll(1_000)) == [], "results after everything was done"
        self._settle()

    def close(self) -> None:
        self._store.close()

    def _left(self, side: int) -> int:
        return int(self._trial.relations[side].num_rows) - self._position[side]

    def _push(self, side: int, rows: int) -> None:
        batch = self._trial.relations[side].slice(self._position[side], rows)
        self._position[side] += batch.num_rows
        self.outcome.events["reopenings"] += self._ended[side] and batch.num_rows > 0
        self._ended[side] = False
        self._take(self.operator.push(side, batch))
        held = self.operator.ctx.budget.components.get("input", 0)
        assert held == 0, f"{held} bytes of a batch are still reserved after its push"

    def _poll(self, fuel: int) -> None:
        self._take(self.operator.poll(fuel))
        if self.operator.status() is Status.DONE:
            assert all(self._ended)
            assert self.operator.pending() == 0
        elif self.operator.status() is Status.IDLE:
            assert not all(self._ended), "idle although all inputs have ended"

    def _take(self, results: Iterator[pa.RecordBatch]) -> None:
        for batch in results:
            assert batch.schema.equals(self._trial.spec.output)
            assert batch.num_rows > 0, "an empty batch was emitted"
            self._uncommitted.append(batch)
        self._check()

    def _check(self) -> None:
        self.operator.check()
        if self._trial.look is not None:
            self._trial.look(self.operator)
        budget = self.operator.ctx.budget
        assert sum(budget.components.values()) == budget.used_bytes
        emitted = sum(batch.num_rows for batch in self._uncommitted)
        counted = sum(self.operator.ctx.counters.rows_out.values())
        assert emitted == counted, f"{emitted} rows were emitted and {counted} counted"

    def _make(self, snapshot: Snapshot | None, files: tuple[str, ...]) -> None:
        trial = self._trial
        self._store = BlockStore(self._directory, trial.spec.schemas, self._new_stem(), files)
        context = Context(Budget(trial.budget_bytes), self._store)
        kind = ALGORITHMS[trial.algorithm]
        self.operator: MultiWayJoin = kind(trial.spec, context, snapshot, trial.options)
        self._uncommitted: list[pa.RecordBatch] = []

    def _new_stem(self) -> str:
        self._generation += 1
        return f"g{self._generation}"

    def _save(self) -> None:
        """Save as the Spark runtime does: through text, naming only the files in use."""
        snapshot = self.operator.snapshot()
        self._store.sync()
        blocks, files = self._store.in_use(snapshot.blocks)
        self._saved = Snapshot(json.loads(json.dumps(snapshot.meta)), blocks)
        self._saved_files = tuple(files)
        self._saved_position = list(self._position)
        self._saved_ended = list(self._ended)
        self._settle()
        self._store.begin(self._new_stem(), self.operator.ctx.counters)

    def _settle(self) -> None:
        """What was emitted up to a save is kept for good."""
        self.outcome.batches += self._uncommitted
        self._uncommitted = []
        counters = self.operator.ctx.counters
        self.outcome.rows_out.update(counters.rows_out)
        self.outcome.flushed_rows += counters.flushed_rows
        self.outcome.blocks_read += counters.blocks_read
        self.operator.ctx.counters = self._store.counters = Counters()

    def _go_back(self) -> None:
        self._store.close()
        self._position = list(self._saved_position)
        self._ended = list(self._saved_ended)
        self._make(self._saved, self._saved_files)
        for side in self._sides:
            if self._ended[side]:
                self.operator.finish(side)
        self._check()

    def _count_interruption(self, kind: str) -> None:
        self.outcome.events[kind] += 1
        if all(self._ended) and self.operator.status() is Status.MORE:
            self.outcome.events["interrupted cleanups"] += 1
