"""Hashes by which rows of a multi-way join find their grid cells, and samples of them.

A row's part of a dimension is its hash modulo the share, so the hashes of some rows tell how full
the cells would be for any shares (`costs/cellloads`).

The sample. Each row draws a lot between 0 and 1, and the `SAMPLED_ROWS` lowest are taken: one Spark
job for each input, over its join columns, and no more than the sample is in memory in one place. If
there are as many, the k-th lowest lot tells how many rows there are, k - 1 divided by it: with
100,000 to within a third of a percent, one standard deviation. Else all rows are in the sample.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType

from dovetail.costs.cellloads import HashSample
from dovetail.costs.shares import Dimension
from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import LEFT, RIGHT
from dovetail.spark.jobs.bands import band_hashes
from dovetail.spark.jobs.checks import check_history
from dovetail.spark.layout import arrow_schema, key_hash, keys_of, quoted, with_keys
from dovetail.specs import JoinAllSpec

Inputs = Mapping[str, DataFrame]
SAMPLED_ROWS = 100_000  #: of each input, at most
_LOT = "lot"
_SEED = 11


def dimension_hashes(
    dimension: Dimension, number: int, side: int, keys: list[Column], types: list[DataType]
) -> list[Column]:
    """The hashes that tell a row's parts of a dimension: one, or two beside the anchor of a band.

    number: of the dimension; keys: the columns that the input has in it, one at least.
    """
    if dimension.reach is None:
        # salted, so that two columns with the same values are cut differently
        return [key_hash([F.lit(number), *keys], [IntegerType(), *types])]
    role = LEFT if dimension.anchored[side] else RIGHT
    return band_hashes(keys[0], types[0], dimension.reach, role)


def sample_hashes(
    frames: Inputs, spec: JoinAllSpec, most: int = SAMPLED_ROWS
) -> tuple[list[HashSample], list[float]]:
    """A sample of each batch DataFrame, and about how many rows with a key each of them has."""
    found = [_sampled(frame, spec, side, most) for side, frame in enumerate(frames.values())]
    return [sample for sample, _ in found], [rows for _, rows in found]


def _sampled(frame: DataFrame, spec: JoinAllSpec, side: int, most: int) -> tuple[HashSample, float]:
    keyed = with_keys(frame, spec.keys[side])
    names: list[list[str]] = []
    columns = [F.rand(_SEED + side).alias(_LOT)]
    for number, dimension in enumerate(spec.grid.dimensions):
        own = dimension.columns[side] if dimension.divisible else ()
        keys, types = keys_of(keyed, own, [spec.multiway.compared[side][name] for name in own])
        hashes = dimension_hashes(dimension, number, side, keys, types) if own else []
        names.append([f"h{len(columns) + index}" for index in range(len(hashes))])
        columns += [hash_.alias(name) for hash_, name in zip(hashes, names[-1], strict=True)]
    table = keyed.select(columns).orderBy(_LOT).limit(most).toArrow()
    read = [
        np.stack([table.column(name).to_numpy() for name in some], axis=1) if some else None
        for some in names
    ]
    rows = float(table.num_rows)
    if table.num_rows == most:
        rows = max(rows, (most - 1) / float(table.column(_LOT).to_numpy().max()))
    return HashSample(table.num_rows, tuple(read)), rows


def checked_history(frames: Any, spec: JoinAllSpec) -> Inputs:
    """The DataFrames of `history=`, in the order of the inputs, with the columns of these."""
    if not isinstance(frames, Mapping):
        raise ArgumentError(
            f"history= is a {type(frames).__name__}, but has to have a batch DataFrame for each "
            "input by its name"
        )
    found = {}
    for name, schema, keys in zip(
        spec.multiway.names, spec.multiway.schemas, spec.keys, strict=True
    ):
        frame = frames.get(name)
        if not isinstance(frame, DataFrame) or frame.isStreaming:
            raise ArgumentError(f"history= has no batch DataFrame for the input {name!r}")
        known = arrow_schema(name, frame)
        for column in schema.names:
            if column not in known.names:
                raise ArgumentError(
                    f"history=: the DataFrame of {name!r} has no column {column!r}, as the input "
                    f"has; it has {', '.join(map(repr, known.names))}"
                )
        check_history(name, f"the DataFrame of {name!r}", frame, "the input", schema, keys)
        found[name] = frame.select([frame[quoted(column)] for column in schema.names])
    return found
