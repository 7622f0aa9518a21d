"""What a cache takes up while it changes."""

import numpy as np
import pyarrow as pa

from dovetail.kernel.memory import Budget, Reservation
from dovetail.semistream.cache.values import Cache

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.binary(92))])
VALUES = 1_000
VALUE_BYTES = 140  # a row of 100, and the entry


def filled(budget: Budget, parts: int) -> Cache:
    """A cache of so many parts, each with values that have one row."""
    cache = Cache(SCHEMA, 1 << 40, Reservation(budget, "cache"))
    for number in range(parts):
        admit(cache, number)
    return cache


def admit(cache: Cache, number: int) -> None:
    keys = np.arange(VALUES * number, VALUES * (number + 1))
    rest = pa.array([bytes(92)] * VALUES, pa.binary(92))
    rows = pa.record_batch([pa.array(keys), rest], schema=SCHEMA)
    cache.admit(keys, np.ones_like(keys), np.zeros_like(keys), rows)


def test_evict_when_several_parts_shrink_then_one_copy_at_a_time_is_reserved() -> None:
    budget = Budget(10_000_000)
    cache = filled(budget, 5)
    budget.reset_peaks()
    before = budget.used_bytes
    assert before == 5 * VALUES * VALUE_BYTES
    keep = np.arange(VALUES) % 2 == 0
    cache.evict([keep] * 5)
    assert budget.used_bytes == before / 2
    assert budget.peak_bytes == before + VALUES * VALUE_BYTES / 2
    cache.check()


def test_evict_when_there_is_no_room_for_a_copy_then_makes_room_all_the_same() -> None:
    budget = Budget(5 * VALUES * VALUE_BYTES)
    cache = filled(budget, 5)
    cache.evict([np.arange(VALUES) % 2 == 0] * 5)
    assert len(cache) == 5 * VALUES / 2
    cache.check()


def test_admit_when_parts_are_many_then_they_are_merged_only_where_there_is_room() -> None:
    roomy, tight = Budget(None), Budget(8 * VALUES * VALUE_BYTES)
    assert len(filled(roomy, 8).parts) == 6
    assert roomy.peak_bytes > 8 * VALUES * VALUE_BYTES
    cache = filled(tight, 8)
    assert len(cache.parts) == 8
    for codes in (np.array([0, 999]), np.array([7_500])):
        chosen, low, high = cache.lookup(codes)
        assert chosen.tolist() == list(range(len(codes)))
        assert (high - low).sum() == len(cache.take(low))
    cache.check()
