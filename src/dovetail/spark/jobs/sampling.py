"""A sample of two DataFrames' keys, in the order in which the rows would arrive; see `keysample`.

Two Spark jobs a side, both over the key columns alone: one counts how many rows there are of each
hash, the other brings the rows that were chosen. So the whole input is read twice, but only its
keys, and only the sample leaves Spark.

The order of arrival of files that are streamed is that of their times, as Spark has it; within a
file, that of its rows. Of other inputs, that in which Spark reads them.
"""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dovetail.costs.keysample import (
    BUCKET_BITS,
    BUCKETS,
    CHOICE_BITS,
    Flags,
    KeySample,
    SampledSide,
    heavy_buckets,
)
from dovetail.kernel.keytypes import widened
from dovetail.kernel.protocol import SIDES
from dovetail.spark.jobs.bands import band_partitions
from dovetail.spark.layout import keys_of, partition_of, quoted, with_keys
from dovetail.twoway import TwoWaySpec

_TOKENS = (1 << 31) - 1
_HASHES = ("__hash0", "__hash1")
_LOT, _FILE, _START, _ROW, _BUCKET = "__lot", "__file", "__start", "__row", "__bucket"
_LOTS_SEED = 7
# a cell is eight bands wide, ten with what is in reach, and a row matches two of these
MATCHING_IN_CELL = 2 / 10


def sample_keys(
    frames: tuple[DataFrame, DataFrame],
    spec: TwoWaySpec,
    rows: int,
    *,
    by_time: bool,
    files: tuple[int | None, int | None] = (None, None),
) -> KeySample:
    """About `rows` rows of the larger side, or all of them, and as large a share of the other.

    by_time: whether files arrive in the order of their times; files: how many of each side come in
    a micro-batch, if that is known.
    """
    keyed = [_with_hashes(frames[side], spec, side) for side in SIDES]
    left, right = (_counts(frame) for frame in keyed)
    totals = (left[1], right[1])
    fraction = min(1.0, rows / max(1, *totals))
    matching = 1.0 if spec.within is None else MATCHING_IN_CELL
    heavy = heavy_buckets((left[0], right[0]), fraction, rows, matching)
    sides = [
        _side(keyed[side], spec, heavy, fraction, totals[side], by_time, files[side])
        for side in SIDES
    ]
    return KeySample(sides[0], sides[1], heavy, fraction)


def _with_hashes(frame: DataFrame, spec: TwoWaySpec, side: int) -> DataFrame:
    """The keys of rows that can match, and the hashes of their tokens: two, or one and a null."""
    names = (spec.left_keys, spec.right_keys)[side]
    short = [f"k{index}" for index in range(len(names))]
    renamed = frame.select(
        *(frame[quoted(name)].alias(key) for name, key in zip(names, short, strict=True)),
        F.input_file_name().alias(_FILE),
        F.input_file_block_start().alias(_START),
        F.monotonically_increasing_id().alias(_ROW),
        F.rand(_LOTS_SEED + side).alias(_LOT),
    )
    keyed = with_keys(renamed, short)
    keys, types = keys_of(keyed, short, spec.codec.types)
    if spec.within is None:
        tokens = F.array(partition_of(keys, types, _TOKENS))
    else:
        tokens = band_partitions(keys[0], types[0], spec.within, _TOKENS, side)
    hashes = [
        F.when(F.get(tokens, F.lit(index)).isNotNull(), F.xxhash64(F.get(tokens, F.lit(index))))
        for index in range(len(_HASHES))
    ]
    return keyed.select(
        "*", *(hash_.alias(name) for hash_, name in zip(hashes, _HASHES, strict=True))
    )


def _counts(frame: DataFrame) -> tuple[NDArray[np.int64], int]:
    """The rows of each bucket, and of all; a row with two tokens counts in two buckets."""
    first, second = (F.col(name) for name in _HASHES)
    bucket = F.col("hash").bitwiseAND(F.lit(BUCKETS - 1))
    found = (
        frame.select(first.alias("first"), F.explode(F.array(first, second)).alias("hash"))
        .where(F.col("hash").isNotNull())
        .groupBy(bucket.cast("int").alias(_BUCKET))
        .agg(F.count("*").alias("rows"), F.count_if(F.col("hash") == F.col("first")).alias("own"))
        .toArrow()
    )
    counts = np.zeros(BUCKETS, dtype=np.int64)
    counts[found.column(_BUCKET).to_numpy()] = found.column("rows").to_numpy()
    return counts, int(np.sum(found.column("own").to_numpy()))


def _side(
    frame: DataFrame,
    spec: TwoWaySpec,
    heavy: Flags,
    fraction: float,
    total: int,
    by_time: bool,
    files: int | None,
) -> SampledSide:
    if fraction < 1:
        frame = frame.where(_is_chosen(heavy, fraction))
    table = frame.toArrow().combine_chunks()
    order, ranks = _arrival(table, by_time)
    table = table.take(pa.array(order))
    columns = [
        widened(_only_chunk(table.column(index)), type_)
        for index, type_ in enumerate(spec.codec.types)
    ]
    keys, valid = columns[0], None
    if spec.within is None:
        codes, valid = spec.codec.encode(columns)
        keys = pa.array(codes)
    hashes = [table.column(name) for name in _HASHES]
    assert valid is None or valid.all()  # no key is null here, and a NaN equals another
    return SampledSide(
        keys=keys,
        hashes=np.stack([h.fill_null(0).to_numpy().view(np.uint64) for h in hashes], axis=1),
        exists=np.stack([h.is_valid().to_numpy() for h in hashes], axis=1),
        lots=table.column(_LOT).to_numpy(),
        input_rows=total,
        turns=None if files is None else ranks // files,
    )


def _is_chosen(heavy: Flags, fraction: float) -> Column:
    """As `KeySample.part` has it."""
    by_chance = F.col(_LOT) < fraction
    if heavy.all():
        return by_chance
    numbers = [int(number) for number in np.flatnonzero(heavy)]
    below = F.lit(int(fraction * (1 << CHOICE_BITS))).cast("long")
    chosen = F.lit(False)
    for name in _HASHES:
        hash_ = F.col(name)
        is_heavy = hash_.bitwiseAND(F.lit(BUCKETS - 1)).cast("int").isin(numbers)
        by_key = ~is_heavy & (F.shiftrightunsigned(hash_, BUCKET_BITS) < below)
        chosen = chosen | F.coalesce(by_key | (is_heavy & by_chance), F.lit(False))
    return chosen


def _arrival(table: pa.Table, by_time: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows in the order in which they come, and of each in how manieth file it does."""
    rows = table.column(_ROW).to_numpy()
    if not by_time:
        return np.argsort(rows, kind="stable"), np.zeros(len(rows), dtype=np.int64)
    files = table.column(_FILE).to_pylist()
    names, which = np.unique(np.array(files, dtype=np.str_), return_inverse=True)
    rank = np.argsort(np.argsort(np.array([_modified(str(name)) for name in names]), kind="stable"))
    order = np.lexsort((rows, table.column(_START).to_numpy(), rank[which]))
    return order, rank[which][order]


def _modified(uri: str) -> float:
    """When a local file was written last; elsewhere, files come in the order of their names."""
    url = urlparse(uri)
    try:
        return Path(unquote(url.path)).stat().st_mtime if url.scheme in ("", "file") else 0.0
    except OSError:
        return 0.0


def _only_chunk(column: Any) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
