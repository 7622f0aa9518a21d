"""The plan of a join in words: what Spark knows of the inputs, handed to `costs.explain`."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.costs.explain import Explanation, PlannedJoin, explain_join
from dovetail.errors import StateError
from dovetail.spark.metrics import progress
from dovetail.spark.plan import resolve_join
from dovetail.spark.state import IDENTITY
from dovetail.specs import JoinOptions, JoinSpec, state_path

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def explain_planned(
    left: DataFrame,
    right: DataFrame,
    options: JoinOptions,
    name: str,
    samples: tuple[pa.Table, pa.Table] | None,
) -> Explanation:
    """Check a join's arguments as `plan_join` would, and say what the plan would be."""
    spec, state, note = _resolve(left, right, options, name)
    return explain_join(
        PlannedJoin(
            spec=spec.twoway,
            algorithm=spec.algorithm,
            asked_algorithm=options.algorithm,
            memory_bytes=spec.memory_bytes,
            partitions=spec.partitions,
            asked_partitions=options.partitions,
            batch_rows=int(left.sparkSession.conf.get(_BATCH_ROWS) or 10_000),
            streaming=left.isStreaming,
            state=state,
            state_note=note,
            samples=samples,
        )
    )


def _resolve(
    left: DataFrame, right: DataFrame, options: JoinOptions, name: str
) -> tuple[JoinSpec, Path | None, str]:
    """The spec, the state directory, and what is to be said of that directory."""
    try:
        spec = resolve_join(left, right, options, name)
        return spec, spec.state, _state_note(spec)
    except StateError as error:
        # what is wrong with the directory belongs to the explanation; without it, the rest stands
        with tempfile.TemporaryDirectory() as empty:
            spec = resolve_join(left, right, replace(options, state=empty), name)
        state = None if options.state is None else state_path(options.state)
        return spec, state, f"DOES NOT FIT: {error}"


def _state_note(spec: JoinSpec) -> str:
    if spec.state is None or not (spec.state / IDENTITY).exists():
        return "new: made when the query starts"
    return f"exists and fits, after batch {progress(spec.state).version}"
