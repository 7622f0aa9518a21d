"""What is foretold from a sample is what happens with all rows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.costs.cleanup import CleanupFactors, CleanupMachine, cleanup_factors, cleanup_seconds
from dovetail.costs.expected import Expected, expected_lines
from dovetail.costs.replay import Forecast, Setting, foresee
from dovetail.costs.storage import Storage
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Status
from dovetail.twoway import TwoWaySpec, make
from support.samples import draw_sample

ROWS = 30_000
SETTING = Setting("xjoin", None, 1_200_000, 1, 1_000, (40.0, 40.0))
Keys = tuple[np.ndarray, np.ndarray]


@dataclass
class Happened:
    online: int = 0
    later: int = 0
    kept: int = 0
    spilled_bytes: int = 0
    read_bytes: int = 0

    @property
    def share(self) -> float:
        return self.online / (self.online + self.later)


def run_all(
    keys: Keys, setting: Setting, directory: Path, turn_rows: int | None = None
) -> Happened:
    """The join of all rows, as it is: with its own budget, its own batches and real widths.

    turn_rows: how many rows of a side come before as many of the other do; default: half a batch.
    """
    payload = pa.binary(32)
    schemas = [pa.schema([("key", pa.int64()), (name, payload)]) for name in "ab"]
    spec = TwoWaySpec(schemas[0], schemas[1], ("key",), ("key",), setting.within)
    store = BlockStore(directory, spec.schemas, "all")
    join = make(setting.algorithm, spec, Context(Budget(setting.memory_bytes), store))
    seen, half = Happened(), setting.batch_rows // 2
    for turn, side, start in itertools.product(
        range(0, ROWS, turn_rows or half), range(2), range(0, turn_rows or half, half)
    ):
        part = keys[side][turn + start : turn + start + half]
        rows = pa.array([b"x" * 32] * len(part), payload)
        batch = pa.RecordBatch.from_arrays([pa.array(part), rows], schema=schemas[side])
        seen.online += sum(out.num_rows for out in join.push(side, batch))
    seen.kept = sum(len(memory) for memory in join.memory)
    seen.spilled_bytes = join.ctx.counters.flushed_bytes
    for side in range(2):
        join.finish(side)
    before = join.ctx.counters.bytes_read
    while join.status() is not Status.DONE:
        seen.later += sum(out.num_rows for out in join.poll(1 << 16))
    seen.read_bytes = join.ctx.counters.bytes_read - before
    store.close()
    return seen


def zipf(rng: np.random.Generator, exponent: float, domain: int) -> np.ndarray:
    weights = 1 / np.arange(1, domain + 1) ** exponent
    return rng.choice(domain, ROWS, p=weights / weights.sum())


def drawn(kind: str) -> Keys:
    rng = np.random.default_rng(4)
    if kind == "uniform":
        return rng.integers(0, ROWS, ROWS), rng.integers(0, ROWS, ROWS)
    if kind == "zipf":
        return zipf(rng, 0.8, 20_000), zipf(rng, 0.8, 20_000)
    near = np.arange(ROWS)  # each key comes on both sides at about the same time
    return near + rng.integers(0, 1_000, ROWS), near + rng.integers(0, 1_000, ROWS)


@pytest.mark.parametrize(
    ("kind", "algorithm", "within", "tolerance"),
    [
        ("uniform", "xjoin", None, 0.05),
        ("zipf", "xjoin", None, 0.05),
        ("near", "xjoin", None, 0.05),
        ("uniform", "diner", None, 0.07),
        ("uniform", "diner", 2, 0.07),
        ("zipf", "diner", None, 0.2),  # which rows it keeps hangs on chance
    ],
)
def test_foresee_when_compared_with_the_whole_join_then_is_close(
    kind: str, algorithm: str, within: int | None, tolerance: float, tmp_path: Path
) -> None:
    keys = drawn(kind)
    setting = replace(SETTING, algorithm=algorithm, within=within)
    truth = run_all(keys, setting, tmp_path)
    forecast = foresee(setting, draw_sample(keys, 8_000, within))
    assert forecast is not None
    said = f"{kind} {algorithm}: {truth}, {forecast}"
    assert forecast.online_share == pytest.approx(truth.share, abs=tolerance), said
    assert forecast.results == pytest.approx(truth.online + truth.later, rel=0.15), said
    assert sum(forecast.kept_rows) == pytest.approx(truth.kept, rel=0.3), said
    assert forecast.spilled_bytes == pytest.approx(truth.spilled_bytes, rel=0.2), said
    assert truth.read_bytes / 2 < forecast.read_bytes < truth.read_bytes * 2, said
    assert len(forecast.shares) == 3
    assert truth.spilled_bytes > 0


@pytest.mark.parametrize("turn_rows", [5_000, 15_000])
def test_foresee_when_micro_batches_bring_one_side_after_the_other_then_does_so_too(
    turn_rows: int, tmp_path: Path
) -> None:
    keys = drawn("near")
    setting = replace(SETTING, memory_bytes=400_000)
    truth = run_all(keys, setting, tmp_path, turn_rows)
    forecast = foresee(setting, draw_sample(keys, 8_000, turn_rows=turn_rows))
    assert forecast is not None
    assert forecast.online_share == pytest.approx(truth.share, abs=0.07), f"{truth}, {forecast}"
    assert forecast.mixed_share is not None
    assert forecast.mixed_share > truth.share + 0.15, "evenly mixed, it would be another share"
    text = "\n".join(expected_lines(Expected(forecast), ""))
    assert "each micro-batch to bring its files of left and then those of right" in text
    assert f"to {forecast.mixed_share:.1%} with it" in text


def test_foresee_when_all_rows_are_sampled_then_counts_every_pair() -> None:
    keys = drawn("uniform")
    small = (keys[0][:5_000] // 8, keys[1][:4_000] // 8)
    forecast = foresee(replace(SETTING, memory_bytes=100_000), draw_sample(small, 5_000))
    assert forecast is not None
    counts = [np.bincount(side, minlength=ROWS) for side in small]
    assert round(forecast.results) == int(counts[0] @ counts[1])
    assert forecast.sampled_rows == forecast.input_rows == (5_000, 4_000)
    assert 0 < forecast.online_share < 1


@pytest.mark.parametrize("memory", [None, 100_000_000])
def test_foresee_when_all_fits_in_memory_then_all_is_online(memory: int | None) -> None:
    forecast = foresee(replace(SETTING, memory_bytes=memory), draw_sample(drawn("uniform"), 4_000))
    assert forecast is not None
    assert forecast.online_share == 1
    assert forecast.kept_rows == pytest.approx((ROWS, ROWS), rel=0.1)
    (*_, said) = expected_lines(Expected(forecast), "")
    assert said == "nothing is spilled, and Cleanup has nothing to do"


def test_foresee_when_the_join_cannot_spill_then_says_when_it_stops() -> None:
    setting = replace(SETTING, algorithm="shj")
    forecast = foresee(setting, draw_sample(drawn("uniform"), 8_000))
    assert forecast is not None
    room = 1_200_000 * 5 / 8 / (40 + 20)
    assert forecast.stopped == pytest.approx(room / (2 * ROWS), abs=0.05)
    assert "STOP" in expected_lines(Expected(forecast), "")[-1]


def test_foresee_when_memory_would_hold_next_to_no_sampled_row_then_says_nothing() -> None:
    sample = draw_sample(drawn("uniform"), 50)
    assert foresee(replace(SETTING, memory_bytes=200_000), sample) is None
    none = np.zeros(0, dtype=np.int64)
    assert foresee(SETTING, draw_sample((none, drawn("uniform")[1]), 1_000)) is None


FORECAST = Forecast(
    input_rows=(1_000_000, 500_000),
    sampled_rows=(20_000, 10_000),
    fraction=0.02,
    online=250_000,
    later=750_000,
    shares=(0.24, 0.27),
    kept_rows=(40_000, 30_000),
    kept_bytes=(2e6, 3e6),
    sampled_kept=1_400,
    spilled_rows=1.4e6,
    spilled_bytes=7e7,
    read_rows=2e6,
    read_bytes=1e8,
    read_blocks=1_000,
)
MACHINE = CleanupMachine(CleanupFactors(1e-6, 4e-6), Storage("disk", 0.001, 1e8), workers=2)


def test_cleanup_seconds_when_factors_are_known_then_adds_work_and_reading() -> None:
    # 2 s for rows and 3 s for results, by two workers; 1 s of seeks and 1 s of reading
    assert cleanup_seconds(FORECAST, MACHINE) == pytest.approx(2.5 + 2)


def test_cleanup_factors_when_measured_then_are_of_a_working_machine() -> None:
    factors = cleanup_factors("xjoin", 40)
    assert 0 < factors.row < 1e-3
    assert 0 <= factors.result < 1e-3
    assert cleanup_factors("xjoin", 41) is factors  # once in the life of a process


def test_expected_when_there_is_an_outlook_then_says_what_and_from_what() -> None:
    text = "\n".join(expected_lines(Expected(FORECAST, MACHINE), ""))
    for said in (
        "20,000 of 1,000,000 rows of left and 10,000 of 500,000 rows of right",
        "2 % of the memory",
        "about 1,000,000, 25.0% of them online",
        "(24.0% to 27.0% with it and with two parts",
        "40,000 rows of left (1.9 MB with the index), 30,000 rows of right (2.9 MB",
        "spilled while rows arrive: about 66.8 MB, 1,400,000 rows",
        "finds about 750,000 results, and reads 95.4 MB back",
        "about 4 seconds with 2 workers",
        "about 2 seconds of it for storage, unless blocks are cached: it reads 95.4 MB a second",
    ):
        assert said in text
    assert "ROUGH" not in text
    rough = expected_lines(Expected(replace(FORECAST, sampled_kept=40), MACHINE), "")
    assert any(line.startswith("ROUGH: these are 40 rows") for line in rough)
    assert expected_lines(None, "for a reason") == ["no estimate: for a reason"]
