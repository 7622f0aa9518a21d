"""Budgets: accounting before allocating, sizes as people write them."""

import pytest

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.memory import Budget, Reservation, format_bytes, parse_bytes


def test_budget_when_room_is_left_then_reserves_under_the_component_s_name() -> None:
    budget = Budget(100)
    assert budget.try_reserve("rows", 60)
    assert budget.try_reserve("input", 40)
    assert budget.used_bytes == 100
    assert budget.components == {"rows": 60, "input": 40}


def test_budget_when_full_then_refuses_and_changes_nothing() -> None:
    budget = Budget(100)
    budget.reserve("rows", 99)
    assert not budget.try_reserve("input", 2)
    assert budget.used_bytes == 99
    assert budget.components.get("input", 0) == 0
    assert budget.peak_bytes == 99


def test_budget_when_refusing_with_an_error_then_says_who_what_and_how_much_would_do() -> None:
    budget = Budget(64 << 10)
    budget.reserve("rows", 60 << 10)
    with pytest.raises(MemoryBudgetError) as caught:
        budget.reserve("catalogue", 10 << 10)
    said = str(caught.value)
    for part in ("catalogue needs 10.0 KB", "60.0 KB of", "64.0 KB", "70.0 KB", "Raise memory="):
        assert part in said
    assert budget.used_bytes == 60 << 10


def test_budget_when_unbounded_then_never_refuses_and_still_counts() -> None:
    budget = Budget(None)
    budget.reserve("rows", 1 << 60)
    assert budget.try_reserve("rows", 1 << 60)
    assert budget.used_bytes == 1 << 61


def test_budget_when_released_then_peaks_stay() -> None:
    budget = Budget(100)
    budget.reserve("rows", 80)
    budget.release("rows", 50)
    budget.reserve("input", 20)
    assert (budget.used_bytes, budget.peak_bytes) == (50, 80)
    assert budget.peaks == {"rows": 80, "input": 20}


@pytest.mark.parametrize(("component", "nbytes"), [("rows", 11), ("input", 1), ("rows", -1)])
def test_budget_when_more_is_released_than_held_then_is_a_programming_error(
    component: str, nbytes: int
) -> None:
    budget = Budget(100)
    budget.reserve("rows", 10)
    with pytest.raises(AssertionError, match=component):
        budget.release(component, nbytes)
    assert budget.used_bytes == 10


def test_reservation_when_resized_then_budget_follows() -> None:
    budget = Budget(100)
    rows = Reservation(budget, "rows")
    rows.grow(30)
    assert rows.try_grow(30)
    assert not rows.try_grow(50)
    assert (rows.nbytes, budget.used_bytes) == (60, 60)
    rows.resize(90)
    assert (rows.nbytes, budget.used_bytes) == (90, 90)
    rows.resize(10)
    assert (rows.nbytes, budget.used_bytes) == (10, 10)
    rows.shrink(10)
    assert (rows.nbytes, budget.used_bytes) == (0, 0)


def test_reservation_when_growth_is_refused_then_holds_what_it_held() -> None:
    budget = Budget(100)
    rows = Reservation(budget, "rows")
    rows.grow(60)
    with pytest.raises(MemoryBudgetError, match="rows needs"):
        rows.resize(200)
    assert (rows.nbytes, budget.used_bytes) == (60, 60)


def test_reservations_when_of_one_component_then_add_up() -> None:
    budget = Budget(100)
    one, two = Reservation(budget, "rows"), Reservation(budget, "rows")
    one.grow(10)
    two.grow(20)
    assert budget.components == {"rows": 30}
    one.resize(0)
    assert budget.components == {"rows": 20}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("64MB", 64 << 20),
        ("64 MB", 64 << 20),
        (" 64mb ", 64 << 20),
        ("64m", 64 << 20),
        ("64 MiB", 64 << 20),
        ("1.5GB", 3 << 29),
        ("512k", 512 << 10),
        ("8KiB", 8192),
        ("1g", 1 << 30),
        ("2TB", 2 << 40),
        ("1p", 1 << 50),
        ("7B", 7),
        ("7b", 7),
        ("1e3 KB", 1_024_000),
        ("4611686018427387903", (1 << 62) - 1),
    ],
)
def test_parse_bytes_when_text_is_a_size_then_gives_bytes(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "MB", "64XB", "64i", "64ib", "sixty", "6 4MB", "MB64", "nan", "inf", "1e30TB", None, True],
)
def test_parse_bytes_when_text_is_no_size_then_says_so(text: object) -> None:
    with pytest.raises(ValueError, match=r"size.*write for example '64MB'"):
        parse_bytes(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["-64MB", "-64m", -1, "-1"])
def test_parse_bytes_when_it_is_negative_then_that_is_what_is_said(text: str | int) -> None:
    with pytest.raises(ValueError, match="a size cannot be negative"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.0 KB"),
        (64 << 10, "64.0 KB"),
        (3 << 19, "1.5 MB"),
        ((1 << 30) - 1, "1.0 GB"),
        (32 << 30, "32.0 GB"),
        (5 << 40, "5.0 TB"),
        (5 << 60, "5120.0 PB"),
    ],
)
def test_format_bytes_when_given_then_reads_well(nbytes: int, expected: str) -> None:
    assert format_bytes(nbytes) == expected


@pytest.mark.parametrize("size", ["64MB", "64m", "1.5GB", "96k", "2TB"])
def test_format_bytes_when_read_back_then_is_the_same_size(size: str) -> None:
    assert parse_bytes(format_bytes(parse_bytes(size))) == parse_bytes(size)
