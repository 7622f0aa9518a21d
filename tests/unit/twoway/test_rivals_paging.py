"""The rivals with more on disk than their catalogues would have room for in memory."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.catalogue import Entries, Pages
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Status
from dovetail.twoway import ProgressiveMergeJoin, XJoin
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.arrivals import Finish, Poll, Push, Restore, Step
from support.conformance import assert_exactly_once, run_script
from support.generators import Shape, join_spec, make_relations
from support.oracle import nested_loop

MERGING = ("hmj", "pmj")


@pytest.fixture
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Pages as small as they can be; counts those of each kind."""
    written: Counter[int] = Counter()
    write = Pages.write

    def count(self: Pages, entries: Entries) -> Entries:
        written[int(entries["kind"][0])] += 1
        return write(self, entries)

    for kind in (XJoin, ProgressiveMergeJoin):
        monkeypatch.setattr(kind, "page_entries", 2)
    monkeypatch.setattr(Pages, "write", count)
    return written


@pytest.mark.parametrize("algorithm", [*MERGING, "rpj", "dphj"])
def test_join_when_its_disk_part_is_hundreds_of_times_the_budget_then_goes_on(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """All rows come, and some of what is left is done: all of it would be a matter of minutes."""
    bench = make_bench(algorithm, budget=MIN_BUDGET_BYTES, payload_bytes=6_000)
    check = type(bench.operator).check
    monkeypatch.setattr(type(bench.operator), "check", lambda _: None)  # looks at every segment
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


@pytest.mark.parametrize(("algorithm", "within"), [("hmj", None), ("pmj", None), ("pmj", 3)])
def test_join_when_rows_are_of_200_bytes_and_the_budget_is_the_least_then_emits_each_pair_once(
    make_bench: Any, algorithm: str, within: int | None
) -> None:
    bench = make_bench(algorithm, budget=MIN_BUDGET_BYTES, payload_bytes=200, within=within)
    keys = np.random.default_rng(1).integers(0, 2_000, (2, 800))
    for start in range(0, 800, 50):
        for side in SIDES:
            bench.push(side, keys[side][start : start + 50])
    assert bench.operator.ctx.counters.flushed_bytes > 4 * MIN_BUDGET_BYTES
    bench.complete()
    bench.assert_each_pair_once()
    assert bench.operator.ctx.budget.peak_bytes <= MIN_BUDGET_BYTES


@pytest.mark.parametrize("algorithm", MERGING)
@pytest.mark.parametrize("domain", [25, 1])
def test_join_when_restored_after_every_block_and_paged_then_emits_each_pair_once(
    tmp_path: Path, pages_of_two: Counter[int], algorithm: str, domain: int
) -> None:
    shape = Shape(90, ("int64",), domain=domain, payload_bytes=700)
    relations = make_relations(np.random.default_rng(1), shape, shape)
    spec = join_spec(relations)
    script: list[Step] = []
    for number in range(18):
        script += [Push(LEFT, 5), Push(RIGHT, 5), Restore()]
        script += [Poll(1), Restore()] * (number % 3)
    script += [Finish(LEFT), Finish(RIGHT), *([Poll(1), Restore()] * 100)]
    outcome = run_script(algorithm, spec, relations, script, MIN_BUDGET_BYTES, tmp_path / "run")
    assert_exactly_once(outcome, nested_loop(spec, *relations))
    assert outcome.events["interrupted cleanups"] > 10
    assert outcome.rows_out["cleanup"] > 0
    assert len(pages_of_two) > 2, f"segments, their blocks, and pages of pages: {pages_of_two}"


@pytest.mark.parametrize("algorithm", MERGING)
def test_snapshot_when_four_times_as_much_is_on_disk_then_is_about_as_large(
    make_bench: Any, pages_of_two: Counter[int], algorithm: str
) -> None:
    bench = make_bench(algorithm)
    sizes = []
    for number in range(160):
        bench.push(number % 2, [1, 2, 3])
        write_all(bench)
        if number % 5 == 4:
            snapshot = save(bench, number)
            assert snapshot.blocks.dtype == BLOCK
            sizes.append(snapshot.blocks.nbytes + len(json.dumps(snapshot.meta)))
    assert pages_of_two.total() > 100
    assert max(sizes[24:]) < 1.6 * max(sizes[4:8]), f"bytes of the snapshots: {sizes}"


@pytest.mark.parametrize("algorithm", MERGING)
def test_files_when_all_that_they_hold_was_merged_then_are_not_named_any_more(
    make_bench: Any, algorithm: str
) -> None:
    """Otherwise the disk part would grow by all that was ever written."""
    bench = make_bench(algorithm)
    bench.operator.merger._asked_fan_in = 2
    for number in range(12):
        for side in SIDES:
            bench.push(side, [1, 2, 3])
        write_all(bench)
        save(bench, number)
    bench.finish()
    while bench.operator.status() is not Status.DONE:
        number += 1
        bench.poll(50)
        named = set(save(bench, number).files)
    for path in bench.directory.glob("*-log.arrows"):
        if path.name not in named:
            path.unlink()
    kept = sum(path.stat().st_size for path in bench.directory.glob("*left-log.arrows"))
    live = sum(int(found.blocks[LEFT]["length"].sum()) for found in segments(bench))
    assert kept < 3 * live, f"{kept} bytes are kept for {live}; {number} versions were written"
    bench.restore()
    bench.push(LEFT, [1, 2])
    bench.complete()
    bench.assert_each_pair_once()


def write_all(bench: Any) -> None:
    """What a full memory does, less the results: pairs that have not met are left to the merge."""
    operator = bench.operator
    if operator.name == "pmj":
        operator._make_room()
    else:
        operator.flush_cells(SIDES, np.ones(len(operator.cells), dtype=bool))


def save(bench: Any, number: int) -> Any:
    """A snapshot, after which the operator goes on with other files."""
    snapshot = bench.operator.snapshot()
    store = bench.operator.ctx.store
    store.sync()
    store.begin(f"save{number}", bench.operator.ctx.counters)
    return snapshot


def segments(bench: Any) -> list[Any]:
    return [s for part in bench.operator.merger.parts for s in bench.segments(part)]
