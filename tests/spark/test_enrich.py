"""A stream looked up in a staged table gives what Spark's batch join of the same files gives."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail
from dovetail.semistream import ALGORITHMS, HOWS
from support.depth import only_full

pytestmark = pytest.mark.spark

SEED = 20_261_116
TINY = "600KB"  # for two partitions: about a third of the larger tables here
CASES = [
    *(("seek", how) for how in HOWS),
    ("seek-uncached", "left"),
    ("inl", "anti"),
    ("meshjoin", "semi"),
    ("ameshjoin", "inner"),
    ("ssbj", "left"),
]
MORE_CASES = [("auto", "left"), ("meshjoin", "left"), ("ssbj", "anti")]


@pytest.fixture
def inputs(bench: Any) -> Any:
    """Keys that are skewed, repeated on both sides, missing on either side, or null."""
    rng = np.random.default_rng(SEED)
    skewed = np.minimum(rng.zipf(1.3, 1500), 4000) + rng.integers(0, 2, 1500) * 2000
    bench.keyed("stream", pa.array(skewed, mask=rng.random(1500) < 0.05), files=3)
    keys = np.concatenate([np.arange(3000), rng.integers(0, 3000, 2000), np.full(40, 1)])
    bench.keyed("table", pa.array(keys, mask=rng.random(len(keys)) < 0.02), text=300)
    return bench


def test_cases_when_listed_then_hold_every_algorithm() -> None:
    assert {algorithm for algorithm, _ in CASES} == set(ALGORITHMS)


@pytest.mark.parametrize(("algorithm", "how"), [*CASES, *only_full(*MORE_CASES)])
def test_enrich_when_algorithm_and_kind_vary_then_equals_spark(
    inputs: Any, algorithm: str, how: str
) -> None:
    inputs.run(inputs.enrich(how=how, algorithm=algorithm, memory=TINY))
    progress = inputs.progress()
    about = f"{algorithm}, {how}, seed {SEED}: {progress}"
    assert progress.pending_rows == 0, about
    assert 0 < progress.memory["total"] <= progress.budget_bytes, about
    staged = sum(path.stat().st_size for path in (inputs.state / "table").rglob("records.bin"))
    if how in ("inner", "left"):
        assert staged > 2 * progress.budget_bytes, f"{about}: the table fits into memory"
    inputs.check(about, inputs.enriched(how))


KEY_TYPES = {
    "boolean": pa.bool_(),
    "short": pa.int16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(38,10)": pa.decimal128(38, 10),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@pytest.mark.parametrize("name", KEY_TYPES)
def test_enrich_when_keyed_by_any_atomic_type_then_equals_spark(
    bench: Any, same_rows: Any, name: str
) -> None:
    """A tenth of the keys is null, of the floats another tenth NaN; some are -0.0."""
    for number, side in enumerate(("stream", "table")):
        rows = 120 if name == "boolean" else 700
        keys = bench.keys_of(KEY_TYPES[name], rows, (150, 70)[number], SEED + number)
        if name in ("float", "double"):
            zeros = pa.array([(-0.0, 0.0)[number]], KEY_TYPES[name])
            keys = pa.concat_arrays([keys, zeros])
        bench.keyed(side, keys, 1)
    enriched = dovetail.enrich(
        bench.batch("stream"), bench.batch("table"), on="k", how="left", partitions=2
    )
    same_rows(enriched, bench.enriched("left"), f"key of type {name}, seed {SEED}")


def test_enrich_when_float_keys_stream_then_equals_spark(bench: Any) -> None:
    """The shuffle of the stream and that of the table agree on NaN and -0.0."""
    special = [float("nan"), -0.0, 0.0, float("inf"), None]
    bench.keyed("stream", pa.array([*special, *np.arange(50) / 2] * 3, pa.float64()))
    bench.keyed("table", pa.array([*special[::-1], *np.arange(20, 60) / 2], pa.float64()))
    bench.run(bench.enrich(how="left", partitions=3))
    bench.check("float keys", bench.enriched("left"))


ON: dict[str, tuple[Any, list[str], Any]] = {
    "a name": ("a", ["b"], lambda s, t: s["a"] == t["a"]),
    "a list of names": (["a", "b"], [], lambda s, t: (s["a"] == t["a"]) & (s["b"] == t["b"])),
    "a pair": (
        ("stream_x", "table_x"), ["a", "b"], lambda s, t: s["stream_x"] == t["table_x"],
    ),
    "a name and a pair": (
        ["b", ("stream_x", "table_x")], ["a"],
        lambda s, t: (s["b"] == t["b"]) & (s["stream_x"] == t["table_x"]),
    ),
    "a name in other letter case": ("B", ["a"], lambda s, t: s["b"] == t["b"]),
}  # fmt: skip


@pytest.mark.parametrize("form", ON)
def test_enrich_when_on_takes_any_form_then_equals_spark(
    bench: Any, same_rows: Any, form: str
) -> None:
    on, dropped, condition = ON[form]
    for number, side in enumerate(("stream", "table")):
        bench.write(side, bench.two_column_rows(side, SEED + number), files=1)
    stream, table = bench.batch("stream"), bench.batch("table").drop(*dropped)
    enriched = dovetail.enrich(stream, table, on=on, how="left", partitions=2)
    joined = stream.join(table, condition(stream, table), "left")
    twice = [name for name in table.columns if name in stream.columns]
    expected = joined.select(
        *(stream[name] for name in stream.columns),
        *(table[name] for name in table.columns if name not in twice),
    )
    assert enriched.columns == expected.columns, form
    same_rows(enriched, expected, f"on as {form}, seed {SEED}")


def test_enrich_when_key_is_composite_with_nulls_then_equals_spark(bench: Any) -> None:
    for number, side in enumerate(("stream", "table")):
        bench.write(side, bench.two_column_rows(side, SEED + number), files=2)
    bench.run(bench.enrich(on=["a", "b"], how="semi", memory=TINY))
    bench.check(f"composite key, seed {SEED}", bench.enriched("semi", ["a", "b"]))


def test_enrich_when_column_names_are_awkward_then_equals_spark(bench: Any) -> None:
    names = {"stream": ["the key", "Stream.Id", "c0"], "table": ["The.Key", "a Blank", "C1"]}
    for number, (side, columns) in enumerate(names.items()):
        table = bench.two_column_rows(side, SEED + number).select(["a", f"{side}_id", f"{side}_x"])
        bench.write(side, table.rename_columns(columns), files=1)
    bench.run(bench.enrich(on=("THE KEY", "the.key"), how="left"))
    stream, table = bench.batch("stream"), bench.batch("table")
    expected = stream.join(table, stream["the key"] == table["`The.Key`"], "left")
    assert bench.results().columns == [*names["stream"], *names["table"]]
    bench.check("names with blanks and dots", expected)


def test_enrich_when_payload_is_nested_then_equals_spark(bench: Any) -> None:
    for number, side in enumerate(("stream", "table")):
        bench.write(side, bench.nested_rows(side, SEED + number))
    bench.run(bench.enrich(how="left", memory="700KB"))
    bench.check(f"nested payload, seed {SEED}", bench.enriched("left"))
    expected = bench.enriched("left").schema.simpleString()
    assert bench.results().schema.simpleString() == expected


def test_enrich_when_session_is_in_another_time_zone_then_equals_spark(
    bench: Any, conf: Any, same_rows: Any
) -> None:
    conf("spark.sql.session.timeZone", "America/St_Johns")
    hours = pa.array(3_600_000_000 * np.arange(24 * 300, step=7))
    for side in ("stream", "table"):
        times = hours.cast(pa.timestamp("us", tz="UTC"))
        local = hours.cast(pa.timestamp("us"))
        bench.write(side, pa.table({"k": times, f"{side}_time": times, f"{side}_local": local}))
    enriched = dovetail.enrich(bench.batch("stream"), bench.batch("table"), on="k", partitions=2)
    same_rows(enriched, bench.enriched(), "another time zone")


@pytest.mark.parametrize("how", ["left", "semi"])
def test_enrich_when_columns_are_chosen_then_adds_and_stages_only_those(
    inputs: Any, same_rows: Any, how: str
) -> None:
    enriched = dovetail.enrich(
        inputs.batch("stream"),
        inputs.batch("table"),
        on="k",
        how=how,
        columns=["TABLE_ID"],
        state=inputs.state,
        partitions=2,
    )
    expected = inputs.batch("stream").join(inputs.batch("table").drop("table_text"), "k", how)
    assert enriched.columns == expected.columns
    same_rows(enriched, expected, f"chosen columns, {how}, seed {SEED}")
    staged = sum(path.stat().st_size for path in (inputs.state / "table").rglob("records.bin"))
    assert staged < 300 * 1000, "the text was staged too"


def test_enrich_when_no_column_is_chosen_then_repeats_rows_as_spark_does(
    inputs: Any, same_rows: Any
) -> None:
    stream, table = inputs.batch("stream"), inputs.batch("table")
    enriched = dovetail.enrich(stream, table, on="k", columns=[], partitions=2)
    same_rows(enriched, stream.join(table.select("k"), "k"), f"no column, seed {SEED}")


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [("seek", "left"), ("meshjoin", "left"), ("ssbj", "anti"), ("inl", "semi")],
)
def test_enrich_when_table_is_empty_then_equals_spark(
    bench: Any, same_rows: Any, algorithm: str, how: str
) -> None:
    bench.keyed("stream", pa.array([1, None, 3]), files=1)
    bench.keyed("table", pa.array([], pa.int64()), files=1)
    enriched = dovetail.enrich(
        bench.batch("stream"), bench.batch("table"), on="k", how=how, algorithm=algorithm
    )
    same_rows(enriched, bench.enriched(how), f"an empty table, {algorithm}, {how}")


def test_enrich_when_table_is_empty_and_rows_stream_then_equals_spark(bench: Any) -> None:
    bench.keyed("stream", np.arange(100))
    bench.keyed("table", pa.array([None, None], pa.int64()), files=1)
    bench.run(bench.enrich(how="left", memory=TINY))
    bench.check("a table of null keys", bench.enriched("left"))


def test_enrich_when_stream_is_empty_then_result_is_empty(bench: Any) -> None:
    bench.keyed("stream", pa.array([], pa.int64()), files=1)
    bench.keyed("table", np.arange(100))
    bench.run(bench.enrich(how="left", memory=TINY))
    assert bench.results().count() == 0
    bench.keyed("stream", np.arange(50), files=1)
    bench.run(bench.enrich(how="left", memory=TINY))
    bench.check("rows that come later", bench.enriched("left"))


def test_enrich_when_rows_come_in_many_batches_then_is_exact_and_tidy(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    bench.keyed("stream", rng.integers(0, 6000, 2400), files=12)
    bench.keyed("table", rng.permutation(5000), text=300)
    bench.run(bench.enrich(how="left", memory=TINY))
    bench.check(f"twelve batches, seed {SEED}", bench.enriched("left"))
    records = list(bench.progress().records())
    assert len({record["batch"] for record in records}) >= 12
    assert all(0 < record["memory_peak"] <= record["budget"] for record in records)
    assert any(record["cached"] for record in records), "no step used the worker's cache"
    for folder in bench.state.glob("p*"):
        assert len(list(folder.glob("v*"))) <= 2
        assert len(list(folder.glob("*-out.arrows"))) <= 2
        assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("algorithm", ["seek", "meshjoin", "ssbj"])
def test_enrich_when_ordered_then_each_partition_keeps_the_order(
    bench: Any, same_rows: Any, algorithm: str
) -> None:
    rng = np.random.default_rng(SEED)
    keys = pa.array(rng.integers(0, 1500, 1200), mask=rng.random(1200) < 0.1)
    bench.keyed("stream", keys, files=3)
    for number, path in enumerate(sorted((bench.root / "stream").glob("*.parquet"))):
        os.utime(path, (number, number))  # files are taken in the order of their times
    bench.keyed("table", rng.integers(0, 1200, 1500), text=200)
    enriched = bench.enrich(how="left", ordered=True, algorithm=algorithm, memory=TINY)
    numbered = enriched.withColumn("part", F.spark_partition_id())
    tables: list[pa.Table] = []
    writer = numbered.writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow()))
    writer = writer.option("checkpointLocation", str(bench.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = pa.concat_tables(tables)
    for part in (0, 1):
        ids = np.asarray(rows.filter(pa.compute.field("part") == part)["stream_id"])
        assert (np.diff(ids) >= 0).all(), f"partition {part}, {algorithm}, seed {SEED}"
        assert len(ids) > 100
    same_rows(rows.drop("part"), bench.enriched("left"), f"ordered, {algorithm}, seed {SEED}")


@pytest.mark.parametrize(
    "options",
    [
        {"memory": TINY, "partitions": 2},
        {"memory": "300KB", "partitions": 1, "algorithm": "meshjoin"},
        {"how": "semi", "algorithm": "ssbj", "memory": "2MB", "partitions": 3},
        {"how": "anti"},
    ],
    ids=str,
)
def test_batch_enrich_when_options_vary_then_equals_spark(
    inputs: Any, same_rows: Any, options: dict[str, Any]
) -> None:
    enriched = dovetail.enrich(inputs.batch("stream"), inputs.batch("table"), on="k", **options)
    assert not enriched.isStreaming
    expected = inputs.enriched(options.get("how", "inner"))
    for attempt in (1, 2):
        same_rows(enriched, expected, f"run {attempt} with {options}, seed {SEED}")
    assert enriched.limit(3).count() == 3  # a consumer that stops early


@pytest.mark.parametrize("partitions", [1, 5])
def test_enrich_when_partitions_vary_then_equals_spark(inputs: Any, partitions: int) -> None:
    inputs.run(inputs.enrich(partitions=partitions, how="left", memory="2MB").coalesce(1))
    assert len(inputs.progress().partitions) == partitions
    assert len(list((inputs.state / "table" / "v000001").glob("p*"))) == partitions
    inputs.check(f"{partitions} partitions, seed {SEED}", inputs.enriched("left"))


def test_aggregation_when_behind_an_enrich_then_equals_spark(inputs: Any, same_rows: Any) -> None:
    counts = F.count("*").alias("n"), F.sum("table_id").alias("s")
    counted = inputs.enrich(how="left", memory=TINY).groupBy("k").agg(*counts)
    writer = counted.writeStream.format("memory").queryName("enriched_counts")
    writer = writer.outputMode("complete").option("checkpointLocation", str(inputs.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    expected = inputs.enriched("left").groupBy("k").agg(*counts)
    same_rows(inputs.spark.table("enriched_counts"), expected, f"counts, seed {SEED}")


def test_enrich_when_behind_another_enrich_then_equals_spark(inputs: Any) -> None:
    rng = np.random.default_rng(SEED + 1)
    inputs.write("second", pa.table({"t": rng.permutation(9000), "second_id": range(9000)}))
    first = inputs.enrich(memory=TINY)
    second = dovetail.enrich(
        first,
        inputs.batch("second"),
        on=("table_id", "t"),
        how="left",
        memory=TINY,
        partitions=2,
        state=inputs.root / "second state",
    )
    inputs.run(second)
    enriched, other = inputs.enriched(), inputs.batch("second")
    expected = enriched.join(other, enriched["table_id"] == other["t"], "left")
    inputs.check(f"two lookups in a row, seed {SEED}", expected)


def test_enrich_when_behind_a_join_then_equals_spark(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 200, 600))
    bench.keyed("table", np.arange(50, 150))
    joined = bench.join(memory=TINY)
    state = bench.root / "lookup"
    enriched = dovetail.enrich(
        joined, bench.batch("table"), on="k", how="anti", state=state, partitions=2
    )
    bench.run(enriched)
    expected = bench.expected().join(bench.batch("table"), "k", "anti")
    bench.check(f"a lookup behind a join, seed {SEED}", expected)


def test_enrich_when_united_with_itself_then_has_every_row_twice(inputs: Any) -> None:
    enriched = inputs.enrich(how="left", memory=TINY)
    inputs.run(enriched.union(enriched))
    expected = inputs.enriched("left")
    inputs.check(f"one lookup twice, seed {SEED}", expected.union(expected))


def test_progress_when_enrich_has_run_then_tells_what_happened(inputs: Any) -> None:
    inputs.run(inputs.enrich(how="left", memory=TINY, algorithm="seek"))
    progress = inputs.progress()
    about = f"seed {SEED}: {progress}"
    stream = inputs.batch("stream")
    assert progress.rows_in == (stream.count(), 0), about
    assert sum(progress.rows_out.values()) == inputs.enriched("left").count(), about
    assert set(progress.rows_out) <= {"arriving", "deferred"}, about
    assert progress.budget_bytes == 600 << 10, about
    assert progress.identity["job"] == "enrich", about
    assert progress.identity["algorithm"] == "seek", about
    totals = [part.totals for part in progress.partitions]
    nulls = stream.where("k is null").count()
    assert sum(total.rows_unmatched_key for total in totals) == nulls, about
    assert sum(total.bytes_read for total in totals) > 0, about


def test_state_when_not_named_then_goes_below_the_session_checkpoints(
    inputs: Any, conf: Any, same_rows: Any
) -> None:
    conf("spark.sql.streaming.checkpointLocation", str(inputs.root / "all"))
    tables: list[pa.Table] = []
    enriched = inputs.enrich(state=None, name="lookup")
    writer = enriched.writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow()))
    writer.queryName("lookup_query").trigger(availableNow=True).start().awaitTermination()
    state = inputs.root / "all" / "dovetail" / "lookup"
    assert (state / "table" / "current").exists()
    assert dovetail.progress(state).identity["job"] == "enrich"
    same_rows(pa.concat_tables(tables), inputs.enriched(), "state by default")


@pytest.mark.parametrize("given", ["a path", "text", "a URL", "a name"])
def test_table_when_given_by_path_or_name_then_equals_spark(
    inputs: Any, same_rows: Any, given: str
) -> None:
    folder = inputs.root / "table"
    table: str | Path = {"a path": folder, "a URL": folder.as_uri()}.get(given, str(folder))
    if given == "a name":
        inputs.spark.sql("drop table if exists enrich_lookup")
        inputs.spark.sql(f"create table enrich_lookup using parquet location '{folder}'")
        table = "enrich_lookup"
    try:
        enriched = dovetail.enrich(inputs.batch("stream"), table, on="k", how="left", partitions=2)
        same_rows(enriched, inputs.enriched("left"), f"the table as {given}")
    finally:
        inputs.spark.sql("drop table if exists enrich_lookup")


def test_query_when_stopped_and_started_again_then_goes_on_with_the_same_copy(
    inputs: Any,
) -> None:
    rng = np.random.default_rng(SEED + 2)
    for memory in (TINY, None, "1MB"):
        inputs.run(inputs.enrich(how="left", memory=memory))
        inputs.check(f"memory {memory} after others, seed {SEED}", inputs.enriched("left"))
        inputs.keyed("stream", rng.integers(0, 6000, 300), files=1)
    assert [path.name for path in (inputs.state / "table").glob("v*")] == ["v000001"]
