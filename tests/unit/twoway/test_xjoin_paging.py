"""XJoin with more on disk than its catalogue would have room for in memory."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.catalogue import Pages
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context, Snapshot, Status
from dovetail.kernel.shell import quietly
from dovetail.twoway import TwoWaySpec, XJoin
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.arrivals import Finish, Poll, Push, Restore, Step
from support.conformance import assert_exactly_once, run_script
from support.generators import Shape, join_spec, make_relations
from support.oracle import nested_loop

SPEC = TwoWaySpec(
    pa.schema([("k", pa.int64()), ("left_id", pa.int64()), ("text", pa.string())]),
    pa.schema([("k", pa.int64()), ("right_id", pa.int64())]),
    ("k",),
    ("k",),
)


class Life:
    """An operator that can be stopped and brought back from its last snapshot."""

    def __init__(self, directory: Path, budget: int | None) -> None:
        self.directory = directory
        self.budget = budget
        self.lives = 0
        self.pairs: list[tuple[int, int]] = []
        self.operator = self.make(None, ())

    def make(self, snapshot: Snapshot | None, files: tuple[str, ...]) -> XJoin:
        self.lives += 1
        store = BlockStore(self.directory, SPEC.schemas, f"life{self.lives}", files)
        return XJoin(SPEC, Context(Budget(self.budget), store), snapshot)

    def push(self, side: int, keys: list[int], ids: list[int], text: str = "") -> None:
        columns = [pa.array(keys), pa.array(ids), pa.array([text] * len(keys))]
        schema = SPEC.schemas[side]
        self._take(self.operator.push(side, pa.record_batch(columns[: len(schema)], schema=schema)))

    def poll(self, fuel: int = 1 << 20) -> None:
        self._take(self.operator.poll(fuel))

    def flush(self, side: int) -> None:
        assert self.operator._cells_each == 1
        for partition, cell in enumerate(self.operator.cells):
            if cell.rows[side]:
                self.operator._flush(side, partition)
        quietly(self.operator._settle_rows())
        self.operator.check()

    def restore(self) -> None:
        snapshot = self.operator.snapshot()
        store = self.operator.ctx.store
        store.close()
        self.operator = self.make(snapshot, tuple(store.files))
        self.operator.check()

    def complete(self) -> None:
        for side in SIDES:
            self.operator.finish(side)
        while self.operator.status() is not Status.DONE:
            self.poll()
        self.operator.check()
        self.operator.ctx.store.close()
        assert self.operator.pending() == 0

    def _take(self, results: Iterator[pa.RecordBatch]) -> None:
        for out in results:
            ids = (out[name].to_pylist() for name in ("left_id", "right_id"))
            self.pairs += zip(*ids, strict=True)


@pytest.fixture
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Pages as small as they can be; counts those of each kind."""
    written: Counter[int] = Counter()
    write = Pages.write

    def count(self: Pages, entries: np.ndarray) -> np.ndarray:
        written[int(entries["kind"][0])] += 1
        return write(self, entries)

    monkeypatch.setattr(XJoin, "page_entries", 2)
    monkeypatch.setattr(Pages, "write", count)
    return written


def test_join_when_its_disk_part_is_a_thousand_times_the_budget_then_goes_on(
    tmp_path: Path,
) -> None:
    rows, text = 10_800, "x" * 6_000
    keys = np.random.default_rng(0).integers(0, 4_000, rows)
    life = Life(tmp_path, MIN_BUDGET_BYTES)
    few = list(range(0, 2_800, 7))
    life.push(RIGHT, few, few)
    flushed = peak = 0
    for start in range(0, rows, 3):
        ids = list(range(start, start + 3))
        life.push(LEFT, keys[ids].tolist(), ids, text)
        if start % 1_500 == 0:
            life.operator.check()
            flushed += life.operator.ctx.counters.flushed_bytes
            peak = max(peak, life.operator.ctx.budget.peak_bytes)
            life.restore()
    flushed += life.operator.ctx.counters.flushed_bytes
    life.complete()
    peak = max(peak, life.operator.ctx.budget.peak_bytes)
    assert flushed > 1_000 * MIN_BUDGET_BYTES
    assert peak <= MIN_BUDGET_BYTES
    assert life.operator.ctx.budget.peaks["catalogue"] < MIN_BUDGET_BYTES / 6
    matching = np.flatnonzero(np.isin(keys, few))
    assert sorted(life.pairs) == list(zip(matching.tolist(), keys[matching].tolist(), strict=True))


def test_join_when_restored_after_every_block_and_paged_then_emits_each_pair_once(
    tmp_path: Path, pages_of_two: Counter[int]
) -> None:
    shape = Shape(130, ("int64",), domain=25, payload_bytes=600)
    relations = make_relations(np.random.default_rng(1), shape, shape)
    spec = join_spec(relations)
    script: list[Step] = []
    for number in range(26):
        script += [Push(LEFT, 5), Push(RIGHT, 5), Restore()]
        script += [Poll(1), Restore()] * (number % 5)
    script += [Finish(LEFT), Finish(RIGHT), *([Poll(1), Restore()] * 100)]
    outcome = run_script("xjoin", spec, relations, script, MIN_BUDGET_BYTES, tmp_path / "run")
    assert_exactly_once(outcome, nested_loop(spec, *relations))
    assert outcome.rows_out["reactive"] > 0
    assert outcome.rows_out["cleanup"] > 0
    assert len(pages_of_two) > 2, f"pages of pages were written, too: {pages_of_two}"


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored"])
def test_marks_when_passes_and_flushes_take_turns_then_are_paged_and_still_count(
    tmp_path: Path, pages_of_two: Counter[int], restored: bool
) -> None:
    """Many passes, each over rows that are flushed afterwards, and never a cleanup in between."""
    life = Life(tmp_path, None)
    rounds = 24
    for number in range(rounds):
        side = LEFT if number % 3 else RIGHT
        life.push(side, [1], [number])
        if number % 4:
            life.poll()
        life.flush(side)
        if restored:
            life.restore()
    marks = [m for cell in life.operator.cells for m in cell.marks if len(m.older)]
    assert marks, "no mark was paged out"
    assert all(len(m.recent) <= 2 for m in marks)
    before = life.operator.pending()
    life.complete()
    sides = [[n for n in range(rounds) if bool(n % 3) == (side == LEFT)] for side in SIDES]
    assert Counter(life.pairs) == Counter((a, b) for a in sides[LEFT] for b in sides[RIGHT])
    assert before > 0
    assert not any(len(m.older) or m.recent for cell in life.operator.cells for m in cell.marks)
    assert life.operator.ctx.counters.rows_out["cleanup"] > 0


def test_snapshot_when_four_times_as_much_is_on_disk_then_is_about_as_large(
    tmp_path: Path, pages_of_two: Counter[int]
) -> None:
    life = Life(tmp_path, None)
    sizes = []
    for number in range(320):
        life.push(number % 2, [1, 2, 3], [number] * 3, "x")
        life.flush(number % 2)
        if number % 5 == 4:
            snapshot = life.operator.snapshot()
            life.operator.ctx.store.sync()
            life.operator.ctx.store.begin(f"b{number}", life.operator.ctx.counters)
            sizes.append(snapshot.blocks.nbytes + len(json.dumps(snapshot.meta)))
    assert pages_of_two.total() > 500
    assert max(sizes[48:]) < 1.5 * max(sizes[8:16]), f"bytes of the snapshots: {sizes}"
    life.operator.ctx.store.close()
