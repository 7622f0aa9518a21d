"""Catalogues that page themselves out, against a plain list."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import StateCorruptError
from dovetail.kernel.blocks import BLOCK, LOGGED, BlockStore
from dovetail.kernel.catalogue import Catalogue, Mask, Pages, split_tails

SCHEMA = pa.schema([("k", pa.int64())])


def entry(number: int, dts: int | None = None) -> np.void:
    made = np.zeros(1, dtype=BLOCK)
    made["kind"], made["part"], made["offset"] = LOGGED, 7, number
    made["ats_min"] = made["ats_max"] = number
    made["dts"] = number if dts is None else dts
    return made[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    store = BlockStore(tmp_path, (SCHEMA,), "one")
    yield store
    store.close()


def numbers(catalogue: Catalogue, start: int, stop: int) -> list[int]:
    return [int(n) for part in catalogue.entries(start, stop) for n in part["offset"]]


@pytest.mark.parametrize("fan_out", [2, 3, 16])
def test_catalogue_when_it_grows_then_has_every_entry_and_little_of_it_in_memory(
    store: BlockStore, fan_out: int
) -> None:
    pages = Pages(store, fan_out)
    catalogue = Catalogue(pages)
    for count in range(1, 400):
        catalogue.append(entry(count - 1))
        catalogue.check()
        assert len(catalogue) == count
        held = sum(len(tail) for tail in catalogue.tails)
        assert held * BLOCK.itemsize == pages.tail_bytes
        assert held <= fan_out * (2 + np.log(count) / np.log(fan_out))
        for index in {0, count // 3, count // 2, count - 1}:
            assert int(catalogue.entry(index)["offset"]) == index
    assert len(catalogue.tails) > 1, "nothing was paged out"
    for start, stop in [(0, 399), (5, 5), (17, 300), (398, 399)]:
        assert numbers(catalogue, start, stop) == list(range(start, stop))
    with pytest.raises(IndexError, match="entry 399 of 399"):
        catalogue.entry(399)


def test_catalogue_when_restored_after_any_entry_then_goes_on(store: BlockStore) -> None:
    catalogue = Catalogue(Pages(store, 2))
    for number in range(100):
        catalogue.append(entry(number))
        saved = [tail.copy() for tail in catalogue.tails]
        pages = Pages(store, 2)
        catalogue = Catalogue(pages)
        for tail in saved:
            catalogue.restore_tail(tail)
        catalogue.check()
        assert pages.tail_bytes == sum(tail.nbytes for tail in saved)
        assert numbers(catalogue, 0, number + 1) == list(range(number + 1))


def test_newest_when_entries_are_in_pages_then_finds_what_a_scan_finds(store: BlockStore) -> None:
    rng = np.random.default_rng(3)
    ticks = rng.integers(0, 50, 200)
    catalogue = Catalogue(Pages(store, 3))
    for number, dts in enumerate(ticks):
        catalogue.append(entry(number, int(dts)))
    found = 0
    for _ in range(200):
        least, before = int(rng.integers(0, 60)), int(rng.integers(0, 220))
        wanted = np.flatnonzero((ticks >= least) & (np.arange(200) < before))
        got = catalogue.newest(lambda m: (m["dts"] >= least) & (m["ats_min"] < before))  # noqa: B023
        assert (got is None) == (not len(wanted))
        if got is not None:
            found += 1
            assert int(got["offset"]) == wanted[-1]
    assert 50 < found < 200


def test_catalogue_when_cleared_then_is_empty_and_holds_nothing(store: BlockStore) -> None:
    pages = Pages(store, 2)
    catalogue = Catalogue(pages)
    for number in range(20):
        catalogue.append(entry(number))
    catalogue.clear()
    assert (len(catalogue), pages.nbytes, catalogue.last) == (0, 0, None)
    catalogue.append(entry(5))
    assert numbers(catalogue, 0, 1) == [5]


def test_page_when_damaged_then_names_the_file(store: BlockStore) -> None:
    catalogue = Catalogue(Pages(store, 2))
    for number in range(9):
        catalogue.append(entry(number))
    store.sync()
    path = store.directory / "one-catalogue.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StateCorruptError, match=path.name):
        list(catalogue.entries(0, 9))


@pytest.mark.parametrize("fan_out", [2, 3, 16])
def test_ending_below_when_a_list_is_in_code_order_then_counts_as_a_scan_does(
    store: BlockStore, fan_out: int
) -> None:
    catalogue = Catalogue(Pages(store, fan_out))
    assert catalogue.ending_below(3) == 0
    ends = np.sort(np.random.default_rng(fan_out).integers(0, 60, 100)).tolist()
    for number, end in enumerate(ends):
        made = entry(number)
        made["code_max"] = end
        catalogue.append(made)
        for code in (-1, 0, end - 1, end, end + 1, 60):
            expected = sum(known < code for known in ends[: number + 1])
            assert catalogue.ending_below(code) == expected, (ends[: number + 1], code)


def test_split_tails_when_lists_lie_one_behind_another_then_finds_each_level(
    store: BlockStore,
) -> None:
    pages, tails = Pages(store, 2), []
    for side, count in enumerate([5, 1, 8]):
        catalogue = Catalogue(pages)
        for number in range(count):
            made = entry(number)
            made["side"] = side
            catalogue.append(made)
        tails += catalogue.tails
    found = split_tails(np.concatenate(tails), "side")
    assert [tail.tolist() for tail in found] == [tail.tolist() for tail in tails]
    assert split_tails(np.zeros(0, dtype=BLOCK), "side") == []


def ranged(store: BlockStore, fan_out: int, count: int, seed: int) -> tuple[Catalogue, np.ndarray]:
    """A list of entries with ranges of codes that wander, and the ranges themselves."""
    rng = np.random.default_rng(seed)
    low = np.cumsum(rng.integers(-3, 5, count))
    ranges = np.stack([low, low + rng.integers(0, 8, count)], axis=1)
    catalogue = Catalogue(Pages(store, fan_out))
    for number, (least, most) in enumerate(ranges):
        made = entry(number)
        made["code_min"], made["code_max"] = least, most
        catalogue.append(made)
    return catalogue, ranges


def reaching(low: int, high: int) -> Mask:
    return lambda entries: (entries["code_max"] >= low) & (entries["code_min"] <= high)


@pytest.mark.parametrize("fan_out", [2, 3, 16])
def test_select_when_gone_on_with_then_finds_what_a_scan_finds(
    store: BlockStore, fan_out: int
) -> None:
    catalogue, ranges = ranged(store, fan_out, 150, seed=fan_out)
    rng = np.random.default_rng(9)
    for _ in range(60):
        start, stop = np.sort(rng.integers(0, 151, 2)).tolist()
        low = int(rng.integers(-20, 160))
        high, most = low + int(rng.integers(0, 40)), int(rng.integers(1, 30))
        found: list[int] = []
        at = start
        while at < stop:
            numbers, entries, following = catalogue.select(at, stop, reaching(low, high), most)
            assert entries["offset"].tolist() == numbers.tolist()
            assert following == stop or most <= len(numbers) < most + fan_out
            found += numbers.tolist()
            at = following
        chosen = (ranges[:, 1] >= low) & (ranges[:, 0] <= high)
        assert found == [n for n in np.flatnonzero(chosen).tolist() if start <= n < stop]


def test_select_when_pages_cannot_matter_then_does_not_read_them(store: BlockStore) -> None:
    catalogue, _ = ranged(store, 4, 300, seed=1)
    read = []
    pages = catalogue._pages
    whole = pages.read
    pages.read = lambda page: read.append(page) or whole(page)  # type: ignore[method-assign,func-returns-value]
    catalogue.select(0, 300, reaching(50, 55), 300)
    assert 0 < len(read) < 300 / 4 / 3


@pytest.mark.parametrize("most", [1, 20, 1000])
def test_outline_when_asked_for_few_then_stands_for_all_that_a_scan_finds(
    store: BlockStore, most: int
) -> None:
    catalogue, ranges = ranged(store, 3, 200, seed=2)
    rng = np.random.default_rng(3)
    for _ in range(60):
        start, stop = np.sort(rng.integers(0, 201, 2)).tolist()
        low = int(rng.integers(-20, 200))
        entries, counts = catalogue.outline(start, stop, reaching(low, 10_000), most)
        numbers = np.arange(200)
        wanted = (ranges[:, 1] >= low) & (start <= numbers) & (numbers < stop)
        assert len(entries) == len(counts)
        assert wanted.sum() <= counts.sum() <= stop - start
        if wanted.any():
            assert entries["code_min"].min() <= ranges[wanted, 0].min()
            assert entries["code_max"].max() >= ranges[wanted, 1].max()
        if most == 1000:
            assert sorted(entries["offset"].tolist()) == np.flatnonzero(wanted).tolist()
            assert (counts == 1).all()
        else:
            assert len(entries) <= max(most, 3 * len(catalogue.tails))


def test_tails_when_a_list_has_any_length_then_take_no_more_than_foretold(
    store: BlockStore,
) -> None:
    pages = Pages(store, 4)
    catalogue = Catalogue(pages)
    for number in range(300):
        catalogue.append(entry(number))
        assert pages.tail_bytes <= pages.most_tail_bytes(number + 1)
