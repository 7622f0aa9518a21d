"""RPJ from within: its probabilities, what it flushes for them, and the order of its tasks."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Status
from dovetail.kernel.shell import quietly
from dovetail.twoway.base import MIN_BUDGET_BYTES
from dovetail.twoway.rivals.rpj import AGEING, DISK, FLUSH_SHARE, least_productive
from support.arrivals import Finish, Poll, Push, Restore, Step


def cells_of(bench: Any, keys: Any) -> list[int]:
    operator = bench.operator
    parts: list[int] = operator._part_of(operator._codes(np.array(keys))).tolist()
    return parts


def flush(bench: Any, side: int, cells: set[int]) -> None:
    operator = bench.operator
    operator.flush_cells([side], np.isin(np.arange(len(operator.cells)), list(cells)))
    quietly(operator._settle_rows())
    operator.check()


# -- probabilities of arrival ---------------------------------------------------------------


def test_arrivals_when_rows_came_between_flushes_then_are_the_aged_shares(make_bench: Any) -> None:
    bench = make_bench("rpj")
    rng = np.random.default_rng(0)
    expected: Counter[tuple[int, int]] = Counter()
    for epoch in range(5):
        counts: Counter[tuple[int, int]] = Counter()
        for side in SIDES:
            keys = rng.integers(0, 40 + 60 * epoch, int(rng.integers(1, 50)))
            bench.push(side, keys)
            counts.update((cell, side) for cell in cells_of(bench, keys))
        old = Fraction(AGEING) if epoch else Fraction(0)
        shares = {where: Fraction(n, counts.total()) for where, n in counts.items()}
        expected = Counter(
            {
                where: old * expected[where] + (1 - old) * shares.get(where, 0)
                for where in {*expected, *shares}
            }
        )
        bench.operator._estimate()
        found = bench.operator.arrivals
        for cell in range(len(bench.operator.cells)):
            for side in SIDES:
                assert found[cell, side] == pytest.approx(float(expected[cell, side]))
        bench.restore()


def test_arrivals_when_nothing_came_since_then_stay(make_bench: Any) -> None:
    bench = make_bench("rpj")
    bench.push(LEFT, range(100))
    bench.operator._estimate()
    before = bench.operator.arrivals.copy()
    bench.operator._estimate()
    assert np.array_equal(bench.operator.arrivals, before)


# -- flushes --------------------------------------------------------------------------------


def test_victims_when_drawn_at_random_then_are_what_the_next_row_is_least_likely_to_meet() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        rows = rng.integers(0, 6, (int(rng.choice([4, 16])), 2))
        arrivals = rng.integers(0, 5, rows.shape) / 50
        least = int(rng.integers(1, max(2, rows.sum())))
        taken = np.zeros(rows.shape, dtype=bool)
        held = [(c, s) for c in range(len(rows)) for s in SIDES if rows[c, s]]
        for cell, side in sorted(held, key=lambda at: (arrivals[at[0], 1 - at[1]], -rows[at])):
            if rows[taken].sum() >= least:
                break
            taken[cell, side] = True
        found = least_productive(arrivals, rows, least)
        # among equals of both kinds, any will do
        assert sorted(rows[found]) == sorted(rows[taken])
        assert np.allclose(np.sort(arrivals[:, ::-1][found]), np.sort(arrivals[:, ::-1][taken]))


def test_victims_when_one_side_stops_coming_then_are_rows_of_the_other(make_bench: Any) -> None:
    """What only joins with rows that no longer come is of no use in memory."""
    bench = make_bench("rpj", budget=MIN_BUDGET_BYTES, payload_bytes=300)
    bench.push(LEFT, range(10))
    bench.push(RIGHT, range(10))
    kept = bench.operator.cell_rows[:, LEFT].sum()
    for start in range(0, 200, 10):
        bench.push(RIGHT, range(start, start + 10))
    assert bench.operator.cell_rows[:, LEFT].sum() == kept
    assert bench.operator.disk_rows[:, LEFT].sum() == 0
    assert bench.operator.disk_rows[:, RIGHT].sum() > 0


def test_flush_when_memory_is_exhausted_then_gives_up_its_share_and_no_more_than_it_must(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench("rpj", budget=1 << 20, payload_bytes=300)
    operator = bench.operator
    given_up: list[tuple[int, int, int]] = []
    make_room = operator._make_room

    def watch(wanted: int) -> bool:
        before = operator.cell_rows
        done: bool = make_room(wanted)
        gone = before - operator.cell_rows
        given_up.append((int(before.sum()), int(gone.sum()), int(gone.max())))
        return done

    monkeypatch.setattr(operator, "_make_room", watch)
    keys = np.random.default_rng(0).integers(0, 10_000, (2, 3_000))
    for start in range(0, 3_000, 100):
        for side in SIDES:
            bench.push(side, keys[side][start : start + 100])
    assert len(given_up) > 3
    for held, gone, largest in given_up:
        assert FLUSH_SHARE * held <= gone < FLUSH_SHARE * held + largest


# -- pairs that have not met ----------------------------------------------------------------


class Model:
    """Row by row, which pairs of rows of a cell have met: in memory, in a pass, or on disk."""

    def __init__(self) -> None:
        self.memory: dict[tuple[int, int], set[int]] = {}
        self.disk: dict[tuple[int, int], set[int]] = {}
        self.met: set[tuple[int, int, int]] = set()  # cell, left row, right row

    def arrive(self, side: int, cells: list[int], first: int) -> None:
        for row, cell in enumerate(cells, first):
            self.memory.setdefault((cell, side), set()).add(row)
            self._meet(cell, side, {row}, self.memory.get((cell, 1 - side), set()))

    def flush(self, side: int, cells: set[int]) -> None:
        for cell in cells:
            rows = self.memory.pop((cell, side), set())
            self.disk.setdefault((cell, side), set()).update(rows)

    def pass_over(self, cell: int, side: int) -> None:
        disk, memory = self.disk.get((cell, side), set()), self.memory.get((cell, 1 - side), set())
        self._meet(cell, side, disk, memory)

    def missed(self, cell: int, left: set[int], right: set[int]) -> int:
        return sum((cell, a, b) not in self.met for a in left for b in right)

    def missed_memory(self, cell: int, side: int) -> int:
        disk, memory = self.disk.get((cell, side), set()), self.memory.get((cell, 1 - side), set())
        return self.missed(cell, *((disk, memory) if side == LEFT else (memory, disk)))

    def missed_disk(self, cell: int) -> int:
        left, right = (self.disk.get((cell, side), set()) for side in SIDES)
        return self.missed(cell, left, right)

    def _meet(self, cell: int, side: int, rows: set[int], others: set[int]) -> None:
        for row in rows:
            for other in others:
                self.met.add((cell, row, other) if side == LEFT else (cell, other, row))


def assert_same(bench: Any, model: Model) -> None:
    operator = bench.operator
    for cell in range(len(operator.cells)):
        assert operator.missed_disk[cell] == model.missed_disk(cell)
        for side in SIDES:
            assert operator.missed_memory[cell, side] == model.missed_memory(cell, side)


def test_missed_pairs_when_rows_come_and_go_then_are_those_that_have_not_met(
    make_bench: Any,
) -> None:
    bench, model = make_bench("rpj"), Model()
    rng = np.random.default_rng(2)
    for step in range(60):
        side = int(rng.integers(0, 2))
        kind = rng.random()
        if kind < 0.5:
            keys = rng.integers(0, 12, int(rng.integers(1, 6)))
            model.arrive(side, cells_of(bench, keys), len(bench.keys[side]))
            bench.push(side, keys)
        elif kind < 0.8:
            cells = set(rng.integers(0, len(bench.operator.cells), 6).tolist())
            model.flush(side, cells)
            flush(bench, side, cells)
        else:
            for cell, known in enumerate(bench.operator.cells):
                while (index := known.next_reactive(side)) is not None:
                    for _ in bench.operator._meet(cell, side, index):
                        pass
                    quietly(bench.operator._account())
                model.pass_over(cell, side)
        assert_same(bench, model)
        if step % 9 == 0:
            bench.restore()
    assert bench.operator.missed_disk.any()
    assert bench.operator.missed_memory.any()


def test_missed_pairs_when_all_is_done_then_there_are_none(make_bench: Any) -> None:
    bench = make_bench("rpj", budget=MIN_BUDGET_BYTES, payload_bytes=300)
    keys = np.random.default_rng(0).integers(0, 30, (2, 100))
    for start in range(0, 100, 10):
        for side in SIDES:
            bench.push(side, keys[side][start : start + 10])
    assert bench.operator.missed_disk.any()
    bench.complete()
    bench.assert_each_pair_once()
    assert not bench.operator.missed_memory.any()
    assert not bench.operator.missed_disk.any()


# -- the order of tasks ---------------------------------------------------------------------


def in_other_cells(bench: Any) -> tuple[int, int]:
    """Two keys of different cells."""
    cells = cells_of(bench, range(50))
    other = next(key for key in range(50) if cells[key] != cells[0])
    return 0, other


def test_tasks_when_rates_differ_then_the_one_with_the_most_pairs_a_row_read_is_first(
    make_bench: Any,
) -> None:
    bench = make_bench("rpj")
    few, many = in_other_cells(bench)
    bench.push(LEFT, [few, many])
    flush(bench, LEFT, set(cells_of(bench, [few, many])))
    bench.push(RIGHT, [few] + [many] * 5)
    (few_cell, many_cell) = cells_of(bench, [few, many])
    assert bench.operator._tasks() == [(many_cell, LEFT), (few_cell, LEFT)]
    assert [pair[1] for pair in bench.poll()] == [1, 2, 3, 4, 5, 0]


def test_tasks_when_the_disk_parts_promise_more_then_they_meet_before_memory_does(
    make_bench: Any,
) -> None:
    bench = make_bench("rpj")
    on_disk, in_memory = in_other_cells(bench)
    disk_cell, memory_cell = cells_of(bench, [on_disk, in_memory])
    bench.push(LEFT, [on_disk] * 6 + [in_memory])
    flush(bench, LEFT, {disk_cell, memory_cell})
    bench.push(RIGHT, [on_disk] * 6 + [in_memory])
    flush(bench, RIGHT, {disk_cell})
    # 36 pairs for 12 rows read, against 1 pair for 1 row
    assert bench.operator._tasks() == [(disk_cell, DISK), (memory_cell, LEFT)]
    found = bench.poll()
    assert found[-1] == (6, 6)
    assert len(found) == 37
    assert bench.phases == {"reactive": 37}, "disks meet while the inputs are silent"
    assert bench.operator.status() is Status.IDLE


def test_disk_task_when_begun_then_is_finished_before_another(make_bench: Any) -> None:
    bench = make_bench("rpj")
    one, other = in_other_cells(bench)
    for number, key in ((3, one), (2, other)):
        for side in SIDES:
            bench.push(side, [key] * number)
            flush(bench, side, {*cells_of(bench, [key])})
    bench.poll(1)
    begun = bench.operator.cleanup.at
    assert begun is not None
    assert begun.part == cells_of(bench, [one])[0]
    # now the other cell promises far more
    for side in SIDES:
        bench.push(side, [other] * 20)
        flush(bench, side, {*cells_of(bench, [other])})
    bench.restore()
    assert bench.operator.cleanup.at.part == begun.part
    bench.complete()
    bench.assert_each_pair_once()


# -- interruptions --------------------------------------------------------------------------


def test_join_when_interrupted_after_every_block_then_emits_each_pair_once(
    run_interrupted: Any,
) -> None:
    """Fuel for one block at a time, and another operator goes on after each."""
    script: list[Step] = [Push(LEFT, 7), Push(RIGHT, 7)] * 9
    script += [Poll(1), Restore(), Poll(1), Push(LEFT, 1), Restore()] * 7
    script += [Poll(1), Restore()] * 40 + [Push(RIGHT, 7), Finish(LEFT), Finish(RIGHT)]
    script += [Poll(1), Restore()] * 40
    outcome = run_interrupted("rpj", script)
    assert outcome.rows_out["reactive"] > 0
    assert outcome.events["interrupted cleanups"] > 0
