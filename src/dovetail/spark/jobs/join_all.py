"""Several DataFrames in, one out: the plan of `join_all`.

    each input -> tag ─ copies, one a cell ┐
    clock      -> tag ─────────────────────┴ union -> repartition by cell -> step -> the user's sink

`costs/shares` says which cells a row goes to. Where every input has a column in every dimension
that is cut, that is one cell, and nothing is copied.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StructType

from dovetail.costs.explain import row_width
from dovetail.errors import ArgumentError
from dovetail.spark.jobs.join import (
    check_collations,
    check_is_frame,
    check_state,
    check_widening,
    clock_of,
    default_state,
    with_keys,
    without_deferring,
)
from dovetail.spark.jobs.shares import Inputs, checked_history, dimension_hashes, sample_hashes
from dovetail.spark.jobs.sizes import rows_by_statistics, rows_of_files
from dovetail.spark.layout import (
    TAG,
    UnionLayout,
    arrow_schema,
    compared_keys,
    mark_partition,
    part_of,
    placed,
    union_layout,
    woken_partition,
)
from dovetail.spark.session import check_session
from dovetail.spark.state import IDENTITY, read_identity
from dovetail.spark.step import batch_step, streaming_step
from dovetail.spark.watermarks import warn_of_watermarks
from dovetail.specs import (
    JoinAllOptions,
    JoinAllSpec,
    Known,
    check_names,
    join_all_spec,
    state_path,
)

_TARGET = "__dovetail_target"


def plan_join_all(
    inputs: Inputs, options: JoinAllOptions, name: str, history: Inputs | None = None
) -> DataFrame:
    """The joined DataFrame; every argument is checked before anything is built."""
    spec = resolve_join_all(inputs, options, name, history)
    warn_of_watermarks(inputs, defers=without_deferring(spec))
    frames = list(inputs.values())
    layout = union_layout(*(frame.schema for frame in frames))
    shuffled = _shuffled(frames, spec, layout)
    session = frames[0].sparkSession
    if frames[0].isStreaming:
        shuffled = mark_partition(shuffled)
        # with more workers than partitions, forgotten operators would add up beyond the budget
        keep = spec.partitions >= check_session(session)
        step = streaming_step(spec, layout, keep_operator=keep)
    else:
        step = batch_step(spec, layout)
    return shuffled.mapInArrow(step, _output_schema(spec, frames))


def resolve_join_all(
    inputs: Inputs, options: JoinAllOptions, name: str, history: Inputs | None = None
) -> JoinAllSpec:
    """The checked spec, and a check of the state directory if there is one already.

    Of `history` a sample is read if there are shares to choose.
    """
    check_names(inputs)
    streaming = _all_stream(inputs)
    session = next(iter(inputs.values())).sparkSession
    parallelism = check_session(session)
    if streaming and options.state is None:
        options = replace(options, state=default_state(session, name))
    schemas = {name: arrow_schema(name, frame) for name, frame in inputs.items()}
    known = Known(parallelism, shares=known_shares(options.state) if streaming else None)
    spec = join_all_spec(schemas, options, known)
    frames = None if history is None else checked_history(history, spec)
    if known.shares is None and len(spec.grid.dimensions) > 1:
        known = _sized(inputs, options, known, spec, frames)
        spec = join_all_spec(schemas, options, known)
    for (input_name, frame), keys in zip(inputs.items(), spec.keys, strict=True):
        check_collations(input_name, frame.schema, keys)
    for edge in spec.multiway.edges:
        one, two = (spec.inputs[end] for end in edge.ends)
        check_widening(session, one, two, *edge.columns)
    check_state(list(inputs.values()), spec)
    return spec


def _all_stream(inputs: Inputs) -> bool:
    for name, frame in inputs.items():
        check_is_frame(f"the input {name!r}", frame)
    streaming = [name for name, frame in inputs.items() if frame.isStreaming]
    if streaming and len(streaming) < len(inputs):
        static = ", ".join(repr(name) for name in inputs if name not in streaming)
        raise ArgumentError(
            f"some inputs stream and others do not ({static}): join_all takes streams or batch "
            "DataFrames. Read all with readStream, or all with read; to look a stream's rows up in "
            "a table, use dovetail.enrich."
        )
    return bool(streaming)


def _sized(
    inputs: Inputs,
    options: JoinAllOptions,
    known: Known,
    spec: JoinAllSpec,
    history: Inputs | None,
) -> Known:
    """What there is to choose shares by."""
    if history is not None:
        samples, counted = sample_hashes(history, spec)
        return replace(known, rows=counted, samples=samples)
    if next(iter(inputs.values())).isStreaming or options.sizes is not None:
        return known
    pairs = zip(inputs.values(), spec.inputs, strict=True)
    return replace(known, rows=[estimated_rows(frame, schema) for frame, schema in pairs])


def known_shares(state: str | Path | None) -> Sequence[int] | None:
    """The shares that a state directory was begun with: rows in it are where these sent them."""
    root = None if state is None else state_path(state)
    if root is None or not (root / IDENTITY).exists():
        return None
    shares: Any = read_identity(root).get("shares")
    return shares if isinstance(shares, list) else None


def estimated_rows(frame: DataFrame, schema: Any) -> float:
    """About how many rows a batch DataFrame has, without reading them."""
    counted = rows_of_files(frame)
    if counted is None:
        counted, _ = rows_by_statistics(frame, row_width(schema).nbytes)
    return float(max(1, counted))


def _shuffled(frames: list[DataFrame], spec: JoinAllSpec, layout: UnionLayout) -> DataFrame:
    """All rows in their partitions."""
    tagged = [
        layout.tagged(with_keys(frame, keys), side)
        for side, (frame, keys) in enumerate(zip(frames, spec.keys, strict=True))
    ]
    routes = [Route.of(spec, layout, side, frame.schema) for side, frame in enumerate(frames)]
    woken = woken_partition(F.col(TAG))
    if frames[0].isStreaming:
        tagged.append(layout.ticks(clock_of(frames[0].sparkSession, spec)))
    if all(route.is_single for route in routes):
        united = reduce(DataFrame.unionAll, tagged)
        tag, target = F.col(TAG), woken
        for side, route in enumerate(routes):
            target = F.when(tag == side, route.bases[0]).otherwise(target)
        return united.repartitionById(spec.partitions, target.cast(IntegerType()))
    rows, ticks = tagged[: len(routes)], tagged[len(routes) :]
    in_place = [
        placed(frame, route.cells(), _TARGET) for frame, route in zip(rows, routes, strict=True)
    ]
    in_place += [frame.withColumn(_TARGET, woken) for frame in ticks]
    united = reduce(DataFrame.unionAll, in_place)
    return united.repartitionById(spec.partitions, F.col(_TARGET)).drop(_TARGET)


@dataclass(frozen=True)
class Route:
    """The cells of an input's rows: any base with any offset; a null base does not count."""

    bases: tuple[Column, ...]  #: by the values of the row
    offsets: tuple[int, ...]  #: of the parts of the dimensions that it has no value in

    @classmethod
    def of(cls, spec: JoinAllSpec, layout: UnionLayout, side: int, schema: StructType) -> "Route":
        """The way of one input's rows, as they travel."""
        bases, offsets = [F.lit(0)], [0]
        stride = 1
        for number, share in enumerate(spec.grid.shares):
            if share > 1:
                parts = _parts(spec, number, layout, side, schema)
                if parts is None:
                    offsets = [o + part * stride for o in offsets for part in range(share)]
                else:
                    step = F.lit(stride)
                    bases = [base + part * step for base in bases for part in parts]
            stride *= share
        return cls(tuple(bases), tuple(offsets))

    @property
    def is_single(self) -> bool:
        return len(self.bases) == len(self.offsets) == 1

    def cells(self) -> Column:
        """All cells of a row, as an array."""
        pairs = itertools.product(self.bases, self.offsets)
        every = F.array(*((base + F.lit(offset)).cast(IntegerType()) for base, offset in pairs))
        return every if len(self.bases) == 1 else F.array_compact(every)


def _parts(
    spec: JoinAllSpec, number: int, layout: UnionLayout, side: int, schema: StructType
) -> list[Column] | None:
    """The parts of a dimension that a row goes to, by its value; None if it has none in it."""
    dimension, share = spec.grid.dimensions[number], spec.grid.shares[number]
    names = dimension.columns[side]
    if not names:
        return None
    keys = [layout.column(side, schema.names.index(name)) for name in names]
    types: list[DataType] = [schema[name].dataType for name in names]
    keys, types = compared_keys(keys, types, [spec.multiway.compared[side][n] for n in names])
    parts = [part_of(h, share) for h in dimension_hashes(dimension, number, side, keys, types)]
    if len(parts) == 1:
        return parts
    each_once = F.array_distinct(F.array(*parts))
    return [F.get(each_once, F.lit(place)) for place in range(len(parts))]


def cell_counts(inputs: Inputs, spec: JoinAllSpec) -> list[dict[int, int]]:
    """How many rows of each input go to each partition: of batch DataFrames, which are read."""
    layout = union_layout(*(frame.schema for frame in inputs.values()))
    counts = []
    for side, (frame, keys) in enumerate(zip(inputs.values(), spec.keys, strict=True)):
        route = Route.of(spec, layout, side, frame.schema)
        cells = layout.tagged(with_keys(frame, keys), side).select(
            F.explode(route.cells()).alias(_TARGET)
        )
        found = cells.groupBy(_TARGET).count().toArrow()
        counts.append(dict(zip(*(column.to_pylist() for column in found.columns), strict=True)))
    return counts


def _output_schema(spec: JoinAllSpec, frames: Sequence[DataFrame]) -> StructType:
    """The Spark types of the output, nested metadata and all, from the inputs' own schemas."""
    names = iter(spec.output.names)
    schema = StructType()
    for frame, keys in zip(frames, spec.keys, strict=True):
        for field in frame.schema.fields:
            nullable = field.nullable and field.name not in keys
            schema.add(next(names), field.dataType, nullable=nullable)
    return schema
