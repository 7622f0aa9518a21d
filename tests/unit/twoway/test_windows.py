"""Windows of a merge: they cover all codes, and their blocks fit in memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.blocks import BLOCK, LOGGED, BlockStore
from dovetail.kernel.catalogue import Catalogue, Entries, Pages
from dovetail.twoway.rivals.windows import Lane, MergeSide, grouped, next_high

Ranges = Iterable[tuple[int, int]]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    """Of two entries each, so that lists of a few blocks are paged out, too."""
    store = BlockStore(tmp_path, (pa.schema([("k", pa.int64())]),), "one")
    yield Pages(store, 2)
    store.close()


def blocks_of(ranges: Ranges, length: int = 10) -> Entries:
    """Blocks of one size with these ranges of codes."""
    entries = np.zeros(len(found := sorted(ranges)), dtype=BLOCK)
    entries["kind"], entries["length"] = LOGGED, length
    for index, (low, high) in enumerate(found):
        entries["code_min"][index], entries["code_max"][index] = low, high
    return entries


def table_of(pages: Pages, *segments: Ranges) -> MergeSide:
    """Segments of such blocks; each is a group."""
    lanes = []
    for group, ranges in enumerate(segments):
        known = Catalogue(pages)
        for entry in blocks_of(ranges):
            known.append(entry)
        lanes.append(Lane(known, group))
    return MergeSide(lanes)


def found_within(table: MergeSide, low: int, high: int) -> list[tuple[int, int, int]]:
    """The blocks within a range: their codes and group."""
    return sorted(
        (int(entry["code_min"]), int(entry["code_max"]), group)
        for entries, group in table.within(low, high)
        for entry in entries
    )


def test_window_when_all_fits_then_reaches_to_the_end(pages: Pages) -> None:
    tables = (table_of(pages, [(1, 4), (5, 9)]), table_of(pages, [(2, 12)]))
    assert next_high(tables, 0, room=20) == (12, False)


def test_window_when_not_all_fits_then_ends_before_the_first_block_that_does_not(
    pages: Pages,
) -> None:
    tables = (table_of(pages, [(1, 4), (5, 9), (9, 11)]), table_of(pages, [(2, 7)]))
    assert next_high(tables, 0, room=20) == (8, False), "the third block would be too many"
    assert next_high(tables, 9, room=20) == (11, False), "the first is done with"


def test_window_when_too_many_blocks_have_one_code_then_stops_before_it_and_takes_it_alone(
    pages: Pages,
) -> None:
    tables = (table_of(pages, [(1, 5), (5, 5), (5, 5), (5, 8)]), table_of(pages))
    assert next_high(tables, 0, room=20) == (4, False)
    assert next_high(tables, 5, room=20) == (5, True)
    assert next_high(tables, 6, room=20) == (8, False)


def test_window_when_nothing_is_left_then_there_is_none(pages: Pages) -> None:
    assert next_high((table_of(pages, [(1, 4)]), table_of(pages, [])), 5, room=20) is None


@pytest.mark.parametrize("seed", range(20))
def test_windows_when_drawn_at_random_then_cover_all_codes_within_the_room(
    pages: Pages, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tables, ends = [], []
    for _ in range(2):
        cuts = [np.sort(rng.integers(0, 30, 2 * int(rng.integers(0, 5)))) for _ in range(3)]
        ends += [int(cut[-1]) for cut in cuts if len(cut)]
        tables.append(table_of(pages, *(cut.reshape(-1, 2).tolist() for cut in cuts)))
    room, low, windows = 60, -5, []
    while (found := next_high((tables[0], tables[1]), low, room)) is not None:
        high, single = found
        assert high >= low
        for table in tables:
            met = found_within(table, low, high)
            if single:
                assert all(max(first, low) == high for first, _, _ in met)
            else:
                # more only if a single code is about to be taken alone
                assert 10 * len(met) <= room or next_high((tables[0], tables[1]), high + 1, room)
        windows.append(high)
        low = high + 1
    assert (windows[-1] if windows else None) == (max(ends) if ends else None)


def test_within_when_asked_for_a_range_then_finds_the_blocks_that_overlap_it(pages: Pages) -> None:
    table = table_of(pages, [(1, 4), (5, 5), (8, 20)], [(3, 9)])
    assert found_within(table, 4, 5) == [(1, 4, 0), (3, 9, 1), (5, 5, 0)]
    assert found_within(table, 6, 7) == [(3, 9, 1)]
    assert found_within(table, 21, 30) == []
    assert found_within(table, -5, 0) == []


@pytest.mark.parametrize("blocks", [1, 5, 40])
def test_within_when_a_list_is_paged_out_then_finds_what_a_scan_of_it_finds(
    pages: Pages, blocks: int
) -> None:
    rng = np.random.default_rng(blocks)
    ranges = np.sort(rng.integers(0, 60, 2 * blocks)).reshape(-1, 2).tolist()
    table = table_of(pages, ranges)
    for low, high in rng.integers(-5, 70, (60, 2)).tolist():
        expected = [(a, b, 0) for a, b in ranges if b >= low and a <= high]
        assert found_within(table, low, high) == expected, (ranges, low, high)


@pytest.mark.parametrize("page", [1, 2, 7])
def test_groups_when_blocks_do_not_fit_together_then_are_split_in_order(page: int) -> None:
    def of(room: int) -> list[list[int]]:
        entries = blocks_of((n, n) for n in range(5))
        pages = ((entries[at : at + page], at) for at in range(0, 5, page))
        found = list(grouped(pages, room))
        assert [n for group in found for n in group.groups] == [n // page * page for n in range(5)]
        return [group.entries["code_min"].tolist() for group in found]

    assert of(room=25) == [[0, 1], [2, 3], [4]]
    assert of(room=5) == [[0], [1], [2], [3], [4]]
    assert of(room=50) == [[0, 1, 2, 3, 4]]
