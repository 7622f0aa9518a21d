"""DataFrames in, a DataFrame out.

    left  -> tag ┐
    right -> tag ├ union -> repartition by key -> step -> the user's sink
    clock -> tag ┘

The partition of a row is the hash of its key, or for a band join what `bands` says.

A streaming plan has the clock; a batch plan has not. If one input streams and the other does not,
the static one cannot be united with it: that is a job for `enrich`, and the error says so.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructType

from dovetail.errors import ArgumentError, KeyTypeError, StateMismatchError
from dovetail.kernel.keytypes import name_of
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES, SIDES
from dovetail.spark.foreach import read_batches_whole, states_in
from dovetail.spark.jobs.bands import band_partitions
from dovetail.spark.layout import (
    TAG,
    UnionLayout,
    arrow_schema,
    compared_keys,
    mark_partition,
    partition_of,
    placed,
    quoted,
    union_layout,
    woken_partition,
)
from dovetail.spark.session import check_session
from dovetail.spark.sources.clock import NAME, Clock
from dovetail.spark.sources.register import register_once
from dovetail.spark.state import IDENTITY, compare_identity, read_identity
from dovetail.spark.step import batch_step, streaming_step
from dovetail.spark.watermarks import warn_of_watermarks
from dovetail.specs import JobSpec, JoinAllSpec, JoinOptions, JoinSpec, join_spec

_TARGET = "__dovetail_target"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


def plan_join(left: DataFrame, right: DataFrame, options: JoinOptions, name: str) -> DataFrame:
    """The joined DataFrame; every argument is checked before anything is built."""
    spec = resolve_join(left, right, options, name)
    warn_of_watermarks({"left": left, "right": right}, defers=without_deferring(spec))
    schemas = (left.schema, right.schema)
    layout = union_layout(*schemas)
    frames = [
        layout.tagged(with_keys(frame, keys), side)
        for side, (frame, keys) in enumerate(
            [(left, spec.twoway.left_keys), (right, spec.twoway.right_keys)]
        )
    ]
    if left.isStreaming:
        frames.append(layout.ticks(clock_of(left.sparkSession, spec)))
    if spec.twoway.within is None:
        united = reduce(DataFrame.unionAll, frames)
        shuffled = united.repartitionById(spec.partitions, _target(spec, layout, schemas))
    else:
        shuffled = _shuffle_band(frames, spec, layout, schemas)
    if left.isStreaming:
        shuffled = mark_partition(shuffled)
        cores = check_session(left.sparkSession)
        # with more workers than partitions, forgotten operators would add up beyond the budget
        step = streaming_step(spec, layout, keep_operator=spec.partitions >= cores)
    else:
        step = batch_step(spec, layout)
    return shuffled.mapInArrow(step, _output_schema(spec, *schemas))


def resolve_join(left: DataFrame, right: DataFrame, options: JoinOptions, name: str) -> JoinSpec:
    """The checked spec of a join, and a check of the state directory if there is one already."""
    for side, frame in zip(SIDE_NAMES, (left, right), strict=True):
        check_is_frame(f"the {side} input", frame)
    if left.isStreaming != right.isStreaming:
        static = SIDE_NAMES[RIGHT if left.isStreaming else LEFT]
        raise ArgumentError(
            f"one input streams and the {static} one does not: join takes two streams or two "
            "batch DataFrames. Read both with readStream, or both with read; to look a stream's "
            "rows up in a table, use dovetail.enrich."
        )
    session = left.sparkSession
    parallelism = check_session(session)
    if left.isStreaming and options.state is None:
        options = replace(options, state=default_state(session, name))
    schemas = [
        arrow_schema(side, frame) for side, frame in zip(SIDE_NAMES, (left, right), strict=True)
    ]
    spec = join_spec(schemas[LEFT], schemas[RIGHT], options, parallelism)
    for side, frame, keys in zip(
        SIDE_NAMES, (left, right), (spec.twoway.left_keys, spec.twoway.right_keys), strict=True
    ):
        check_collations(side, frame.schema, keys)
    check_widening(session, *spec.twoway.schemas, spec.twoway.left_keys, spec.twoway.right_keys)
    check_state((left, right), spec)
    return spec


def without_deferring(spec: JoinSpec | JoinAllSpec) -> str | None:
    """How a join that may put results off would put none off; None if it does not."""
    if spec.memory_bytes is None or spec.algorithm == "shj":
        return None
    return "leave memory= out, so that nothing is put off"


def default_state(session: SparkSession, name: str) -> str:
    """A state directory below the session's checkpoints."""
    checkpoints = session.conf.get(_CHECKPOINTS, None)
    if not checkpoints:
        raise ArgumentError(
            "state= is needed: a directory for the join's state, beside the query's checkpoint and "
            f"reachable from every executor. (Or set {_CHECKPOINTS}, and it goes below that.)"
        )
    separator = "" if checkpoints.endswith("/") else "/"
    return f"{checkpoints}{separator}dovetail/{name}"


def check_state(inputs: Sequence[DataFrame], spec: JobSpec) -> None:
    """Refuse the state directory of another join, as far as that shows before the query runs."""
    if spec.state is None or not inputs[0].isStreaming:
        return
    for frame in inputs:
        if any(state.root.resolve() == spec.state.resolve() for state in states_in(frame)):
            raise StateMismatchError(
                f"an input comes from a join that keeps its state in {spec.state}, too. Give each "
                "join a state= of its own."
            )
    if (spec.state / IDENTITY).exists():
        compare_identity(spec.state, read_identity(spec.state), spec.identity())


def check_is_frame(what: str, frame: Any) -> None:
    """Refuse anything but a DataFrame, a path above all."""
    if not isinstance(frame, DataFrame):
        read = "spark.readStream.schema(...).parquet(...), or spark.read.parquet(...) for a batch"
        raise ArgumentError(
            f"{what} is a {type(frame).__name__}, {frame!r:.60}, but has to be a Spark DataFrame. "
            f"Read it first, for example with {read}"
        )


def check_collations(side: str, schema: StructType, keys: tuple[str, ...]) -> None:
    for name in keys:
        type_ = schema[name].dataType
        if isinstance(type_, StringType) and type_.collation != "UTF8_BINARY":
            raise KeyTypeError(
                f"the {side} join column {name!r} has the collation {type_.collation}; join "
                "compares strings byte by byte. Cast it to plain STRING (lower-cased, if need be)."
            )


def check_widening(
    session: SparkSession,
    left: pa.Schema,
    right: pa.Schema,
    left_keys: Sequence[str],
    right_keys: Sequence[str],
) -> None:
    """Refuse keys that this session compares otherwise than as their common type."""
    if session.conf.get("spark.sql.ansi.enabled") == "true":
        return
    for a, b in zip(left_keys, right_keys, strict=True):
        one, two = left.field(a).type, right.field(b).type
        if pa.types.is_float32(one) != pa.types.is_float32(two) and (
            pa.types.is_integer(one) or pa.types.is_integer(two)
        ):
            raise KeyTypeError(
                f"with spark.sql.ansi.enabled=false Spark compares {a!r}, {name_of(one)}, with "
                f"{b!r}, {name_of(two)}, as floats, which have seven digits; cast both to "
                "'double', or set it to true"
            )


def with_keys(frame: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Rows without a null in a key: the others match nothing and need not travel."""
    return frame.where(reduce(lambda a, b: a & b, (frame[quoted(k)].isNotNull() for k in keys)))


def clock_of(session: SparkSession, spec: JobSpec) -> DataFrame:
    read_batches_whole()
    register_once(session, Clock)
    options = {"state": str(spec.state), "partitions": str(spec.partitions)}
    return session.readStream.format(NAME).options(**options).load()


def _target(spec: JoinSpec, layout: UnionLayout, schemas: tuple[StructType, StructType]) -> Column:
    """The partition of a row: by its key, or for a tick the one that it wakes."""
    by_side = [
        partition_of(*_keys(spec, layout, schemas[side], side), spec.partitions) for side in SIDES
    ]
    tag = F.col(TAG)
    woken = woken_partition(tag)
    return F.when(tag == LEFT, by_side[LEFT]).when(tag == RIGHT, by_side[RIGHT]).otherwise(woken)


def _keys(
    spec: JoinSpec, layout: UnionLayout, schema: StructType, side: int
) -> tuple[list[Column], list[DataType]]:
    """The keys of a side as they travel, in the types that they are compared as."""
    keys = [layout.column(side, number) for number in spec.twoway.key_columns[side]]
    names = (spec.twoway.left_keys, spec.twoway.right_keys)[side]
    types = [schema[name].dataType for name in names]
    return compared_keys(keys, types, spec.twoway.codec.types)


def _shuffle_band(
    frames: list[DataFrame],
    spec: JoinSpec,
    layout: UnionLayout,
    schemas: tuple[StructType, StructType],
) -> DataFrame:
    """The rows of a band join in their partitions: a right row may be needed in two."""
    assert spec.twoway.within is not None
    in_place = []
    for side, frame in enumerate(frames):
        if side not in SIDES:
            in_place.append(frame.withColumn(_TARGET, woken_partition(F.col(TAG))))
            continue
        ((key,), (type_,)) = _keys(spec, layout, schemas[side], side)
        own = band_partitions(key, type_, spec.twoway.within, spec.partitions, side)
        in_place.append(placed(frame, own, _TARGET))
    united = reduce(DataFrame.unionAll, in_place)
    return united.repartitionById(spec.partitions, F.col(_TARGET)).drop(_TARGET)


def _output_schema(spec: JoinSpec, left: StructType, right: StructType) -> StructType:
    """The Spark types of the output, nested metadata and all, from the inputs' own schemas."""
    layout = spec.twoway.layout
    fields = [*left.fields, *(right.fields[index] for index in layout.right_columns)]
    keys = {*spec.twoway.left_keys, *spec.twoway.right_keys}
    schema = StructType()
    for name, field in zip(layout.schema.names, fields, strict=True):
        schema.add(name, field.dataType, nullable=field.nullable and field.name not in keys)
    return schema
