"""What Seek notes of values that missed its cache."""

import numpy as np

from dovetail.kernel.memory import Budget, Reservation
from dovetail.semistream.cache.notes import NOTE_BYTES, Missed, Notes


def missed(keys: list[int], hits: int = 1) -> Missed:
    codes = np.unique(np.array(keys, dtype=np.int64))
    return Missed(codes, 10 * codes, 10 * codes + 3, np.full(len(codes), hits))


def notes_of(least: int, total: int | None = None) -> Notes:
    """Room for some values, and for more as long as there is memory."""
    budget = Budget(None if total is None else NOTE_BYTES * total)
    return Notes(NOTE_BYTES * least, Reservation(budget, "notes"))


def test_values_when_they_miss_again_then_their_rows_are_added_up() -> None:
    notes = notes_of(100, 100)
    for _ in range(50):
        notes.add(missed([5, -7], hits=2), 0)
        notes.add(missed([-7, 9]), 0)
    found = notes.take(0)
    assert found.keys.tolist() == [-7, 5, 9]
    assert found.hits.tolist() == [150, 100, 50]
    assert found.low.tolist() == [-70, 50, 90]
    assert len(notes.take(0)) == 0


def test_values_when_there_are_too_many_then_some_are_noted_with_all_their_rows() -> None:
    notes = notes_of(1_000, 1_000)
    for _ in range(4):
        for start in range(0, 10_000, 500):
            notes.add(missed(list(range(start, start + 500))), 1 << 30)
            assert len(notes) <= 1_000
    found = notes.take(1)
    assert 300 < len(found) <= 1_000
    assert set(found.hits.tolist()) == {4}
    assert (np.diff(found.keys) > 0).all()
    assert 3_000 < np.median(found.keys) < 7_000  # from everywhere


def test_values_when_there_are_too_many_again_then_are_others() -> None:
    notes = notes_of(500, 500)
    chosen = []
    for salt in (17, 12_345):
        notes.take(salt)
        notes.add(missed(list(range(20_000))), 1 << 30)
        chosen.append(set(notes.take(0).keys.tolist()))
    assert all(chosen)
    assert len(chosen[0] & chosen[1]) < 0.5 * min(map(len, chosen))


def test_memory_when_there_is_some_then_is_used_up_to_a_limit_and_given_back() -> None:
    budget = Budget(NOTE_BYTES * 10_000)
    notes = Notes(NOTE_BYTES * 100, Reservation(budget, "notes"))
    notes.add(missed(list(range(2_000))), NOTE_BYTES * 5_000)
    assert len(notes) == 2_000
    assert budget.used_bytes == NOTE_BYTES * 2_000
    notes.add(missed(list(range(2_000, 9_000))), NOTE_BYTES * 5_000)
    assert 1_000 < len(notes) <= 5_000
    assert NOTE_BYTES * len(notes) <= budget.used_bytes <= NOTE_BYTES * 5_000
    notes.take(0)
    assert budget.used_bytes == NOTE_BYTES * 100
