"""The cost model of Seek against simulations, and against the operator itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.seek import (
    WAITING_BYTES,
    SeekModel,
    SeekTable,
    best_rate,
    spread_over_pages,
)
from dovetail.costs.ssbj import Stream, zipf
from dovetail.costs.storage import DISK_7200
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context
from dovetail.semistream import KEYS_SCHEMA, SemiStreamSpec, StagedTable, TableWriter, make
from dovetail.semistream.seek.operator import gap_pages

FACTORS = MeshFactors(expire=4e-8, receive=2e-9, add=8e-8, probe=3e-8, output=4e-8)
MODEL = SeekModel(
    table=SeekTable(rows=100_000, row_bytes=100, page_rows=100),
    stream=Stream.of(zipf(100_000, 0)),
    stream_row_bytes=40,
    factors=FACTORS,
    storage=DISK_7200,
    cached_row_bytes=100,
)
SKEWED = replace(MODEL, stream=Stream.of(zipf(100_000, 1)))


def simulated(rows: int, pages: int, rounds: int = 200) -> tuple[float, float, float]:
    """Pages touched by rows of uniform keys, reads, and pages read, on average."""
    rng = np.random.default_rng(1)
    most = gap_pages(MODEL.table.page_rows)
    found = []
    for _ in range(rounds):
        touched = np.unique(rng.integers(0, pages, rows))
        gaps = np.diff(touched) - 1
        through = gaps[gaps <= most].sum()
        found.append((len(touched), 1 + (gaps > most).sum(), len(touched) + through))
    touched_mean, reads, read = np.mean(found, axis=0)
    return float(touched_mean), float(reads), float(read)


@pytest.mark.parametrize("rows", [1, 30, 300, 1_000, 5_000])
def test_pages_when_keys_are_uniform_then_are_those_of_a_simulation(rows: int) -> None:
    touched, reads, read = simulated(rows, MODEL.table.pages)
    assert MODEL.pages_touched(rows) == pytest.approx(touched, rel=0.03)
    requests, pages = MODEL.stretches(MODEL.pages_touched(rows), gap_pages(MODEL.table.page_rows))
    assert requests == pytest.approx(reads, rel=0.15, abs=1)
    assert pages == pytest.approx(read, rel=0.05)


def test_pages_when_keys_are_skewed_then_are_fewer_and_the_cache_takes_the_hot_ones() -> None:
    assert SKEWED.pages_touched(1_000) < 0.8 * MODEL.pages_touched(1_000)
    # of the rows that miss, each is less likely to share its page with another
    assert SKEWED.pages_touched(1_000, 10_000) > SKEWED.pages_touched(1_000)


def test_cache_when_keys_are_skewed_then_settles_the_share_of_the_hottest() -> None:
    shares = zipf(100_000, 1)
    assert SKEWED.cached_values(1_000 * 140) == 1_000
    assert 1 - SKEWED.miss_share(1_000) == pytest.approx(shares[:1_000].sum())
    assert SKEWED.plan(500, 1_000).cache_share == pytest.approx(shares[:1_000].sum())
    assert MODEL.miss_share(1_000) == pytest.approx(0.99)


def test_cache_when_values_differ_in_matches_then_those_with_most_hits_for_a_byte_go_first() -> (
    None
):
    stream = Stream.of([0.5, 0.3, 0.2], [10, 1, 0])
    model = replace(MODEL, stream=stream, table=SeekTable(11, 100, 100))
    assert model.cached_values(40) == 1  # the one without a match
    assert model.miss_share(1) == pytest.approx(0.8)
    assert model.miss_share(2) == pytest.approx(0.5)


def test_plan_when_everything_is_cached_then_reads_nothing_and_nobody_waits() -> None:
    plan = MODEL.plan(500, 100_000)
    assert (plan.sweep_rows, plan.bytes_per_row, plan.requests_per_sweep) == (0, 0, 0)
    assert plan.cache_share == 1
    assert plan.rate == pytest.approx(1 / (FACTORS.receive + FACTORS.probe + FACTORS.output))
    assert plan.memory_bytes == 100_000 * 140


def test_plan_when_the_window_is_dense_then_is_one_scan_of_the_codes() -> None:
    plan = MODEL.plan(100_000, 0)
    assert plan.pages_per_sweep == pytest.approx(1_000)
    assert plan.requests_per_sweep == pytest.approx(2)
    assert plan.bytes_per_row == pytest.approx(8 + 100)


def test_plan_when_one_row_waits_then_is_an_index_lookup() -> None:
    plan = MODEL.plan(1, 0)
    assert plan.pages_per_sweep == pytest.approx(1, rel=0.01)
    assert plan.rate == pytest.approx(1 / (2 * DISK_7200.seek_seconds), rel=0.01)
    assert plan.memory_bytes == 40 + WAITING_BYTES


@pytest.mark.parametrize("model", [MODEL, SKEWED])
def test_best_rate_when_memory_grows_then_is_faster(model: SeekModel) -> None:
    plans = [best_rate(model, 2**power) for power in range(16, 27)]
    rates = [plan.rate for plan in plans]
    assert rates == sorted(rates)
    for power, plan in zip(range(16, 27), plans, strict=True):
        assert plan.memory_bytes <= 2**power * 5 / 8
    assert best_rate(SKEWED, 1 << 20).rate > best_rate(MODEL, 1 << 20).rate


def test_best_rate_when_not_one_row_fits_then_says_so() -> None:
    with pytest.raises(MemoryBudgetError, match="too little for seek"):
        best_rate(MODEL, 100)


def test_arguments_when_they_cannot_be_then_are_refused() -> None:
    with pytest.raises(ArgumentError, match="cannot be"):
        SeekTable(10, 100, 0)
    with pytest.raises(ArgumentError, match="sweep_rows=0"):
        MODEL.plan(0, 0)


@pytest.mark.parametrize("exponent", [0, 1])
def test_spread_when_values_are_dealt_to_pages_then_adds_up(exponent: float) -> None:
    shares = spread_over_pages(zipf(10_000, exponent), 100)
    assert shares.shape == (100,)
    assert shares.sum() == pytest.approx(1)
    assert (np.ptp(shares) == 0) == (exponent == 0)
    assert spread_over_pages(zipf(10, 1), 100) == pytest.approx(np.full(100, 0.01))


@pytest.mark.parametrize("rows", [300, 3_000])
def test_model_when_the_operator_runs_then_it_reads_what_was_predicted(
    rows: int, tmp_path: Path
) -> None:
    table_rows, pushed = 100_000, 12_000
    stream = pa.schema([("k", pa.int64()), ("s", pa.int64())])
    spec = SemiStreamSpec(stream, pa.schema([("k", pa.int64()), ("t", pa.int64())]), ("k",), ("k",))
    keys = np.arange(table_rows)
    staged = pa.record_batch({"k": keys, "t": keys}, schema=spec.table)
    codes, _ = spec.encode(1, staged)
    order = np.argsort(codes)
    writer = TableWriter(tmp_path / "v1" / "p0", spec.table, page_bytes=16 * 100)
    writer.append(codes[order], staged.take(pa.array(order)))
    writer.finish()
    table = StagedTable(tmp_path / "v1" / "p0", spec.table)
    store = BlockStore(tmp_path, (*spec.schemas, KEYS_SCHEMA), "x")
    context = Context(Budget(None), store)
    operator = make("seek-uncached", spec, context, table)
    rng = np.random.default_rng(1)
    for _ in range(pushed // rows):
        asked = rng.integers(0, table_rows, rows)
        batch = pa.record_batch({"k": asked, "s": asked}, schema=stream)
        out = sum(result.num_rows for result in operator.push(0, batch))
        while operator.pending():
            out += sum(result.num_rows for result in operator.poll(1 << 40))
        assert out == rows
    model = replace(MODEL, table=SeekTable(table_rows, 0.0, table.page_rows))
    predicted = model.plan(rows, 0).bytes_per_row
    assert context.counters.bytes_read / pushed == pytest.approx(predicted, rel=0.1)
