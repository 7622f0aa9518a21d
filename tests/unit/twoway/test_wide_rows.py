"""Batches larger than the budget, and rows that are a large part of it, in two-way joins."""

import gc
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.matching import Emitter
from dovetail.kernel.memory import Budget, parse_bytes
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context, Snapshot, Status
from dovetail.twoway import TwoWayJoin, TwoWaySpec, make
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.arrivals import Poll, Push, Restore
from support.conformance import assert_exactly_once, run_script
from support.oracle import nested_loop
from support.wide import WideRelation

SPILLING = ["diner", "diner-paper", "xjoin", "hmj", "rpj", "pmj", "dphj"]
PYTHON_BYTES = 400_000  # of objects, which a budget does not count
POOLS: list[pa.MemoryPool] = []  # a pool has to outlive what was allocated from it
Relations = tuple[pa.RecordBatch, pa.RecordBatch]


def relation(name: str, keys: np.ndarray, widths: list[int]) -> pa.RecordBatch:
    text = [chr(97 + row % 26) * width for row, width in enumerate(widths)]
    columns = {"k": keys, f"{name}_id": np.arange(len(keys)), f"{name}_text": text}
    return pa.record_batch(columns)


def spec_of(relations: Relations) -> TwoWaySpec:
    left, right = relations
    return TwoWaySpec(left.schema, right.schema, ("k",), ("k",))


def check(
    algorithm: str, relations: Relations, budget: int, batch_rows: int, tmp_path: Path
) -> None:
    """All batches of both sides, with work and restores between; each pair once."""
    spec, script = spec_of(relations), []
    for start in range(0, max(r.num_rows for r in relations), batch_rows):
        script += [Push(LEFT, batch_rows), Push(RIGHT, batch_rows)]
        if start % (3 * batch_rows) == 0:
            script += [Poll(2_000), Restore()]
    outcome = run_script(algorithm, spec, relations, script, budget, tmp_path / "run")
    assert_exactly_once(outcome, nested_loop(spec, *relations))
    assert outcome.flushed_rows > 0
    assert outcome.peak_bytes <= budget


@pytest.mark.parametrize("algorithm", SPILLING)
def test_push_when_a_batch_of_ordinary_rows_is_most_of_the_share_then_is_taken_in(
    algorithm: str, tmp_path: Path
) -> None:
    """Bids of a share of 2.4 MB come 10,000 at a time, 1.7 MB."""
    rng = np.random.default_rng(1)
    sides = [("left", 10_000, 170), ("right", 600, 500)]
    left, right = (
        relation(
            name, rng.integers(0, 4_000, rows), rng.integers(100, 2 * width - 100, rows).tolist()
        )
        for name, rows, width in sides
    )
    assert left.nbytes > 1_700_000
    spec = TwoWaySpec(left.schema, right.schema, ("k",), ("k",))
    operator = make(
        algorithm, spec, Context(Budget(2_400_000), BlockStore(tmp_path, spec.schemas, "a"))
    )
    found = 0
    for side, batch in ((RIGHT, right), (LEFT, left), (LEFT, left)):
        found += sum(out.num_rows for out in operator.push(side, batch))
        operator.check()
    found += rows_at_the_end(operator)
    matches = np.bincount(np.asarray(right["k"]), minlength=4_000)
    assert found == 2 * matches[np.asarray(left["k"])].sum()
    operator.ctx.store.close()


@pytest.mark.parametrize("algorithm", SPILLING)
def test_push_when_results_of_another_join_come_by_the_megabyte_then_are_taken_in(
    algorithm: str, tmp_path: Path
) -> None:
    """Two joins in a row at 256 KB over two partitions: batches of 0.7 to 1 MB come in 128 KB."""
    rng = np.random.default_rng(2)
    widths = rng.integers(800, 2_400, 500).tolist()
    left, right = (relation(name, rng.integers(0, 300, 500), widths) for name in ("left", "right"))
    assert 700_000 < left.nbytes < 1_000_000
    check(algorithm, (left, right), 128_000, 500, tmp_path)


@pytest.mark.parametrize("algorithm", SPILLING)
def test_push_when_strings_of_a_megabyte_come_in_sixteen_then_are_taken_in(
    algorithm: str, tmp_path: Path
) -> None:
    """Forty of them, in memory="16MB" over two partitions, a tenth as large as that."""
    rng = np.random.default_rng(3)
    widths = [(1 << 20) // 10] * 20
    left, right = (relation(name, rng.integers(0, 10, 20), widths) for name in ("left", "right"))
    assert left.nbytes > 2 * 800_000
    check(algorithm, (left, right), 800_000, 20, tmp_path)


@pytest.mark.parametrize("algorithm", SPILLING)
def test_join_when_one_wide_row_matches_hundreds_then_results_come_in_parts(
    algorithm: str, tmp_path: Path
) -> None:
    wide, budget = 60_000, 1_000_000
    left = relation("left", np.zeros(3, dtype=np.int64), [wide, 5, wide])
    right = relation("right", np.zeros(200, dtype=np.int64), [10] * 200)
    spec = spec_of((left, right))
    for order in ((LEFT, RIGHT), (RIGHT, LEFT)):
        store = BlockStore(tmp_path, spec.schemas, f"a{order[0]}")
        operator = make(algorithm, spec, Context(Budget(budget), store))
        batches = [out for side in order for out in operator.push(side, (left, right)[side])]
        for side in SIDES:
            operator.finish(side)
        while operator.status() is not Status.DONE:
            batches += operator.poll(1_000)
        assert sum(out.num_rows for out in batches) == 600
        assert max(out.nbytes for out in batches) <= max(operator.working_bytes // 8, wide + 200)
        store.close()


@pytest.mark.parametrize("algorithm", ["shj", *SPILLING])
def test_push_when_a_few_rows_of_a_large_batch_come_then_its_buffers_are_not_kept(
    algorithm: str, tmp_path: Path
) -> None:
    whole = relation("left", np.arange(1_000), [1_000] * 1_000)
    spec = TwoWaySpec(whole.schema, whole.schema, ("k",), ("k",))
    store = BlockStore(tmp_path, spec.schemas, "a")
    operator = make(algorithm, spec, Context(Budget(None), store))
    list(operator.push(LEFT, whole.slice(500, 3)))
    (run,) = operator.memory[LEFT].runs
    assert len(run) == 3
    assert run.rows.get_total_buffer_size() < 4_000
    store.close()


# -- a row that a share cannot hold ---------------------------------------------------------


def refused(pushed: Callable[[], object]) -> int:
    """The memory that the error of a refused row names."""
    with pytest.raises(MemoryBudgetError, match=r"a row of .* does not fit") as caught:
        pushed()
    named = re.search(r"memory='([\d.]+ [KMG]?B)' would do", str(caught.value))
    assert named, str(caught.value)
    return parse_bytes(named[1])


@pytest.mark.parametrize("algorithm", ["shj", *SPILLING])
@pytest.mark.parametrize("wide", [0.3, 0.9, 3.0])
def test_push_when_one_row_is_too_wide_then_nothing_is_lost_and_the_memory_named_is_enough(
    algorithm: str, wide: float, tmp_path: Path
) -> None:
    budget = 4 * MIN_BUDGET_BYTES
    rng = np.random.default_rng(4)
    keys = [rng.integers(0, 12, 60) for _ in SIDES]
    widths = rng.choice([1, 50, 1_000], 60).tolist()
    left, right = (relation(n, k, widths) for n, k in zip(("left", "right"), keys, strict=True))
    row = relation("left", keys[LEFT][:3], [1, int(wide * budget), 1])
    spec = spec_of((left, right))

    def run(total: int, *, refusing: bool) -> tuple[int, int]:
        store = BlockStore(tmp_path, spec.schemas, f"run{total}")
        operator = make(algorithm, spec, Context(Budget(total), store))
        found = sum(out.num_rows for out in operator.push(LEFT, left))
        found += sum(out.num_rows for out in operator.push(RIGHT, right.slice(0, 30)))
        least = 0
        if refusing:
            least = refused(lambda: list(operator.push(LEFT, row)))
        else:
            found += sum(out.num_rows for out in operator.push(LEFT, row))
        operator.check()
        wanted_in = 60 + (0 if refusing else 3)
        assert operator.ctx.counters.rows_in == [wanted_in, 30]
        found += sum(out.num_rows for out in operator.push(RIGHT, right.slice(30)))
        found += rows_at_the_end(operator)
        store.close()
        return found, least

    matches = np.bincount(keys[RIGHT], minlength=12)
    wanted = int(matches[keys[LEFT]].sum())
    found, least = run(budget, refusing=True)
    assert found == wanted
    assert budget < least < 12 * wide * budget
    found, _ = run(least + (1_000_000 if algorithm == "shj" else 0), refusing=False)
    assert found == wanted + int(matches[keys[LEFT][:3]].sum())


def test_restore_when_wide_rows_have_come_and_memory_is_less_then_says_what_would_do(
    tmp_path: Path,
) -> None:
    left, right = (relation(n, np.zeros(2, dtype=np.int64), [30_000, 1]) for n in ("left", "right"))
    spec = spec_of((left, right))
    store = BlockStore(tmp_path, spec.schemas, "a")
    operator = make("diner", spec, Context(Budget(400_000), store))
    found = sum(out.num_rows for s, b in enumerate((left, right)) for out in operator.push(s, b))
    snapshot, files = operator.snapshot(), tuple(store.files)
    store.close()

    def restored(total: int) -> TwoWayJoin:
        store = BlockStore(tmp_path, spec.schemas, f"b{total}", files)
        try:
            return make("diner", spec, Context(Budget(total), store), snapshot)
        except MemoryBudgetError:
            store.close()
            raise

    least = refused(lambda: restored(100_000))
    operator = restored(least)
    assert found + rows_at_the_end(operator) == 4
    operator.ctx.store.close()


def rows_at_the_end(operator: TwoWayJoin) -> int:
    for side in SIDES:
        operator.finish(side)
    found = 0
    while operator.status() is not Status.DONE:
        found += sum(out.num_rows for out in operator.poll(10_000))
        operator.check()
    return found


# -- what is really allocated ---------------------------------------------------------------


class Allocated:
    """What numpy and Arrow have allocated, looked at where most is held at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self._patch = monkeypatch
        for kind, name in ((BlockStore, "append"), (BlockStore, "read"), (Emitter, "_assemble")):
            self._watch(kind, name)

    def __enter__(self) -> "Allocated":
        self._before = pa.default_memory_pool()
        self._pool = pa.proxy_memory_pool(self._before)
        POOLS.append(self._pool)
        pa.set_memory_pool(self._pool)
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()
        pa.set_memory_pool(self._before)

    def look(self) -> None:
        now = self._pool.bytes_allocated() + tracemalloc.get_traced_memory()[0]
        self.most = max(self.most, now)

    def _watch(self, kind: type, name: str) -> None:
        method = getattr(kind, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            found = method(*arguments, **options)
            self.look()
            return found

        self._patch.setattr(kind, name, watched)


@pytest.mark.parametrize("algorithm", SPILLING)
def test_memory_when_rows_are_a_tenth_of_the_share_then_allocations_fit_the_budget(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is really allocated, not what was reserved; the input is there before."""
    budget, rng = 4_000_000, np.random.default_rng(6)
    left, right = (
        WideRelation(40, budget // 10, "text", wide_share=0.3).make(rng, name)
        for name in ("left", "right")
    )
    spec = TwoWaySpec(left.schema, right.schema, ("k",), ("k",))

    def results() -> Iterator[pa.RecordBatch]:
        snapshot: Snapshot | None = None
        files: tuple[str, ...] = ()
        for life in range(3):
            store = BlockStore(tmp_path, spec.schemas, f"{algorithm}{life}", files)
            operator = make(algorithm, spec, Context(Budget(budget), store), snapshot)
            for side, rows in enumerate((left, right)) if life < 2 else ():
                yield from operator.push(side, rows.slice(20 * life, 20))
                yield from operator.poll(300)
            if life == 2:
                for side in SIDES:
                    operator.finish(side)
                while operator.status() is not Status.DONE:
                    yield from operator.poll(300)
            snapshot = operator.snapshot()
            store.sync()
            store.close()
            files = tuple(store.files)
            del operator
            gc.collect()  # of work that was left in the middle

    rows = 0
    with Allocated(monkeypatch) as allocated:
        for out in results():
            rows += out.num_rows
            allocated.look()
            del out
    assert rows == len(nested_loop(spec, left, right))
    assert budget // 2 < allocated.most <= budget + PYTHON_BYTES
