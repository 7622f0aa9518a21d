"""Samples of keys, as Spark takes them: all or some, in the order of arrival, for every kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import dovetail
from dovetail.costs.replay import Setting, foresee
from dovetail.errors import ArgumentError
from dovetail.spark.jobs.sampling import sample_keys
from dovetail.spark.jobs.sizes import files_in_a_batch
from dovetail.twoway import TwoWaySpec

pytestmark = pytest.mark.spark

ROWS = 20_000


def write(folder: Path, name: str, keys: np.ndarray, files: int = 1) -> str:
    """A folder of Parquet files; the later ones of `keys` have names that come first."""
    (folder / name).mkdir()
    for number, part in enumerate(np.array_split(keys, files)):
        path = folder / name / f"{files - number:02d}.parquet"
        pq.write_table(pa.table({"id": part, name: np.arange(len(part))}), path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return str(folder / name)


def spec_of(within: int | None = None) -> TwoWaySpec:
    left, right = (pa.schema([("id", pa.int64()), (name, pa.int64())]) for name in "ab")
    return TwoWaySpec(left, right, ("id",), ("id",), within)


@pytest.fixture
def frames(tmp_path: Path, spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    rng = np.random.default_rng(6)
    left, right = (rng.integers(0, ROWS, rows) for rows in (ROWS, ROWS // 2))
    paths = [write(tmp_path, "a", left, 3), write(tmp_path, "b", right)]
    one, two = (spark.read.parquet(path) for path in paths)
    return one, two


def keys_of(frame: DataFrame) -> np.ndarray:
    return np.asarray(frame.select("id").toArrow().column("id").to_numpy())


def test_sample_when_it_is_everything_then_comes_in_the_order_of_the_files_times(
    tmp_path: Path, spark: SparkSession
) -> None:
    keys = np.random.default_rng(5).permutation(3_000)
    frame = spark.read.parquet(write(tmp_path, "a", keys, 3))
    sample = sample_keys((frame, frame), spec_of(), 5_000, by_time=True)
    assert sample.fraction == 1
    assert sample.input_rows == (3_000, 3_000)
    assert sample.left.keys.to_pylist() == keys.tolist()


def test_sample_when_some_keys_are_chosen_then_has_all_their_rows(
    frames: tuple[DataFrame, DataFrame],
) -> None:
    sample = sample_keys(frames, spec_of(), 2_000, by_time=False)
    assert sample.input_rows == (ROWS, ROWS // 2)
    assert not sample.heavy.any()
    chosen = set(sample.left.keys.to_pylist()) | set(sample.right.keys.to_pylist())
    for frame, side, share in zip(frames, sample.sides, (1, 0.5), strict=True):
        assert len(side) == np.isin(keys_of(frame), list(chosen)).sum()
        assert len(side) == pytest.approx(2_000 * share, rel=0.2)
        assert len(side) == len(sample.part(0, sample.fraction)[side is sample.right].rows)


def test_sample_when_it_is_of_a_band_join_then_has_all_that_its_left_rows_match(
    frames: tuple[DataFrame, DataFrame],
) -> None:
    within = 3
    sample = sample_keys(frames, spec_of(within), 3_000, by_time=False)
    assert len(sample.left) == pytest.approx(3_000, rel=0.3)
    assert len(sample.right) == pytest.approx(1.25 * 1_500, rel=0.3)
    ordered = [np.sort(side) for side in (keys_of(frames[1]), sample.right.keys.to_numpy())]
    chosen, _ = sample.part(0, sample.fraction)
    left = sample.left.keys.to_numpy()[chosen.rows[~chosen.flags]]  # those of whole cells
    assert len(left) > 0.9 * len(sample.left)
    all_, found = (
        np.searchsorted(right, left + within, side="right") - np.searchsorted(right, left - within)
        for right in ordered
    )
    assert (all_ == found).all()


def test_sample_when_keys_are_texts_with_nulls_then_foretells_their_results(
    frames: tuple[DataFrame, DataFrame],
) -> None:
    text = "IF(id % 10 = 0, NULL, CONCAT('k', CAST(id DIV 100 AS STRING))) AS id"
    texts = tuple(frame.selectExpr(text) for frame in frames)
    schema = pa.schema([("id", pa.string())])
    spec = TwoWaySpec(schema, schema, ("id",), ("id",))
    sample = sample_keys((texts[0], texts[1]), spec, 3_000, by_time=False)
    forecast = foresee(Setting("xjoin", None, 10**6, 2, 1_000, (12.0, 12.0)), sample)
    assert forecast is not None
    assert forecast.results == pytest.approx(texts[0].join(texts[1], "id").count(), rel=0.15)


def test_explain_when_inputs_are_batches_then_foretells_all_results(
    frames: tuple[DataFrame, DataFrame],
) -> None:
    options: dict[str, Any] = {"on": "id", "memory": "300KB", "partitions": 2}
    text = " ".join(str(dovetail.plan.join(*frames, **options, within=1).explain()).split())
    assert f"estimated from {ROWS:,} of {ROWS:,} rows of left and" in text
    counts = [np.bincount(keys_of(frame) + 1, minlength=ROWS + 2) for frame in frames]
    near = (counts[1][1 + shift : ROWS + 1 + shift] for shift in (-1, 0, 1))
    pairs = int(sum(counts[0][1:-1] @ side for side in near))
    assert f"results: about {int(float(f'{pairs:.3g}')):,}, " in text
    without = " ".join(str(dovetail.plan.join(*frames, **options).explain(sample_rows=0)).split())
    assert "no estimate: no sample of the inputs was asked for" in without


def test_explain_when_history_does_not_fit_then_says_what_is_missing(
    frames: tuple[DataFrame, DataFrame],
) -> None:
    other = frames[1].withColumnRenamed("id", "number")
    with pytest.raises(ArgumentError, match="right DataFrame has no column 'id' of type int64"):
        dovetail.plan.join(*frames, on="id", memory="1MB").explain(history=(frames[0], other))
    with pytest.raises(ArgumentError, match="sample_rows=-1"):
        dovetail.plan.join(*frames, on="id", memory="1MB").explain(sample_rows=-1)


def test_files_in_a_batch_when_a_stream_is_of_files_then_tells_how_many(
    spark: Any, tmp_path: Path
) -> None:
    def stream(**options: Any) -> DataFrame:
        reader = spark.readStream.schema("id LONG").options(**options)
        frame: DataFrame = reader.parquet(str(tmp_path)).where("id > 0")
        return frame

    assert files_in_a_batch(stream(maxFilesPerTrigger=3)) == 3
    assert files_in_a_batch(stream(maxfilespertrigger="2")) == 2
    assert (files_in_a_batch(stream()) or 0) > 1 << 30, "all that are there"
    assert files_in_a_batch(stream(maxBytesPerTrigger="1m")) is None
    assert files_in_a_batch(stream().union(stream())) is None
    assert files_in_a_batch(spark.readStream.format("rate").load()) is None
    assert files_in_a_batch(spark.range(3)) is None


def test_explain_when_streams_are_of_files_then_rows_come_as_micro_batches_bring_them(
    spark: Any, tmp_path: Path
) -> None:
    ids = np.random.default_rng(3).permutation(2_000)
    keys = np.concatenate([ids, ids + 2_000, ids + 4_000])
    for side in ("left", "right"):
        write(tmp_path, side, keys, 3)

    def streams(reader: Any) -> tuple[DataFrame, DataFrame]:
        left, right = (
            reader.schema(f"id LONG, {side} LONG").parquet(str(tmp_path / side))
            for side in ("left", "right")
        )
        return left, right

    history = streams(spark.read)
    sample = sample_keys(history, spec_of(), 10_000, by_time=True, files=(1, 2))
    assert sample.in_turn
    left, right = (np.asarray(side.turns) for side in sample.sides)
    assert left.tolist() == [0] * 2_000 + [1] * 2_000 + [2] * 2_000
    assert right.tolist() == [0] * 4_000 + [1] * 2_000
    assert set(sample.left.keys.to_numpy()[left == 0] // 2_000) == {0}
    frames = streams(spark.readStream.option("maxFilesPerTrigger", 1))
    options: dict[str, Any] = {"on": "id", "memory": "200KB", "partitions": 1}
    text = str(
        dovetail.plan.join(*frames, state=tmp_path / "s", **options).explain(history=history)
    )
    assert "each micro-batch to bring its files of left" in " ".join(text.split())
    text = str(dovetail.plan.join(*history, **options).explain())
    assert "both sides to come evenly mixed" in " ".join(text.split())
