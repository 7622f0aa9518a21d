"""Checks of inputs, session and state directory of any job, before it runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from dovetail.costs.widths import columns_of
from dovetail.errors import ArgumentError, KeyTypeError, StateMismatchError
from dovetail.kernel.keytypes import name_of
from dovetail.spark.foreach import states_in
from dovetail.spark.layout import arrow_schema, batch_rows
from dovetail.spark.machine import default_memory
from dovetail.spark.session import check_session
from dovetail.spark.state import IDENTITY, compare_identity, read_identity
from dovetail.specs import (
    UNBOUNDED,
    EnrichOptions,
    JobSpec,
    JoinAllOptions,
    JoinAllSpec,
    JoinOptions,
    JoinSpec,
)

Given = TypeVar("Given", JoinOptions, JoinAllOptions, EnrichOptions)

_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


def without_deferring(spec: JoinSpec | JoinAllSpec) -> str | None:
    """The advice for a join to defer no results; None if it defers none."""
    if spec.memory_bytes is None or spec.algorithm == "shj":
        return None
    return f"set memory={UNBOUNDED!r}, so that nothing is put off"


def planned_facts(
    spec: JobSpec,
    options: JoinOptions | JoinAllOptions | EnrichOptions,
    frame: DataFrame,
    note: str = "",
) -> dict[str, Any]:
    """What explanations of every job tell of it: the fields of `Planned`.

    options: the arguments as they were given; frame: any of its inputs; note: what there is to say
    of the state directory.
    """
    session = frame.sparkSession
    words = default_memory(session.sparkContext).words if options.memory is None else ""
    return {
        "algorithm": spec.algorithm,
        "asked_algorithm": options.algorithm,
        "memory_bytes": spec.memory_bytes,
        "memory_words": words,
        "partitions": spec.partitions,
        "asked_partitions": options.partitions,
        "batch_rows": batch_rows(session),
        "streaming": frame.isStreaming,
        "state": spec.state,
        "state_note": note,
    }


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


def check_history(
    side: str, what: str, frame: DataFrame, like: str, schema: pa.Schema, keys: Sequence[str]
) -> None:
    """Refuse a DataFrame of `history=` that streams, or lacks the keys of its input.

    what, like: what it and the input are called; schema, keys: of the input.
    """
    if frame.isStreaming:
        raise ArgumentError(f"history=: {what} streams; read it with read")
    found = arrow_schema(side, frame)
    for key in keys:
        wanted = schema.field(key).type
        if key not in found.names or found.field(key).type != wanted:
            raise ArgumentError(
                f"history=: {what} has no column {key!r} of type {wanted}, as {like} has; its "
                f"columns are {columns_of(found)}"
            )


def settled(frame: DataFrame, options: Given, name: str) -> tuple[Given, int, int]:
    """Options that name a state directory if one is needed; the parallelism, and the memory.

    The latter two are the defaults that the session leads to.
    """
    session = frame.sparkSession
    parallelism = check_session(session)
    if frame.isStreaming and options.state is None:
        options = replace(options, state=default_state(session, name))
    return options, parallelism, default_memory(session.sparkContext).nbytes


def check_collations(side: str, schema: StructType, keys: Sequence[str]) -> None:
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
