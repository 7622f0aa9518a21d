"""Rows by slot, their indexes, and what stays when rows leave."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.multiway import multiway_spec
from dovetail.multiway.keyindex import BYTES_PER_ROW, KeyIndex
from dovetail.multiway.payload import Chunk, Payload
from dovetail.multiway.rows import Encoder, Part, RelationRows
from dovetail.multiway.ticks import BYTES_PER_RUN, ArrivalTicks

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("text", pa.string())])
SPEC = multiway_spec({"l": SCHEMA, "m": SCHEMA, "r": SCHEMA}, [("l.a", "m.a"), ("m.b", "r.b")])


def rows(count: int, seed: int = 0) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    texts = ["t" * int(n) for n in rng.integers(0, 9, count)]
    return pa.record_batch([rng.integers(0, 9, count), rng.integers(0, 9, count), texts], SCHEMA)


def table_of(batches: list[pa.RecordBatch]) -> RelationRows:
    encoder = Encoder(SPEC, 1)
    table = RelationRows(encoder, merge_bytes=2_000)
    for tick, some in enumerate(batches):
        codes, _ = encoder.encode(some)
        bits = np.zeros(some.num_rows, dtype=np.bool_)
        table.insert(codes, np.full(some.num_rows, tick), some, bits)
    return table


@pytest.mark.parametrize("merge_rows", [2, 20, 1 << 20])
def test_index_when_runs_are_merged_and_rows_leave_then_finds_what_a_scan_finds(
    merge_rows: int,
) -> None:
    rng = np.random.default_rng(3)
    index, codes = KeyIndex(merge_rows), np.zeros(0, dtype=np.int64)
    for _ in range(60):
        some = rng.integers(0, 20, int(rng.integers(1, 8)))
        index.insert(some, len(codes))
        codes = np.concatenate([codes, some])
        gone = rng.random(len(codes)) < 0.1
        index.remove(gone, np.cumsum(~gone) - 1)
        codes = codes[~gone]
        index.check(codes)
        assert index.nbytes == BYTES_PER_ROW * len(codes)
        assert len(index._runs) <= 32 + 2 * len(codes) // merge_rows
        if len(codes):
            ordered, some = np.sort(codes), int(rng.integers(1, len(codes) + 1))
            assert index.lowest(some) == ordered[some - 1]
            assert index.highest(some) == ordered[-some]
            assert index.middle() == ordered[(len(codes) - 1) // 2]
            assert index.count_up_to(7) == (codes <= 7).sum()
        low = rng.integers(0, 20, 5)
        for high in (low, low + 2):
            hits = index.probe(low, high)
            found = set()
            if hits is not None:
                slots, span = hits
                for probing, positions in span.pairs(7):
                    found |= set(zip(probing.tolist(), slots[positions].tolist(), strict=True))
            assert found == {
                (i, slot)
                for i in range(5)
                for slot in np.flatnonzero((codes >= low[i]) & (codes <= high[i])).tolist()
            }


def test_table_when_rows_leave_then_every_index_and_the_rows_follow() -> None:
    table = table_of([rows(10, seed) for seed in range(9)])
    kept = pa.concat_batches([rows(10, seed) for seed in range(9)])
    rng = np.random.default_rng(1)
    while len(table) > 7:
        slots = rng.choice(len(table), size=7, replace=False)
        stay = np.setdiff1d(np.arange(len(table)), slots)
        table.remove(slots)
        kept = kept.take(pa.array(stay))
        table.check()
        assert table.payload.gather(np.arange(len(table))).equals(kept)
        assert table.codes[0].tolist() == kept.column("a").to_pylist()
        assert table.codes[1].tolist() == kept.column("b").to_pylist()


@pytest.mark.parametrize("first", [0, 2**30 - 20, 2**40])
def test_ticks_when_rows_come_and_leave_then_each_keeps_its_own(first: int) -> None:
    rng = np.random.default_rng(first % 7)
    ticks, expected = ArrivalTicks(), np.zeros(0, dtype=np.int64)
    for tick in range(first, first + 40):
        some = np.sort(2 * tick + rng.integers(0, 2, int(rng.integers(1, 6))))
        ticks.append(some)
        expected = np.concatenate([expected, some])
        kept = rng.random(len(expected)) > 0.2
        ticks.remove(np.cumsum(kept, dtype=np.int32) - 1)
        expected = expected[kept]
        ticks.check(len(expected))
        slots = rng.permutation(len(expected))
        assert ticks.take(slots).tolist() == expected[slots].tolist()
        marked = rng.random(len(expected)) < 0.3
        assert ticks.newest(marked) == max(expected[marked], default=None)
        assert ticks.mean(marked) == pytest.approx(expected[marked].mean() if marked.any() else 0)
        assert ticks.nbytes <= BYTES_PER_RUN * len(np.unique(expected))


def test_table_when_rows_come_in_batches_then_takes_up_what_was_reserved_for_them() -> None:
    batches = [rows(50, seed) for seed in range(6)]
    table = table_of(batches)
    beside = table.nbytes - table.payload.nbytes
    arrays = [*table.codes, table.bits, table.copied, *table.ats.__dict__.values()]
    for attribute in range(2):
        arrays += [table.index(attribute)._slots, *table.index(attribute)._runs]
    assert beside == sum(array.nbytes for array in arrays), "what is counted is what is held"
    assert beside == 300 * (2 * (8 + 8 + 4) + 2) + 6 * 8
    assert beside <= sum(Encoder(SPEC, 1).arriving_bytes(some.num_rows) for some in batches)


def test_payload_when_few_rows_die_then_they_weigh_on_until_a_sixteenth_is_dead() -> None:
    payload = Payload([Chunk(rows(64))])
    before = payload.nbytes
    gone = np.zeros(64, dtype=np.bool_)
    gone[:3] = True
    payload.remove(gone)
    assert payload.chunks[0].dead == 3
    assert payload.nbytes >= before
    gone = np.zeros(61, dtype=np.bool_)
    gone[0] = True
    payload.remove(gone)
    assert payload.chunks[0].dead == 0
    assert payload.nbytes < before
    assert payload.gather(np.array([59, 0])).equals(rows(64).take(pa.array([63, 4])))


def test_payload_when_compacted_then_gives_up_the_dead() -> None:
    payload = Payload([Chunk(rows(64))])
    gone = np.zeros(64, dtype=np.bool_)
    gone[3] = True
    payload.remove(gone)
    assert payload.compact()
    assert not payload.compact()
    assert payload.chunks[0].rows.num_rows == 63


def test_payload_when_one_row_is_far_longer_then_tells_the_sizes() -> None:
    texts = ["x"] * 20 + ["x" * 5_000]
    batch = pa.record_batch([np.arange(21), np.arange(21), texts], SCHEMA)
    sizes = Payload([Chunk(batch)]).sizes
    assert sizes is not None
    assert sizes[20] - sizes[0] == 4_999
    assert sizes[0] == 8 + 8 + 4 + 1 + 1  # numbers, offset, text, and what says of nulls
    assert Payload([Chunk(rows(20))]).sizes is None


@pytest.mark.parametrize("group_bytes", [0, 300, 1 << 20])
def test_part_when_put_together_then_has_all_rows_in_order(group_bytes: int) -> None:
    encoder = Encoder(SPEC, 1)
    parts = []
    for seed in range(4):
        some = rows(6, seed)
        codes, _ = encoder.encode(some)
        parts.append(Part(codes, np.full(6, seed), np.full(6, 9), Payload([Chunk(some)])))
    whole = Part.joined(parts, group_bytes)
    assert not parts
    expected = pa.concat_batches([rows(6, seed) for seed in range(4)])
    assert whole.payload.gather(np.arange(24)).equals(expected)
    assert whole.codes[1].tolist() == expected.column("b").to_pylist()
    assert (len(whole.payload.chunks) == 1) == (group_bytes == 1 << 20)


def test_encoder_when_a_key_is_null_or_nan_in_a_band_then_the_row_matches_nothing() -> None:
    schema = pa.schema([("x", pa.float64()), ("y", pa.float64())])
    spec = multiway_spec(
        {"a": schema, "b": schema, "c": schema}, [("a.x", "b.x", 1.0), ("b.y", "c.y")]
    )
    nan = float("nan")
    batch = pa.record_batch([[1.0, nan, 1.0, 1.0, None], [1.0, 1.0, nan, None, 1.0]], schema)
    codes, valid = Encoder(spec, 1).encode(batch)
    assert len(codes) == 2
    assert valid is not None
    assert valid.tolist() == [True, False, True, False, False], "NaN equals NaN in an equality"
