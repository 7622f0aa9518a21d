"""What leaving a row out loses, from the staged table, inside the budget."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.semistream import SemiStreamSpec, StagedTable
from dovetail.semistream.frequencies import (
    COMPONENT,
    Worth,
    check_frequencies,
    learn_frequencies,
    most_bytes,
)
from dovetail.semistream.shedding import Frequencies, SketchedFrequencies
from dovetail.testing.semistream import stage

SEED = 8
Make = Callable[..., Any]
BUDGET = 400_000


def keys_with_repeats(rows: int, values: int) -> list[int]:
    rng = np.random.default_rng(SEED)
    return [*rng.integers(0, values, rows).tolist(), *([values] * 500)]


@pytest.mark.parametrize("page_rows", [1, 3, 64, 5000])
def test_frequencies_when_the_table_is_read_in_pieces_then_are_exact(
    make_bench: Make, page_rows: int
) -> None:
    table = keys_with_repeats(1500, 300)
    bench = make_bench("seek", table, page_rows=page_rows)
    bench.operator.working_bytes = 4 * 8 * 700  # 700 codes at a time, or a page
    assert list(learn_frequencies(bench.operator)) == []
    known = bench.operator.frequencies
    assert isinstance(known, Frequencies)
    sought = np.arange(-5, 310)
    counts = Counter(table)
    assert known.of(sought).tolist() == [counts[key] for key in sought.tolist()]
    assert bench.operator.ctx.budget.components[COMPONENT] == known.nbytes
    assert bench.operator.ctx.counters.bytes_read == 0, "this is not reading of the join"


def test_frequencies_when_the_table_is_empty_then_are_zero(make_bench: Make) -> None:
    bench = make_bench("seek", [])
    list(learn_frequencies(bench.operator))
    assert bench.operator.frequencies.of(np.array([1, 2])).tolist() == [0, 0]


def test_frequencies_when_they_do_not_fit_then_are_estimated_inside_the_share(
    make_bench: Make,
) -> None:
    table = [*range(6000), *([7] * 900)]
    bench = make_bench("seek", table, page_rows=64, budget_bytes=BUDGET)
    list(learn_frequencies(bench.operator))
    known, budget = bench.operator.frequencies, bench.operator.ctx.budget
    assert isinstance(known, SketchedFrequencies)
    assert known.nbytes <= budget.components[COMPONENT] == most_bytes(BUDGET)
    few, many = known.of(np.array([8, 7])).tolist()
    assert 1 <= few < 100 < 901 <= many


def test_frequencies_when_rows_fill_the_memory_then_they_are_worked_off_for_them(
    make_bench: Make,
) -> None:
    bench = make_bench("seek", range(2000), page_rows=64, budget_bytes=BUDGET)
    rng = np.random.default_rng(SEED)
    budget = bench.operator.ctx.budget
    while budget.used_bytes + 32_000 <= BUDGET:
        bench.feed(rng.integers(0, 3000, 20).tolist())
    waiting = bench.operator.pending()
    bench.drive.batches += learn_frequencies(bench.operator)
    assert bench.operator.pending() < waiting
    assert budget.components[COMPONENT] == 32_000
    bench.assert_exactly_once()


def test_frequencies_when_learned_once_then_are_kept(make_bench: Make) -> None:
    bench = make_bench("meshjoin", range(50))
    list(learn_frequencies(bench.operator))
    known = bench.operator.frequencies
    list(learn_frequencies(bench.operator))
    assert bench.operator.frequencies is known


@pytest.mark.parametrize(
    ("how", "results"),
    [
        ("inner", [0, 1, 3, 0]),
        ("left", [1, 1, 3, 1]),
        ("semi", [0, 1, 1, 0]),
        ("anti", [1, 0, 0, 1]),
    ],
)
def test_worth_when_the_kind_of_join_varies_then_is_the_number_of_results(
    how: str, results: list[int]
) -> None:
    """Keys without a match, with one, with three, and one that is null."""
    known = Frequencies(np.array([2, 3, 3, 3]))
    valid = np.array([True, True, True, False])
    assert Worth(known, how, valid).of(np.array([1, 2, 3, 3])).tolist() == results


def staged(folder: Path, rows: int) -> StagedTable:
    schema = pa.schema([("k", pa.int64())])
    spec = SemiStreamSpec(schema, schema, ("k",), ("k",))
    return stage(spec, pa.record_batch([np.arange(rows)], schema=schema), folder, 4096)


def test_check_when_a_sketch_may_be_needed_without_its_package_then_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    table = staged(tmp_path / "table", 5000)
    check_frequencies(table, 8 * 16 * 5000)
    check_frequencies(table, None)
    with pytest.raises(ArgumentError, match="dovetail\\[shed\\]"):
        check_frequencies(table, 8 * 16 * 5000 - 8)
    table.close()
