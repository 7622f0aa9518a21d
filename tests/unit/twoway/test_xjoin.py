"""XJoin from within: ticks, marks, flushes, and interruptions after every single block."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import MemoryBudgetError, StateCorruptError, StorageError
from dovetail.kernel.blocks import RESIDENT, BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context, Snapshot, Status
from dovetail.kernel.shell import quietly
from dovetail.twoway import TwoWaySpec, XJoin
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.arrivals import Finish, Poll, Push, Restore, Step
from support.conformance import Relations, assert_exactly_once, run_script
from support.generators import Shape, join_spec, make_relations
from support.oracle import nested_loop

SCHEMAS = [pa.schema([("k0", pa.int64()), (name, pa.int64())]) for name in ("left_id", "right_id")]
SPEC = TwoWaySpec(*SCHEMAS, ("k0",), ("k0",))
KEY = 42


def batch(side: int, *rows: tuple[int, int]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMAS[side])


class Bench:
    """An operator on a table where time and flushes are set by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lives = 0
        self.found: list[tuple[int, int]] = []
        self.operator = self.make(None, ())

    def make(self, snapshot: Snapshot | None, files: tuple[str, ...]) -> XJoin:
        self.lives += 1
        store = BlockStore(self.directory, SPEC.schemas, f"life{self.lives}", files)
        return XJoin(SPEC, Context(Budget(None), store), snapshot)

    @property
    def cell(self) -> int:
        """The cell of `KEY`."""
        codes, _ = SPEC.codec.encode([pa.array([KEY])])
        return int(self.operator._part_of(self.operator._codes(codes))[0])

    def at(self, tick: int) -> "Bench":
        """Make the next event happen at this tick."""
        self.operator.ctx.clock.now = tick - 1
        return self

    def arrive(self, side: int, number: int) -> None:
        self._take(self.operator.push(side, batch(side, (KEY, number))))

    def flush(self, side: int) -> None:
        self.operator._flush(side, self.cell // self.operator._cells_each)
        quietly(self.operator._settle_rows())
        self.operator.check()

    def poll(self, fuel: int = 1_000_000) -> None:
        self._take(self.operator.poll(fuel))

    def clean_up(self) -> None:
        for side in SIDES:
            self.operator.finish(side)
        self.poll()
        assert self.operator.status() is Status.DONE
        assert self.operator.pending() == 0

    def restore(self) -> None:
        snapshot = self.operator.snapshot()
        store = self.operator.ctx.store
        store.sync()
        store.close()
        self.operator = self.make(snapshot, tuple(store.files))
        self.operator.check()

    def _take(self, batches: Iterator[pa.RecordBatch]) -> None:
        for out in batches:
            ids = zip(out["left_id"].to_pylist(), out["right_id"].to_pylist(), strict=True)
            self.found += ids
        self.operator.check()

    @property
    def marks(self) -> list[list[tuple[int, int]]]:
        return [list(marks.recent) for marks in self.operator.cells[self.cell].marks]

    @property
    def phases(self) -> dict[str, int]:
        return self.operator.ctx.counters.rows_out


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.operator.ctx.store.close()


# -- ticks and marks ------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored after every step"])
def test_pair_when_as_in_the_worked_example_then_is_emitted_once(
    bench: Bench, restored: bool
) -> None:
    """a arrives at 3 and is flushed at 5, b arrives at 7, a pass at 8, b is flushed at 9."""
    rest = bench.restore if restored else (lambda: None)
    bench.at(3).arrive(LEFT, 0)
    rest()
    bench.at(5).flush(LEFT)
    rest()
    bench.at(7).arrive(RIGHT, 0)
    assert bench.found == []
    rest()
    bench.at(8).poll()
    assert bench.found == [(0, 0)]
    assert bench.marks == [[(5, 8)], []]
    rest()
    bench.at(9).flush(RIGHT)
    rest()
    bench.clean_up()
    assert bench.found == [(0, 0)]
    assert "cleanup" not in bench.phases


def test_pair_when_rows_were_in_memory_together_then_never_comes_again(bench: Bench) -> None:
    bench.arrive(LEFT, 0)
    bench.arrive(RIGHT, 0)
    assert bench.found == [(0, 0)]
    bench.flush(LEFT)
    bench.poll()
    bench.flush(RIGHT)
    bench.clean_up()
    assert bench.found == [(0, 0)]


def test_pair_when_rows_never_met_in_memory_then_comes_in_cleanup(bench: Bench) -> None:
    bench.arrive(LEFT, 0)
    bench.flush(LEFT)
    bench.arrive(RIGHT, 0)
    bench.flush(RIGHT)
    bench.poll()
    assert bench.found == []
    bench.clean_up()
    assert bench.found == [(0, 0)]
    assert bench.phases == {"cleanup": 1}


def test_pass_when_repeated_without_new_rows_then_does_nothing(bench: Bench) -> None:
    bench.arrive(LEFT, 0)
    bench.flush(LEFT)
    bench.arrive(RIGHT, 0)
    bench.poll()
    read = bench.operator.ctx.counters.blocks_read
    marks = bench.marks
    bench.poll()
    assert bench.operator.ctx.counters.blocks_read == read
    assert bench.marks == marks
    assert bench.operator.status() is Status.IDLE


def test_pass_when_rows_have_come_since_then_meets_only_these(bench: Bench) -> None:
    bench.arrive(LEFT, 0)
    bench.flush(LEFT)
    bench.arrive(RIGHT, 0)
    bench.poll()
    bench.arrive(RIGHT, 1)
    bench.poll()
    assert bench.found == [(0, 0), (0, 1)]
    assert bench.phases == {"reactive": 2}


def test_pass_when_blocks_came_since_then_starts_after_the_last_one_met(bench: Bench) -> None:
    bench.arrive(LEFT, 0)
    bench.flush(LEFT)
    bench.arrive(RIGHT, 0)
    bench.poll()
    bench.arrive(LEFT, 1)  # meets b on arrival
    bench.flush(LEFT)
    read = bench.operator.ctx.counters.blocks_read
    bench.poll()
    assert bench.operator.ctx.counters.blocks_read == read, "both blocks have met b"
    assert sorted(bench.found) == [(0, 0), (1, 0)]


def test_mark_when_a_later_pass_covers_it_then_is_dropped(bench: Bench) -> None:
    bench.arrive(LEFT, 0)
    bench.flush(LEFT)
    for number in range(20):
        bench.arrive(RIGHT, number)
        bench.poll()
    assert len(bench.marks[LEFT]) == 1


def test_mark_when_memory_was_flushed_since_then_is_kept_for_the_cleanup(bench: Bench) -> None:
    bench.arrive(LEFT, 0)
    bench.flush(LEFT)
    for number in range(3):
        bench.arrive(RIGHT, number)
        bench.poll()
        bench.flush(RIGHT)
    assert len(bench.marks[LEFT]) == 3
    bench.clean_up()
    assert sorted(bench.found) == [(0, 0), (0, 1), (0, 2)]


def test_marks_when_their_rows_lie_in_the_finished_rectangle_then_are_pruned(bench: Bench) -> None:
    for number in range(3):
        bench.arrive(LEFT, number)
        bench.flush(LEFT)
        bench.arrive(RIGHT, number)
        bench.poll()
        bench.flush(RIGHT)
    assert bench.marks[LEFT]
    bench.clean_up()
    assert bench.marks == [[], []]
    assert len(bench.found) == len(set(bench.found)) == 9


def test_cleanup_when_inputs_re_open_then_joins_only_what_is_new(bench: Bench) -> None:
    for number in range(4):
        bench.arrive(LEFT, number)
        bench.flush(LEFT)
        bench.arrive(RIGHT, number)
        bench.flush(RIGHT)
        bench.clean_up()
        if number % 2:
            bench.restore()
    assert Counter(bench.found) == Counter((i, j) for i in range(4) for j in range(4))


def test_cleanup_when_inputs_re_open_in_its_middle_then_no_pair_is_lost_or_repeated(
    bench: Bench,
) -> None:
    """Blocks arrive while the rectangle that was begun is only half done."""
    for number in range(3):
        for side in SIDES:
            bench.arrive(side, number)
            bench.flush(side)
    for side in SIDES:
        bench.operator.finish(side)
    number = 3
    while bench.operator.status() is not Status.DONE:
        bench.poll(1)
        bench.restore()
        if number < 6:
            for side in SIDES:
                bench.arrive(side, number)
                bench.flush(side)
            number += 1
        for side in SIDES:
            bench.operator.finish(side)
    assert Counter(bench.found) == Counter((i, j) for i in range(6) for j in range(6))


# -- flushes --------------------------------------------------------------------------------


def relations_of(
    rows: int = 150, domain: int = 40, payload_bytes: int = 400, keys: tuple[str, ...] = ("int64",)
) -> Relations:
    shape = Shape(rows, keys, domain=domain, payload_bytes=payload_bytes)
    return make_relations(np.random.default_rng(0), shape, shape)


def make_operator(
    spec: TwoWaySpec, directory: Path, budget: int | None, stem: str = "one"
) -> XJoin:
    return XJoin(spec, Context(Budget(budget), BlockStore(directory, spec.schemas, stem)))


def test_flush_when_memory_is_exhausted_then_takes_the_largest_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relations = relations_of(domain=1_000)
    operator = make_operator(join_spec(relations), tmp_path, MIN_BUDGET_BYTES)
    chosen: list[tuple[int, int]] = []
    flush = operator._flush

    def watch(side: int, partition: int) -> None:
        rows = np.array([cell.rows for cell in operator.cells])
        rows = rows.reshape(-1, operator._cells_each, 2).sum(axis=1)
        assert rows[partition, side] == rows.max()
        chosen.append((side, partition))
        flush(side, partition)
        assert sum(cell.rows[side] for cell in operator.cells) == rows[:, side].sum() - rows.max()

    monkeypatch.setattr(operator, "_flush", watch)
    for start in range(0, 150, 10):
        for side in SIDES:
            list(operator.push(side, relations[side].slice(start, 10)))
            operator.check()
    assert len(set(chosen)) > 4, "different partitions of both sides were the largest"
    operator.ctx.store.close()


def test_flush_when_it_is_done_then_blocks_hold_the_rows_in_order(tmp_path: Path) -> None:
    relations = relations_of()
    spec = join_spec(relations)
    operator = make_operator(spec, tmp_path, MIN_BUDGET_BYTES)
    for start in range(0, 150, 10):
        for side in SIDES:
            list(operator.push(side, relations[side].slice(start, 10)))
    for side, name in enumerate(("left_id", "right_id")):
        ids: list[int] = []
        for part, cell in enumerate(operator.cells):
            blocks = cell.blocks[side]
            for block in chain.from_iterable(blocks.entries(0, len(blocks))):
                run = operator.ctx.store.read(block)
                assert (operator._part_of(run.codes) == part).all()
                assert int(block["length"]) <= 2 * operator._block_bytes
                ids += run.rows[name].to_pylist()
        for run in operator.memory[side].runs:
            ids += run.rows[name].to_pylist()
        assert sorted(ids) == list(range(150)), "every row is in memory or on disk, once"
    assert operator.ctx.counters.flushed_rows > 0
    operator.ctx.store.close()


def test_budget_when_spilling_then_is_never_exceeded(tmp_path: Path) -> None:
    relations = relations_of()
    operator = make_operator(join_spec(relations), tmp_path, MIN_BUDGET_BYTES)
    for start in range(0, 150, 10):
        for side in SIDES:
            list(operator.push(side, relations[side].slice(start, 10)))
    budget = operator.ctx.budget
    assert budget.peak_bytes <= MIN_BUDGET_BYTES
    assert budget.components["input"] == 0
    assert budget.components["catalogue"] > 0
    assert budget.components["rows"] == operator._held_bytes()
    operator.ctx.store.close()


def test_operator_when_budget_is_below_the_least_then_says_the_least(tmp_path: Path) -> None:
    spec = join_spec(relations_of(rows=1))
    with pytest.raises(MemoryBudgetError, match=r"at least 64.0 KB"):
        make_operator(spec, tmp_path, MIN_BUDGET_BYTES - 1)


# -- interruptions --------------------------------------------------------------------------


def test_join_when_interrupted_after_every_block_then_emits_each_pair_once(tmp_path: Path) -> None:
    """Fuel for one block at a time, and another operator goes on after each."""
    relations = relations_of(rows=130, domain=25)
    spec = join_spec(relations)
    script: list[Step] = []
    for _ in range(13):
        script += [Push(LEFT, 10), Push(RIGHT, 10)]
    script += [Poll(1), Restore()] * 150 + [Finish(LEFT), Finish(RIGHT)]
    script += [Poll(1), Restore()] * 150
    outcome = run_script("xjoin", spec, relations, script, MIN_BUDGET_BYTES, tmp_path / "run")
    assert_exactly_once(outcome, nested_loop(spec, *relations))
    assert outcome.rows_out["reactive"] > 0
    assert outcome.rows_out["cleanup"] > 0
    assert outcome.events["interrupted cleanups"] > 10


def test_reactive_work_when_new_rows_interrupt_it_after_every_block_then_each_pair_once(
    tmp_path: Path,
) -> None:
    relations = relations_of(rows=200, domain=25)
    spec = join_spec(relations)
    script: list[Step] = [Push(LEFT, 20), Push(RIGHT, 20)] * 5
    for _ in range(50):
        script += [Poll(1), Push(LEFT, 1), Poll(1), Push(RIGHT, 2), Poll(1)]
    outcome = run_script("xjoin", spec, relations, script, MIN_BUDGET_BYTES, tmp_path / "run")
    assert_exactly_once(outcome, nested_loop(spec, *relations))
    assert outcome.rows_out["reactive"] > 0


def test_poll_when_fuel_is_short_then_stops_and_goes_on_later(tmp_path: Path) -> None:
    relations = relations_of()
    operator = make_operator(join_spec(relations), tmp_path, MIN_BUDGET_BYTES)
    for start in range(0, 150, 10):
        for side in SIDES:
            list(operator.push(side, relations[side].slice(start, 10)))
    for side in SIDES:
        operator.finish(side)
    assert operator.status() is Status.MORE
    polls = 0
    before = operator.pending()
    while operator.status() is not Status.DONE:
        read = operator.ctx.counters.blocks_read
        list(operator.poll(1))
        polls += 1
        assert operator.ctx.counters.blocks_read - read <= 20, "one piece of work at a time"
    assert polls > 10
    assert before > 0 == operator.pending()
    operator.ctx.store.close()


def test_poll_when_inputs_have_not_ended_then_leaves_the_cleanup_alone(bench: Bench) -> None:
    for side in SIDES:
        bench.arrive(side, 0)
        bench.flush(side)
    bench.operator.finish(LEFT)
    bench.poll()
    assert bench.operator.status() is Status.IDLE
    assert bench.operator.ctx.counters.blocks_read == 0


# -- snapshots ------------------------------------------------------------------------------


def test_snapshot_when_nothing_changed_then_writes_nothing(tmp_path: Path) -> None:
    relations = relations_of()
    operator = make_operator(join_spec(relations), tmp_path, MIN_BUDGET_BYTES)
    for start in range(0, 150, 10):
        for side in SIDES:
            list(operator.push(side, relations[side].slice(start, 10)))
    first = operator.snapshot()
    written = operator.ctx.counters.blocks_written
    second = operator.snapshot()
    assert operator.ctx.counters.blocks_written == written
    assert np.array_equal(first.blocks, second.blocks)
    assert first.meta == second.meta
    operator.ctx.store.close()


def test_snapshot_when_rows_came_then_writes_these_only(tmp_path: Path) -> None:
    relations = relations_of(rows=1_000, payload_bytes=20)
    operator = make_operator(join_spec(relations), tmp_path, None)
    for side in SIDES:
        list(operator.push(side, relations[side].slice(0, 900)))
    operator.snapshot()
    list(operator.push(LEFT, relations[LEFT].slice(900, 10)))
    before = operator.ctx.counters.blocks_written
    snapshot = operator.snapshot()
    assert operator.ctx.counters.blocks_written == before + 1
    assert sorted(snapshot.blocks["rows"]) == [10, 900, 900]
    operator.ctx.store.close()


def test_restore_when_a_partition_was_flushed_after_its_run_was_saved_then_drops_those_rows(
    tmp_path: Path,
) -> None:
    """The saved block of a run holds more rows than the run does later."""
    relations = relations_of(rows=400, domain=1_000, payload_bytes=20)
    spec = join_spec(relations)
    operator = make_operator(spec, tmp_path, None)
    for side in SIDES:
        list(operator.push(side, relations[side].slice(0, 300)))
    operator.snapshot()
    operator._flush(LEFT, 3)
    quietly(operator._settle_rows())
    snapshot = operator.snapshot()
    resident = snapshot.blocks[snapshot.blocks["kind"] == RESIDENT]
    assert resident["rows"].max() == 300, "the old block is still in use"
    store = operator.ctx.store
    store.sync()
    again = BlockStore(tmp_path, spec.schemas, "two", tuple(store.files))
    restored = XJoin(spec, Context(Budget(None), again), snapshot)
    restored.check()
    for side in SIDES:
        rows = [cell.rows[side] for cell in restored.cells]
        assert rows == [cell.rows[side] for cell in operator.cells]
    assert restored.pending() == operator.pending()
    store.close()
    again.close()


def test_restore_when_the_budget_is_smaller_now_then_flushes_and_goes_on(tmp_path: Path) -> None:
    relations = relations_of(rows=200, domain=50)
    spec = join_spec(relations)
    operator = make_operator(spec, tmp_path, None)
    found = list(operator.push(LEFT, relations[LEFT]))
    found += operator.push(RIGHT, relations[RIGHT].slice(0, 100))
    snapshot = operator.snapshot()
    store = operator.ctx.store
    store.sync()
    store.close()
    smaller = BlockStore(tmp_path, spec.schemas, "two", tuple(store.files))
    operator = XJoin(spec, Context(Budget(MIN_BUDGET_BYTES), smaller), snapshot)
    operator.check()
    assert operator.ctx.counters.flushed_rows > 0
    for start in range(100, 200, 10):
        found += operator.push(RIGHT, relations[RIGHT].slice(start, 10))
        operator.check()
    for side in SIDES:
        operator.finish(side)
    while operator.status() is not Status.DONE:
        found += operator.poll(100)
        operator.check()
    ids = [
        pair
        for out in found
        for pair in zip(out["left_id"].to_pylist(), out["right_id"].to_pylist(), strict=True)
    ]
    assert sorted(ids) == [tuple(pair) for pair in nested_loop(spec, *relations).tolist()]
    smaller.close()


# -- damaged and full disks -----------------------------------------------------------------


def test_cleanup_when_a_block_is_damaged_then_names_the_file(bench: Bench) -> None:
    for side in SIDES:
        bench.arrive(side, 0)
        bench.flush(side)
    path = bench.directory / bench.operator.ctx.store.log_files[0]
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(StateCorruptError, match=path.name):
        bench.clean_up()
    assert bench.found == []


def test_flush_when_the_disk_is_full_then_the_last_snapshot_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.arrive(LEFT, 0)
    snapshot = bench.operator.snapshot()
    store = bench.operator.ctx.store
    bench.arrive(LEFT, 1)

    def full(*_: object) -> None:
        raise StorageError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(store, "append", full)
        with pytest.raises(StorageError):
            bench.flush(LEFT)
    store.sync()
    store.close()
    bench.operator = bench.make(snapshot, tuple(store.files))
    for number in (1, 2):
        bench.arrive(LEFT, number)
    bench.arrive(RIGHT, 0)
    bench.clean_up()
    assert sorted(bench.found) == [(0, 0), (1, 0), (2, 0)]
