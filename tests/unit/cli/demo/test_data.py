"""The demo's data: mildly skewed keys, a few nulls, and the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.cli.demo.data import MOST_FILES, ORDER_FILES, make_shop, make_streams


def test_streams_when_made_then_are_as_described(tmp_path: Path) -> None:
    made = make_streams(tmp_path, 20_000, seed=1)
    assert [stream.name for stream in made.both] == ["orders", "payments"]
    assert made.rows == 40_000
    nbytes = 0
    for stream in made.both:
        files = sorted(stream.directory.iterdir())
        assert len(files) == stream.files == MOST_FILES
        table = pq.read_table(stream.directory)
        nbytes += table.nbytes
        assert table.num_rows == stream.rows == 20_000
        assert [field.type for field in table.schema] == [
            pa.int64(),
            pa.int64(),
            pa.float64(),
            pa.string(),
        ]
        keys = table.column("order_id")
        assert 0 < keys.null_count == stream.null_keys < 200
        counts = np.bincount(keys.drop_null().to_numpy(), minlength=20_000)
        assert counts[:2000].sum() > 1.5 * counts[-2000:].sum()  # skewed
        assert counts.max() < 100  # but mildly
        assert {len(text) for text in table.column(3).to_pylist()} == {16}
    assert made.nbytes == pytest.approx(nbytes, rel=0.02)


def test_streams_when_made_from_one_seed_twice_then_are_the_same(tmp_path: Path) -> None:
    tables = []
    for run, seed in enumerate((5, 5, 6)):
        made = make_streams(tmp_path / str(run), 500, seed)
        tables.append(pq.read_table(made.left.directory))
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_shop_when_made_then_some_orders_are_of_customers_that_the_table_lacks(
    tmp_path: Path,
) -> None:
    made = make_shop(tmp_path, 20_000, seed=1)
    assert len(list(made.orders.iterdir())) == ORDER_FILES
    orders, customers = pq.read_table(made.orders), pq.read_table(made.table)
    assert orders.num_rows == made.rows == 20_000
    assert customers.num_rows == made.customers == 49_667
    assert made.table_bytes == pytest.approx(customers.nbytes, rel=0.05)
    assert made.order_bytes == pytest.approx(orders.nbytes / 20_000, rel=0.05)
    known = customers.column("custkey").to_numpy()
    assert len(np.unique(known)) == len(known)
    keys = orders.column("custkey")
    assert 0 < keys.null_count < 200
    bought = keys.drop_null().to_numpy()
    assert 0 < np.isin(bought, known, invert=True).sum() < 500
    assert not (bought % 3 == 0).any()  # a third of the customers never orders
    assert len(np.unique(orders.column("orderkey").to_numpy())) == 20_000


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_shop_when_it_is_tiny_then_is_made_all_the_same(rows: int, tmp_path: Path) -> None:
    made = make_shop(tmp_path, rows, seed=1)
    assert pq.read_table(made.orders).num_rows == rows
    assert pq.read_table(made.table).num_rows == made.customers < rows * 5 // 2


def test_files_when_written_at_once_then_their_times_tell_their_order(tmp_path: Path) -> None:
    made = make_streams(tmp_path, 20_000, seed=1)
    times = [path.stat().st_mtime_ns // 10**6 for path in sorted(made.left.directory.iterdir())]
    assert times == sorted(set(times))
