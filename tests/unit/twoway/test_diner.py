"""DINER from within: flushing, ReactiveNL left after every block, Cleanup, an input that has ended.

The oracle is told nothing by the operator: which rows are on which block is read from the blocks
themselves, and which of them match is found by comparing every row with every other.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.catalogue import Entries, concatenated
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context, Snapshot, Status
from dovetail.kernel.shell import quietly
from dovetail.twoway import ALGORITHMS, Diner, PaperDiner, TwoWaySpec
from dovetail.twoway.base import MIN_BUDGET_BYTES
from dovetail.twoway.diner.joins import DinerOptions
from dovetail.twoway.diner.regions import LOWER, MIDDLE, UPPER
from support.flushing import flush

SCHEMAS = [pa.schema([("k0", pa.int64()), (name, pa.int64())]) for name in ("left_id", "right_id")]
SPEC = TwoWaySpec(*SCHEMAS, ("k0",), ("k0",))
BAND = replace(SPEC, within=2)
ROW_BYTES = 37  # two integers, code, tick, place and bit
BLOCK_ROWS = 4
OPTIONS = DinerOptions(block_bytes=BLOCK_ROWS * ROW_BYTES, max_outer_blocks=2)
PAPER = replace(OPTIONS, zone_maps=False, cleanup="loop")
SWEEPING = replace(OPTIONS, cleanup="sweep")
SORTING = replace(OPTIONS, cleanup="sort")


class Bench:
    """An operator on a table, flushed by hand, with all that it was given and has emitted."""

    def __init__(
        self, directory: Path, spec: TwoWaySpec = SPEC, options: DinerOptions = OPTIONS,
        budget: int | None = None,
    ) -> None:  # fmt: skip
        self.directory, self.spec, self.options, self.budget = directory, spec, options, budget
        self.lives = 0
        self.keys: tuple[list[int], list[int]] = ([], [])
        self.found: list[tuple[int, int]] = []
        self.operator = self.make(None, ())

    def make(self, snapshot: Snapshot | None, files: tuple[str, ...]) -> Diner:
        self.lives += 1
        store = BlockStore(self.directory, self.spec.schemas, f"life{self.lives}", files)
        return Diner(self.spec, Context(Budget(self.budget), store), snapshot, self.options)

    def arrive(self, side: int, *keys: int) -> None:
        first = len(self.keys[side])
        self.keys[side].extend(keys)
        columns = [list(keys), list(range(first, first + len(keys)))]
        arrays = [pa.array(column, pa.int64()) for column in columns]
        self.take(self.operator.push(side, pa.record_batch(arrays, schema=SCHEMAS[side])))

    def flush(self, side: int, times: int = 1) -> None:
        for _ in range(times):
            flush(self.operator, side)
            quietly(self.operator._settle_rows())
            self.check()

    def poll(self, fuel: int = 1_000_000) -> None:
        self.take(self.operator.poll(fuel))

    def finish(self, *sides: int) -> None:
        for side in sides or SIDES:
            self.operator.finish(side)

    def clean_up(self, fuel: int = 1_000_000, restored: bool = False) -> int:
        """Both inputs end, and all is done; returns how many polls that took."""
        self.finish()
        polls = 0
        while self.operator.status() is not Status.DONE:
            self.poll(fuel)
            polls += 1
            assert polls < 5_000
            if restored:
                self.restore()
                self.finish()
        assert self.operator.pending() == 0
        return polls

    def restore(self) -> None:
        self.restart()
        self.check()

    def restart(self) -> None:
        snapshot = self.operator.snapshot()
        store = self.operator.ctx.store
        store.sync()
        store.close()
        self.operator = self.make(snapshot, tuple(store.files))

    def take(self, batches: Iterator[pa.RecordBatch]) -> None:
        for out in batches:
            ids = zip(out["left_id"].to_pylist(), out["right_id"].to_pylist(), strict=True)
            self.found += ids
        self.check()

    # -- what must hold ---------------------------------------------------------------------

    def matching(self, left: list[int], right: list[int]) -> set[tuple[int, int]]:
        reach = self.spec.within or 0
        return {
            (a, b) for a in left for b in right
            if abs(self.keys[LEFT][a] - self.keys[RIGHT][b]) <= reach
        }  # fmt: skip

    def entries(self, side: int) -> Entries:
        """What is known of all blocks of a side."""
        blocks = self.operator.joins.blocks[side]
        return concatenated(list(blocks.entries(0, len(blocks))))

    def block_rows(self, side: int, stop: int | None = None, start: int = 0) -> list[int]:
        """The ids of the rows in some of a side's blocks."""
        entries = self.entries(side)[start:stop]
        runs = [self.operator.ctx.store.read(block) for block in entries]
        return [number for run in runs for number in run.rows.column(1).to_pylist()]

    def memory_keys(self, side: int) -> list[int]:
        runs = self.operator.index[side].runs
        return sorted(key for run in runs for key in run.rows.column(0).to_pylist())

    def check(self) -> None:
        """The operator's own invariants, and those of ReactiveNL by the rows themselves."""
        self.operator.check()
        assert not [pair for pair, times in Counter(self.found).items() if times > 1]
        rectangle = self.operator.joins.rectangle
        met = [self.block_rows(side, rectangle.joined[side]) for side in SIDES]
        assert self.matching(*met) <= set(self.found), "a finished rectangle lacks pairs"
        outer, inner = rectangle.outer, rectangle.inner
        start = rectangle.joined[outer]
        chunk = [[], []]
        chunk[outer] = self.block_rows(outer, start + rectangle.chunk, start)
        chunk[inner] = self.block_rows(inner, rectangle.current_inner)
        assert self.matching(*chunk) <= set(self.found), "the open chunk lacks pairs"

    def assert_complete(self) -> None:
        everything = [list(range(len(keys))) for keys in self.keys]
        assert sorted(self.found) == sorted(self.matching(*everything))

    @property
    def phases(self) -> dict[str, int]:
        return self.operator.ctx.counters.rows_out


Benches = Callable[..., Bench]


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Benches]:
    """Makes benches, each in a directory of its own, and clears them away."""
    made: list[Bench] = []

    def make(**circumstances: Any) -> Bench:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Bench(directory, **circumstances))
        return made[-1]

    yield make
    for bench in made:
        bench.operator.ctx.store.close()


@pytest.fixture
def bench(benches: Benches) -> Bench:
    return benches()


def scattered(bench: Bench, seed: int, flushes: int, domain: int = 30) -> None:
    """Rows come to both sides and leave in blocks, so that many pairs have missed each other."""
    rng = np.random.default_rng(seed)
    for _ in range(flushes):
        for side in SIDES:
            bench.arrive(side, *rng.integers(0, domain, 6).tolist())
        bench.flush(int(rng.integers(2)))


# -- the flushing policy --------------------------------------------------------------------


def test_flush_when_it_is_the_first_then_takes_from_all_and_sets_both_bounds(bench: Bench) -> None:
    bench.arrive(LEFT, *range(40))
    regions = bench.operator.regions[LEFT]
    assert (regions.lower, regions.upper, regions.rows) == (None, None, [0, 40, 0])
    bench.flush(LEFT)
    left = bench.memory_keys(LEFT)
    assert len(left) == 40 - BLOCK_ROWS
    assert regions.lower == left[BLOCK_ROWS - 1]
    assert regions.upper == left[-BLOCK_ROWS]
    assert regions.rows == [BLOCK_ROWS, len(left) - 2 * BLOCK_ROWS, BLOCK_ROWS]
    assert bench.operator.regions[RIGHT].lower is None, "each relation has a first flush"


@pytest.mark.parametrize("region", [LOWER, MIDDLE, UPPER])
def test_flush_when_a_region_has_the_least_benefit_then_takes_from_it(
    bench: Bench, region: int
) -> None:
    bench.arrive(LEFT, *range(40))
    bench.flush(LEFT)
    before = bench.memory_keys(LEFT)
    regions = bench.operator.regions[LEFT]
    low, high = regions.reach(region)
    regions.joins = [100, 100, 100]
    regions.joins[region] = 0
    bench.flush(LEFT)
    gone = sorted(set(before) - set(bench.memory_keys(LEFT)))
    assert len(gone) == BLOCK_ROWS
    assert all(low <= key <= high for key in gone)
    if region == LOWER:
        assert gone == before[:BLOCK_ROWS]
        assert regions.lower == before[2 * BLOCK_ROWS - 1], "it holds a block again"
    if region == UPPER:
        assert gone == before[-BLOCK_ROWS:]
        assert regions.upper == before[-2 * BLOCK_ROWS]
    codes = bench.operator.ctx.store.read(bench.entries(LEFT)[-1]).codes
    assert codes.tolist() == gone, "a block is sorted"


def test_flush_when_memory_is_full_then_the_victim_has_the_most_rows(bench: Bench) -> None:
    bench.arrive(LEFT, *range(5))
    bench.arrive(RIGHT, *range(9))
    assert bench.operator._make_room()
    quietly(bench.operator._settle_rows())
    assert (len(bench.memory_keys(LEFT)), len(bench.memory_keys(RIGHT))) == (5, 9 - BLOCK_ROWS)


def test_clock_hand_when_some_rows_have_joined_then_takes_the_others(bench: Bench) -> None:
    bench.arrive(LEFT, *range(40))
    bench.flush(LEFT)
    regions = bench.operator.regions[LEFT]
    middle = [key for key in bench.memory_keys(LEFT) if regions.lower < key < regions.upper]
    joined = [key for number, key in enumerate(middle) if number % 4]
    bench.arrive(RIGHT, *joined)
    regions.joins = [100, 0, 100]
    bench.flush(LEFT)
    assert set(joined) <= set(bench.memory_keys(LEFT)), "rows that had joined went first"
    while len(bench.memory_keys(LEFT)) > 12:  # no further joins: the bits do not last
        regions.joins = [100, 0, 100]
        bench.flush(LEFT)
    assert not set(joined) <= set(bench.memory_keys(LEFT))


def test_clock_hand_when_called_again_then_goes_on_from_where_it_was(bench: Bench) -> None:
    bench.arrive(LEFT, *range(60))
    regions = bench.operator.regions[LEFT]
    bench.flush(LEFT)
    regions.hand = 20
    gone: list[int] = []
    for _ in range(3):
        before = set(bench.memory_keys(LEFT))
        regions.joins = [100, 0, 100]
        bench.flush(LEFT)
        gone += sorted(before - set(bench.memory_keys(LEFT)))
    untouched = [key for key in gone if key >= 20]
    assert untouched == gone == sorted(gone)


def test_regions_when_there_is_one_key_value_then_one_holds_all_and_blocks_are_full(
    bench: Bench,
) -> None:
    bench.arrive(LEFT, *[7] * 30)
    bench.flush(LEFT, times=5)
    regions = bench.operator.regions[LEFT]
    assert (regions.lower, regions.upper) == (7, 8), "the middle region is squeezed out"
    assert regions.rows == [30 - 5 * BLOCK_ROWS, 0, 0]
    assert (bench.entries(LEFT)["rows"] == BLOCK_ROWS).all()
    bench.arrive(LEFT, *range(100, 120))
    assert regions.rows[UPPER] == 20
    regions.joins = [100, 0, 0]
    bench.flush(LEFT)
    assert regions.rows[MIDDLE] > 0, "and comes back"


def test_flush_when_a_region_is_short_then_goes_on_with_the_next_least_benefit(
    bench: Bench,
) -> None:
    bench.arrive(LEFT, *range(40))
    bench.flush(LEFT)
    regions = bench.operator.regions[LEFT]
    regions.set_upper(bench.memory_keys(LEFT)[-2])  # two rows, half a block
    bench.operator.arriving.flushing[LEFT].count()
    regions.joins = [1, 1000, 0]
    before = bench.memory_keys(LEFT)
    bench.flush(LEFT)
    gone = sorted(set(before) - set(bench.memory_keys(LEFT)))
    assert gone == [*before[:2], *before[-2:]]


@pytest.mark.parametrize("spec", [SPEC, BAND], ids=["equality", "band"])
def test_counters_when_rows_arrive_then_equal_a_recount(benches: Benches, spec: TwoWaySpec) -> None:
    bench = benches(spec=spec)
    scattered(bench, seed=1, flushes=6)
    for regions in bench.operator.regions:
        regions.joins, regions.flushed = [0, 0, 0], False
    stored = [bench.memory_keys(side) for side in SIDES]
    expected = np.zeros((2, 3), dtype=int)
    rng = np.random.default_rng(2)
    for step in range(8):
        side = step % 2
        keys = rng.integers(0, 30, 4).tolist()
        for key in keys:
            joins = sum(abs(key - other) <= (spec.within or 0) for other in stored[1 - side])
            for each in SIDES:
                known = bench.operator.regions[each]
                region = UPPER if key >= known.upper else LOWER if key <= known.lower else MIDDLE
                expected[each, region] += joins
        stored[side] += keys
        bench.arrive(side, *keys)
    assert [regions.joins for regions in bench.operator.regions] == expected.tolist()
    assert expected.sum() > 0


def test_flush_when_needed_twice_for_one_batch_then_both_know_the_joins(benches: Benches) -> None:
    """A batch that takes several blocks must not be made room for on empty counters."""
    bench = benches(budget=MIN_BUDGET_BYTES, options=DinerOptions(block_bytes=2000))
    bench.arrive(LEFT, *range(600))
    bench.arrive(RIGHT, *range(590, 600))
    for regions in bench.operator.regions:
        regions.set_bounds(150, 450)
    for side in SIDES:
        bench.operator.arriving.flushing[side].count()
    bench.operator.regions[LEFT].joins = [50, 0, 900]  # nothing joins in the middle
    flushed = bench.operator.ctx.counters.blocks_written
    while bench.operator.ctx.counters.blocks_written < flushed + 3:
        bench.flush(LEFT)
    assert min(bench.memory_keys(LEFT)) == 0
    assert max(bench.memory_keys(LEFT)) == 599


# -- ReactiveNL -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [OPTIONS, PAPER], ids=["zone maps", "paper"])
@pytest.mark.parametrize("spec", [SPEC, BAND], ids=["equality", "band"])
@pytest.mark.parametrize("restored", [False, True], ids=["", "restored"])
@pytest.mark.parametrize("every", [1, 5], ids=["rows after each", "rows after every fifth"])
def test_reactive_when_left_after_every_block_then_every_pair_comes_once(
    benches: Benches, options: DinerOptions, spec: TwoWaySpec, restored: bool, every: int
) -> None:
    """Rows come, and a block is flushed, between any two blocks that are joined, or more rarely.

    `check` recounts the joined rectangle.
    """
    bench = benches(spec=spec, options=options)
    rng = np.random.default_rng(3)
    scattered(bench, seed=3, flushes=6)
    for step in range(40):
        bench.poll(1)
        if restored:
            bench.restore()
        if step % every == 0:
            side = int(rng.integers(2))
            bench.arrive(side, *rng.integers(0, 30, 6).tolist())
            bench.flush(side)
    assert not bench.operator.ended[LEFT]
    rectangle = bench.operator.joins.rectangle
    assert min(rectangle.joined) > 2, "not much was done"
    bench.clean_up(fuel=1)
    bench.assert_complete()


def test_reactive_when_the_outer_relation_is_exhausted_then_roles_change(bench: Bench) -> None:
    bench.arrive(LEFT, *range(8))
    bench.flush(LEFT, times=2)
    bench.arrive(RIGHT, *range(16))
    bench.flush(RIGHT, times=4)
    rectangle = bench.operator.joins.rectangle
    bench.poll()
    assert rectangle.outer == LEFT, "the smaller one is the outer one"
    assert rectangle.joined == [2, 4]
    assert bench.operator.pending() == 0
    bench.arrive(RIGHT, *range(8))
    bench.flush(RIGHT, times=2)
    bench.poll()
    assert rectangle.outer == RIGHT, "the new blocks are outer blocks"
    assert rectangle.joined == [2, 6]
    assert bench.operator.status() is Status.IDLE


def test_reactive_when_blocks_come_meanwhile_then_joined_inner_stays(benches: Benches) -> None:
    """Each chunk of outer blocks meets the same number of inner blocks."""
    bench = benches(options=PAPER)
    for side in SIDES:
        bench.arrive(side, *range(16))
        bench.flush(side, times=4)
    rectangle = bench.operator.joins.rectangle
    bench.poll(1)
    assert (rectangle.current_inner, rectangle.chunk) == (1, 2)
    assert rectangle.joined == [0, 4]
    bench.arrive(RIGHT, *range(8))
    bench.flush(RIGHT, times=2)
    while rectangle.outer == LEFT and rectangle.joined[LEFT] < 4:
        assert rectangle.joined[RIGHT] == 4
        bench.poll(1)
    bench.poll()
    assert rectangle.joined == [4, 6]


def test_reactive_when_enough_rows_wait_then_is_left_after_the_block(benches: Benches) -> None:
    bench = benches(options=PAPER)
    for side in SIDES:
        bench.arrive(side, *range(16))
        bench.flush(side, times=4)
    waiting = [OPTIONS.max_new_arrivals]
    bench.operator.waiting = lambda: waiting[0]
    read = bench.operator.ctx.counters.blocks_read
    waiting[0] += 1
    list(bench.operator.poll(1_000_000))
    assert bench.operator.ctx.counters.blocks_read == read + 2 + 1, "one chunk, one inner block"
    assert bench.operator.status() is Status.MORE
    waiting[0] -= 1
    list(bench.operator.poll(1_000_000))
    assert bench.operator.status() is Status.IDLE


def test_reactive_when_rows_were_in_memory_together_then_never_come_again(bench: Bench) -> None:
    for side in SIDES:
        bench.arrive(side, *range(12))
    assert len(bench.found) == 12
    for side in SIDES:
        bench.flush(side, times=3)
    bench.poll()
    bench.clean_up()
    assert bench.phases == {"arriving": 12}


def test_reactive_when_intervals_do_not_overlap_then_emits_as_in_the_worked_example(
    bench: Bench,
) -> None:
    bench.arrive(LEFT, 5)
    bench.flush(LEFT)
    bench.arrive(RIGHT, 5)
    bench.flush(RIGHT)
    entries = [bench.entries(side)[0] for side in SIDES]
    ticks = [(int(e["ats_min"]), int(e["dts"])) for e in entries]
    assert ticks == [(1, 2), (3, 4)]
    bench.poll()
    assert bench.found == [(0, 0)]
    assert bench.phases == {"reactive": 1}


def test_zone_maps_when_blocks_cannot_meet_then_are_not_read(benches: Benches) -> None:
    reads = {}
    for name, options in {"with": OPTIONS, "without": replace(OPTIONS, zone_maps=False)}.items():
        bench = benches(options=options)
        bench.arrive(LEFT, *range(40))
        bench.flush(LEFT, times=10)
        bench.arrive(RIGHT, *range(30, 70))
        bench.flush(RIGHT, times=10)
        before = bench.operator.ctx.counters.blocks_read
        list(bench.operator.poll(1_000_000))
        reads[name] = bench.operator.ctx.counters.blocks_read - before
        bench.clean_up()
    assert reads["with"] < reads["without"] / 3


# -- Cleanup --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SWEEPING, PAPER, SORTING], ids=["sweep", "paper", "sorting"])
@pytest.mark.parametrize("spec", [SPEC, BAND], ids=["equality", "band"])
@pytest.mark.parametrize("restored", [False, True], ids=["", "restored"])
def test_cleanup_when_left_after_every_block_then_every_pair_comes_once(
    benches: Benches, options: DinerOptions, spec: TwoWaySpec, restored: bool
) -> None:
    bench = benches(spec=spec, options=options)
    scattered(bench, seed=5, flushes=12)
    rectangle = bench.operator.joins.rectangle
    for _ in range(20):  # until part of the rectangle is done already, and a chunk is open
        bench.poll(1)
        if rectangle.current_inner and min(rectangle.joined):
            break
    assert rectangle.current_inner, "no chunk is open"
    assert bench.clean_up(fuel=1, restored=restored) > 5
    bench.assert_complete()
    assert bench.phases.get("cleanup", 0) > 0 or restored


@pytest.mark.parametrize("options", [SWEEPING, SORTING], ids=["sweep", "sorting"])
def test_cleanup_when_an_input_re_opens_in_its_middle_then_no_pair_is_lost_or_repeated(
    benches: Benches, options: DinerOptions
) -> None:
    bench = benches(options=options)
    rng = np.random.default_rng(6)
    scattered(bench, seed=6, flushes=8)
    for round_ in range(12):
        bench.finish()
        bench.poll(1 + 40 * (round_ % 3))
        side = round_ % 2
        bench.arrive(side, *rng.integers(0, 30, 6).tolist())
        if round_ % 3 == 0:
            bench.flush(side)
        if round_ % 4 == 0:
            bench.restore()
    bench.clean_up()
    bench.assert_complete()


def bytes_moved(operator: Diner, relations: list[pa.RecordBatch], expected: int) -> int:
    """What an operator writes and reads to join relations that come in turns."""
    found = 0
    for start in range(0, relations[LEFT].num_rows, 40):
        for side in SIDES:
            results = operator.push(side, relations[side].slice(start, 40))
            found += sum(out.num_rows for out in results)
    for side in SIDES:
        operator.finish(side)
    while operator.status() is not Status.DONE:
        found += sum(out.num_rows for out in operator.poll(100_000))
    assert found == expected
    return operator.ctx.counters.bytes_read + operator.ctx.counters.flushed_bytes


@pytest.mark.parametrize("wide", [True, False], ids=["wide blocks", "narrow blocks"])
def test_cleanup_when_there_is_much_to_join_then_moves_less_than_the_paper(
    tmp_path: Path, wide: bool
) -> None:
    rng = np.random.default_rng(7)
    keys = rng.integers(0, 3_000, (2, 3_000))
    if not wide:  # each side comes in order, but the sides do not come together
        keys = np.sort(keys)
        keys[RIGHT] = np.roll(keys[RIGHT], 1_500)
    schemas = [schema.append(pa.field(f"pad{i}", pa.string())) for i, schema in enumerate(SCHEMAS)]
    spec = TwoWaySpec(*schemas, ("k0",), ("k0",))
    padding = pa.array(["x" * 1_000] * keys.shape[1])
    columns = [[pa.array(side), pa.array(np.arange(len(side))), padding] for side in keys]
    relations = [pa.record_batch(columns[i], schema=schemas[i]) for i in SIDES]
    counts = [Counter(side.tolist()) for side in keys]
    expected = sum(number * counts[RIGHT][key] for key, number in counts[LEFT].items())
    moved = {}
    for kind in (Diner, PaperDiner):
        (tmp_path / kind.name).mkdir()
        store = BlockStore(tmp_path / kind.name, spec.schemas, "one")
        operator = kind(spec, Context(Budget(300_000), store))
        moved[kind.name] = bytes_moved(operator, relations, expected)
        store.close()
    assert moved["diner"] < (0.8 if wide else 0.5) * moved["diner-paper"], moved


def test_cleanup_when_done_then_rows_stay_in_memory_for_inputs_that_re_open(
    benches: Benches,
) -> None:
    bench = benches(budget=MIN_BUDGET_BYTES)
    bench.arrive(LEFT, *range(20))
    bench.flush(LEFT)
    bench.arrive(RIGHT, *range(20))
    bench.clean_up()
    assert len(bench.found) == 20
    arrived = bench.phases["arriving"]
    bench.arrive(LEFT, *range(20))
    assert bench.phases["arriving"] == arrived + 20, "they were met at once"
    written = bench.operator.ctx.counters.flushed_rows
    bench.clean_up()
    assert bench.operator.ctx.counters.flushed_rows == written, "they had nothing left to meet"
    bench.assert_complete()


class Spells:
    """More rows than a bench can check one by one, and how many results there were at once."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.at_once = self.found = 0

    @property
    def operator(self) -> Diner:
        return self._bench.operator

    def arrive(self, keys: dict[int, list[int]]) -> None:
        for side, some in keys.items():
            rows = pa.record_batch([pa.array(some)] * 2, schema=SCHEMAS[side])
            self.at_once += sum(out.num_rows for out in self.operator.push(side, rows))

    def be_silent(self, restored: bool = False) -> None:
        self._bench.finish()
        while self.operator.status() is not Status.DONE:
            self.found += sum(out.num_rows for out in self.operator.poll(100_000))
        if restored:
            self._bench.restart()
        self.found, self.at_once = self.found + self.at_once, 0


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored"])
@pytest.mark.parametrize("first", SIDES)
def test_silence_when_rows_of_both_sides_come_again_then_they_meet_what_was_in_memory(
    benches: Benches, first: int, restored: bool
) -> None:
    rng = np.random.default_rng(11)
    drawn = rng.geometric(0.003, (40, 2, 200))
    circumstances = {"budget": 4 * MIN_BUDGET_BYTES, "options": DinerOptions()}
    one, other = Spells(benches(**circumstances)), Spells(benches(**circumstances))
    for number, keys in enumerate(drawn):
        if number == 20:
            assert all(map(len, one.operator.joins.blocks)), "nothing was flushed"
            one.be_silent(restored)
            other.found, other.at_once = other.at_once, 0
        for spells in (one, other):
            spells.arrive({side: keys[side].tolist() for side in (first, 1 - first)})
        if number == 20:
            known = [one.operator.loaded.rows(side) for side in SIDES]
            assert min(known) > max(known) / 2, "one side was given up for the other"
    assert one.at_once > 0.74 * other.at_once, "rows that had been in memory were not met"
    one.be_silent()
    counts = [Counter(side.ravel().tolist()) for side in drawn.transpose(1, 0, 2)]
    assert one.found == sum(many * counts[RIGHT][key] for key, many in counts[LEFT].items())


def test_silence_when_one_input_alone_goes_on_then_its_end_is_the_end(benches: Benches) -> None:
    bench = benches(budget=MIN_BUDGET_BYTES)
    bench.arrive(LEFT, *range(20))
    bench.clean_up()
    bench.arrive(RIGHT, *range(20))
    bench.finish(RIGHT)
    assert bench.operator.status() is Status.DONE, "nobody said that the other one goes on"
    bench.assert_complete()


def test_loads_when_all_is_done_then_are_forgotten(bench: Bench) -> None:
    scattered(bench, seed=8, flushes=4)
    bench.clean_up()
    while bench.operator.loaded.give_up():
        pass
    assert bench.operator.joins.loads
    bench.arrive(LEFT, 1)
    bench.flush(LEFT)
    bench.clean_up()
    assert bench.operator.joins.loads == []
    bench.assert_complete()


# -- an input that has ended ----------------------------------------------------------------


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored after every step"])
def test_ended_input_when_the_other_goes_on_then_is_loaded_back_and_met_at_once(
    benches: Benches, restored: bool
) -> None:
    bench = benches(budget=MIN_BUDGET_BYTES, options=DinerOptions(block_bytes=1000))
    rng = np.random.default_rng(9)
    for start in range(0, 600, 50):
        bench.arrive(LEFT, *range(start, start + 50))
        bench.arrive(RIGHT, *(10_000 + rng.integers(0, 9, 60)).tolist())
    flushed = bench.block_rows(LEFT)
    assert flushed, "nothing of the left side was flushed"
    bench.finish(LEFT)
    for start in range(0, 600, 50):
        bench.arrive(RIGHT, *range(start, start + 50))
        if restored:
            bench.restore()
            bench.finish(LEFT)
        elif start == 0:
            assert bench.memory_keys(RIGHT) == sorted(range(50)), "the older ones were flushed"
            assert len(bench.operator.loaded) > 0
    met = {a for a, _ in bench.found}
    assert met & set(flushed), "none of the rows that were loaded back was met on arrival"
    assert "cleanup" not in bench.phases
    bench.clean_up()
    bench.assert_complete()


def test_ended_input_when_it_re_opens_then_its_rows_meet_all(benches: Benches) -> None:
    bench = benches(budget=MIN_BUDGET_BYTES, options=DinerOptions(block_bytes=1000))
    rng = np.random.default_rng(10)
    for round_ in range(16):
        bench.finish(round_ % 2)
        for side in (1 - round_ % 2, round_ % 2):
            bench.arrive(side, *rng.integers(0, 300, 70).tolist())
        if round_ % 5 == 4:
            bench.poll(100)
    assert bench.operator.ctx.counters.flushed_rows > 0
    bench.clean_up()
    bench.assert_complete()


def test_ended_input_when_told_not_to_then_is_left_on_disk(benches: Benches) -> None:
    options = DinerOptions(block_bytes=1000, load_ended=False)
    bench = benches(budget=MIN_BUDGET_BYTES, options=options)
    for start in range(0, 2000, 50):
        bench.arrive(LEFT, *range(start, start + 50))
    assert len(bench.operator.joins.blocks[LEFT])
    bench.finish(LEFT)
    bench.arrive(RIGHT, *range(50))
    assert len(bench.operator.loaded) == 0
    bench.clean_up()
    bench.assert_complete()


# -- the two that can be asked for ----------------------------------------------------------


def test_paper_when_made_by_name_then_leaves_out_what_was_added() -> None:
    assert ALGORITHMS["diner-paper"] is PaperDiner
    assert not PaperDiner.default_options.zone_maps
    assert PaperDiner.default_options.cleanup == "loop"
    assert PaperDiner.default_options.load_ended, "the footnote is the paper's"
    assert Diner.default_options.zone_maps


@pytest.mark.parametrize("name", ["block_bytes", "max_outer_blocks", "max_new_arrivals"])
def test_options_when_out_of_range_then_are_refused_by_name(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}=-1"):
        DinerOptions(**{name: -1})


@pytest.mark.parametrize("budget", [MIN_BUDGET_BYTES, 2 << 20, 64 << 20])
def test_block_size_when_not_given_then_suits_the_budget(tmp_path: Path, budget: int) -> None:
    operator = Diner(SPEC, Context(Budget(budget), BlockStore(tmp_path, SPEC.schemas, "one")))
    assert operator.block_bytes <= operator.working_bytes // 6
    assert operator.block_bytes <= max(10 << 10, budget // 200)
    assert operator._slice_bytes <= operator.working_bytes // 8


def test_flush_when_an_arrival_needs_more_than_a_block_then_takes_that_at_once(
    benches: Benches,
) -> None:
    bench = benches(budget=4 << 20, options=DinerOptions())
    for start in range(0, 105_000, 3_500):
        bench.arrive(LEFT, *range(start, start + 3_500))
    sizes = bench.entries(LEFT)["rows"] * ROW_BYTES
    assert len(sizes) > 2
    assert np.median(sizes) > 2 * bench.operator.block_bytes
    assert sizes.max() <= bench.operator.working_bytes // 6
