"""The plan of an enrichment in words: what Spark knows of stream and table, handed to `costs`."""

import math
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.costs.explain import Explanation
from dovetail.costs.explain_enrich import explain_enrich
from dovetail.costs.latency import pages_within
from dovetail.costs.skew import Skew
from dovetail.costs.storage import profile
from dovetail.errors import ArgumentError
from dovetail.spark.jobs.enrich import WITHOUT_DEFERRING, resolve_enrich
from dovetail.spark.jobs.explain_join import planned_enrich, resolve_for_words
from dovetail.spark.jobs.join import check_is_frame
from dovetail.spark.jobs.streamkeys import StreamKeys
from dovetail.spark.sources.tables import Table, open_table
from dovetail.spark.watermarks import warn_of_watermarks
from dovetail.specs import EnrichOptions


@dataclass(frozen=True)
class Outlook:
    """What predictions are to go by; see `dovetail.explain_enrich`."""

    samples: tuple[pa.Table, pa.Table] | None
    skew: float | None
    history: DataFrame | None
    sample_rows: int
    storage: str
    likely: DataFrame | None = None  #: to predict with, though `enrich` is not given it as history

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
    check_is_frame("the stream", stream)
    warn_of_watermarks({"the stream": stream}, defers=WITHOUT_DEFERRING)
    asked = profile(wanted.storage)
    opened = open_table(stream.sparkSession, table)
    keys = StreamKeys(stream, wanted.history, wanted.sample_rows)
    spec, state, note = resolve_for_words(
        lambda chosen: resolve_enrich(stream, opened, chosen, name, keys), options
    )
    plan = planned_enrich(stream, opened, replace(spec, state=state), options, wanted.samples, keys)
    skew = plan.skew
    if wanted.skew is not None:
        skew = Skew(float(wanted.skew))
    elif wanted.likely is not None:
        likely = StreamKeys(stream, wanted.likely, wanted.sample_rows)
        skew = likely.skew(plan.spec, plan.table.rows)
    plan = replace(plan, skew=skew, state_note=note, profile=asked)
    if plan.latency is not None:
        plan = replace(plan, pages=pages_within(plan, plan.latency))
    return explain_enrich(plan)
