"""Row stores against a plain list: probing, gathering, expiring in any order of numbers."""

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import KeyCodec
from dovetail.multisite.query import StepKey
from dovetail.multisite.rows import Growing, RowStore

SCHEMA = pa.schema([("S.ts", pa.int64()), ("S.k", pa.int64()), ("S.n", pa.int64())])
KEY = StepKey(("S.k",), ("S.k",), KeyCodec((pa.int64(),)))


def test_store_when_rows_come_and_go_at_random_then_holds_what_a_list_would() -> None:
    rng = np.random.default_rng(8)
    store = RowStore(SCHEMA, "S.ts")
    rows: dict[int, tuple[int, int | None]] = {}
    # about in order, as rows come that are asked for when their key is
    waiting = np.argsort(np.arange(3000) + rng.uniform(0, 300, 3000))[::-1].tolist()
    compacted = 0
    for _ in range(150):
        numbers = np.array(sorted(waiting.pop() for _ in range(20)))
        numbers = numbers[numbers >= store.first]
        keys = [None if key == 0 else int(key) for key in rng.integers(0, 12, len(numbers))]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(10 * numbers), pa.array(keys, pa.int64()), pa.array(numbers)], schema=SCHEMA
        )
        store.append(numbers, batch)
        rows.update(
            zip(numbers.tolist(), zip((10 * numbers).tolist(), keys, strict=True), strict=True)
        )
        before = len(store.numbers)
        gone = int(rng.integers(0, 35))
        store.expire_oldest(gone)
        for number in sorted(rows)[:gone]:
            del rows[number]
        compacted += len(store.numbers) < before
        assert len(store) == len(rows)
        wanted = np.array([3, 99, 7, 3])
        probing, slots = store.probe(KEY, wanted)
        found = sorted(zip(wanted[probing].tolist(), store.numbers[slots].tolist(), strict=True))
        assert found == sorted(
            (k, n) for k in (3, 7, 3) for n, (_, key) in rows.items() if key == k
        )
        assert store.gather(slots).column("S.n").to_pylist() == store.numbers[slots].tolist()
        some = np.array(sorted(rows)[::3], dtype=np.int64)
        assert store.times[store.slots_of(some)].tolist() == (10 * some).tolist()
    assert compacted > 3


def test_slots_of_when_a_number_is_not_there_then_leaves_it_out() -> None:
    store = RowStore(SCHEMA, "S.ts")
    assert store.slots_of(np.array([4])).tolist() == []
    batch = pa.record_batch({"S.ts": [1], "S.k": [1], "S.n": [9]})
    store.append(np.array([9]), batch)
    assert store.slots_of(np.array([4, 9, 12])).tolist() == [0]


def test_growing_when_values_were_given_out_then_these_stay_as_they_were() -> None:
    array = Growing()
    array.append(np.arange(12))
    given = array.values
    array.replace(given[8:])
    array.append(np.arange(100, 112))
    assert array.values.tolist() == [8, 9, 10, 11, *range(100, 112)]
    assert given.tolist() == list(range(12))
