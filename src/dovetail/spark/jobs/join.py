"""The job of `join`: rows are routed by the hash of their key, or for a band by `bands`.

If one input streams and the other does not, the static one cannot be united with it: that is a job
for `enrich`, and the error says so.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.errors import ArgumentError
from dovetail.kernel.predicates import calculates, columns_of
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
from dovetail.specs.conditions import Condition, has_fixed_offset, parse_condition
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
        fields = left.fields[: layout.left_columns]
        fields += [right.fields[index] for index in layout.right_columns]
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


def resolve_join(
    left: DataFrame, right: DataFrame, options: JoinOptions, name: str
) -> tuple[tuple[DataFrame, DataFrame], JoinSpec, Condition | None]:
    """The inputs as they are joined, the checked spec, and its condition.

    Whether the state directory fits is not looked at.
    """
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
    zone = left.sparkSession.conf.get("spark.sql.session.timeZone") or ""
    fixed_zone = has_fixed_offset(zone)
    condition = None
    if options.where is not None:
        schemas = _schemas(left, right)
        condition = parse_condition(options.where, *schemas, fixed_zone=fixed_zone)
        left, right = narrowed((left, right), condition)
    spec = join_spec(
        *_schemas(left, right), options, parallelism, memory, condition, fixed_zone=fixed_zone
    )
    compared = [list(keys) for keys in spec.keys]
    if condition is not None and condition.residual is not None:
        _check_ansi(left, condition)
        for column in columns_of(condition.residual):
            compared[column.side].append(column.name)
    for side, frame, names in zip(SIDE_NAMES, (left, right), compared, strict=True):
        check_collations(side, frame.schema, names)
    check_widening(left.sparkSession, *spec.twoway.schemas, *spec.keys)
    return (left, right), spec, condition


def _check_ansi(frame: DataFrame, condition: Condition) -> None:
    """Refuse arithmetic of both sides where Spark would have NULL for what overflows."""
    assert condition.residual is not None
    ansi = (frame.sparkSession.conf.get("spark.sql.ansi.enabled") or "").lower()
    if ansi == "false" and calculates(condition.residual):
        raise ArgumentError(
            "where= calculates with columns of both sides, which is an error where it overflows, "
            "but spark.sql.ansi.enabled=false asks for NULL. Set it to true, or compute the column "
            "on one side"
        )


def _schemas(left: DataFrame, right: DataFrame) -> tuple[pa.Schema, pa.Schema]:
    return arrow_schema(SIDE_NAMES[LEFT], left), arrow_schema(SIDE_NAMES[RIGHT], right)


def narrowed(
    frames: tuple[DataFrame, DataFrame], condition: Condition
) -> tuple[DataFrame, DataFrame]:
    """Both inputs, less rows that no pair can have, with the columns that Spark computes."""
    left, right = (_narrowed(frame, condition, side) for side, frame in enumerate(frames))
    return left, right


def _narrowed(frame: DataFrame, condition: Condition, side: int) -> DataFrame:
    only = condition.right_only if side == RIGHT else condition.left_only
    try:
        for text in only:
            frame = frame.where(text)
        for column in condition.computed_of(side):
            frame = frame.withColumn(column.name, F.expr(column.sql_text))
    except AnalysisException as error:
        raise ArgumentError(
            f"where=: Spark does not understand what it says of the {SIDE_NAMES[side]} input. "
            f"{str(error).splitlines()[0]}"
        ) from error
    return frame
