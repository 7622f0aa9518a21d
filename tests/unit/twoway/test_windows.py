"""Windows of a merge: they cover all codes, and their blocks fit in memory."""

import numpy as np
import pytest

from dovetail.kernel.blocks import BLOCK
from dovetail.twoway.windows import Table, groups, next_high


def table_of(*ranges: tuple[int, int], length: int = 10) -> Table:
    """Blocks of one size with these ranges of codes."""
    entries = np.zeros(len(ranges), dtype=BLOCK)
    entries["length"] = length
    for index, (low, high) in enumerate(sorted(ranges)):
        entries["code_min"][index], entries["code_max"][index] = low, high
    return Table(entries, np.arange(len(ranges)))


NOTHING = table_of()


def test_window_when_all_fits_then_reaches_to_the_end() -> None:
    tables = (table_of((1, 4), (5, 9)), table_of((2, 12)))
    assert next_high(tables, 0, room=20) == (12, False)


def test_window_when_not_all_fits_then_ends_before_the_first_block_that_does_not() -> None:
    tables = (table_of((1, 4), (5, 9), (9, 11)), table_of((2, 7)))
    assert next_high(tables, 0, room=20) == (8, False), "the third block would be too many"
    assert next_high(tables, 9, room=20) == (11, False), "the first is done with"


def test_window_when_too_many_blocks_have_one_code_then_stops_before_it_and_takes_it_alone() -> (
    None
):
    tables = (table_of((1, 5), (5, 5), (5, 5), (5, 8)), NOTHING)
    assert next_high(tables, 0, room=20) == (4, False)
    assert next_high(tables, 5, room=20) == (5, True)
    assert next_high(tables, 6, room=20) == (8, False)


def test_window_when_nothing_is_left_then_there_is_none() -> None:
    assert next_high((table_of((1, 4)), NOTHING), 5, room=20) is None


@pytest.mark.parametrize("seed", range(20))
def test_windows_when_drawn_at_random_then_cover_all_codes_within_the_room(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(2):
        cuts = [np.sort(rng.integers(0, 30, 2 * int(rng.integers(0, 5)))) for _ in range(3)]
        tables.append(table_of(*((int(a), int(b)) for s in cuts for a, b in s.reshape(-1, 2))))
    room, low, windows = 60, -5, []
    while (found := next_high((tables[0], tables[1]), low, room)) is not None:
        high, single = found
        assert high >= low
        for table in tables:
            met = table.within(low, high)
            size = int(table.entries["length"][met].sum())
            if single:
                codes = table.entries[met]
                assert (np.maximum(codes["code_min"], low) == high).all()
            else:
                # more only if a single code is about to be taken alone
                assert size <= room or next_high((tables[0], tables[1]), high + 1, room)
        windows.append(high)
        low = high + 1
    ends = [int(table.entries["code_max"].max()) for table in tables if len(table.entries)]
    assert (windows[-1] if windows else None) == (max(ends) if ends else None)


def test_within_when_asked_for_a_range_then_finds_the_blocks_that_overlap_it() -> None:
    table = table_of((1, 4), (3, 9), (5, 5), (8, 20))
    assert table.within(4, 5).tolist() == [0, 1, 2]
    assert table.within(6, 7).tolist() == [1]
    assert table.within(21, 30).tolist() == []
    assert table.within(-5, 0).tolist() == []


def test_groups_when_blocks_do_not_fit_together_then_are_split_in_order() -> None:
    table = table_of(*((n, n) for n in range(7)))
    found = [group.tolist() for group in groups(table, np.array([0, 1, 3, 4, 6]), room=25)]
    assert found == [[0, 1], [3, 4], [6]]
    assert [group.tolist() for group in groups(table, np.array([2, 5]), room=5)] == [[2], [5]]
