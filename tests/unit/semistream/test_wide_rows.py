"""Batches larger than the budget, and rows that are a large part of it, in enrichments."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.memory import parse_bytes
from dovetail.semistream import ALGORITHMS, SemiStreamSpec
from dovetail.semistream.base import MIN_BUDGET_BYTES
from dovetail.semistream.seek.operator import Seek
from support.semistream import Driver, stage

EVERY = sorted(ALGORITHMS)
STREAM = pa.schema([("k", pa.int64()), ("left_id", pa.int64()), ("left_text", pa.string())])
TABLE = pa.schema([("k", pa.int64()), ("right_id", pa.int64()), ("right_text", pa.string())])
SPEC = SemiStreamSpec(STREAM, TABLE, ("k",), ("k",), "left")
Open = Callable[..., Driver]


def rows_of(schema: pa.Schema, keys: np.ndarray, widths: list[int]) -> pa.RecordBatch:
    text = [chr(97 + row % 26) * width for row, width in enumerate(widths)]
    return pa.record_batch([keys, np.arange(len(keys)), text], schema=schema)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    drivers: list[Driver] = []

    def make(algorithm: str, table: pa.RecordBatch, budget: int) -> Driver:
        folder = tmp_path / str(len(drivers))
        folder.mkdir()
        stage(SPEC, table, folder / "table", 4_000).close()
        (folder / "state").mkdir()
        drivers.append(Driver(SPEC, algorithm, folder / "table", folder / "state", budget))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def assert_left_join(driver: Driver, stream: pa.RecordBatch, table: pa.RecordBatch) -> None:
    driver.finish()
    places: dict[int, list[int | None]] = {}
    for place, key in enumerate(table["k"].to_pylist()):
        places.setdefault(key, []).append(place)
    keys = stream["k"].to_pylist()
    wanted = [(row, place) for row, key in enumerate(keys) for place in places.get(key, [None])]
    out = pa.Table.from_batches(driver.drive.batches)
    found = zip(out["left_id"].to_pylist(), out["right_id"].to_pylist(), strict=True)
    assert Counter(found) == Counter(wanted)
    text = stream["left_text"].take(out["left_id"].combine_chunks())
    assert out["left_text"].combine_chunks().equals(text)


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("width", [700, 30_000], ids="{} bytes".format)
def test_push_when_batches_are_larger_than_the_share_then_are_taken_in(
    algorithm: str, width: int, opened: Open
) -> None:
    """A join hands its deferred results on by the megabyte, to a share of one: join and enrich."""
    budget, rng = 1_000_000, np.random.default_rng(width)
    rows = 1_500_000 // width
    table = rows_of(TABLE, rng.integers(0, 300, 500), [20] * 500)
    stream = rows_of(STREAM, rng.integers(0, 400, rows), rng.integers(1, 2 * width, rows).tolist())
    assert stream.nbytes > budget
    driver = opened(algorithm, table, budget)
    for start in range(0, rows, rows - 5):
        driver.push(stream.slice(start, rows - 5))
        driver.poll(100)
        driver.restore()
    assert_left_join(driver, stream, table)
    assert driver.drive.peak_bytes <= budget


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("side", ["stream", "table"])
def test_join_when_one_wide_row_matches_hundreds_then_results_come_in_parts(
    algorithm: str, side: str, opened: Open
) -> None:
    wide, few, many = 70_000, [9, 70_000], [5] * 300
    widths = {"stream": (few, many), "table": (many, few)}[side]
    stream, table = (
        rows_of(schema, np.zeros(len(w), dtype=np.int64), w)
        for schema, w in zip((STREAM, TABLE), widths, strict=True)
    )
    driver = opened(algorithm, table, 1_000_000)
    driver.push(stream)
    assert_left_join(driver, stream, table)
    most = max(driver.operator.working_bytes // 2, wide + 300)
    assert max(out.nbytes for out in driver.drive.batches) <= most


@pytest.mark.parametrize("algorithm", sorted({*EVERY} - {"inl"}))  # whose rows do not wait
def test_push_when_a_few_rows_of_a_large_batch_come_then_its_buffers_are_not_kept(
    algorithm: str, opened: Open
) -> None:
    table = rows_of(TABLE, np.arange(200), [20] * 200)
    driver = opened(algorithm, table, 4_000_000)
    driver.push(rows_of(STREAM, np.arange(1_000), [1_000] * 1_000).slice(500, 3))
    operator: Any = driver.operator
    seeking = isinstance(operator, Seek)
    runs = [one.run for one in operator._sweep.all] if seeking else operator._open
    runs += [] if seeking else [packet.run for packet in operator.packets]
    assert sum(map(len, runs)) == 3
    assert sum(run.rows.get_total_buffer_size() for run in runs) < 4_000


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("wide", [0.35, 2.0])
def test_push_when_one_row_is_too_wide_then_nothing_is_lost_and_the_memory_named_is_enough(
    algorithm: str, wide: float, opened: Open
) -> None:
    budget, rng = 2 * MIN_BUDGET_BYTES, np.random.default_rng(4)
    table = rows_of(TABLE, rng.integers(0, 50, 200), [20] * 200)
    stream = rows_of(STREAM, rng.integers(0, 60, 300), rng.choice([1, 50, 1_000], 300).tolist())
    row = rows_of(STREAM, np.zeros(3, dtype=np.int64), [1, int(wide * budget), 1])
    driver = opened(algorithm, table, budget)
    driver.push(stream.slice(0, 150))
    with pytest.raises(MemoryBudgetError, match=r"a row of .* does not fit") as caught:
        driver.push(row)
    driver.push(stream.slice(150))
    assert_left_join(driver, stream, table)
    named = re.search(r"memory='([\d.]+ [KMG]?B)' would do", str(caught.value))
    assert named, str(caught.value)
    least = parse_bytes(named[1])
    assert budget < least < 6 * wide * budget
    driver = opened(algorithm, table, least)
    driver.push(row)
    driver.restore()
    driver.push(rows_of(STREAM, np.full(300, 3), [1_000] * 300))
    driver.finish()
    found = Counter(pa.Table.from_batches(driver.drive.batches)["k"].to_pylist())
    assert set(found) == {0, 3}
    assert driver.drive.peak_bytes <= least
