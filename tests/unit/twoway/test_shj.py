"""SHJ: everything in memory, a clear refusal beyond it, and the choice of algorithms."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context, Snapshot, Status
from dovetail.twoway import ALGORITHMS, SymmetricHashJoin, TwoWaySpec, checked_algorithm, make
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.conformance import Relations
from support.generators import Shape, join_spec, make_relations
from support.oracle import duckdb_pairs, nested_loop


def relations_of(rows: int = 150, payload_bytes: int = 400) -> Relations:
    shape = Shape(rows, ("int64",), domain=40, payload_bytes=payload_bytes)
    return make_relations(np.random.default_rng(0), shape, shape)


def make_operator(
    spec: TwoWaySpec,
    directory: Path,
    budget: int | None,
    snapshot: Snapshot | None = None,
    files: tuple[str, ...] = (),
) -> SymmetricHashJoin:
    store = BlockStore(directory, spec.schemas, f"s{len(files)}", files)
    return SymmetricHashJoin(spec, Context(Budget(budget), store), snapshot)


def ids(batches: list[pa.RecordBatch]) -> list[list[int]]:
    return sorted(
        list(pair)
        for out in batches
        for pair in zip(out["left_id"].to_pylist(), out["right_id"].to_pylist(), strict=True)
    )


def test_push_when_the_budget_is_used_up_then_names_the_operators_that_spill(
    tmp_path: Path,
) -> None:
    relations = relations_of()
    operator = make_operator(join_spec(relations), tmp_path, MIN_BUDGET_BYTES)
    list(operator.push(LEFT, relations[LEFT].slice(0, 30)))
    operator.check()
    with pytest.raises(MemoryBudgetError, match=r"'shj' keeps every row.*algorithm='xjoin'"):
        list(operator.push(LEFT, relations[LEFT].slice(30, 70)))


def test_snapshot_when_the_budget_was_used_up_then_goes_on_with_more_memory(
    tmp_path: Path,
) -> None:
    relations = relations_of()
    spec = join_spec(relations)
    operator = make_operator(spec, tmp_path, MIN_BUDGET_BYTES)
    kept = list(operator.push(LEFT, relations[LEFT].slice(0, 30)))
    kept += operator.push(RIGHT, relations[RIGHT].slice(0, 30))
    snapshot = operator.snapshot()
    with pytest.raises(MemoryBudgetError):
        list(operator.push(LEFT, relations[LEFT].slice(30, 60)))
    store = operator.ctx.store
    store.sync()
    store.close()
    larger = make_operator(spec, tmp_path, None, snapshot, tuple(store.files))
    larger.check()
    for start in range(30, 150, 10):
        for side in SIDES:
            kept += larger.push(side, relations[side].slice(start, 10))
    assert ids(kept) == nested_loop(spec, *relations).tolist()
    larger.ctx.store.close()


def test_restore_when_the_budget_is_the_same_then_what_fitted_still_fits(tmp_path: Path) -> None:
    relations = relations_of(rows=400, payload_bytes=20)
    spec = join_spec(relations)
    operator = make_operator(spec, tmp_path, MIN_BUDGET_BYTES)
    with contextlib.suppress(MemoryBudgetError):
        for start in range(0, 400, 5):
            snapshot = operator.snapshot()
            for side in SIDES:
                list(operator.push(side, relations[side].slice(start, 5)))
    store = operator.ctx.store
    store.sync()
    store.close()
    make_operator(spec, tmp_path, MIN_BUDGET_BYTES, snapshot, tuple(store.files)).check()


def test_restore_when_the_budget_is_too_small_then_says_so(tmp_path: Path) -> None:
    relations = relations_of()
    spec = join_spec(relations)
    operator = make_operator(spec, tmp_path, None)
    list(operator.push(LEFT, relations[LEFT]))
    snapshot = operator.snapshot()
    store = operator.ctx.store
    store.sync()
    with pytest.raises(MemoryBudgetError, match="xjoin"):
        make_operator(spec, tmp_path, MIN_BUDGET_BYTES, snapshot, tuple(store.files))
    store.close()


def test_poll_when_called_then_never_has_anything_to_do(tmp_path: Path) -> None:
    relations = relations_of()
    operator = make_operator(join_spec(relations), tmp_path, None)
    for side in SIDES:
        list(operator.push(side, relations[side]))
    assert (list(operator.poll(10)), operator.status(), operator.pending()) == ([], Status.IDLE, 0)
    for side in SIDES:
        operator.finish(side)
    assert operator.status() is Status.DONE
    list(operator.push(LEFT, relations[LEFT].slice(0, 1)))
    list(operator.poll(10))
    assert operator.status() is Status.IDLE


@pytest.mark.parametrize("within", [None, 2])
@pytest.mark.parametrize("key", ["int64", "float64", "decimal18", "timestamp"])
def test_join_when_relations_are_large_then_equals_duckdb(
    key: str, within: int | None, tmp_path: Path
) -> None:
    shape = Shape(4_000, (key,), domain=1_000, null_share=0.02, nan_share=0.002, payload="none")
    relations = make_relations(np.random.default_rng(1), shape, shape)
    spec = join_spec(relations, within)
    operator = make_operator(spec, tmp_path, None)
    found: list[pa.RecordBatch] = []
    for start in range(0, 4_000, 500):
        for side in SIDES:
            found += operator.push(side, relations[side].slice(start, 500))
    operator.check()
    expected = duckdb_pairs(spec, *relations)
    assert len(expected) > 10_000
    assert ids(found) == expected.tolist()


def test_rows_when_their_key_can_match_nothing_then_are_counted_and_not_kept(
    tmp_path: Path,
) -> None:
    rows = pa.record_batch({"k0": pa.array([None, 1, None], pa.int64()), "left_id": [0, 1, 2]})
    other = pa.record_batch({"k0": pa.array([1], pa.int64()), "right_id": [0]})
    operator = make_operator(join_spec((rows, other)), tmp_path, None)
    list(operator.push(LEFT, rows))
    assert operator.ctx.counters.rows_unmatched_key == 2
    assert operator.ctx.counters.rows_in == [3, 0]
    assert len(operator.memory[LEFT]) == 1


def test_layout_when_keys_have_two_names_then_both_appear(tmp_path: Path) -> None:
    left = pa.record_batch({"a": [1, 2], "left_id": [0, 1]})
    right = pa.record_batch({"b": [2, 3], "right_id": [0, 1]})
    spec = TwoWaySpec(left.schema, right.schema, ("a",), ("b",))
    assert spec.layout.schema.names == ["a", "left_id", "b", "right_id"]
    operator = make_operator(spec, tmp_path, None)
    list(operator.push(LEFT, left))
    (out,) = operator.push(RIGHT, right)
    assert out.to_pylist() == [{"a": 2, "left_id": 1, "b": 2, "right_id": 0}]


# -- the choice of algorithms ---------------------------------------------------------------


def test_choose_when_auto_then_is_diner_for_every_kind_of_join() -> None:
    assert checked_algorithm("auto", None) == checked_algorithm("auto", 5) == "diner"
    assert ALGORITHMS["diner"].joins_bands


def test_choose_when_name_is_unknown_then_lists_the_names() -> None:
    with pytest.raises(ArgumentError, match=r"'hash'.*auto, shj, xjoin"):
        checked_algorithm("hash", None)


def test_choose_when_algorithm_cannot_do_bands_then_names_those_that_can() -> None:
    with pytest.raises(ArgumentError, match=r"'xjoin' cannot.*shj"):
        checked_algorithm("xjoin", 5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_make_when_named_then_makes_that_operator(algorithm: str, tmp_path: Path) -> None:
    spec = join_spec(relations_of(rows=1))
    context = Context(Budget(None), BlockStore(tmp_path, spec.schemas, "one"))
    assert make(algorithm, spec, context).name == algorithm
