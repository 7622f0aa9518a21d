"""MINER and MJoin as operators: what they keep, what they put off, and what they read back."""

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError, MemoryBudgetError, StateCorruptError
from dovetail.kernel.blocks import RESIDENT, BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Status
from dovetail.multiway import (
    ALGORITHMS,
    MIN_BYTES_PER_INPUT,
    Miner,
    MinerOptions,
    MultiWayJoin,
    MultiWaySpec,
    multiway_spec,
)
from dovetail.multiway.mjoin import MJoin
from dovetail_bench.miner.counting import count_only

MakeJoin = Callable[..., MultiWayJoin]


def batch(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})


def wide(rows: pa.RecordBatch, nbytes: int) -> pa.RecordBatch:
    """The same rows, each with so many bytes besides."""
    filler = pa.array(["x" * nbytes] * rows.num_rows)
    return rows.append_column(f"fill{rows.num_columns}", filler)


def chain_of(relations: Sequence[pa.RecordBatch]) -> MultiWaySpec:
    """Inputs `r1`, `r2`, ...: `a1` of the first two match, `a2` of the second and third, ..."""
    inputs = {f"r{i}": relation.schema for i, relation in enumerate(relations, start=1)}
    return multiway_spec(
        inputs, [(f"r{i}.a{i}", f"r{i + 1}.a{i}") for i in range(1, len(relations))]
    )


def random_chain(inputs: int, rows: int, domain: int, nbytes: int, seed: int = 1) -> list[Any]:
    """Relations for `chain_of`, with row numbers in `n1`, `n2`, ..."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(1, inputs + 1):
        columns: dict[str, Any] = {f"n{i}": np.arange(rows)}
        if i > 1:
            columns[f"a{i - 1}"] = rng.integers(0, domain, rows)
        if i < inputs:
            columns[f"a{i}"] = rng.integers(0, domain, rows)
        found.append(wide(batch(**columns), nbytes))
    return found


def drain(join: MultiWayJoin) -> list[pa.RecordBatch]:
    """End all inputs and take what is left."""
    for side in range(len(join.spec)):
        join.finish(side)
    results: list[pa.RecordBatch] = []
    while join.status() is not Status.DONE:
        results += join.poll(1_000)
        join.check()
    return results


def feed(
    join: MultiWayJoin, relations: Sequence[pa.RecordBatch], rows: int
) -> list[pa.RecordBatch]:
    """Push all relations in turns, so many rows at a time."""
    results: list[pa.RecordBatch] = []
    for start in range(0, max(r.num_rows for r in relations), rows):
        for side, relation in enumerate(relations):
            results += join.push(side, relation.slice(start, rows))
    return results


def count(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(found.num_rows for found in batches)


@pytest.fixture
def make_join(tmp_path: Path) -> Iterator[MakeJoin]:
    stores: list[BlockStore] = []

    def make(
        algorithm: str, spec: MultiWaySpec, budget: int | None = None,
        options: MinerOptions | None = None, snapshot: Any = None,
    ) -> MultiWayJoin:  # fmt: skip
        files = tuple(stores[-1].files) if snapshot is not None else ()
        store = BlockStore(tmp_path, spec.schemas, f"s{len(stores)}", files)
        stores.append(store)
        context = Context(Budget(budget), store)
        return ALGORITHMS[algorithm](spec, context, snapshot, options)

    yield make
    for store in stores:
        store.close()


BUDGET = 4 * MIN_BYTES_PER_INPUT
EVERY = sorted(ALGORITHMS)


# -- arriving -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", EVERY)
def test_push_when_the_last_row_of_a_combination_comes_then_emits_it_at_once(
    algorithm: str, make_join: MakeJoin
) -> None:
    rows = [batch(n1=[1], a1=[7]), batch(n2=[2], a1=[7], a2=[8]), batch(n3=[3], a2=[8])]
    join = make_join(algorithm, chain_of(rows))
    assert list(join.push(1, rows[1])) == []
    assert list(join.push(0, rows[0])) == []
    (found,) = join.push(2, rows[2])
    assert found.to_pylist() == [
        {"n1": 1, "r1_a1": 7, "n2": 2, "r2_a1": 7, "r2_a2": 8, "n3": 3, "r3_a2": 8}
    ]
    assert drain(join) == []
    assert join.ctx.counters.rows_in == [1, 1, 1]


def test_push_when_an_edge_finds_nobody_then_further_relations_are_not_probed(
    make_join: MakeJoin,
) -> None:
    rows = [batch(a1=[1]), batch(a1=[2], a2=[3]), batch(a2=[3] * 50)]
    join = make_join("miner", chain_of(rows))
    list(join.push(1, rows[1]))
    list(join.push(2, rows[2]))
    join.order.edges[0].local_joins = 0
    join.order.edges[1].local_joins = 10
    list(join.push(0, rows[0]))
    assert join.order.edges[1].local_joins == 10, "the first edge found nobody"


@pytest.mark.parametrize("algorithm", EVERY)
def test_push_when_a_key_matches_nothing_then_the_row_is_counted_and_dropped(
    algorithm: str, make_join: MakeJoin
) -> None:
    rows = [batch(a1=[1, None]), batch(a1=[1, 1], a2=[None, 2]), batch(a2=[2, None])]
    join = make_join(algorithm, chain_of(rows))
    assert count(feed(join, rows, 2)) == 1
    assert join.ctx.counters.rows_unmatched_key == 3
    assert [len(table) for table in join.tables] == [1, 1, 1]


def test_join_when_one_value_makes_many_results_then_batches_stay_small(
    make_join: MakeJoin,
) -> None:
    rows = [wide(batch(**{name: [1] * 40}), 100) for name in ("a1", "a1", "a1")]
    spec = multiway_spec(
        {f"r{i}": row.schema for i, row in enumerate(rows)},
        [("r0.a1", "r1.a1"), ("r1.a1", "r2.a1")],
    )
    join = make_join("miner", spec, 20 * BUDGET)
    total = 0
    for side, row in enumerate(rows):
        for found in join.push(side, row):
            total += found.num_rows
            assert found.nbytes <= join.working_bytes // 4
    assert total == 40**3


def test_join_when_a_row_is_far_longer_than_others_then_batches_stay_small(
    make_join: MakeJoin,
) -> None:
    texts = ["x"] * 30 + ["x" * 20_000]
    one, two = batch(k=[1] * 31, text=texts), batch(k=[1] * 31)
    spec = multiway_spec({"a": one.schema, "b": two.schema}, [("a.k", "b.k")])
    join = make_join("miner", spec, 8 * BUDGET)
    list(join.push(0, one))
    sizes = [found.nbytes for found in join.push(1, two)]
    assert max(sizes) <= max(20_100, join.working_bytes // 4)
    assert sum(sizes) > 31 * 20_000


# -- budget ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", EVERY)
def test_join_when_the_budget_is_too_small_then_says_what_would_do(
    algorithm: str, make_join: MakeJoin
) -> None:
    with pytest.raises(MemoryBudgetError, match=r"3 inputs needs at least 96\.0 KB"):
        make_join(algorithm, chain_of(random_chain(3, 1, 1, 1)), 50_000)


@pytest.mark.parametrize("algorithm", EVERY)
def test_join_when_larger_than_its_budget_then_never_takes_more(
    algorithm: str, make_join: MakeJoin
) -> None:
    rows = random_chain(3, 70, 20, 1_500)
    unbounded = make_join(algorithm, chain_of(rows))
    expected = count(feed(unbounded, rows, 10)) + count(drain(unbounded))
    join = make_join(algorithm, chain_of(rows), BUDGET)
    found = count(feed(join, rows, 10))
    assert join.ctx.counters.flushed_rows > 0
    assert found + count(drain(join)) == expected
    assert join.ctx.budget.peak_bytes <= BUDGET


@pytest.mark.parametrize("algorithm", EVERY)
def test_join_when_rows_fill_the_budget_then_they_make_room_for_blocks(
    algorithm: str, make_join: MakeJoin
) -> None:
    rows = random_chain(3, 400, 20, 500)
    join = make_join(algorithm, chain_of(rows), 2 * BUDGET)
    feed(join, rows, 10)
    held = sum(map(len, join.tables))
    filled = sum(table.nbytes for table in join.tables) / (2 * BUDGET)
    assert filled > 0.75, "memory that only blocks need is not kept from rows"
    list(join.poll(1))
    assert join.status() is Status.MORE
    assert join.ctx.budget.components["outer"] >= join.room.least_bytes
    assert sum(map(len, join.tables)) < held
    list(join.push(0, rows[0].slice(0, 1)))
    assert join.ctx.budget.components["outer"] == 0
    assert join.ctx.budget.peak_bytes <= 2 * BUDGET


@pytest.mark.parametrize("algorithm", EVERY)
def test_count_only_when_asked_for_then_emits_as_many_rows_without_columns(
    algorithm: str, make_join: MakeJoin
) -> None:
    rows = random_chain(3, 60, 8, 1_500)
    found = []
    for only in (False, True):
        join = make_join(algorithm, chain_of(rows), BUDGET)
        if only:
            count_only(join)
        results = [*feed(join, rows, 10), *drain(join)]
        assert join.ctx.counters.flushed_rows > 0
        found.append((count(results), sum(join.ctx.counters.rows_out.values())))
    assert found[0] == found[1]
    assert {field.type for field in results[0].schema} == {pa.null()}


def test_options_when_out_of_range_then_are_refused() -> None:
    with pytest.raises(ArgumentError, match="max_outer_blocks=0"):
        MinerOptions(max_outer_blocks=0)


# -- flushing -------------------------------------------------------------------------------


def test_miner_when_memory_is_full_then_flushes_from_the_largest_relation(
    make_join: MakeJoin,
) -> None:
    rows = random_chain(3, 200, 30, 500)
    join = make_join("miner", chain_of(rows), BUDGET)
    feed(join, [rows[0].slice(0, 10), rows[1], rows[2].slice(0, 10)], 10)
    assert [size > 0 for size in join.cells[0].sizes] == [False, True, False]


def test_miner_when_values_drift_then_keeps_those_that_match(make_join: MakeJoin) -> None:
    values = np.arange(600) // 2
    rows = [wide(batch(a1=values), 500), wide(batch(a1=values, a2=values), 500),
            wide(batch(a2=values), 500)]  # fmt: skip
    online = {}
    for algorithm in ("miner", "miner-paper"):
        join = make_join(algorithm, chain_of(rows), 3 * MIN_BYTES_PER_INPUT)
        online[algorithm] = count(feed(join, rows, 6))
        assert join.ctx.counters.flushed_rows > 0
    assert online["miner"] > 0.95 * 600 * 4
    assert online["miner"] > 1.3 * online["miner-paper"], "which flushes what has just come"


def test_miner_when_a_relation_makes_little_of_its_rows_then_others_get_the_memory(
    make_join: MakeJoin,
) -> None:
    """Each key once in the first relation, and few of them in the second, which are skewed."""
    rng = np.random.default_rng(1)
    skewed = np.minimum(rng.zipf(1.6, (2, 2_000)), 400) - 1
    rows = [wide(batch(a1=rng.permutation(400)), 100), wide(batch(a1=skewed[0]), 100)]
    rows += [wide(batch(a1=skewed[1]), 100)]
    spec = multiway_spec(
        {f"r{i}": row.schema for i, row in enumerate(rows)},
        [("r0.a1", "r1.a1"), ("r1.a1", "r2.a1")],
    )
    shares, online = {}, {}
    for weighing in (True, False):
        join = make_join(
            "miner", spec, 3 * MIN_BYTES_PER_INPUT, MinerOptions(weighing=weighing)
        )  # fmt: skip
        count_only(join)
        online[weighing] = count(feed(join, rows, 20))
        assert join.ctx.counters.flushed_rows > 0
        sizes = [len(table) for table in join.tables]
        shares[weighing] = sizes[0] / sum(sizes)
    assert shares[True] < 0.7 * shares[False]
    assert online[True] > online[False]


def test_miner_when_a_relation_has_many_narrow_rows_then_copies_of_them_fit_working_memory(
    make_join: MakeJoin,
) -> None:
    """What is made of all rows for a moment, when some come, leave or are counted."""
    rng = np.random.default_rng(1)

    def centre(rows: int) -> pa.RecordBatch:
        return batch(**{f"a{i}": rng.integers(0, 1 << 40, rows) for i in (1, 2, 3)})

    leaves = [batch(**{f"a{i}": [1]}) for i in (1, 2, 3)]
    spec = multiway_spec(
        {f"r{i}": rows.schema for i, rows in enumerate([centre(1), *leaves])},
        [(f"r0.a{i}", f"r{i}.a{i}") for i in (1, 2, 3)],
    )
    tracemalloc.start()
    try:
        join = make_join("miner", spec, 8_000_000)
        for side, rows in enumerate([centre(100_000), *leaves]):
            list(join.push(side, rows))
        assert join.ctx.counters.flushed_rows > 40_000
        steps: list[Callable[[], object]] = [join._make_room, join.pending]
        steps += [lambda: list(join.push(0, centre(800)))] * 40
        taken = []
        for step in steps:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            step()
            taken.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert max(taken) < join.working_bytes, taken


def test_mjoin_when_all_join_on_one_attribute_then_flushes_a_bucket_of_every_input(
    make_join: MakeJoin,
) -> None:
    rows = [wide(batch(k=np.arange(150)), 600) for _ in range(3)]
    spec = multiway_spec(
        {f"r{i}": row.schema for i, row in enumerate(rows)}, [("r0.k", "r1.k"), ("r1.k", "r2.k")]
    )
    join = make_join("mjoin", spec, BUDGET)
    assert isinstance(join, MJoin)
    assert join.coordinated
    feed(join, rows, 5)
    flushed = [cell for cell in join.cells if any(cell.sizes)]
    assert flushed
    for cell in flushed:
        assert all(cell.sizes), "of every input"
    assert not make_join("mjoin", chain_of(random_chain(3, 1, 1, 1)), BUDGET).coordinated  # type: ignore[attr-defined]


# -- deferred work --------------------------------------------------------------------------


def spilled(make_join: MakeJoin, algorithm: str = "miner", **options: Any) -> MultiWayJoin:
    rows = random_chain(3, 70, 20, 1_500)
    chosen = MinerOptions(**options) if options else None
    join = make_join(algorithm, chain_of(rows), BUDGET, chosen)
    feed(join, rows, 10)
    return join


def test_poll_when_rows_wait_then_hands_over_after_one_block(make_join: MakeJoin) -> None:
    join = spilled(make_join, max_new_arrivals=5)
    join.waiting = lambda: 6
    join.ctx.counters.blocks_read = 0
    for _ in range(20):
        before = join.ctx.counters.blocks_read
        list(join.poll(1 << 30))
        assert join.ctx.counters.blocks_read - before <= 1
        assert join.status() is Status.MORE
    join.waiting = lambda: 0
    list(join.poll(1 << 30))
    assert join.status() is Status.IDLE


def test_cleanup_when_blocks_are_reduced_then_reads_far_less_than_an_odometer_of_blocks(
    make_join: MakeJoin,
) -> None:
    read = {}
    for name, options in {
        "paper": {"zone_maps": False, "reduce": False},
        "zones": {"zone_maps": True, "reduce": False},
        "both": {"zone_maps": True, "reduce": True},
    }.items():
        join = spilled(make_join, **options)
        join.ctx.counters.blocks_read = 0
        drain(join)
        read[name] = join.ctx.counters.blocks_read
    assert read["both"] < read["zones"] < read["paper"]
    assert 4 * read["both"] < read["paper"]


def test_cleanup_when_inputs_are_larger_than_memory_then_reads_them_as_seldom_as_it_can(
    make_join: MakeJoin,
) -> None:
    """A chunk of the outer relation and what matches it of the next share the memory, and the last
    relation is read once for each chunk, though blocks are of different sizes."""
    rows = random_chain(3, 4_000, 4_000, 100)
    budget = sum(relation.nbytes for relation in rows) // 5
    join = make_join("miner", chain_of(rows), budget, None)
    count_only(join)
    found = count(feed(join, rows, 100))
    join.ctx.counters.blocks_read = 0
    found += count(drain(join))
    sizes = join.cells[0].sizes
    passes = (join.ctx.counters.blocks_read - min(sizes)) / (sum(sizes) - min(sizes))
    one, two, three = (relation.to_pydict() for relation in rows)
    before, after = (
        np.bincount(one["a1"], minlength=4_000),
        np.bincount(three["a2"], minlength=4_000),
    )
    assert found == (before[two["a1"]] * after[two["a2"]]).sum()
    assert passes < 10


def test_cleanup_when_a_star_has_more_inputs_then_reads_no_more_than_in_proportion(
    make_join: MakeJoin,
) -> None:
    """The centre is the smallest, so it is the outer relation, and all are joined with it."""
    read = {}
    for inputs in (3, 5):
        rng = np.random.default_rng(inputs)
        leaves = [f"a{i}" for i in range(1, inputs)]
        rows = [wide(batch(**{name: rng.integers(0, 240, 120) for name in leaves}), 600)]
        rows += [wide(batch(**{name: rng.permutation(240)}), 600) for name in leaves]
        spec = multiway_spec(
            {f"r{i}": row.schema for i, row in enumerate(rows)},
            [(f"r0.a{i}", f"r{i}.a{i}") for i in range(1, inputs)],
        )
        join = make_join("miner", spec, inputs * MIN_BYTES_PER_INPUT)
        count_only(join)
        found = count(feed(join, rows, 10))
        assert all(size > 20 for size in join.cells[0].sizes)
        join.ctx.counters.blocks_read = 0
        assert found + count(drain(join)) == 120
        read[inputs] = join.ctx.counters.blocks_read
    assert read[5] < 4 * read[3]


def test_cleanup_when_nothing_is_left_to_meet_then_writes_nothing(make_join: MakeJoin) -> None:
    rows = random_chain(3, 10, 3, 10)
    join = make_join("miner", chain_of(rows), BUDGET)
    feed(join, rows, 5)
    assert drain(join) == []
    assert join.ctx.counters.blocks_written == 0


def test_cleanup_when_an_input_re_opens_then_finds_what_it_wrote_in_memory(
    make_join: MakeJoin,
) -> None:
    rows = random_chain(3, 100, 4, 1_000)
    late = random_chain(3, 5, 4, 1, seed=2)[1]
    found = {}
    for keep in (True, False):
        join = make_join("miner", chain_of(rows), BUDGET, MinerOptions(keep_copies=keep))
        feed(join, [rows[0].slice(0, 0), rows[1], rows[2].slice(0, 0)], 5)
        feed(join, [rows[0].slice(0, 4), rows[1].slice(0, 0), rows[2].slice(0, 4)], 5)
        while join.ctx.budget.used_bytes + join.room.least_bytes > BUDGET:
            assert join._make_room()  # else copies would have to go for blocks
        assert count(drain(join)) > 0
        assert join.ctx.counters.flushed_rows > 0
        assert any(table.copied.any() for table in join.tables) == keep
        found[keep] = count(list(join.push(1, late)))
        join.check()
        found[keep, "all"] = found[keep] + count(drain(join))
    assert found[True] > 0
    assert found[False] == 0
    assert found[True, "all"] == found[False, "all"]


def test_join_when_one_input_is_empty_then_puts_nothing_off(make_join: MakeJoin) -> None:
    rows = random_chain(3, 120, 30, 1_000)
    join = make_join("miner", chain_of(rows), BUDGET)
    feed(join, rows[:2], 10)
    assert join.ctx.counters.flushed_rows > 0
    assert join.pending() == 0
    join.ctx.counters.blocks_read = 0
    assert drain(join) == []
    assert join.ctx.counters.blocks_read == 0


# -- state ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", EVERY)
def test_snapshot_when_taken_twice_then_writes_only_what_is_new(
    algorithm: str, make_join: MakeJoin
) -> None:
    rows = random_chain(2, 600, 30, 300)
    join = make_join(algorithm, chain_of(rows), 2 * BUDGET)
    feed(join, rows, 40)
    first = join.snapshot()
    written = join.ctx.counters.blocks_written
    second = join.snapshot()
    assert join.ctx.counters.blocks_written == written
    assert np.array_equal(first.blocks, second.blocks)
    lost: list[str] = []
    for start in range(0, 400, 2):
        list(join.push(0, rows[0].slice(start, 2)))
        third = join.snapshot()
        lost = [text for text in third.meta["alive"] if text is not None]
        if lost:
            break
        second = third
    assert lost, "which rows are left of batches that lost a few is kept"
    resident = third.blocks[third.blocks["kind"] == RESIDENT]
    kept = [entry for entry in resident if any(entry == old for old in second.blocks)]
    assert len(kept) > len(resident) // 2, "and these batches are not written again"


@pytest.mark.parametrize("algorithm", EVERY)
def test_restore_when_made_from_a_snapshot_then_goes_on_where_it_was(
    algorithm: str, make_join: MakeJoin
) -> None:
    join = spilled(make_join, algorithm)
    list(join.poll(500))
    snapshot = join.snapshot()
    join.ctx.store.sync()
    join.ctx.store.begin("after", join.ctx.counters)
    again = make_join(algorithm, join.spec, BUDGET, None, snapshot)
    again.check()
    assert [len(table) for table in again.tables] == [len(table) for table in join.tables]
    assert again.pending() == join.pending()
    assert again.order.edges == join.order.edges
    if isinstance(again, Miner) and isinstance(join, Miner):
        assert again.areas == join.areas
    assert count(drain(again)) == count(drain(join))


def test_restore_when_the_budget_has_shrunk_then_makes_room_and_goes_on(
    make_join: MakeJoin,
) -> None:
    rows = random_chain(3, 120, 30, 1_000)
    join = make_join("miner", chain_of(rows), 2 * BUDGET)
    feed(join, rows, 10)
    for side in range(3):
        join.finish(side)
    list(join.poll(2_000))
    snapshot = join.snapshot()
    join.ctx.store.sync()
    join.ctx.store.begin("after", join.ctx.counters)
    smaller = make_join("miner", join.spec, 3 * MIN_BYTES_PER_INPUT, None, snapshot)
    smaller.check()
    assert count(drain(smaller)) == count(drain(join))


def test_poll_when_a_block_is_damaged_then_says_which_file(
    make_join: MakeJoin, tmp_path: Path
) -> None:
    join = spilled(make_join)
    name = next(name for name in join.ctx.store.log_files if "left" in name)
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(StateCorruptError, match=path.name):
        drain(join)
