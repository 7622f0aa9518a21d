"""The pool: which leaves go, and that their memory goes with them."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.memory import Budget
from dovetail.semistream.inl import pool as pool_module
from dovetail.semistream.inl.leaves import Lot
from dovetail.semistream.inl.pool import OBJECT_BYTES, Pool
from support.semistream import by_age

LEAF_ROWS = 512
LEAF_BYTES = 16 * LEAF_ROWS  # a code and a number


def lot_of(*leaves: int) -> Lot:
    numbers = np.array(leaves)
    codes = (numbers[:, None] * LEAF_ROWS + np.arange(LEAF_ROWS)).ravel()
    rows = pa.RecordBatch.from_arrays([pa.array(codes)], ["n"])
    return Lot.of(numbers, np.full(len(numbers), LEAF_ROWS), codes, rows, None)


def make(leaves: int, lot_leaves: int = 8) -> Pool:
    return Pool(Budget(1 << 30), leaves * (LEAF_BYTES + OBJECT_BYTES), lot_leaves * LEAF_BYTES)


def read(pool: Pool, *leaves: int) -> int:
    """As if rows needed leaves that are not in the pool."""
    room = pool.room_for(len(leaves), LEAF_BYTES)
    pool.add(lot_of(*leaves), room, LEAF_BYTES)
    pool.check()
    return room


def taken(pool: Pool) -> int:
    return sum(lot.nbytes for lot in pool._lots.values())


def test_leaves_when_the_pool_is_full_then_the_oldest_go_for_those_that_fit() -> None:
    pool = make(8)
    assert read(pool, 10, 11, 12, 13, 14, 15) == 6
    pool.begin()
    assert pool.use(np.array([9, 11, 14])).tolist() == [False, True, True]
    assert by_age(pool) == [10, 12, 13, 15, 11, 14]
    assert read(pool, 1, 2, 3) == 3
    assert by_age(pool) == [12, 13, 15, 11, 14, 1, 2, 3]
    assert read(pool, 4, 5, 6, 7) == 3  # all others were used by the rows at hand
    assert by_age(pool) == [11, 14, 1, 2, 3, 4, 5, 6]
    pool.begin()
    assert read(pool, 20) == 1
    assert by_age(pool) == [14, 1, 2, 3, 4, 5, 6, 20]


def test_lots_when_leaves_went_then_take_no_more_than_is_reserved() -> None:
    """One leaf of every lot stays in use: without rewriting, no lot would ever go."""
    pool = make(64)
    for number in range(100):
        pool.begin()
        pool.use(np.arange(0, 8 * number, 8))
        read(pool, *range(8 * number, 8 * number + 8))
        assert taken(pool) <= len(pool) * (LEAF_BYTES + OBJECT_BYTES)
    assert len(pool) == 64
    found = [
        (int(leaf), lot.codes[begin], lot.rows.column(0)[int(begin)].as_py())
        for lot, leaves in pool.lots_of(np.sort(by_age(pool)))
        for leaf, begin in zip(leaves, lot.begins(leaves), strict=True)
    ]
    assert sorted(found) == [(n, n * LEAF_ROWS, n * LEAF_ROWS) for n in sorted(by_age(pool))]


def test_lots_when_leaves_come_one_by_one_then_are_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_MOST_LOTS", 10)
    pool = make(40)
    for number in range(200):
        pool.begin()
        read(pool, number)
        assert len(pool._lots) <= 10
    assert by_age(pool) == list(range(160, 200))


def test_room_when_others_hold_the_budget_then_is_for_as_many_as_fit() -> None:
    pool = make(8)
    pool._budget.reserve("others", (1 << 30) - 3 * (LEAF_BYTES + OBJECT_BYTES))
    assert read(pool, 1, 2, 3, 4) == 3
    pool.begin()
    pool.use(np.array([1, 2, 3]))
    assert read(pool, 5) == 0
    assert by_age(pool) == [1, 2, 3]
    pool.forget_oldest()
    pool.check()
    assert by_age(pool) == [2, 3]


def test_leaves_when_larger_than_expected_then_stay_only_if_they_fit() -> None:
    pool = make(8)
    room = pool.room_for(8, LEAF_BYTES // 2)
    assert room == 8
    pool.add(lot_of(*range(8)), room, LEAF_BYTES // 2)
    pool.check()
    assert len(pool) == 8
    pool.begin()
    room = pool.room_for(8, LEAF_BYTES // 2)
    pool.add(lot_of(*range(8, 16)), room, LEAF_BYTES // 2)
    pool.check()
    assert 8 in by_age(pool)
    assert 15 not in by_age(pool)
