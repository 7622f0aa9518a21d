"""Flushes by the cell: what leaves, in which order, and what stays."""

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.protocol import LEFT, SIDES
from dovetail.kernel.runs import Run, in_order, sort_run
from dovetail.kernel.shell import quietly


def run_of(codes: list[int], first: int) -> Run:
    rows = pa.record_batch({"n": pa.array(np.arange(first, first + len(codes)))})
    return sort_run(np.array(codes, dtype=np.int64), first, rows)


@pytest.mark.parametrize("rows", [1, 3, 1_000])
def test_in_order_when_runs_overlap_then_every_row_comes_once_by_its_code(rows: int) -> None:
    rng = np.random.default_rng(rows)
    codes = [rng.integers(-9, 9, size).tolist() for size in (0, 1, 7, 40)]
    firsts = np.cumsum([0, *(len(part) for part in codes)]).tolist()
    runs = [run_of(part, first) for part, first in zip(codes, firsts, strict=False)]
    by_number = dict(enumerate(chain.from_iterable(codes)))
    runs = [run for run in runs if len(run)]
    row_bytes = runs[-1].nbytes // len(runs[-1])
    pieces = list(in_order(runs, rows * row_bytes))
    assert max(len(piece) for piece in pieces) <= rows
    found = [code for piece in pieces for code in piece.codes.tolist()]
    assert found == sorted(by_number.values())
    numbers = [number for piece in pieces for number in piece.rows["n"].to_pylist()]
    assert [by_number[number] for number in numbers] == found
    assert sorted(numbers) == list(by_number)


def test_in_order_when_rows_differ_in_width_then_pieces_fit_or_are_one_row() -> None:
    rng = np.random.default_rng(5)
    runs = []
    for rows in (30, 1, 12):
        text = ["x" * int(count) for count in rng.choice([1, 400, 30_000], rows, p=[0.7, 0.2, 0.1])]
        runs.append(sort_run(rng.integers(-9, 9, rows), 0, pa.record_batch({"t": text})))
    pieces = list(in_order(runs, 5_000))
    assert sum(map(len, pieces)) == 43
    assert all(len(piece) == 1 or piece.nbytes <= 5_000 for piece in pieces)
    assert len(pieces) < 43 / 2
    codes = np.concatenate([piece.codes for piece in pieces])
    assert (np.diff(codes) >= 0).all()


def test_in_order_when_there_is_nothing_then_gives_nothing() -> None:
    assert list(in_order([], 5)) == []


@pytest.mark.parametrize("working_bytes", [None, 400], ids=["at once", "in views"])
def test_flush_cells_when_some_are_chosen_then_just_their_rows_leave(
    make_bench: Any, working_bytes: int | None
) -> None:
    bench = make_bench("rpj")
    operator = bench.operator
    for start in range(0, 200, 20):
        for side in SIDES:
            bench.push(side, range(start, start + 20))
    if working_bytes is not None:  # too little to copy what leaves
        operator.working_bytes = working_bytes
    chosen = np.arange(len(operator.cells)) % 3 != 1
    before = operator.cell_rows
    operator.flush_cells([LEFT], chosen)
    quietly(operator._settle_rows())
    operator.check()
    assert not operator.cell_rows[chosen, LEFT].any()
    before[chosen, LEFT] = 0
    assert np.array_equal(operator.cell_rows, before)
    parts = operator._part_of(operator._codes(np.arange(200)))
    for part, cell in enumerate(operator.cells):
        ids: list[int] = []
        for blocks in cell.blocks[LEFT].entries(0, len(cell.blocks[LEFT])):
            for block in blocks:
                ids += operator.ctx.store.read(block).rows["left_id"].to_pylist()
        wanted = np.flatnonzero(parts == part).tolist() if chosen[part] else []
        assert sorted(ids) == wanted
