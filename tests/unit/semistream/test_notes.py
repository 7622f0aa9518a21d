"""What Seek notes of values that missed its cache."""

import numpy as np

from dovetail.semistream.notes import Missed, Notes


def missed(keys: list[int], hits: int = 1) -> Missed:
    codes = np.unique(np.array(keys, dtype=np.int64))
    return Missed(codes, 10 * codes, 10 * codes + 3, np.full(len(codes), hits))


def test_values_when_they_miss_again_then_their_rows_are_added_up() -> None:
    notes = Notes(100)
    for _ in range(50):
        notes.add(missed([5, -7], hits=2))
        notes.add(missed([-7, 9]))
    found = notes.take(0)
    assert found.keys.tolist() == [-7, 5, 9]
    assert found.hits.tolist() == [150, 100, 50]
    assert found.low.tolist() == [-70, 50, 90]
    assert len(notes.take(0)) == 0


def test_values_when_there_are_too_many_then_some_are_noted_with_all_their_rows() -> None:
    notes = Notes(1_000)
    for _ in range(4):
        for start in range(0, 10_000, 500):
            notes.add(missed(list(range(start, start + 500))))
            assert len(notes) <= notes.most
    found = notes.take(1)
    assert 300 < len(found) <= 1_000
    assert set(found.hits.tolist()) == {4}
    assert (np.diff(found.keys) > 0).all()
    assert 3_000 < np.median(found.keys) < 7_000  # from everywhere


def test_values_when_there_are_too_many_again_then_are_others() -> None:
    notes = Notes(500)
    chosen = []
    for salt in (17, 12_345):
        notes.take(salt)
        notes.add(missed(list(range(20_000))))
        chosen.append(set(notes.take(0).keys.tolist()))
    assert all(chosen)
    assert len(chosen[0] & chosen[1]) < 0.5 * min(map(len, chosen))
