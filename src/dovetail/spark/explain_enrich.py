"""The plan of an enrichment in words: what Spark knows of stream and table, handed to `costs`."""

import math
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.costs.explain import Explanation, columns_of
from dovetail.costs.explain_enrich import explain_enrich
from dovetail.costs.latency import pages_within
from dovetail.costs.predictions import PlannedEnrich
from dovetail.costs.skew import UNIFORM, Skew, measured_skew
from dovetail.costs.storage import profile
from dovetail.errors import ArgumentError
from dovetail.spark.enrich import resolve_enrich
from dovetail.spark.explain import planned_enrich, resolve_for_words
from dovetail.spark.layout import arrow_schema, quoted
from dovetail.spark.tables import Table, open_table
from dovetail.specs import EnrichOptions

_SAMPLE_SEED = 7


@dataclass(frozen=True)
class Outlook:
    """What predictions are to go by; see `dovetail.explain_enrich`."""

    samples: tuple[pa.Table, pa.Table] | None
    skew: float | None
    history: DataFrame | None
    sample_rows: int
    storage: str

    def __post_init__(self) -> None:
        if self.skew is not None and not 0 <= self.skew < math.inf:
            raise ArgumentError(f"skew={self.skew!r} is not a number of 0 or more")
        if self.sample_rows < 0:
            raise ArgumentError(f"sample_rows={self.sample_rows!r} is not a number of 0 or more")


def explain_enrich_planned(
    stream: DataFrame, table: Table, options: EnrichOptions, name: str, wanted: Outlook
) -> Explanation:
    """Check an enrichment's arguments as `plan_enrich` would, and say what the plan would be.

    Nothing is staged or written.
    """
    asked = profile(wanted.storage)
    opened = open_table(stream.sparkSession, table)
    spec, state, note = resolve_for_words(
        lambda chosen: resolve_enrich(stream, opened, chosen, name), options
    )
    plan = planned_enrich(stream, opened, replace(spec, state=state), options, wanted.samples)
    skew = _skew(stream, plan, wanted)
    plan = replace(plan, skew=skew, state_note=note, profile=asked)
    if plan.latency is not None:
        plan = replace(plan, pages=pages_within(plan, plan.latency))
    return explain_enrich(plan)


def _skew(stream: DataFrame, plan: PlannedEnrich, wanted: Outlook) -> Skew:
    """As asked for, or as measured, or none."""
    frame = wanted.history
    if frame is not None:
        _check_history(frame, plan)
    elif not stream.isStreaming:
        frame = stream
    if wanted.skew is not None:
        return Skew(float(wanted.skew))
    if frame is None or not wanted.sample_rows:
        return UNIFORM
    keys = [quoted(name) for name in plan.spec.stream_keys]
    some = frame.select(*keys).orderBy(F.rand(_SAMPLE_SEED)).limit(wanted.sample_rows).toArrow()
    codes, valid = plan.spec.codec.encode([column.combine_chunks() for column in some.columns])
    return measured_skew(codes if valid is None else codes[valid], plan.table.rows)


def _check_history(frame: DataFrame, plan: PlannedEnrich) -> None:
    if frame.isStreaming:
        raise ArgumentError("history=: the DataFrame streams; read it with read")
    schema = arrow_schema("history", frame)
    for key in plan.spec.stream_keys:
        wanted = plan.spec.stream.field(key).type
        if key not in schema.names or schema.field(key).type != wanted:
            raise ArgumentError(
                f"history=: the DataFrame has no column {key!r} of type {wanted}, as the stream "
                f"has; its columns are {columns_of(schema)}"
            )
