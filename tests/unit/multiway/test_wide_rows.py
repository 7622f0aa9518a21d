"""Batches larger than the budget, and rows that are a large part of it, in multi-way joins."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget, parse_bytes
from dovetail.kernel.protocol import Context, Status
from dovetail.multiway import (
    ALGORITHMS,
    MIN_BYTES_PER_INPUT,
    MultiWayJoin,
    MultiWaySpec,
    multiway_spec,
)
from support.arrivals import Poll, Push, Restore
from support.multiway import Trial, combinations

EVERY = ["miner", "miner-paper", "mjoin"]
NAMES = ("r0", "r1", "r2")


def relation(keys: np.ndarray, widths: list[int]) -> pa.RecordBatch:
    text = [chr(97 + row % 26) * width for row, width in enumerate(widths)]
    return pa.record_batch({"k": keys, "id": np.arange(len(keys)), "text": text})


def spec_of(relations: list[pa.RecordBatch]) -> MultiWaySpec:
    inputs = {name: rows.schema for name, rows in zip(NAMES, relations, strict=True)}
    return multiway_spec(inputs, [("r0.k", "r1.k"), ("r1.k", "r2.k")])


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("width", [700, 5_000], ids="{} bytes".format)
def test_push_when_batches_are_larger_than_the_budget_then_are_taken_in(
    algorithm: str, width: int, tmp_path: Path
) -> None:
    budget, rng = 3 * MIN_BYTES_PER_INPUT, np.random.default_rng(width)
    rows = 2 * budget // width
    relations = [
        relation(rng.integers(0, rows, rows), rng.integers(1, 2 * width, rows).tolist())
        for _ in NAMES
    ]
    assert min(r.nbytes for r in relations) > 1.5 * budget
    script = [step for side in range(3) for step in (Push(side, rows), Poll(500), Restore())]
    outcome = Trial(algorithm, spec_of(relations), relations, script, budget).run(tmp_path / "run")
    outcome.assert_exactly_once(combinations(spec_of(relations), relations))
    assert outcome.flushed_rows > 0


@pytest.mark.parametrize("algorithm", EVERY)
def test_join_when_one_wide_row_matches_hundreds_then_results_come_in_parts(
    algorithm: str, tmp_path: Path
) -> None:
    wide, many = 60_000, 30
    widths = [[wide], [5] * many, [9] * 7]
    relations = [relation(np.zeros(len(w), dtype=np.int64), w) for w in widths]
    spec = spec_of(relations)
    store = BlockStore(tmp_path, spec.schemas, "a")
    operator = ALGORITHMS[algorithm](spec, Context(Budget(1_000_000), store))
    batches = [out for side in (1, 2, 0) for out in operator.push(side, relations[side])]
    assert sum(out.num_rows for out in batches) == 7 * many
    assert max(out.nbytes for out in batches) <= max(operator.working_bytes // 8, wide + 300)
    store.close()


@pytest.mark.parametrize("algorithm", EVERY)
def test_push_when_a_few_rows_of_a_large_batch_come_then_its_buffers_are_not_kept(
    algorithm: str, tmp_path: Path
) -> None:
    whole = relation(np.arange(1_000), [1_000] * 1_000)
    spec = spec_of([whole] * 3)
    store = BlockStore(tmp_path, spec.schemas, "a")
    operator = ALGORITHMS[algorithm](spec, Context(Budget(None), store))
    pushed(operator, 0, whole.slice(500, 3))
    (chunk,) = operator.tables[0].payload.chunks
    assert len(chunk) == 3
    assert chunk.rows.get_total_buffer_size() < 4_000
    store.close()


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("wide", [0.3, 2.0])
def test_push_when_one_row_is_too_wide_then_nothing_is_lost_and_the_memory_named_is_enough(
    algorithm: str, wide: float, tmp_path: Path
) -> None:
    budget, rng = 4 * MIN_BYTES_PER_INPUT, np.random.default_rng(4)
    keys = [rng.integers(0, 9, 24) for _ in NAMES]
    relations = [relation(k, rng.choice([1, 50, 1_000], 24).tolist()) for k in keys]
    row = relation(keys[0][:3], [1, int(wide * budget), 1])
    spec = spec_of(relations)

    def run(total: int, *, refusing: bool) -> tuple[int, int]:
        store = BlockStore(tmp_path, spec.schemas, f"run{total}")
        operator = ALGORITHMS[algorithm](spec, Context(Budget(total), store))
        found, least = pushed(operator, 0, relations[0]) + pushed(operator, 1, relations[1]), 0
        if refusing:
            with pytest.raises(MemoryBudgetError, match=r"a row of .* does not fit") as caught:
                pushed(operator, 0, row)
            named = re.search(r"memory='([\d.]+ [KMG]?B)' would do", str(caught.value))
            assert named, str(caught.value)
            least = parse_bytes(named[1])
        else:
            found += pushed(operator, 0, row)
        operator.check()
        found += pushed(operator, 2, relations[2])
        for side in range(3):
            operator.finish(side)
        while operator.status() is not Status.DONE:
            found += sum(out.num_rows for out in operator.poll(1_000))
            operator.check()
        store.close()
        return found, least

    counts = [np.bincount(k, minlength=9) for k in keys]
    found, least = run(budget, refusing=True)
    assert found == (counts[0] * counts[1] * counts[2]).sum()
    assert budget < least < 12 * wide * budget
    counts[0] += np.bincount(keys[0][:3], minlength=9)
    assert run(least, refusing=False)[0] == (counts[0] * counts[1] * counts[2]).sum()


def pushed(operator: MultiWayJoin, side: int, rows: pa.RecordBatch) -> int:
    return sum(out.num_rows for out in operator.push(side, rows))
