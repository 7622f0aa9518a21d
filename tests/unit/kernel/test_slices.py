"""Slices of batches, by what each row takes up, and rows that are wide for a budget."""

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.memory import Budget, MemorySplit, parse_bytes
from dovetail.kernel.slices import SizedRows, WideRows, cuts, is_uneven, sizes_in

WIDTHS = [0, 1, 7, 5_000, 0, 300, 12, 13]
WORDS = ["x" * width for width in WIDTHS]
LISTS = [["y" * (width // 2), "z" * (width - width // 2)] for width in WIDTHS]
COLUMNS = {
    "string": pa.array(WORDS),
    "large binary": pa.array(WORDS).cast(pa.large_binary()),
    "list of strings": pa.array(LISTS),
    "large list of numbers": pa.array([[1] * w for w in WIDTHS], pa.large_list(pa.int64())),
    "list of lists": pa.array([[part, part] for part in LISTS]),
    "map": pa.array([[(word, 1.5)] for word in WORDS], pa.map_(pa.string(), pa.float64())),
    "struct": pa.array([{"a": word, "b": part} for word, part in zip(WORDS, LISTS, strict=True)]),
    "fixed size list": pa.array([part[:2] for part in LISTS], pa.list_(pa.string(), 2)),
    "list view": pa.array([[1] * w for w in WIDTHS], pa.list_view(pa.int32())),
    "string view": pa.array(WORDS, pa.string_view()),
    "dictionary": pa.array(WORDS).dictionary_encode(),
    "list of structs": pa.array([[{"a": word, "n": 1}] * 3 for word in WORDS]),
}
FIXED = [
    pa.array([1, None, 3]), pa.array([True, False, None]), pa.nulls(3),
    pa.array([b"abcd"] * 3, pa.binary(4)), pa.array([1, 2, 3], pa.decimal128(20, 2)),
]  # fmt: skip


def sizes_of(column: pa.Array) -> np.ndarray:
    fixed, variable = sizes_in([column])
    assert variable is not None
    return fixed + variable


@pytest.mark.parametrize("name", COLUMNS)
def test_sizes_when_a_column_is_of_any_kind_then_follow_each_row_also_in_a_slice(name: str) -> None:
    column = COLUMNS[name]
    sizes = sizes_of(column)
    assert len(sizes) == len(WIDTHS)
    wide = WIDTHS.index(5_000)
    assert sizes.argmax() == wide
    times = sizes[wide] / 5_000
    assert 0.99 < times < 8.2
    assert sizes.sum() - sizes[wide] < sizes[wide], "the widest row is most of all"
    sliced = pa.concat_arrays([column.slice(0, 3), column]).slice(4, 5)
    assert np.allclose(sizes_of(sliced), sizes[1:6])
    assert sizes_in([column.slice(0, 0)])[1] is None or not len(sizes_of(column.slice(0, 0)))


@pytest.mark.parametrize("name", sorted({*COLUMNS} - {"string view", "dictionary", "list view"}))
def test_sizes_when_added_up_then_are_what_the_column_takes_up(name: str) -> None:
    column = pa.concat_arrays([COLUMNS[name]] * 10)
    assert 0.95 * column.nbytes <= sizes_of(column).sum() <= 1.05 * column.nbytes + 80


def test_sizes_when_values_are_null_then_take_no_bytes() -> None:
    column = pa.array(["abc", None, "x" * 100, None])
    sizes = sizes_of(column)
    assert sizes[1] == sizes[3] == sizes[0] - 3


@pytest.mark.parametrize("column", FIXED, ids=lambda column: str(column.type))
def test_sizes_when_a_column_is_of_fixed_width_then_every_row_is_as_wide(column: pa.Array) -> None:
    fixed, variable = sizes_in([column])
    assert variable is None
    assert abs(3 * fixed - column.nbytes) <= 2


def test_sizes_when_columns_are_many_then_are_those_of_all() -> None:
    columns = [pa.array([1.5, 2.5])] * 300 + [pa.array(["a", "b" * 70])] * 200
    fixed, variable = sizes_in(columns)
    assert fixed == 300 * (8 + 1 / 8) + 200 * (4 + 1 / 8)
    assert variable is not None
    assert variable.tolist() == [200, 14_000]


def test_is_uneven_when_rows_are_wide_then_asks_for_less() -> None:
    assert not is_uneven(200, 10.0)
    assert is_uneven(400, 10.0)
    assert is_uneven(5_000, 3_000.0)
    assert not is_uneven(5_000, 5_000.0)


# -- cutting --------------------------------------------------------------------------------

WIDTH_LISTS = st.lists(st.sampled_from([0, 1, 10, 100, 5_000]), min_size=1, max_size=40)


def batch_of(widths: list[int]) -> pa.RecordBatch:
    numbers = pa.array(np.arange(len(widths)))
    return pa.record_batch({"n": numbers, "t": ["x" * width for width in widths]})


@given(WIDTH_LISTS, st.sampled_from([1, 60, 400, 6_000, 1 << 20]), st.booleans())
def test_slices_when_rows_are_of_any_width_then_are_all_of_them_and_fit_or_are_one_row(
    widths: list[int], most_bytes: int, even: bool
) -> None:
    batch, beside = batch_of(widths), 40
    pieces = list(SizedRows(batch, beside).slices(most_bytes, even=even))
    assert pa.Table.from_batches(pieces).combine_chunks().equals(pa.Table.from_batches([batch]))
    taken = [sum(12 + beside + widths[n] for n in piece["n"].to_pylist()) for piece in pieces]
    assert all(t <= most_bytes or p.num_rows == 1 for t, p in zip(taken, pieces, strict=True))
    # no two neighbours would have fit together, but for what is rounded
    if not even:
        room = most_bytes - 2 * len(widths)
        assert all(a + b > room for a, b in pairwise(taken))


@given(WIDTH_LISTS)
def test_widest_when_rows_are_of_any_width_then_is_the_widest_row(widths: list[int]) -> None:
    exact = 8 + 4 + 2 / 8 + max(widths) + 5
    assert exact <= SizedRows(batch_of(widths), 5).widest <= exact + 1


def test_slices_when_rows_are_alike_and_even_then_are_of_about_one_size() -> None:
    batch = pa.record_batch({"n": np.arange(1_001)})
    rows = [piece.num_rows for piece in SizedRows(batch).slices(4_000, even=True)]
    assert len(rows) == 3
    assert max(rows) - min(rows) <= 6


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(1, 150))
def test_cuts_when_sizes_are_given_then_parts_fit_or_are_one_and_none_is_lost(
    sizes: list[int], most_bytes: int
) -> None:
    end = 0
    for start, stop, nbytes in cuts(np.array(sizes, dtype=np.int64), most_bytes):
        assert start == end < stop
        assert nbytes == sum(sizes[start:stop])
        assert nbytes <= most_bytes or stop - start == 1
        assert stop == len(sizes) or nbytes + sizes[stop] > most_bytes
        end = stop
    assert end == len(sizes)


def test_cuts_when_rows_fill_a_slice_exactly_then_it_has_all_of_them() -> None:
    assert list(cuts(np.array([5, 5, 5]), 10)) == [(0, 2, 10), (2, 3, 5)]


# -- rows that are wide for a budget --------------------------------------------------------


def wide_of(budget: Budget, room: Callable[..., int] = lambda *_: 0) -> WideRows:
    """Half of the budget is working memory, and twice the widest rows have to fit into it."""
    split = MemorySplit(1 / 2, frozenset({"rows"}), lambda widest: 2 * sum(widest), beside=room)
    return WideRows(budget, 2, split)


def rows_of(*widths: int) -> SizedRows:
    return SizedRows(batch_of(list(widths)))


def test_wide_when_rows_are_narrow_or_memory_is_unbounded_then_needs_nothing() -> None:
    wide = wide_of(Budget(100_000))
    assert wide.lacking(0, rows_of(*[1_000] * 500)) == 0
    assert wide.widest == [0, 0]
    assert wide_of(Budget(None)).lacking(0, rows_of(10_000_000)) == 0


def test_wide_when_rows_are_wide_then_asks_for_what_working_memory_lacks_and_only_once() -> None:
    wide = wide_of(Budget(100_000))
    assert wide.lacking(0, rows_of(1, 18_000, 1)) == 2 * (wide.widest[0] + 12_500) - 50_000
    wide.held.grow(wide.lacking(0, rows_of(18_400)))
    assert wide.lacking(0, rows_of(18_000)) == 0
    assert wide.lacking(1, rows_of(5_000)) == 0
    assert wide.lacking(1, rows_of(13_000)) == 2 * (wide.widest[1] - 12_500)


def test_wide_when_a_row_is_too_wide_then_says_the_least_that_would_do_and_forgets_it() -> None:
    budget = Budget(100_000, shares=3)
    wide = wide_of(budget)
    with pytest.raises(MemoryBudgetError, match=r"a row of 48\.8 KB does not fit") as caught:
        wide.lacking(0, rows_of(50_000))
    assert wide.widest == [0, 0]
    found = re.search(
        r"takes at least ([\d.]+ KB)\. memory='([\d.]+ KB)' over 3", str(caught.value)
    )
    assert found, str(caught.value)
    share, whole = map(parse_bytes, found.groups())
    assert whole // 3 >= share - 100  # what is shown is rounded up
    enough = wide_of(Budget(whole // 3))
    assert enough.lacking(0, rows_of(50_000)) >= 0
    too_little = wide_of(Budget(int(0.99 * share)))
    with pytest.raises(MemoryBudgetError):
        too_little.lacking(0, rows_of(50_000))


def test_wide_when_something_else_is_held_then_what_cannot_be_given_up_counts() -> None:
    for component, fits in (("rows", True), ("catalogue", False)):
        budget = Budget(100_000)
        budget.reserve(component, 30_000)
        wide = wide_of(budget)
        if fits:
            wide.lacking(0, rows_of(18_000))
        else:
            with pytest.raises(MemoryBudgetError):
                wide.lacking(0, rows_of(18_000))


def test_wide_when_restored_then_holds_as_much_or_says_that_it_is_too_little() -> None:
    wide = wide_of(Budget(100_000))
    wide.held.grow(wide.lacking(1, rows_of(18_000)))
    again = wide_of(Budget(100_000))
    again.restore(wide.widest)
    assert (again.widest, again.held.nbytes) == (wide.widest, wide.held.nbytes)
    with pytest.raises(MemoryBudgetError, match=r"a row of 17\.6 KB does not fit"):
        wide_of(Budget(50_000)).restore(wide.widest)


def test_input_when_a_batch_is_large_then_half_of_what_is_left_counts() -> None:
    wide = wide_of(Budget(160_000))
    assert wide.counted_input(1_000) == 1_000
    assert wide.counted_input(10_000_000) == (160_000 - 80_000 - 10_000 - (10 << 10)) // 2
    wide.held.grow(wide.lacking(0, rows_of(30_000)))
    left = 160_000 - 80_000 - 10_000 - (10 << 10) - wide.held.nbytes
    assert wide.counted_input(10_000_000) == min(left // 2, left - wide.widest[0])
    assert wide_of(Budget(None)).counted_input(10_000_000) == 10_000_000
