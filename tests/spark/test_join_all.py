"""`join_all` gives what a cascade of Spark's own batch joins of the same files gives."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dovetail
from dovetail import errors
from support.depth import only_full

pytestmark = pytest.mark.spark

SEED = 5_150
CHAIN = [("r1.a", "r2.a"), ("r2.b", "r3.b"), ("r3.c", "r4.c")]
CHAIN_SQL = {"r2": "r1_a = r2_a", "r3": "r2_b = r3_b", "r4": "r3_c = r4_c"}


def relation(rows: int, seed: int, text: int = 40, **domains: int) -> pa.Table:
    """Whole numbers below a domain each, a twentieth of them null, an `id`, and a text."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        name: pa.array(rng.integers(0, domain, rows), mask=rng.random(rows) < 0.05)
        for name, domain in domains.items()
    }
    letters = rng.integers(97, 123, (rows, text), dtype=np.uint8)
    texts = [row.tobytes().decode() for row in letters]
    return pa.table({**columns, "id": np.arange(rows), "text": texts})


def write_chain(bench: Any, rows: int = 300, files: int = 2) -> None:
    columns = {"r1": "a", "r2": "ab", "r3": "bc", "r4": "c"}
    for number, (name, keys) in enumerate(columns.items()):
        table = relation(rows, SEED + number, text=180, **dict.fromkeys(keys, rows // 3))
        bench.write(name, table, files)


def join_streams(bench: Any, on: Any, **options: Any) -> DataFrame:
    options = {"state": bench.state, "partitions": 4, **options}
    return dovetail.join_all({name: bench.stream(name) for name in bench.schemas}, on, **options)


def join_batches(bench: Any, on: Any, **options: Any) -> DataFrame:
    options = {"partitions": 4, **options}
    return dovetail.join_all({name: bench.batch(name) for name in bench.schemas}, on, **options)


def cascade(bench: Any, conditions: dict[str, str], least: int = 100) -> DataFrame:
    """Spark's own joins, one after the other; each column is prefixed with its input's name."""
    joined = None
    for name in bench.schemas:
        frame = bench.batch(name)
        frame = frame.toDF(*(f"{name}_{column}" for column in frame.columns))
        joined = frame if joined is None else joined.join(frame, F.expr(conditions[name]))
    assert joined.count() >= least, "too few results to test anything"
    return joined


@pytest.mark.parametrize(
    ("algorithm", "memory"),
    [
        ("auto", "300KB"),
        ("mjoin", "300KB"),
        *only_full(("miner-paper", "300KB"), ("miner", None)),
    ],
)
def test_join_all_when_on_one_attribute_then_is_hashed_and_equals_spark(
    bench: Any, algorithm: str, memory: str | None
) -> None:
    for number, name in enumerate(("r1", "r2", "r3")):
        bench.write(name, relation(700, SEED + number, text=150, k=175), 2)
    bench.run(join_streams(bench, "k", algorithm=algorithm, memory=memory, partitions=3))
    progress = bench.progress()
    assert progress.identity["shares"] == [3]
    counted = [bench.batch(name).where("k is not null").count() for name in bench.schemas]
    assert list(progress.rows_in) == counted, "a row went to more than one partition, or to none"
    assert progress.pending_rows == 0
    assert (progress.spilled_bytes > 0) == (memory is not None)
    if memory:
        assert 0 < progress.memory["total"] <= 300 << 10
        assert progress.rows_out["cleanup"] > 0
    expected = cascade(bench, {"r2": "r1_k = r2_k", "r3": "r1_k = r3_k"})
    bench.check(f"star on one attribute, {algorithm}, {memory}, seed {SEED}", expected)


@pytest.mark.parametrize("algorithm", ["miner", "mjoin"])
def test_join_all_when_a_chain_has_several_attributes_then_shares_keep_each_result_single(
    bench: Any, algorithm: str
) -> None:
    write_chain(bench)
    bench.run(join_streams(bench, CHAIN, algorithm=algorithm, memory="530KB", partitions=4))
    progress = bench.progress()
    assert sorted(progress.identity["shares"]) == [1, 2, 2], "more than one attribute is cut"
    assert len(progress.partitions) == 4
    assert progress.spilled_bytes > 0
    bench.check(f"chain of four, {algorithm}, seed {SEED}", cascade(bench, CHAIN_SQL))


def test_join_all_when_a_star_has_several_attributes_then_equals_spark(
    bench: Any, same_rows: Any
) -> None:
    bench.write("sale", relation(700, SEED, day=30, shop=20, item=40), 2)
    for number, (name, rows) in enumerate({"day": 30, "shop": 20, "item": 40}.items()):
        bench.write(name, relation(rows, SEED + 1 + number, **{name: rows}), 1)
    on = [(f"sale.{name}", f"{name}.{name}") for name in ("day", "shop", "item")]
    joined = join_batches(bench, on, memory="2MB", partitions=8)
    expected = cascade(bench, {n: f"sale_{n} = {n}_{n}" for n in ("day", "shop", "item")})
    same_rows(joined, expected, f"star of three dimensions, seed {SEED}")


def test_join_all_when_edges_are_bands_then_equals_spark(bench: Any) -> None:
    minute = 60_000_000
    rng = np.random.default_rng(SEED)
    for name in ("r1", "r2", "r3"):
        at = pa.array(rng.integers(0, 400 * minute, 250), pa.timestamp("us", tz="UTC"))
        table = relation(250, int(rng.integers(1000)), k=12).append_column("at", at)
        bench.write(name, table, 2)
    on = [("r1.at", "r2.at", dt.timedelta(minutes=9)), ("r2.k", "r3.k")]
    bench.run(join_streams(bench, on, memory="800KB", partitions=4))
    assert bench.progress().identity["shares"] == [2, 2]
    apart = "abs(unix_micros(r1_at) - unix_micros(r2_at)) <= 540000000"
    expected = cascade(bench, {"r2": apart, "r3": "r2_k = r3_k"})
    bench.check(f"a band and an equality, seed {SEED}", expected)


@pytest.mark.parametrize(
    ("type_", "within"), [("double", 0.25), ("int", 2), ("date", 2), ("double", 0)]
)
def test_join_all_when_bands_follow_each_other_then_rows_in_reach_meet_in_one_partition(
    bench: Any, same_rows: Any, type_: str, within: float
) -> None:
    rng = np.random.default_rng(SEED)
    for name in ("r1", "r2", "r3", "r4"):
        numbers = rng.integers(-60, 60, 150)
        numbers[:4] = [0, 1, -1, 2]  # the borders of ranges among them
        values = pa.array(numbers)
        if type_ == "double":
            values = pa.array([float("nan"), -0.0, 0.0, np.inf, *(numbers[4:] * 0.25)])
        elif type_ == "date":
            values = pa.array(numbers.astype(np.int32), pa.date32())
        bench.write(name, pa.table({"t": values, "id": np.arange(150)}), 1)
    on = [("r1.t", "r2.t"), ("r2.t", "r3.t"), ("r3.t", "r4.t", None)]
    reach = dt.timedelta(days=within) if type_ == "date" else within
    joined = join_batches(bench, on, within=reach, partitions=5)
    distance = "abs(datediff({0}_t, {1}_t))" if type_ == "date" else "abs({0}_t - {1}_t)"
    near = f"{distance} <= {within}{'D' if type_ == 'double' else ''}"
    expected = cascade(
        bench, {"r2": near.format("r1", "r2"), "r3": near.format("r2", "r3"), "r4": "r3_t = r4_t"}
    )
    same_rows(joined, expected, f"bands within {within} on {type_}, seed {SEED}")


def test_join_all_when_floats_and_strings_are_joined_then_nan_and_zeros_are_equal(
    bench: Any, same_rows: Any
) -> None:
    for number, name in enumerate(("r1", "r2", "r3")):
        columns = {
            "x": bench.keys_of(pa.float64(), 200, 20, SEED + number),
            "s": bench.keys_of(pa.string(), 200, 20, SEED + 10 + number),
            "id": pa.array(range(200)),
        }
        zeros = pa.array([0.0, -0.0] * 5 + columns["x"].to_pylist()[10:])
        bench.write(name, pa.table({**columns, "x": zeros}), 1)
    joined = join_batches(bench, [("r1.x", "r2.x"), ("r2.s", "r3.s")], partitions=4)
    expected = cascade(bench, {"r2": "r1_x = r2_x", "r3": "r2_s = r3_s"})
    same_rows(joined, expected, f"NaN, zeros and nulls, seed {SEED}")


def test_join_all_when_a_key_is_composite_then_equals_spark(bench: Any, same_rows: Any) -> None:
    for number, name in enumerate(("r1", "r2", "r3")):
        bench.write(name, relation(300, SEED + number, a=9, b=8), 1)
    on = [("r1.a", "r2.a"), ("r1.b", "r2.b"), ("r2.a", "r3.b")]
    joined = join_batches(bench, on, memory="2MB", partitions=6)
    expected = cascade(bench, {"r2": "r1_a = r2_a and r1_b = r2_b", "r3": "r2_a = r3_b"})
    same_rows(joined, expected, f"two columns and one, seed {SEED}")


def test_output_when_names_clash_then_these_are_prefixed(bench: Any) -> None:
    bench.write("r1", pa.table({"k": [1], "ID": [10], "left x": [1.5]}), 1)
    bench.write("r2", pa.table({"k": [1], "id": [20], "y.z": ["a"]}), 1)
    bench.write("r3", pa.table({"k": [1], "only": [[1, 2]]}), 1)
    joined = join_batches(bench, "k")
    names = ["r1_k", "r1_ID", "left x", "r2_k", "r2_id", "y.z", "r3_k", "only"]
    assert joined.columns == names
    assert [field.name for field in joined.schema if not field.nullable] == ["r1_k", "r2_k", "r3_k"]
    assert [tuple(row) for row in joined.collect()] == [(1, 10, 1.5, 1, 20, "a", 1, [1, 2])]


def test_query_when_stopped_and_new_files_come_then_goes_on_with_its_shares(bench: Any) -> None:
    write_chain(bench, 200, 1)
    sizes = {"r1": 1, "r2": 1, "r3": 1, "r4": 100}
    bench.run(join_streams(bench, CHAIN, memory="530KB", sizes=sizes))
    shares = bench.progress().identity["shares"]
    assert shares[2] > 1, "the large input is not cut"
    write_chain(bench, 200, 3)
    with bench.running(join_streams(bench, CHAIN, memory="530KB")) as query:
        first = bench.progress().version
        while query.isActive and bench.progress().version < first + 2:
            query.awaitTermination(0.05)
        assert query.exception() is None
    bench.run(join_streams(bench, CHAIN, memory="600KB"))
    progress = bench.progress()
    assert progress.identity["shares"] == shares
    assert progress.pending_rows == 0
    assert progress.spilled_bytes > 0
    bench.check(f"stopped and started again, seed {SEED}", cascade(bench, CHAIN_SQL))
    with pytest.raises(errors.StateMismatchError, match=r"partitions=4.*partitions=2"):
        join_streams(bench, CHAIN, partitions=2)
    with pytest.raises(errors.StateMismatchError, match="on="):
        join_streams(bench, [*CHAIN[:2], ("r3.b", "r4.c")])


def test_join_all_when_inputs_are_in_one_query_twice_then_equals_spark(bench: Any) -> None:
    """The result of a join is an ordinary stream: the input of another."""
    for number, name in enumerate(("r1", "r2", "r3")):
        bench.write(name, relation(150, SEED + number, k=50), 1)
    streams = {name: bench.stream(name) for name in bench.schemas}
    pairs = dovetail.join(
        streams["r1"].select("k", "id"), streams["r2"].selectExpr("k", "id as id2"),
        on="k", state=bench.root / "pairs", partitions=2,
    )  # fmt: skip
    joined = dovetail.join_all(
        {"pair": pairs, "r3": streams["r3"].select("k", "id")}, "k",
        state=bench.state, partitions=2,
    )  # fmt: skip
    bench.run(joined)
    expected = cascade(bench, {"r2": "r1_k = r2_k", "r3": "r1_k = r3_k"})
    wanted = expected.select("r1_k", "r1_id", "r2_id", "r3_k", "r3_id")
    bench.check(f"a join behind a join, seed {SEED}", wanted)


@dataclass(frozen=True)
class Tree:
    """Inputs that were drawn by lot, and what joins each with one before it."""

    columns: tuple[tuple[str, ...], ...]
    on: list[tuple[Any, ...]]
    sql: dict[str, str]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Tree":
        inputs = int(rng.integers(3, 6))
        columns: list[list[str]] = [[f"c{i}"] for i in range(inputs)]
        on: list[tuple[Any, ...]] = []
        sql = {}
        for child in range(1, inputs):
            parent = int(rng.integers(child))
            if rng.random() < 0.6:  # on a column of its own, or one that another edge has, too
                columns[parent].append(f"c{parent}_{child}")
            ends = (columns[parent][-1], columns[child][0])
            one, two = f"r{parent}_{ends[0]}", f"r{child}_{ends[1]}"
            pair = (f"r{parent}.{ends[0]}", f"r{child}.{ends[1]}")
            kind = str(rng.choice(["equal", "band", "composite"], p=[0.4, 0.4, 0.2]))
            width = int(rng.integers(0, 2))
            sql[f"r{child}"] = f"abs({one} - {two}) <= {width if kind == 'band' else 0}"
            on.append((*pair, width) if kind == "band" else pair)
            if kind == "composite" and not any("too" in pair[1] for pair in on):  # few match both
                columns[child].append(f"too{child}")
                on.append((f"r{parent}.c{parent}", f"r{child}.too{child}"))
                sql[f"r{child}"] += f" and r{parent}_c{parent} = r{child}_too{child}"
        return cls(tuple(map(tuple, columns)), on, sql)


@pytest.mark.parametrize("seed", [2, 3, 5, 6, 7])  # of chains, stars and bands, some of each
def test_join_all_when_the_tree_is_drawn_by_lot_then_each_result_has_one_cell(
    bench: Any, same_rows: Any, seed: int
) -> None:
    rng = np.random.default_rng([SEED, seed])
    tree = Tree.drawn(rng)
    for number, names in enumerate(tree.columns):
        rows = relation(40, SEED + number, text=1, **dict.fromkeys(names, 20))
        bench.write(f"r{number}", rows.drop_columns(["text"]), 1)
    partitions = int(rng.integers(3, 13))
    joined = join_batches(bench, tree.on, partitions=partitions)
    about = f"{tree.on} over at most {partitions} partitions, seed {seed}"
    prefixed = [f"{n}_{c}" for n in bench.schemas for c in bench.schemas[n].names]
    same_rows(joined.toDF(*prefixed), cascade(bench, tree.sql, least=1), about)


def test_join_all_when_inputs_end_at_different_times_then_equals_spark(bench: Any) -> None:
    columns = {"r1": "a", "r2": "ab", "r3": "b"}
    for number, (name, keys) in enumerate(columns.items()):
        files = (1, 5, 2)[number]
        table = relation(250 * files, SEED + number, text=180, **dict.fromkeys(keys, 250))
        bench.write(name, table, files)
    bench.run(join_streams(bench, CHAIN[:2], memory="430KB"))
    progress = bench.progress()
    assert progress.spilled_bytes > 0
    assert progress.pending_rows == 0
    bench.check(f"one, five and two files, seed {SEED}", cascade(bench, CHAIN_SQL))


@pytest.mark.parametrize("empty", ["r1", "r2", "r3"])
def test_join_all_when_an_input_is_empty_then_there_are_no_results_until_its_rows_come(
    bench: Any, same_rows: Any, empty: str
) -> None:
    columns = {"r1": "a", "r2": "ab", "r3": "b"}
    late = {}
    for number, (name, keys) in enumerate(columns.items()):
        rows = relation(200, SEED + number, **dict.fromkeys(keys, 60))
        bench.write(name, rows.slice(0, 0) if name == empty else rows, 1)
        late[name] = rows
    assert join_batches(bench, CHAIN[:2]).count() == 0
    bench.run(join_streams(bench, CHAIN[:2]))
    assert bench.results().count() == 0
    bench.write(empty, late[empty], 1)
    bench.run(join_streams(bench, CHAIN[:2]))
    bench.check(f"{empty} came last, seed {SEED}", cascade(bench, CHAIN_SQL))


def test_join_all_when_names_hold_dots_and_backticks_then_equals_spark(
    bench: Any, same_rows: Any
) -> None:
    odd = {"r1": {"a": "k`e.y"}, "r2": {"a": "r1.a", "b": 'x"y. `z'}, "r3": {"b": "b", "id": "i.d"}}
    plain, named = {}, {}
    for number, (name, names) in enumerate(odd.items()):
        keys = [column for column in names if column != "id"]
        rows = relation(150, SEED + number, **dict.fromkeys(keys, 40))
        plain[name] = rows.rename_columns([f"{name}_{column}" for column in rows.column_names])
        named[name] = rows.rename_columns([names.get(c, c) for c in rows.column_names])
        bench.write(name, named[name], 1)
    on = [("r1.k`e.y", "r2.r1.a"), ('r2.x"y. `z', "r3.b")]
    frames = [bench.spark.createDataFrame(table) for table in plain.values()]
    wanted = frames[0].join(frames[1], F.expr(CHAIN_SQL["r2"])).join(
        frames[2], F.expr(CHAIN_SQL["r3"])
    )  # fmt: skip
    batch = join_batches(bench, on)
    assert batch.columns == [
        "k`e.y", "r1_id", "r1_text", "r1.a", 'x"y. `z', "r2_id", "r2_text", "b", "i.d", "r3_text",
    ]  # fmt: skip
    same_rows(batch, wanted, "batch")
    bench.run(join_streams(bench, on))
    same_rows(bench.results(), wanted, "stream")


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (["a", "b"], ["by name"]),
        ({"a": ["k"]}, ["2 inputs or more", "1"]),
        ({"a": "batch", "b": "stream"}, ["'a'", "readStream", "enrich"]),
        ({"a": "batch", "b": 3}, ["'b'", "int", "DataFrame"]),
        ({"a": "batch", "b.c": "batch"}, ["'b.c'", "dot"]),
    ],
    ids=str,
)
def test_inputs_when_wrong_then_one_clear_error(
    bench: Any, frames: Any, spark: Any, inputs: Any, says: list[str]
) -> None:
    if isinstance(inputs, dict):
        made = {"batch": frames("1 as k"), "stream": spark.readStream.format("rate").load()}
        inputs = {
            name: made.get(kind, kind) if isinstance(kind, str) else kind
            for name, kind in inputs.items()
        }
    with pytest.raises(errors.ArgumentError) as raised:
        dovetail.join_all(inputs, "k", state=bench.state)
    bench.says(str(raised.value), *says)
    assert not bench.state.exists()


def test_collation_when_not_binary_then_is_refused_by_name(frames: Any) -> None:
    odd = frames("'a' collate UNICODE_CI as k")
    with pytest.raises(errors.KeyTypeError, match=r"b join column 'k'.*UNICODE_CI"):
        dovetail.join_all({"a": frames("'a' as k"), "b": odd, "c": frames("'a' as k")}, "k")
