"""Every join of a stream with a table gives what an independent oracle gives, each result once.

Hypothesis draws the circumstances; rows and steps follow from the case's seed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.semistream import ALGORITHMS, HOWS, SemiStreamSpec, base
from dovetail.semistream.cache.values import Cache
from dovetail.semistream.scan.ssbj import Ssbj
from dovetail.semistream.seek import operator as seek
from dovetail.twoway import TwoWaySpec
from support.depth import full_or
from support.generators import BAND_TYPES, KEY_TYPES, Shape, make_relation
from support.oracle import nested_loop
from support.semistream import Drive, drive

pytestmark = pytest.mark.fuzz

CASES_PER_OPERATOR = full_or(500, 40)
CONDITIONS = sorted(name for name, kind in ALGORITHMS.items() if kind.joins_conditions)


@pytest.fixture(autouse=True, scope="module")
def few_rows_at_a_time() -> Iterator[None]:
    """Seek settles thousands of rows together and skips long gaps only; a case here has fewer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seek, "_SETTLED_ROWS", 20)
        patch.setattr(seek.Seek, "gap_bytes", 0)
        yield


@dataclass(frozen=True)
class Case:
    """The circumstances of one join."""

    keys: tuple[str, ...]
    how: str
    stream_rows: int
    table_rows: int
    distribution: str
    domain: int
    table_domain: int
    null_share: float
    budget_bytes: int | None
    page_bytes: int
    ordered: bool
    restore_share: float
    seed: int


def cases(keys: st.SearchStrategy[tuple[str, ...]]) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        keys=keys,
        how=st.sampled_from(HOWS),
        stream_rows=st.sampled_from([0, 1, 30, 300]),
        table_rows=st.sampled_from([0, 1, 40, 400]),
        distribution=st.sampled_from(["uniform", "zipf", "single"]),
        domain=st.sampled_from([3, 40, 500]),
        table_domain=st.sampled_from([1, 25, 500]),
        null_share=st.sampled_from([0.0, 0.2]),
        budget_bytes=st.sampled_from([None, 400_000, 2_000_000]),
        page_bytes=st.sampled_from([100, 1_000, 10_000]),
        ordered=st.booleans(),
        restore_share=st.sampled_from([0.0, 0.3, 1.0]),
        seed=st.integers(0, 2**32 - 1),
    )


single = st.sampled_from(sorted(KEY_TYPES)).map(lambda name: (name,))
composite = st.lists(
    st.sampled_from(["int32", "string", "float64", "date"]), min_size=2, max_size=3
).map(tuple)


def relations(case: Case) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    rng = np.random.default_rng(case.seed)
    shapes = [
        Shape(rows, case.keys, case.distribution, domain, case.null_share, case.null_share)  # type: ignore[arg-type]
        for rows, domain in (
            (case.stream_rows, case.domain),
            (case.table_rows, case.table_domain),
        )
    ]
    stream, table = (make_relation(rng, shape, side) for side, shape in enumerate(shapes))
    return stream, table


def check(case: Case, algorithm: str, within: int | float | None = None) -> Drive:
    stream, table = relations(case)
    keys = tuple(f"k{position}" for position in range(len(case.keys)))
    spec = SemiStreamSpec(
        stream.schema, table.schema, keys, keys, case.how, within, ordered=case.ordered
    )
    pairs = nested_loop(TwoWaySpec(stream.schema, table.schema, keys, keys, within), stream, table)
    done = drive(
        spec, algorithm, stream, table, seed=case.seed, budget_bytes=case.budget_bytes,
        page_bytes=case.page_bytes, restore_share=case.restore_share,
    )  # fmt: skip
    compare(spec, done, [(int(a), int(b)) for a, b in pairs], stream, table)
    return done


def compare(
    spec: SemiStreamSpec, done: Drive, pairs: list[tuple[int, int]],
    stream: pa.RecordBatch, table: pa.RecordBatch,
) -> None:  # fmt: skip
    """By row numbers, and then that each emitted row is the row that it says it is."""
    matched = {a for a, _ in pairs}
    everyone = range(stream.num_rows)
    wanted: Counter[tuple[int, int | None]] = Counter()
    if spec.how in ("inner", "left"):
        wanted.update(pairs)
    if spec.how == "left":
        wanted.update((row, None) for row in everyone if row not in matched)
    if spec.how == "semi":
        wanted.update((row, None) for row in everyone if row in matched)
    if spec.how == "anti":
        wanted.update((row, None) for row in everyone if row not in matched)
    out = pa.Table.from_batches(done.batches, spec.layout.schema)
    left = out["left_id"].to_pylist()
    right = out["right_id"].to_pylist() if "right_id" in out.column_names else [None] * len(left)
    assert Counter(zip(left, right, strict=True)) == wanted
    if spec.ordered:
        assert left == sorted(left)
    # a NaN does not equal itself in Arrow
    names = [field.name for field in stream.schema if not pa.types.is_floating(field.type)]
    rows = stream.select(names).take(pa.array(left, pa.int64()))
    assert out.select(names).equals(pa.Table.from_batches([rows]))
    if "right_text" in out.column_names:
        text = table.column("right_text").take(pa.array(right, pa.int64()))
        assert out["right_text"].combine_chunks().equals(text)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@settings(max_examples=CASES_PER_OPERATOR)
@given(case=cases(st.one_of(single, composite)))
def test_equality_when_anything_may_happen_then_each_result_comes_once(
    algorithm: str, case: Case
) -> None:
    check(case, algorithm)


@pytest.mark.parametrize("algorithm", CONDITIONS)
@settings(max_examples=CASES_PER_OPERATOR)
@given(
    case=cases(st.sampled_from(BAND_TYPES).map(lambda name: (name,))),
    within=st.sampled_from([0, 1, 3, 100]),
)
def test_band_when_anything_may_happen_then_each_result_comes_once(
    algorithm: str, case: Case, within: int
) -> None:
    floating = case.keys[0].startswith("float")
    check(case, algorithm, float(within) if floating else within)


@pytest.mark.parametrize("algorithm", CONDITIONS)
@settings(max_examples=full_or(60, 12))
@given(case=cases(st.just(("int32",))))
def test_condition_when_it_is_not_about_keys_then_each_result_comes_once(
    algorithm: str, case: Case
) -> None:
    """Rows whose numbers add up to a multiple of seven: no index helps with that."""
    stream, table = relations(case)
    spec = SemiStreamSpec(
        stream.schema, table.drop_columns(["k0"]).schema, (), (), case.how,
        condition=lambda a, b: (
            (np.asarray(a.column("left_id")) + np.asarray(b.column("right_id"))) % 7 == 0
        ),
        ordered=case.ordered,
    )  # fmt: skip
    table = table.drop_columns(["k0"])
    pairs = [
        (a, b) for a in range(stream.num_rows) for b in range(table.num_rows) if (a + b) % 7 == 0
    ]
    done = drive(
        spec, algorithm, stream, table, seed=case.seed, budget_bytes=case.budget_bytes,
        page_bytes=case.page_bytes, restore_share=case.restore_share,
    )  # fmt: skip
    compare(spec, done, pairs, stream, table)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@settings(max_examples=full_or(60, 12))
@given(case=cases(st.just(("int64",))))
def test_equality_with_a_condition_when_anything_may_happen_then_each_result_comes_once(
    algorithm: str, case: Case
) -> None:
    stream, table = relations(case)
    spec = SemiStreamSpec(
        stream.schema, table.schema, ("k0",), ("k0",), case.how,
        condition=lambda a, b: (
            (np.asarray(a.column("left_id")) + np.asarray(b.column("right_id"))) % 3 == 0
        ),
        ordered=case.ordered,
    )  # fmt: skip
    equal = nested_loop(TwoWaySpec(stream.schema, table.schema, ("k0",), ("k0",)), stream, table)
    pairs = [(int(a), int(b)) for a, b in equal if (a + b) % 3 == 0]
    done = drive(
        spec, algorithm, stream, table, seed=case.seed, budget_bytes=case.budget_bytes,
        page_bytes=case.page_bytes, restore_share=case.restore_share,
    )  # fmt: skip
    compare(spec, done, pairs, stream, table)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_equality_when_memory_is_tight_and_keys_drift_then_each_result_comes_once(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the least budget: packets are small, worked off early, and the cache changes."""
    monkeypatch.setattr(base, "MIN_BUDGET_BYTES", 0)
    monkeypatch.setattr(Ssbj, "noise", 0.0)  # so that much is cached, and much of it for nothing
    monkeypatch.setattr(Ssbj, "key_bytes", 0)
    kind, seen = ALGORITHMS[algorithm], Counter[str]()
    make_room, evict = kind._make_room, Cache.evict

    def made_room(operator):  # type: ignore[no-untyped-def]
        seen["made room"] += 1
        yield from make_room(operator)

    def evicted(cache: Cache, keep) -> None:  # type: ignore[no-untyped-def]
        seen["evicted"] += sum(int((~mask).sum()) for mask in keep)
        evict(cache, keep)

    monkeypatch.setattr(kind, "_make_room", made_room)
    monkeypatch.setattr(Cache, "evict", evicted)
    for number in range(4):
        rng = np.random.default_rng(number)
        rows = np.arange(2_000)
        keys = (rng.zipf(1.3, len(rows)) + rows // 400 * 97) % 5_000
        stream = pa.record_batch({"k0": keys, "left_id": rows})
        numbers = np.arange(4_000)
        table = pa.record_batch({"k0": rng.integers(0, 5_000, len(numbers)), "right_id": numbers})
        spec = SemiStreamSpec(
            stream.schema, table.schema, ("k0",), ("k0",), HOWS[number % 4],
            ordered=number == 3,
        )  # fmt: skip
        pairs = nested_loop(
            TwoWaySpec(stream.schema, table.schema, ("k0",), ("k0",)), stream, table
        )
        done = drive(
            spec, algorithm, stream, table, seed=number, budget_bytes=25_000, page_bytes=800,
            restore_share=0.05, most_rows=600,
        )  # fmt: skip
        compare(spec, done, [(int(a), int(b)) for a, b in pairs], stream, table)
    assert seen["made room"] or algorithm == "inl"  # whose rows do not wait
    assert seen["evicted"] or algorithm not in ("ssbj", "seek")
