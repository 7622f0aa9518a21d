"""Drives any two-way operator through a script, and compares its results with an oracle.

What every operator owes besides the right results is checked on the way, after every step: its own
`check()`, the budget, the meaning of its status, the schema of what it emits. A snapshot always
goes through files: the next operator has a new block store on the same directory.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import SIDES, Context, Counters, Snapshot, Status
from dovetail.twoway import TwoWaySpec, make
from support.arrivals import Crash, Finish, Poll, Push, Restore, Save, Script, Step
from support.oracle import Pairs, sorted_pairs

Relations = tuple[pa.RecordBatch, pa.RecordBatch]


@dataclass
class Outcome:
    """What an operator did in a script. Work that a crash undid is in the events only."""

    label: str  #: names the case, with its seed, in every failure message
    algorithm: str
    spec: TwoWaySpec
    relations: Relations
    script: Script
    budget_bytes: int | None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows_out: Counter[str] = field(default_factory=Counter)  #: by phase
    flushed_rows: int = 0
    peak_bytes: int = 0
    events: Counter[str] = field(default_factory=Counter)
    error: MemoryBudgetError | None = None

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches, schema=self.spec.layout.schema)

    def pairs(self) -> Pairs:
        """The row numbers of the pairs that were emitted, in order, duplicates included."""
        table = self.table()
        ids = [table[name].to_numpy() for name in ("left_id", "right_id")]
        return sorted_pairs(np.stack(ids, axis=1).astype(np.int64))

    def describe(self) -> str:
        left, right = self.relations
        keys = ", ".join(str(self.spec.left.field(name).type) for name in self.spec.left_keys)
        budget = "no limit" if self.budget_bytes is None else f"{self.budget_bytes} bytes"
        return (
            f"{self.label}: {self.algorithm} of {left.num_rows} x {right.num_rows} rows "
            f"({left.nbytes} + {right.nbytes} bytes) on ({keys}), within={self.spec.within}, "
            f"budget {budget}, {len(self.script)} steps, events {dict(self.events)}, "
            f"rows out {dict(self.rows_out)}, script {list(self.script)}"
        )


def run_script(
    algorithm: str,
    spec: TwoWaySpec,
    relations: Relations,
    script: Script,
    budget: int | None,
    directory: Path,
    *,
    label: str = "case",
) -> Outcome:
    """Run a script to its end and then to completion, in a directory of its own.

    A `MemoryBudgetError` ends the run and is part of the outcome; any other error is raised.
    """
    outcome = Outcome(label, algorithm, spec, relations, script, budget)
    directory.mkdir(parents=True)
    drive = _Drive(outcome, directory)
    try:
        for step in script:
            drive.run(step)
        drive.complete()
    except MemoryBudgetError as error:
        outcome.error = error
    except AssertionError as error:
        error.add_note(outcome.describe())
        raise
    finally:
        drive.close()
        shutil.rmtree(directory)
    return outcome


def assert_exactly_once(outcome: Outcome, expected: Pairs) -> None:
    """Every expected pair was emitted once, no other was, and no value was altered."""
    if outcome.error is not None:
        raise AssertionError(f"{outcome.describe()}: {outcome.error}")
    found = outcome.pairs()
    if not np.array_equal(found, expected):
        _fail(outcome, found, expected)
    assert_values_unaltered(outcome)


def assert_part_of(outcome: Outcome, expected: Pairs) -> None:
    """No pair was emitted twice or wrongly, though some may be missing, and no value altered."""
    found = outcome.pairs()
    if len(np.unique(found, axis=0)) != len(found) or not _contains(expected, found):
        _fail(outcome, found, expected)
    assert_values_unaltered(outcome)


def assert_values_unaltered(outcome: Outcome) -> None:
    """Each result holds the columns of its two rows, bit for bit."""
    table = outcome.table().combine_chunks()
    sources = _sources(outcome)
    for name in table.schema.names:
        batch, column, rows = sources[name]
        wanted = batch.column(column).take(table[rows].combine_chunks())
        found = table[name].combine_chunks()
        if not identical(found, wanted):
            raise AssertionError(f"{outcome.describe()}: column {name} was altered")


def _sources(outcome: Outcome) -> dict[str, tuple[pa.RecordBatch, str, str]]:
    """By the name of a result's column: the relation it is from, its name there, the row's column.

    Keys of one name are one column, or, of a band, two columns named for their sides.
    """
    left, right = outcome.relations
    sources = {name: (right, name, "right_id") for name in right.schema.names}
    sources |= {name: (left, name, "left_id") for name in left.schema.names}
    if outcome.spec.within is not None:
        for name in outcome.spec.left_keys:
            sources[f"left_{name}"] = (left, name, "left_id")
            sources[f"right_{name}"] = (right, name, "right_id")
    return sources


class _Drive:
    """An operator under test, and what has to be known to take it through a script."""

    def __init__(self, outcome: Outcome, directory: Path) -> None:
        self.outcome = outcome
        self._directory = directory
        self._generation = 0
        self._position = [0, 0]
        self._ended = [False, False]
        self._make(None, ())
        self._save()

    def run(self, step: Step) -> None:
        events = self.outcome.events
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
                events["saves"] += 1
            case Restore():
                self._count_interruption("restores")
                self._save()
                self._go_back()
            case Crash():
                self._count_interruption("crashes")
                self._go_back()

    def complete(self) -> None:
        """Push what is left, end both inputs, and poll until nothing is pending."""
        batch_rows = max((s.rows for s in self.outcome.script if isinstance(s, Push)), default=40)
        while any(self._left(side) for side in SIDES):
            for side in SIDES:
                self._push(side, max(1, batch_rows))
        for side in SIDES:
            self.run(Finish(side))
        polls = 0
        while self.operator.status() is not Status.DONE:
            self._poll(1_000)
            polls += 1
            # each poll spends its fuel, so the end must come
            assert polls < 10_000, "the work never ends"
        assert self.operator.pending() == 0
        assert list(self.operator.poll(1_000)) == [], "results after everything was done"
        self._settle()

    def close(self) -> None:
        self._store.close()

    # -- steps ------------------------------------------------------------------------------

    def _left(self, side: int) -> int:
        return int(self.outcome.relations[side].num_rows) - self._position[side]

    def _push(self, side: int, rows: int) -> None:
        batch = self.outcome.relations[side].slice(self._position[side], rows)
        self._position[side] += batch.num_rows
        if self._ended[side] and batch.num_rows:
            self.outcome.events["reopenings"] += 1
        self._ended[side] = False
        flushed = self.operator.ctx.counters.flushed_rows
        self._take(self.operator.push(side, batch))
        self.outcome.events["flushes"] += self.operator.ctx.counters.flushed_rows > flushed
        held = self.operator.ctx.budget.components.get("input", 0)
        assert held == 0, f"{held} bytes of a batch are still reserved after its push"

    def _poll(self, fuel: int) -> None:
        self._take(self.operator.poll(fuel))
        status, pending = self.operator.status(), self.operator.pending()
        if status is Status.DONE:
            assert all(self._ended)
            assert pending == 0
        elif status is Status.IDLE:
            assert not all(self._ended), "idle although both inputs have ended"
        elif not pending:
            # the fuel may have sufficed exactly; another poll then finds that out
            self.outcome.events["spurious work"] += 1

    def _take(self, results: Iterator[pa.RecordBatch]) -> None:
        for batch in results:
            assert batch.schema.equals(self.outcome.spec.layout.schema)
            assert batch.num_rows > 0, "an empty batch was emitted"
            self._uncommitted.append(batch)
        self._check()

    def _check(self) -> None:
        self.operator.check()
        budget = self.operator.ctx.budget
        self.outcome.peak_bytes = max(self.outcome.peak_bytes, budget.peak_bytes)
        assert sum(budget.components.values()) == budget.used_bytes
        emitted = sum(batch.num_rows for batch in self._uncommitted)
        counted = sum(self.operator.ctx.counters.rows_out.values())
        assert emitted == counted, f"{emitted} rows were emitted and {counted} counted"

    # -- snapshots --------------------------------------------------------------------------

    def _make(self, snapshot: Snapshot | None, files: tuple[str, ...]) -> None:
        self._store = BlockStore(
            self._directory, self.outcome.spec.schemas, self._new_stem(), files
        )
        context = Context(Budget(self.outcome.budget_bytes), self._store)
        # on a refusal, `close` still finds the store
        self.operator = make(self.outcome.algorithm, self.outcome.spec, context, snapshot)
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
        """What was emitted and counted since the last save is kept for good."""
        self.outcome.batches += self._uncommitted
        self._uncommitted = []
        counters = self.operator.ctx.counters
        self.outcome.rows_out.update(counters.rows_out)
        self.outcome.flushed_rows += counters.flushed_rows
        self.operator.ctx.counters = self._store.counters = Counters()

    def _go_back(self) -> None:
        self._store.close()
        self._position = list(self._saved_position)
        self._ended = list(self._saved_ended)
        self._make(self._saved, self._saved_files)
        for side in SIDES:
            if self._ended[side]:
                self.operator.finish(side)
        self._check()

    def _count_interruption(self, kind: str) -> None:
        self.outcome.events[kind] += 1
        if all(self._ended) and self.operator.status() is Status.MORE:
            self.outcome.events["interrupted cleanups"] += 1


def _fail(outcome: Outcome, found: Pairs, expected: Pairs) -> NoReturn:
    have, want = Counter(map(tuple, found.tolist())), Counter(map(tuple, expected.tolist()))
    missing, extra = list((want - have).elements()), list((have - want).elements())
    twice = [pair for pair in extra if pair in want]
    left, right = outcome.relations
    examples = [
        f"{pair}: {left.slice(pair[0], 1).select(list(outcome.spec.left_keys)).to_pylist()} and "
        f"{right.slice(pair[1], 1).select(list(outcome.spec.right_keys)).to_pylist()}"
        for pair in [*missing[:3], *extra[:3]]
    ]
    raise AssertionError(
        f"{outcome.describe()}: {len(missing)} of {len(want)} pairs are missing, {len(extra)} are "
        f"too many, {len(twice)} of these repeated; for example {'; '.join(examples)}"
    )


def _contains(expected: Pairs, found: Pairs) -> bool:
    both = np.concatenate([expected, found])
    return len(np.unique(both, axis=0)) == len(expected)


def identical(one: pa.Array, two: pa.Array) -> bool:
    """Equality of bits: unlike Arrow's, it tells zeros apart and not NaNs of one pattern."""
    if pa.types.is_floating(one.type):
        bits = pa.int32() if one.type.bit_width == 32 else pa.int64()
        return bool(one.view(bits).equals(two.view(bits)))
    return bool(one.equals(two))
