"""Explanations of `join`: collects what Spark knows of the inputs for `costs`."""

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.costs.cleanup import CleanupMachine, cleanup_factors
from dovetail.costs.expected import Expected
from dovetail.costs.explain import PlannedJoin, explain_join
from dovetail.costs.explanation import Explanation
from dovetail.costs.replay import Setting, foresee
from dovetail.costs.widths import row_width
from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES
from dovetail.spark.jobs.checks import check_history, planned_facts
from dovetail.spark.jobs.sampling import sample_keys
from dovetail.spark.jobs.sizes import files_in_a_batch, storage_near
from dovetail.specs import JoinOptions, JoinSpec
from dovetail.specs.conditions import Condition
from dovetail.specs.matching import words_of

Pair = tuple[DataFrame, DataFrame]

WIDTH_ROWS = 1000  #: of each input, to learn how wide they are


def explained_join(
    inputs: Pair,
    spec: JoinSpec,
    options: JoinOptions,
    note: str,
    history: Pair | None,
    samples: tuple[pa.Table, pa.Table] | None,
    sample_rows: int,
    condition: Condition | None = None,
) -> Explanation:
    """Say what a join will do; `note` is what there is to say of its state directory."""
    left, right = inputs
    if sample_rows < 0:
        raise ArgumentError(f"sample_rows={sample_rows!r} is not a number of 0 or more")
    frames = history or (None if left.isStreaming else inputs)
    if frames is not None and sample_rows and samples is None:
        one, two = (frame.limit(WIDTH_ROWS).toArrow() for frame in frames)
        samples = one, two
    plan = PlannedJoin(
        spec=spec.twoway,
        where=() if condition is None else words_of(condition, spec.twoway.residual),
        **planned_facts(spec, options, left, note),
        samples=samples,
    )
    files = (files_in_a_batch(left), files_in_a_batch(right))
    expected, why_not = expect(frames, plan, sample_rows, files)
    return explain_join(replace(plan, expected=expected, why_not_expected=why_not))


def expect(
    frames: Pair | None,
    plan: PlannedJoin,
    sample_rows: int,
    files: tuple[int | None, int | None] = (None, None),
) -> tuple[Expected | None, str]:
    """Predict the join from a sample of the keys; or say why there is none.

    files: as `sample_keys` has it.
    """
    if not sample_rows:
        return None, "no sample of the inputs was asked for (sample_rows=)"
    if frames is None:
        return None, (
            "the rows of a stream cannot be read before it runs. Hand over batch DataFrames with "
            "rows like those to come, the same files say, as history=(left, right)"
        )
    keys = (plan.spec.left_keys, plan.spec.right_keys)
    for name, frame, schema, own in zip(SIDE_NAMES, frames, plan.spec.schemas, keys, strict=True):
        check_history(name, f"the {name} DataFrame", frame, f"the {name} input", schema, own)
    sample = sample_keys(frames, plan.spec, sample_rows, by_time=plan.streaming, files=files)
    tables = plan.samples or (None, None)
    widths = [row_width(*pair).nbytes for pair in zip(plan.spec.schemas, tables, strict=True)]
    setting = Setting(
        plan.algorithm, plan.spec.within, plan.memory_bytes, plan.partitions, plan.batch_rows,
        (widths[LEFT], widths[RIGHT]),
    )  # fmt: skip
    forecast = foresee(setting, sample)
    if forecast is None:
        sampled = " and ".join(f"{len(side):,}" for side in sample.sides)
        return None, (
            f"the sample of {sampled} rows says too little: a side has none, or memory would hold "
            "next to none of them. Take a larger one (sample_rows=)"
        )
    if not forecast.spilled_rows:
        return Expected(forecast), ""
    cores = int(frames[LEFT].sparkSession.sparkContext.defaultParallelism)
    factors = cleanup_factors(plan.algorithm, max(widths))
    machine = CleanupMachine(factors, storage_near(plan.state), max(1, min(cores, plan.partitions)))
    return Expected(forecast, machine), ""
