"""The job of `join_all`: rows are routed to the cells of a grid of attribute shares.

`costs/shares` says which cells a row goes to. Where every input has a column in every dimension
that is cut, that is one cell, and nothing is copied.
"""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructType

from dovetail.costs.widths import row_width
from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import Context, Operator, Snapshot
from dovetail.multiway import make
from dovetail.spark.jobs.checks import (
    check_collations,
    check_is_frame,
    check_widening,
    settled,
)
from dovetail.spark.jobs.job import Job, Route
from dovetail.spark.jobs.shares import Inputs, dimension_hashes, sample_hashes
from dovetail.spark.jobs.sizes import rows_by_statistics, rows_of_files
from dovetail.spark.layout import (
    UnionLayout,
    arrow_schema,
    part_of,
    union_layout,
    with_keys,
)
from dovetail.spark.machine import default_memory
from dovetail.spark.state import IDENTITY, read_identity
from dovetail.specs import (
    JoinAllOptions,
    JoinAllSpec,
    Known,
    check_names,
    join_all_spec,
)


@dataclass(frozen=True)
class JoinAllJob(Job):
    """A join of several inputs."""

    spec: JoinAllSpec

    def rows(self, frames: Sequence[DataFrame]) -> list[DataFrame]:
        return [with_keys(*pair) for pair in zip(frames, self.spec.keys, strict=True)]

    def routes(self, layout: UnionLayout, schemas: Sequence[StructType]) -> list[Route]:
        return [_route(self.spec, layout, side, schema) for side, schema in enumerate(schemas)]

    def output(self, schemas: Sequence[StructType]) -> StructType:
        names = iter(self.spec.output.names)
        output = StructType()
        for schema, keys in zip(schemas, self.spec.keys, strict=True):
            for field in schema.fields:
                nullable = field.nullable and field.name not in keys
                output.add(next(names), field.dataType, nullable=nullable)
        return output

    def build(
        self,
        context: Context,
        partition: int,
        snapshot: Snapshot | None,
        resources: contextlib.ExitStack,
    ) -> Operator:
        return make(self.spec.algorithm, self.spec.multiway, context, snapshot)


def resolve_join_all(
    inputs: Inputs, options: JoinAllOptions, name: str
) -> tuple[JoinAllSpec, JoinAllOptions]:
    """The checked spec, with shares as for keys that are spread evenly, and where its state is.

    Whether the state directory fits is not looked at.
    """
    check_names(inputs)
    _check_alike(inputs)
    first = next(iter(inputs.values()))
    options, parallelism, memory = settled(first, options, name)
    spec = join_all_spec(_schemas(inputs), options, Known(parallelism, memory))
    for (input_name, frame), keys in zip(inputs.items(), spec.keys, strict=True):
        check_collations(input_name, frame.schema, keys)
    for edge in spec.multiway.edges:
        one, two = (spec.inputs[end] for end in edge.ends)
        check_widening(first.sparkSession, one, two, *edge.columns)
    return spec, options


def with_shares(
    inputs: Inputs, spec: JoinAllSpec, options: JoinAllOptions, known: Known
) -> JoinAllSpec:
    """The spec with the shares that follow from what is known."""
    context = next(iter(inputs.values())).sparkSession.sparkContext
    memory = default_memory(context).nbytes
    known = replace(known, partitions=spec.most_partitions, memory_bytes=memory)
    return join_all_spec(_schemas(inputs), options, known)


def _schemas(inputs: Inputs) -> dict[str, pa.Schema]:
    return {name: arrow_schema(name, frame) for name, frame in inputs.items()}


def _check_alike(inputs: Inputs) -> None:
    """Refuse inputs of which only some stream."""
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


def sized(
    inputs: Inputs, spec: JoinAllSpec, options: JoinAllOptions, history: Inputs | None
) -> Known:
    """Collect the facts that shares are chosen by. Of `history` a sample is read."""
    known = Known(spec.most_partitions)
    if history is not None:
        samples, counted = sample_hashes(history, spec)
        return replace(known, rows=counted, samples=samples)
    if next(iter(inputs.values())).isStreaming or options.sizes is not None:
        return known
    pairs = zip(inputs.values(), spec.inputs, strict=True)
    return replace(known, rows=[estimated_rows(frame, schema) for frame, schema in pairs])


def known_shares(state: Path | None) -> Sequence[int] | None:
    """The shares that a state directory was begun with: rows in it are where these sent them."""
    if state is None or not (state / IDENTITY).exists():
        return None
    shares: Any = read_identity(state).get("shares")
    return shares if isinstance(shares, list) else None


def estimated_rows(frame: DataFrame, schema: Any) -> float:
    """About how many rows a batch DataFrame has, without reading them."""
    counted = rows_of_files(frame)
    if counted is None:
        counted, _ = rows_by_statistics(frame, row_width(schema).nbytes)
    return float(max(1, counted))


def _route(spec: JoinAllSpec, layout: UnionLayout, side: int, schema: StructType) -> Route:
    """The cells of an input's rows: any base with any offset; a null base does not count."""
    bases, offsets = [F.lit(0)], [0]  # by the values of the row; of dimensions without a value
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
    if len(bases) == len(offsets) == 1:
        return Route(bases[0].cast(IntegerType()))
    pairs = itertools.product(bases, offsets)
    every = F.array(*((base + F.lit(offset)).cast(IntegerType()) for base, offset in pairs))
    return Route(every if len(bases) == 1 else F.array_compact(every), several=True)


def _parts(
    spec: JoinAllSpec, number: int, layout: UnionLayout, side: int, schema: StructType
) -> list[Column] | None:
    """The parts of a dimension that a row goes to, by its value; None if it has none in it."""
    dimension, share = spec.grid.dimensions[number], spec.grid.shares[number]
    names = dimension.columns[side]
    if not names:
        return None
    compared = [spec.multiway.compared[side][name] for name in names]
    keys, types = layout.keys(side, schema, names, compared)
    parts = [part_of(h, share) for h in dimension_hashes(dimension, number, side, keys, types)]
    if len(parts) == 1:
        return parts
    each_once = F.array_distinct(F.array(*parts))
    return [F.get(each_once, F.lit(place)) for place in range(len(parts))]


def cell_counts(inputs: Inputs, spec: JoinAllSpec) -> list[dict[int, int]]:
    """Count the rows of each input that go to each partition; reads batch DataFrames."""
    layout = union_layout(*(frame.schema for frame in inputs.values()))
    counts = []
    for side, (frame, keys) in enumerate(zip(inputs.values(), spec.keys, strict=True)):
        route = _route(spec, layout, side, frame.schema)
        every = route.target if route.several else F.array(route.target)
        cells = layout.tagged(with_keys(frame, keys), side).select(F.explode(every).alias("cell"))
        found = cells.groupBy("cell").count().toArrow()
        counts.append(dict(zip(*(column.to_pylist() for column in found.columns), strict=True)))
    return counts
