"""Pairs of rows to output batches: which columns, which pairs, and how large."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.matching import Emitter, OutputLayout, PairFilter
from dovetail.kernel.probing import probe_run
from dovetail.kernel.protocol import LEFT, RIGHT
from dovetail.kernel.runs import Run, sort_run

LEFT_SCHEMA = pa.schema([("k", pa.string()), ("a", pa.int64())])
RIGHT_SCHEMA = pa.schema([("k", pa.string()), ("b", pa.int64()), ("c", pa.string())])
LAYOUT = OutputLayout(pa.schema([*LEFT_SCHEMA, *list(RIGHT_SCHEMA)[1:]]), (1, 2))
CODEC = KeyCodec((pa.string(),))


def make_run(side: int, keys: list[str], text: str = "") -> Run:
    columns = {"k": keys, "ab"[side]: list(range(len(keys)))}
    if side == RIGHT:
        columns["c"] = [text] * len(keys)
    batch = pa.record_batch(columns, schema=(LEFT_SCHEMA, RIGHT_SCHEMA)[side])
    return sort_run(CODEC.encode([batch["k"]])[0], 1, batch)


def emit(
    emitter: Emitter, probing: Run, stored: Run, side: int, keep: PairFilter | None = None
) -> list[pa.RecordBatch]:
    span = probe_run(stored.codes, probing.codes, probing.codes)
    found = [] if span is None else list(emitter.match(probing, stored, span, side, keep))
    return found + list(emitter.drain())


def pairs(batches: list[pa.RecordBatch]) -> list[tuple[str, int, int]]:
    return sorted(
        (key, a, b)
        for batch in batches
        for key, a, b in zip(*(batch[name].to_pylist() for name in "kab"), strict=True)
    )


def make_emitter(batch_bytes: int = 1 << 20) -> Emitter:
    return Emitter(CODEC, ([0], [0]), LAYOUT, batch_bytes)


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_match_when_either_side_probes_then_left_columns_come_first(side: int) -> None:
    runs = [make_run(LEFT, ["x", "y", "x"]), make_run(RIGHT, ["x", "z"], "payload")]
    (batch,) = emit(make_emitter(), runs[side], runs[1 - side], side)
    assert batch.schema == LAYOUT.schema
    assert pairs([batch]) == [("x", 0, 0), ("x", 2, 0)]
    assert batch["c"].to_pylist() == ["payload", "payload"]


def test_match_when_codes_collide_then_only_equal_keys_come_out() -> None:
    long = "p" * 600
    runs = [make_run(LEFT, [long + "a", long + "b"]), make_run(RIGHT, [long + "b", long + "c"])]
    assert runs[0].codes[0] == runs[1].codes[0], "this test needs a collision"
    batches = emit(make_emitter(), runs[0], runs[1], LEFT)
    assert pairs(batches) == [(long + "b", 1, 0)]


def test_match_when_no_candidate_is_equal_then_emits_no_batch() -> None:
    long = "p" * 600
    runs = [make_run(LEFT, [long + "a"]), make_run(RIGHT, [long + "b"])]
    assert emit(make_emitter(), runs[0], runs[1], LEFT) == []


def test_match_when_a_filter_is_given_then_gets_row_numbers_of_both_runs() -> None:
    runs = [make_run(LEFT, ["x"] * 4), make_run(RIGHT, ["x"] * 3)]
    seen = []

    def keep(probing: np.ndarray, stored: np.ndarray) -> np.ndarray:
        seen.extend(zip(probing.tolist(), stored.tolist(), strict=True))
        return (probing + stored) % 2 == 0

    found = pairs(emit(make_emitter(), runs[0], runs[1], LEFT, keep))
    assert sorted(seen) == [(i, j) for i in range(4) for j in range(3)]
    assert found == [("x", i, j) for i in range(4) for j in range(3) if (i + j) % 2 == 0]


def test_match_when_one_key_matches_all_then_batches_keep_their_size() -> None:
    batch_bytes = 4_000
    runs = [make_run(LEFT, ["x"] * 60), make_run(RIGHT, ["x"] * 50, "t" * 40)]
    batches = emit(make_emitter(batch_bytes), runs[0], runs[1], LEFT)
    assert len(pairs(batches)) == len(set(pairs(batches))) == 3_000
    assert max(batch.nbytes for batch in batches) <= batch_bytes
    assert sum(batch.nbytes for batch in batches) / len(batches) > batch_bytes / 4


def test_match_when_a_row_is_larger_than_a_batch_then_comes_alone() -> None:
    runs = [make_run(LEFT, ["x"] * 3), make_run(RIGHT, ["x"] * 2, "t" * 5_000)]
    batches = emit(make_emitter(1_000), runs[0], runs[1], LEFT)
    assert [batch.num_rows for batch in batches] == [1] * 6


def test_match_when_pieces_are_small_then_are_joined_into_one_batch() -> None:
    emitter = make_emitter()
    stored = make_run(RIGHT, ["x", "y"])
    for key in "xyxy":
        probing = make_run(LEFT, [key])
        span = probe_run(stored.codes, probing.codes, probing.codes)
        assert span is not None
        assert list(emitter.match(probing, stored, span, LEFT)) == []
    (batch,) = emitter.drain()
    assert batch.num_rows == 4
    assert list(emitter.drain()) == []


def test_match_when_the_one_long_row_of_a_run_matches_all_then_batches_keep_their_size() -> None:
    batch_bytes = 50_000
    stored = make_run(RIGHT, ["x", *(f"other {n}" for n in range(999))])
    texts = pa.array(["t" * 20_000 if key == "x" else "" for key in stored.rows["k"].to_pylist()])
    rows = pa.record_batch([*stored.rows.columns[:2], texts], schema=RIGHT_SCHEMA)
    stored = Run(stored.codes, stored.ats, rows)
    batches = emit(make_emitter(batch_bytes), make_run(LEFT, ["x"] * 500), stored, LEFT)
    assert len(pairs(batches)) == 500
    assert max(batch.nbytes for batch in batches) <= 2 * batch_bytes
