"""Streams as in life: payments after their orders, by minutes; hot orders; the seed is all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dovetail.cli.demo.life import FILES, FIRST_ORDER, LARGEST_GROUP, LASTS_S, make_life

ROWS = 40_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, pa.Table, int]:
    """Payments, orders, and how many pairs there are said to be."""
    streams = make_life(tmp_path_factory.mktemp("life"), ROWS, seed=1)
    for stream in streams.both:
        assert len(list(stream.directory.iterdir())) == stream.files == FILES
    payments, orders = (pq.read_table(stream.directory) for stream in streams.both)
    assert [stream.name for stream in streams.both] == ["payments", "orders"]
    assert [stream.rows for stream in streams.both] == [len(payments), len(orders)]
    assert [stream.null_keys for stream in streams.both] == [
        payments.column("order_id").null_count,
        0,
    ]
    assert streams.nbytes == pytest.approx(payments.nbytes + orders.nbytes, rel=0.05)
    return payments, orders, streams.pairs[-1]


def test_payments_when_made_then_follow_their_orders_by_minutes(
    made: tuple[pa.Table, pa.Table, int],
) -> None:
    payments, orders, pairs = made
    paid = payments.join(orders, "order_id", join_type="inner")
    assert len(paid) == pairs
    delays = pc.subtract(paid.column("paid_at"), paid.column("ordered_at")).cast(pa.int64())
    seconds = delays.to_numpy() / 1e6
    assert seconds.min() > 0
    assert 60 < np.median(seconds) < 180
    assert 0.001 < (seconds > 900).mean() < 0.1  # a tail
    assert seconds.max() < LASTS_S


def test_payments_when_made_then_some_are_of_no_order_and_some_orders_have_none(
    made: tuple[pa.Table, pa.Table, int],
) -> None:
    payments, orders, pairs = made
    assert len(orders) == ROWS
    assert orders.column("order_id").to_pylist() == list(range(FIRST_ORDER, FIRST_ORDER + ROWS))
    assert 0.9 * ROWS < len(payments) < 1.3 * ROWS
    numbers = payments.column("order_id")
    assert 0 < numbers.null_count < 0.01 * len(payments)
    unknown = int((numbers.drop_null().to_numpy() >= FIRST_ORDER + ROWS).sum())
    assert 0 < unknown < 0.01 * len(payments)
    assert pairs == len(payments) - numbers.null_count - unknown
    without = ROWS - len(np.intersect1d(numbers.drop_null(), orders.column("order_id")))
    assert 0.1 < without / ROWS < 0.2


def test_payments_when_counted_by_order_then_a_few_orders_have_many_of_them(
    made: tuple[pa.Table, pa.Table, int],
) -> None:
    numbers = made[0].column("order_id").drop_null().to_numpy()
    counts = np.sort(np.bincount(numbers - FIRST_ORDER))[::-1]
    assert 100 < counts[0] <= LARGEST_GROUP
    hottest = counts[: ROWS // 400].sum() / counts.sum()
    assert 0.1 < hottest < 0.3  # a 400th of the orders


def test_files_when_read_in_their_order_then_both_streams_go_through_time_together(
    tmp_path: Path,
) -> None:
    streams = make_life(tmp_path, 5_000, seed=1)
    last = 0
    orders: list[int] = []
    payments: list[int] = []
    for number in range(streams.files):
        name = f"part-{number:05d}.parquet"
        paid, ordered = (pq.read_table(stream.directory / name) for stream in streams.both)
        times = [
            column.cast(pa.int64()).to_numpy()
            for column in (paid.column("paid_at"), ordered.column("ordered_at"))
        ]
        together = np.concatenate(times)
        assert len(together)
        assert together.min() >= last
        last = together.max()
        for each in times:
            assert (np.diff(each) >= 0).all()
        # how many rows and results there are so far is known
        payments += paid.column("order_id").drop_null().to_pylist()
        orders += ordered.column("order_id").to_pylist()
        assert streams.pairs[number] == np.isin(payments, orders).sum()
        assert streams.files_with(len(payments) + len(orders) - 1) == number
        assert streams.files_with(len(payments) + len(orders)) == number + 1


def test_life_when_made_from_one_seed_twice_then_is_the_same(tmp_path: Path) -> None:
    tables = []
    for run, seed in enumerate((5, 5, 6)):
        streams = make_life(tmp_path / str(run), 500, seed)
        tables.append([pq.read_table(stream.directory) for stream in streams.both])
    assert all(one.equals(other) for one, other in zip(tables[0], tables[1], strict=True))
    assert not any(one.equals(other) for one, other in zip(tables[0], tables[2], strict=True))


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_life_when_it_is_tiny_then_is_made_all_the_same(rows: int, tmp_path: Path) -> None:
    streams = make_life(tmp_path, rows, seed=1)
    assert pq.read_table(streams.right.directory).num_rows == streams.right.rows == rows
    assert pq.read_table(streams.left.directory).num_rows == streams.left.rows
