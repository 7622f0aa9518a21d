"""The job of `join`: rows are routed by the hash of their key, or for a band by `bands`.

If one input streams and the other does not, the static one cannot be united with it: that is a job
for `enrich`, and the error says so.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES, SIDES, Context, Operator, Snapshot
from dovetail.spark.jobs.bands import band_partitions
from dovetail.spark.jobs.checks import (
    check_collations,
    check_is_frame,
    check_widening,
    settled,
)
from dovetail.spark.jobs.job import Job, Route
from dovetail.spark.layout import (
    UnionLayout,
    arrow_schema,
    partition_of,
    with_keys,
)
from dovetail.specs import JoinOptions, JoinSpec, join_spec
from dovetail.twoway import make


@dataclass(frozen=True)
class JoinJob(Job):
    """A join of two inputs."""

    spec: JoinSpec

    def rows(self, frames: Sequence[DataFrame]) -> list[DataFrame]:
        return [with_keys(*pair) for pair in zip(frames, self.spec.keys, strict=True)]

    def routes(self, layout: UnionLayout, schemas: Sequence[StructType]) -> list[Route]:
        return [self._route(layout, schemas[side], side) for side in SIDES]

    def _route(self, layout: UnionLayout, schema: StructType, side: int) -> Route:
        within, partitions = self.spec.twoway.within, self.spec.partitions
        keys, types = layout.keys(side, schema, self.spec.keys[side], self.spec.twoway.codec.types)
        if within is None:
            return Route(partition_of(keys, types, partitions))
        ((key,), (type_,)) = keys, types
        return Route(band_partitions(key, type_, within, partitions, side), several=True)

    def output(self, schemas: Sequence[StructType]) -> StructType:
        left, right = schemas
        layout = self.spec.twoway.layout
        fields = [*left.fields, *(right.fields[index] for index in layout.right_columns)]
        keys = {name for names in self.spec.keys for name in names}
        schema = StructType()
        for name, field in zip(layout.schema.names, fields, strict=True):
            schema.add(name, field.dataType, nullable=field.nullable and field.name not in keys)
        return schema

    def build(
        self,
        context: Context,
        partition: int,
        snapshot: Snapshot | None,
        resources: contextlib.ExitStack,
    ) -> Operator:
        return make(self.spec.algorithm, self.spec.twoway, context, snapshot)


def resolve_join(left: DataFrame, right: DataFrame, options: JoinOptions, name: str) -> JoinSpec:
    """The checked spec; whether the state directory fits is not looked at."""
    for side, frame in zip(SIDE_NAMES, (left, right), strict=True):
        check_is_frame(f"the {side} input", frame)
    if left.isStreaming != right.isStreaming:
        static = SIDE_NAMES[RIGHT if left.isStreaming else LEFT]
        raise ArgumentError(
            f"one input streams and the {static} one does not: join takes two streams or two "
            "batch DataFrames. Read both with readStream, or both with read; to look a stream's "
            "rows up in a table, use dovetail.enrich."
        )
    options, parallelism, memory = settled(left, options, name)
    schemas = [
        arrow_schema(side, frame) for side, frame in zip(SIDE_NAMES, (left, right), strict=True)
    ]
    spec = join_spec(schemas[LEFT], schemas[RIGHT], options, parallelism, memory)
    for side, frame, keys in zip(SIDE_NAMES, (left, right), spec.keys, strict=True):
        check_collations(side, frame.schema, keys)
    check_widening(left.sparkSession, *spec.twoway.schemas, *spec.keys)
    return spec
