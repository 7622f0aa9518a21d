"""Every operator stays inside its budget, works with the least, and says what the least is."""

import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget, parse_bytes
from dovetail.kernel.protocol import Context, Status
from dovetail.semistream import ALGORITHMS, KEYS_SCHEMA, SemiStreamSpec, StagedTable, make
from dovetail.semistream.base import MIN_BUDGET_BYTES, SemiStreamJoin
from dovetail.semistream.scan.meshjoin import AMeshJoin
from dovetail.semistream.spec import STREAM
from support.semistream import Bench, Driver, stage

MakeBench = Callable[..., Bench]

EVERY = sorted(ALGORITHMS)
STREAM_SCHEMA = pa.schema([("k", pa.int64()), ("left_id", pa.int64())])
TABLE_SCHEMA = pa.schema([("k", pa.int64()), ("right_id", pa.int64()), ("text", pa.string())])
BUDGET = 1_000_000
KEYS = 20_000
TABLE_ROWS = 90_000
PYTHON_BYTES = 200_000  # of objects, which a budget does not count
POOLS: list[pa.MemoryPool] = []  # a pool has to outlive what was allocated from it


def spec(how: str = "inner") -> SemiStreamSpec:
    return SemiStreamSpec(STREAM_SCHEMA, TABLE_SCHEMA, ("k",), ("k",), how)


def stream_batch(keys: NDArray[np.int64], first: int = 0) -> pa.RecordBatch:
    numbers = np.arange(first, first + len(keys))
    return pa.record_batch([pa.array(keys), pa.array(numbers)], schema=STREAM_SCHEMA)


@pytest.fixture(scope="module")
def table_keys() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, KEYS, TABLE_ROWS)


@pytest.fixture(scope="module")
def large_table(tmp_path_factory: pytest.TempPathFactory, table_keys: NDArray[np.int64]) -> Path:
    """A table of more than twenty times the budget, on pages of 32 kB."""
    text = pa.array([f"{number:0220d}" for number in range(TABLE_ROWS)])
    columns = [pa.array(table_keys), pa.array(np.arange(TABLE_ROWS)), text]
    table = pa.record_batch(columns, schema=TABLE_SCHEMA)
    assert table.nbytes > 20 * BUDGET
    directory = tmp_path_factory.mktemp("staged") / "table"
    stage(spec(), table, directory, 32_000).close()
    return directory


Open = Callable[..., SemiStreamJoin]


@pytest.fixture
def open_large(large_table: Path, tmp_path: Path) -> Iterator[Open]:
    """An operator over the large table."""
    opened: list[SemiStreamJoin] = []

    def open_(algorithm: str, how: str = "inner", budget_bytes: int = BUDGET) -> SemiStreamJoin:
        joined = spec(how)
        store = BlockStore(tmp_path, (*joined.schemas, KEYS_SCHEMA), f"o{len(opened)}")
        table = StagedTable(large_table, TABLE_SCHEMA)
        operator = make(algorithm, joined, Context(Budget(budget_bytes), store), table)
        opened.append(operator)
        return operator

    yield open_
    for operator in opened:
        operator.ctx.store.close()
        operator.table.close()


def least_of(error: pytest.ExceptionInfo[MemoryBudgetError], pattern: str) -> int:
    """The size that a message names."""
    found = re.search(pattern + r" ([\d.]+ [KMG]?B)", str(error.value))
    assert found, str(error.value)
    return parse_bytes(found.group(1))


# -- the least ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("page_rows", [10, 3_000])
def test_budget_when_it_is_the_least_then_every_operator_works(
    make_bench: MakeBench, algorithm: str, how: str, page_rows: int
) -> None:
    """Below it the error names a size; with that size, as it is written there, it works."""
    rng = np.random.default_rng(2)
    table = rng.integers(0, 500, 5_000).tolist()
    with pytest.raises(MemoryBudgetError, match="at least") as error:
        make_bench(algorithm, table, page_rows=page_rows, budget_bytes=10_000)
    least = least_of(error, "at least")
    assert least >= MIN_BUDGET_BYTES
    bench = make_bench(algorithm, table, page_rows=page_rows, how=how, budget_bytes=least)
    for _ in range(5):
        bench.feed(rng.integers(-50, 550, 300).tolist())
        bench.restore()
    bench.assert_exactly_once()
    assert bench.drive.peak_bytes <= least


@pytest.mark.parametrize("algorithm", EVERY)
def test_budget_when_a_little_below_the_least_then_is_refused(
    make_bench: MakeBench, algorithm: str
) -> None:
    with pytest.raises(MemoryBudgetError, match="at least") as error:
        make_bench(algorithm, [1, 2, 3], budget_bytes=1)
    with pytest.raises(MemoryBudgetError, match="raise memory="):
        make_bench(algorithm, [1, 2, 3], budget_bytes=least_of(error, "at least") - 1_000)


# -- input batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", EVERY)
def test_input_batch_when_it_is_larger_than_the_budget_then_is_taken_in_by_slices(
    make_bench: MakeBench, algorithm: str
) -> None:
    bench = make_bench(algorithm, list(range(2_000)), page_rows=100, budget_bytes=400_000)
    bench.feed(list(range(40_000)))  # 640 kB
    bench.assert_exactly_once()
    assert bench.drive.peak_bytes <= 400_000


@pytest.mark.parametrize("algorithm", EVERY)
def test_input_batch_when_it_fits_an_empty_operator_then_fits_one_that_has_learned(
    make_bench: MakeBench, algorithm: str
) -> None:
    """Whether a query fails must not depend on how full a cache is."""
    bench = make_bench(algorithm, list(range(4_000)), page_rows=100, budget_bytes=400_000)
    large = np.arange(14_000).tolist()  # 224 kB of 300
    bench.feed(large)
    rng = np.random.default_rng(4)
    for _ in range(30):
        bench.feed(rng.integers(0, 4_000, 1_000).tolist())
        bench.poll(1 << 30)
    bench.feed(large)
    bench.assert_exactly_once()


# -- a table of twenty times the budget ---------------------------------------------------------


def skewed_keys(batches: int, rows: int) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(9)
    return [(rng.zipf(1.3, rows) * 7_919) % (KEYS + 500) for _ in range(batches)]


def run(operator: SemiStreamJoin, batches: int, rows: int) -> Iterator[pa.RecordBatch]:
    """A skewed stream, with retuning where there is something to tune."""
    rng = np.random.default_rng(8)
    for number, keys in enumerate(skewed_keys(batches, rows)):
        yield from operator.push(STREAM, stream_batch(keys, number * rows))
        operator.check()
        if isinstance(operator, AMeshJoin) and number % 3 == 1:
            operator.tune(int(rng.integers(1, 2_000)), int(rng.integers(1, 2_000)))
        if number % 2:
            yield from operator.poll(2_000)
    operator.finish(STREAM)
    while operator.status() is not Status.DONE:
        yield from operator.poll(1 << 16)
        operator.check()


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("algorithm", EVERY)
def test_budget_when_the_table_is_twenty_times_as_large_then_holds(
    open_large: Open, table_keys: NDArray[np.int64], algorithm: str, how: str
) -> None:
    operator = open_large(algorithm, how)
    budget = operator.ctx.budget
    emitted = 0
    for batch in run(operator, 8, 1_000):
        emitted += batch.num_rows
        assert budget.used_bytes <= BUDGET
    assert budget.peak_bytes <= BUDGET
    counts = np.bincount(table_keys, minlength=KEYS + 500)
    matches = counts[np.concatenate(skewed_keys(8, 1_000))]
    wanted = {
        "inner": matches.sum(),
        "left": np.maximum(matches, 1).sum(),
        "semi": (matches > 0).sum(),
        "anti": (matches == 0).sum(),
    }
    assert emitted == wanted[how]


@pytest.mark.parametrize("algorithm", EVERY)
def test_memory_when_the_table_is_twenty_times_as_large_then_allocations_fit_the_budget(
    open_large: Open, algorithm: str
) -> None:
    """What numpy and Arrow really allocate, not what was reserved.

    Python's own objects are in it too, which the budget does not count.
    """
    for _ in run(open_large(algorithm), 1, 10):  # what is loaded or cached on first use
        pass
    operator = open_large(algorithm)
    allocated = peak_of(lambda: run(operator, 8, 1_000))
    assert allocated <= BUDGET + PYTHON_BYTES


@pytest.mark.parametrize("algorithm", EVERY)
def test_memory_when_a_page_is_as_large_as_the_budget_then_allocations_fit_it(
    tmp_path: Path, algorithm: str
) -> None:
    """Rows of 10 kB on pages of 256 kB: no operator may read such a page whole."""
    text = pa.array(["x" * 10_000] * 1_000)
    numbers = pa.array(np.arange(1_000))
    table = pa.record_batch([numbers, numbers, text], schema=TABLE_SCHEMA)
    stage(spec(), table, tmp_path / "table", 256 << 10).close()
    (tmp_path / "state").mkdir()
    driver = Driver(spec(), algorithm, tmp_path / "table", tmp_path / "state", 300_000)

    def results() -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(1)
        for _ in range(3):
            yield from driver.operator.push(STREAM, stream_batch(rng.integers(0, 1_000, 100)))
        yield from driver.operator.poll(1 << 30)

    try:
        assert peak_of(results) <= 300_000 + PYTHON_BYTES
    finally:
        driver.close()


def peak_of(results: Callable[[], Iterator[pa.RecordBatch]]) -> int:
    """The most bytes that are allocated at a time while results come, each dropped at once."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        for _ in results():
            pass
        return int(pool.max_memory() + tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


# -- rows of very different sizes ---------------------------------------------------------------


@pytest.mark.parametrize("algorithm", EVERY)
def test_budget_when_frequent_keys_have_the_widest_rows_then_holds(
    tmp_path: Path, algorithm: str
) -> None:
    """A few rows of 2 kB among many of 20 bytes: those that come often are far above the mean."""
    wide, narrow = 300, 30_000
    keys = np.concatenate([np.arange(wide), np.arange(1_000, 1_000 + narrow)])
    text = pa.array(["x" * 2_000] * wide + ["y" * 4] * narrow)
    table = pa.record_batch(
        [pa.array(keys), pa.array(np.arange(len(keys))), text], schema=TABLE_SCHEMA
    )
    stage(spec(), table, tmp_path / "table", 20_000, 1).close()
    (tmp_path / "state").mkdir()
    driver = Driver(spec(), algorithm, tmp_path / "table", tmp_path / "state", 400_000)
    try:
        for number in range(30):
            batch = np.tile(np.arange(wide), 4)
            driver.push(stream_batch(batch, number * len(batch)))
            driver.drive.batches.clear()
            driver.poll(1 << 30)
            driver.drive.batches.clear()
        driver.finish()
        if hasattr(driver.operator, "cache"):
            assert driver.operator.cache.nbytes <= driver.operator.cache.limit
    finally:
        driver.close()
