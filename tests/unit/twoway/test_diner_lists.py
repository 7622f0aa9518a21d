"""DINER's lists of blocks, against the same blocks in a plain array."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.blocks import BLOCK, LOGGED, NEVER, BlockStore
from dovetail.kernel.catalogue import Entries, Pages
from dovetail.kernel.keys import KeyCodec
from dovetail.twoway.diner.costs import held_bytes, total_bytes
from dovetail.twoway.diner.lists import BlockList, Upcoming
from dovetail.twoway.diner.meeting import ZoneMaps, condensed


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    store = BlockStore(tmp_path, (pa.schema([("k", pa.int64())]),), "one")
    yield Pages(store, 3)
    store.close()


def flushed(rng: np.random.Generator, count: int) -> Entries:
    """Entries of blocks as flushes leave them."""
    entries = np.zeros(count, dtype=BLOCK)
    entries["kind"] = LOGGED
    entries["dts"] = 2 + np.cumsum(rng.integers(1, 4, count))
    entries["ats_max"] = entries["dts"] - rng.integers(1, 3, count)
    entries["ats_min"] = entries["ats_max"] - rng.integers(0, 9, count)
    entries["code_min"] = rng.integers(0, 500, count)
    entries["code_max"] = entries["code_min"] + rng.integers(0, 60, count)
    entries["rows"] = rng.integers(1, 50, count)
    entries["length"] = 100 * entries["rows"]
    return entries


def listed(pages: Pages, entries: Entries) -> BlockList:
    blocks = BlockList(pages)
    for entry in entries:
        blocks.append(entry)
    blocks.check()
    return blocks


def test_upcoming_when_a_list_grows_meanwhile_then_brings_each_block_that_reaches(
    pages: Pages,
) -> None:
    entries = flushed(np.random.default_rng(1), 120)
    blocks = listed(pages, entries[:80])
    found = []
    upcoming = Upcoming(blocks.windows(7, 80, 5, 100, 300))
    for (number, entry), later in zip(upcoming, entries[80:], strict=False):
        assert entry == entries[number]
        found.append(number)
        blocks.append(later)
    found += [number for number, _ in upcoming]
    reaching = (entries["code_max"] >= 100) & (entries["code_min"] <= 300)
    assert found == [n for n in np.flatnonzero(reaching).tolist() if 7 <= n < 80]
    assert not upcoming
    assert upcoming.peek() is None


def test_dts_when_asked_by_number_then_is_the_block_s_or_never(pages: Pages) -> None:
    entries = flushed(np.random.default_rng(2), 40)
    blocks = listed(pages, entries)
    assert [blocks.dts_at(n) for n in range(40)] == entries["dts"].tolist()
    assert blocks.dts_at(40) == NEVER
    assert BlockList(pages).dts_at(0) == NEVER


def test_estimate_when_blocks_are_few_then_is_exact_and_else_near(pages: Pages) -> None:
    entries = flushed(np.random.default_rng(3), 300)
    blocks = listed(pages, entries)
    assert blocks.held_bytes == held_bytes(entries).sum()
    exact = blocks.estimate(20, 250, most=1000)
    assert np.sort(exact, order="dts").tolist() == entries[20:250].tolist()
    rough = blocks.estimate(20, 250, most=40)
    assert len(rough) <= 40
    assert total_bytes(rough) == pytest.approx(total_bytes(entries[20:250]), rel=0.2)
    assert int(rough["code_min"].min()) <= int(entries[20:250]["code_min"].min())
    assert len(blocks.estimate(0, 300, 40, low=600)) == 0


def test_condensed_when_blocks_may_meet_others_then_may_meet_them_too() -> None:
    rng = np.random.default_rng(4)
    zones = ZoneMaps(KeyCodec((pa.int64(),), None))
    outer, inner = flushed(rng, 90), flushed(rng, 200)
    for start in range(0, 90, 10):
        some = outer[start : start + 30]
        whole = zones.may_meet(some, inner)
        few = condensed(some, 4)
        assert len(few) <= 4
        assert (zones.may_meet(few, inner) | ~whole).all()
        assert condensed(some, 30) is some
    assert not zones.may_meet(condensed(outer[:5], 2), inner).all(), "it says nothing any more"
