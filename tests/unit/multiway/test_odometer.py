"""Which blocks have been joined, which are next, and what is left wherever one stops."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.blocks import BLOCK, LOGGED, NEVER, BlockStore
from dovetail.kernel.catalogue import Pages
from dovetail.multiway import multiway_spec
from dovetail.multiway.cells import Box, Cell
from dovetail.multiway.odometer import Odometer, join_sequences
from dovetail.multiway.payload import Payload
from dovetail.multiway.rows import Part
from dovetail.multiway.spec import MultiWaySpec

SCHEMA = pa.schema([(name, pa.int64()) for name in "abcdef"])


def spec_of(*edges: tuple[int, int]) -> MultiWaySpec:
    inputs = {f"r{i}": SCHEMA for i in range(1, len(edges) + 2)}
    return multiway_spec(
        inputs, [(f"r{a}.{c}", f"r{b}.{c}") for (a, b), c in zip(edges, "abcdef", strict=False)]
    )


CHAIN = spec_of((1, 2), (2, 3), (3, 4))
SNOWFLAKE = spec_of((1, 2), (2, 3), (3, 4), (2, 5), (3, 6))  # Figure 6


def block(ats: tuple[int, int] = (1, 1), dts: int = 2) -> np.void:
    entry = np.zeros(1, dtype=BLOCK)
    entry["kind"], entry["rows"] = LOGGED, 1
    entry["ats_min"], entry["ats_max"] = ats
    entry["dts"] = dts
    return entry[0]


MakeCell = Callable[..., Cell]


@pytest.fixture
def cell_of(tmp_path: Path) -> Iterator[MakeCell]:
    """A cell with so many blocks of each relation."""
    store = BlockStore(tmp_path, (SCHEMA,), "test")

    def make(*sizes: int) -> Cell:
        cell = Cell.empty(0, [1] * len(sizes), Pages(store, 2))
        for relation, size in enumerate(sizes):
            for _ in range(size):
                add_block(cell, relation)
        return cell

    yield make
    store.close()


def add_block(cell: Cell, relation: int, ats: int = 1, dts: int = 2) -> None:
    cell.relations[relation].append(block((ats, ats), dts), [(0, 9)])


def nothing() -> Part:
    none = np.zeros(0, dtype=np.int64)
    return Part([none], none, none, Payload())


def combinations(box: Box) -> list[tuple[int, ...]]:
    ranges = (range(a, b) for a, b in zip(box.low, box.high, strict=True))
    return list(itertools.product(*ranges))


# -- the rectangle --------------------------------------------------------------------------


def test_cell_when_blocks_come_in_turns_then_boxes_cover_each_combination_once(
    cell_of: MakeCell,
) -> None:
    rng = np.random.default_rng(2)
    cell = cell_of(0, 0, 0)
    done: Counter[tuple[int, ...]] = Counter()
    for _ in range(25):
        for _ in range(int(rng.integers(0, 4))):
            add_block(cell, int(rng.integers(3)))
        if rng.random() < 0.5 and (box := cell.next_box()) is not None:
            done.update(combinations(box))
            cell.replace([])
        cell.check()
    while (box := cell.next_box()) is not None:
        done.update(combinations(box))
        cell.replace([])
    every = itertools.product(*(range(size) for size in cell.sizes))
    assert done == Counter(every)
    assert cell.unmet_rows(cell.boxes) == 0


def test_cell_when_one_relation_has_no_block_then_there_is_nothing_to_do(
    cell_of: MakeCell,
) -> None:
    cell = cell_of(3, 0, 2)
    assert cell.next_box() is None
    assert cell.unmet_rows(cell.boxes) == 0
    add_block(cell, 1)
    box = cell.next_box()
    assert box == Box(1, [0, 0, 0], [3, 1, 2]), "the smallest is the outer one"


def test_cell_when_roles_change_then_new_blocks_meet_all_joined_ones(
    cell_of: MakeCell,
) -> None:
    cell = cell_of(2, 2, 2)
    assert cell.next_box() == Box(0, [0, 0, 0], [2, 2, 2])
    add_block(cell, 2)
    assert cell.next_box() == Box(0, [0, 0, 0], [2, 2, 2]), "what was begun goes on"
    cell.replace([])
    assert cell.next_box() == Box(2, [0, 0, 2], [2, 2, 3])


@pytest.mark.parametrize(
    ("newest", "blocks", "expected"),
    [
        # nothing has left memory
        ([5, 6, 7], {}, [False, False, False]),
        # a block left at 4, and all others came before
        ([1, 2, 3], {1: (1, 4)}, [False, False, False]),
        # the third came after it had left: so does whoever completes the combination
        ([1, 2, 5], {1: (1, 4)}, [True, False, True]),
        # blocks of two relations that never met, for the third to complete
        ([-1, -1, 1], {0: (2, 3), 1: (4, 5)}, [False, False, True]),
        # nobody came for the second relation
        ([9, -1, 9], {0: (1, 2)}, [False, False, False]),
        # rows that a block holds but that are still in memory
        ([9, 9, 9], {0: (1, NEVER)}, [False, False, False]),
    ],
)
def test_unmet_when_rows_are_in_memory_then_tells_who_has_to_be_written(
    newest: list[int], blocks: dict[int, tuple[int, int]], expected: list[bool], cell_of: MakeCell
) -> None:
    cell = cell_of(0, 0, 0)
    for relation, (ats, dts) in blocks.items():
        add_block(cell, relation, ats, dts)
    assert [cell.has_unmet(relation, newest) for relation in range(3)] == expected


def test_copies_when_they_leave_memory_then_their_blocks_have_departed(cell_of: MakeCell) -> None:
    cell = cell_of(3)
    blocks = cell.relations[0]
    for _ in range(3):
        add_block(cell, 0, 5, NEVER)
    add_block(cell, 0, 6, 7)
    add_block(cell, 0, 8, NEVER)
    entries = [blocks.lists[0].entry(number) for number in range(len(blocks))]
    assert [blocks.departed(n, e) for n, e in enumerate(entries)] == [2] * 3 + [NEVER] * 3 + [
        7, NEVER,
    ]  # fmt: skip
    assert blocks.facts(9)["departures"] == [[3, 8, 9]], "in a snapshot they have left"
    blocks.drop_copies(11)
    add_block(cell, 0, 12, NEVER)
    blocks.drop_copies(13)
    add_block(cell, 0, 14, NEVER)
    assert blocks.departures == [[3, 8, 11], [8, 9, 13], [9, 10, NEVER]]
    assert [blocks.departed(n, blocks.lists[0].entry(n)) for n in range(5, 10)] == [
        11, 7, 11, 13, NEVER,
    ]  # fmt: skip
    cell.check()
    blocks.forget_departures()
    assert blocks.departures == [[3, 9, 13], [9, 10, NEVER]]
    assert [blocks.departed(n, blocks.lists[0].entry(n)) for n in range(5, 10)] == [
        13, 7, 13, 13, NEVER,
    ]  # fmt: skip
    cell.check()


# -- the wheels -----------------------------------------------------------------------------


def test_sequences_when_a_relation_in_the_middle_is_outer_then_there_are_two() -> None:
    plan = join_sequences(CHAIN, 1, [9, 1, 1, 1])
    assert [reach.child for reach in plan] == [2, 3, 0], "that with the most blocks has priority"
    assert [reach.child for reach in join_sequences(CHAIN, 0, [1] * 4)] == [1, 2, 3]


def test_sequences_when_the_graph_is_a_snowflake_then_are_those_of_the_figure() -> None:
    plan = join_sequences(SNOWFLAKE, 2, [1, 1, 1, 1, 1, 1])
    assert [reach.child + 1 for reach in plan] == [4, 6, 2, 1, 5]
    assert {(reach.parent + 1, reach.child + 1) for reach in plan} == {
        (3, 4), (3, 6), (3, 2), (2, 1), (2, 5),
    }  # fmt: skip


def test_remaining_when_left_midway_then_is_as_in_the_example(
    cell_of: MakeCell,
) -> None:
    cell = cell_of(5, 4, 4)
    chain = spec_of((1, 2), (2, 3))
    box = Box(0, [0, 0, 0], [5, 4, 4])
    at = Odometer(cell, box, join_sequences(chain, 0, [5, 4, 4]), stop=2, piece_bytes=[])
    assert at.remaining() == [Box(0, [2, 0, 0], [5, 4, 4]), Box(0, [0, 0, 0], [2, 4, 4])]
    at.outer = nothing()
    at.open()
    at.levels[0].start, at.levels[0].stop = 2, 3
    at.open()
    at.levels[1].start = at.levels[1].stop = 1
    assert at.remaining() == [
        Box(0, [2, 0, 0], [5, 4, 4]),
        Box(0, [0, 3, 0], [2, 4, 4]),
        Box(0, [0, 2, 1], [2, 3, 4]),
    ]
    at.levels[1].stop = 3
    assert at.remaining()[-1] == Box(0, [0, 2, 3], [2, 3, 4]), "no row of two blocks had a partner"
    at.levels[1].parts = [nothing()]
    assert at.remaining()[-1] == Box(0, [0, 2, 1], [2, 3, 4]), "some had, and are not joined yet"


@pytest.mark.parametrize("seed", range(6))
def test_odometer_when_left_after_any_step_then_all_combinations_come_once(
    seed: int, cell_of: MakeCell
) -> None:
    rng = np.random.default_rng(seed)
    cell = cell_of(*rng.integers(1, 6, 4).tolist())
    done: Counter[tuple[int, ...]] = Counter()
    while (box := cell.next_box()) is not None:
        low, high = box.low[box.outer], box.high[box.outer]
        stop = int(rng.integers(low + 1, high + 1))
        at = Odometer(cell, box, join_sequences(CHAIN, box.outer, cell.sizes), stop, [])
        at.outer = nothing()
        at.open()
        while at.levels and rng.random() < 0.8:  # else it is left here
            level = at.levels[-1]
            if level.stop == level.start or rng.random() < 0.3:
                level.stop = min(level.stop + 1, box.high[level.reach.child])
                level.parts = [nothing()]
            elif at.next_reach() is not None and rng.random() < 0.8:
                at.open()
            else:  # joined, or found to have no rows, in which case the wheels within do not turn
                piece = Box(box.outer, list(box.low), list(box.high))
                piece.high[box.outer] = stop
                for wheel in at.levels:
                    piece.low[wheel.reach.child] = wheel.start
                    piece.high[wheel.reach.child] = wheel.stop
                done.update(combinations(piece))
                at.turn()
        cell.replace(at.remaining())
        cell.check()
    assert done == Counter(itertools.product(*(range(size) for size in cell.sizes)))
