"""DINER with more on disk than its catalogue would have room for in memory."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.errors import StateError
from dovetail.kernel.catalogue import Entries, Pages
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Status
from dovetail.twoway import Diner
from dovetail.twoway.base import MIN_BUDGET_BYTES
from dovetail.twoway.diner.joins import DinerOptions
from support.arrivals import Finish, Poll, Push, Restore, Step
from support.conformance import assert_exactly_once, run_script
from support.flushing import flush
from support.generators import Shape, join_spec, make_relations
from support.oracle import nested_loop

DINERS = ("diner", "diner-paper")


@pytest.fixture
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Pages as small as they can be; counts those of each kind."""
    written: Counter[int] = Counter()
    write = Pages.write

    def count(self: Pages, entries: Entries) -> Entries:
        written[int(entries["kind"][0])] += 1
        return write(self, entries)

    monkeypatch.setattr(Diner, "page_entries", 2)
    monkeypatch.setattr(Pages, "write", count)
    return written


@pytest.fixture
def cleanup(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how blocks meet in Cleanup."""

    def choose(way: Any) -> None:
        options = replace(DinerOptions(), cleanup=way, max_outer_blocks=2)
        monkeypatch.setattr(Diner, "default_options", options)

    return choose


# -- any size -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", DINERS)
def test_join_when_its_disk_part_is_hundreds_of_times_the_budget_then_goes_on(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """All rows come, and some of what is left is done: a loop over all is a matter of minutes."""
    bench = make_bench(algorithm, budget=MIN_BUDGET_BYTES, payload_bytes=6_000)
    check = Diner.check
    monkeypatch.setattr(Diner, "check", lambda _: None)
    keys = np.random.default_rng(0).integers(0, 2_000, 2_300)
    flushed = peak = catalogue = 0

    def note() -> None:
        nonlocal flushed, peak, catalogue
        check(bench.operator)
        budget = bench.operator.ctx.budget
        flushed += bench.operator.ctx.counters.flushed_bytes
        peak, catalogue = max(peak, budget.peak_bytes), max(catalogue, budget.peaks["catalogue"])

    for start in range(0, len(keys), 3):
        bench.push(LEFT, keys[start : start + 3])
        if start % 30 == 0:
            bench.push(RIGHT, [keys[start]])
        if start % 600 == 300:
            note()
            bench.restore()
    note()
    bench.finish()
    for _ in range(10):
        bench.poll(2_000)
    note()
    assert flushed > 200 * MIN_BUDGET_BYTES
    assert peak <= MIN_BUDGET_BYTES
    assert catalogue < MIN_BUDGET_BYTES / 6
    assert bench.operator.ctx.counters.blocks_read > 50
    found, expected = Counter(bench.found), Counter(bench.expected())
    assert found
    assert found <= expected, "a pair came twice, or does not match"


@pytest.mark.parametrize("way", ["sweep", "sort", "cheapest"])
def test_cleanup_when_its_disk_part_is_hundreds_of_times_the_budget_then_completes(
    make_bench: Any, cleanup: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    cleanup(way)
    bench = make_bench("diner", budget=MIN_BUDGET_BYTES, payload_bytes=6_000)
    keys = np.random.default_rng(1).integers(0, 3_000, 2_200)
    with monkeypatch.context() as patch:
        patch.setattr(Diner, "check", lambda _: None)  # it takes longer than all the rest
        for start in range(0, len(keys), 4):
            bench.push(LEFT, keys[start : start + 4])
            if start % 400 == 200:
                bench.push(RIGHT, keys[start : start + 2])
    bench.finish()
    while bench.operator.status() is not Status.DONE:
        bench.poll(200_000)
    assert bench.operator.ctx.counters.flushed_bytes > 200 * MIN_BUDGET_BYTES
    assert bench.operator.ctx.budget.peak_bytes <= MIN_BUDGET_BYTES
    bench.assert_each_pair_once()


@pytest.mark.parametrize("way", ["sweep", "sort", "loop"])
@pytest.mark.parametrize("domain", [25, 1])
def test_join_when_restored_after_every_block_and_paged_then_emits_each_pair_once(
    tmp_path: Path, cleanup: Any, pages_of_two: Counter[int], way: str, domain: int
) -> None:
    cleanup(way)
    shape = Shape(90, ("int64",), domain=domain, payload_bytes=700)
    relations = make_relations(np.random.default_rng(1), shape, shape)
    spec = join_spec(relations)
    script: list[Step] = []
    for number in range(18):
        script += [Push(LEFT, 5), Push(RIGHT, 5), Restore()]
        script += [Poll(1), Restore()] * (number % 3)
    script += [Finish(LEFT), Finish(RIGHT), *([Poll(1), Restore()] * 100)]
    outcome = run_script("diner", spec, relations, script, MIN_BUDGET_BYTES, tmp_path / "run")
    assert_exactly_once(outcome, nested_loop(spec, *relations))
    assert outcome.events["interrupted cleanups"] > 10
    assert outcome.rows_out["cleanup"] > 0
    assert len(pages_of_two) > (2 if way == "sort" else 1), f"pages of pages: {pages_of_two}"


# -- snapshots ------------------------------------------------------------------------------


def save(bench: Any, number: int) -> Any:
    """A snapshot, after which the operator goes on with other files."""
    snapshot = bench.operator.snapshot()
    store = bench.operator.ctx.store
    store.sync()
    store.begin(f"save{number}", bench.operator.ctx.counters)
    return snapshot


def test_snapshot_when_four_times_as_much_is_on_disk_then_is_about_as_large(
    make_bench: Any, pages_of_two: Counter[int]
) -> None:
    bench = make_bench("diner")
    sizes = []
    for number in range(320):
        bench.push(number % 2, [1, 2, 3])
        while len(bench.operator.index[number % 2]):
            flush(bench.operator, number % 2)
        if number % 5 == 4:
            snapshot = save(bench, number)
            sizes.append(snapshot.blocks.nbytes + len(json.dumps(snapshot.meta)))
    assert pages_of_two.total() > 200
    assert max(sizes[48:]) < 1.5 * max(sizes[8:16]), f"bytes of the snapshots: {sizes}"


def test_sorted_blocks_when_cleanup_is_done_then_their_files_are_not_named_any_more(
    make_bench: Any, cleanup: Any, pages_of_two: Counter[int]
) -> None:
    """And none that is needed goes: all that no version names is deleted as soon as may be."""
    cleanup("sort")
    bench = make_bench("diner", budget=MIN_BUDGET_BYTES, payload_bytes=700)
    keys = np.random.default_rng(2).integers(0, 60, (2, 120))
    for start in range(0, 120, 10):
        for side in SIDES:
            bench.push(side, keys[side][start : start + 10])
    number, most = 0, 0
    bench.finish()
    while bench.operator.status() is not Status.DONE:
        bench.poll(200)
        saved = save(bench, number)
        _, held = bench.operator.ctx.store.in_use(saved.blocks)
        for path in bench.directory.iterdir():
            if path.name not in {*held, *saved.files}:
                path.unlink()
        bench.restore()
        number += 1
        most = max(most, sum("disk" in name for name in saved.files))
    bench.assert_each_pair_once()
    assert most > 3, "sorting took several versions"
    assert not any("disk" in name for name in bench.operator.snapshot().files)


def test_block_when_flushed_later_than_can_be_told_then_is_refused(make_bench: Any) -> None:
    bench = make_bench("diner")
    bench.operator.ctx.clock.now = (1 << 31) - 2
    for side in SIDES:
        bench.push(side, [1])
        flush(bench.operator, side)
    with pytest.raises(StateError, match="more than the 2147483647 that DINER tells apart"):
        bench.poll()
