"""The plan of a join in words: what Spark knows of the inputs, handed to `costs`."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.costs.calibrate import factors_for
from dovetail.costs.cleanup import CleanupMachine, cleanup_factors
from dovetail.costs.expected import Expected
from dovetail.costs.explain import (
    Explanation,
    PlannedJoin,
    columns_of,
    explain_join,
    row_width,
)
from dovetail.costs.predictions import Machine, PlannedEnrich, TableSize
from dovetail.costs.replay import Setting, foresee
from dovetail.costs.skew import UNIFORM
from dovetail.costs.storage import Storage, storage_of
from dovetail.errors import ArgumentError, StateError, StorageError
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES
from dovetail.semistream import StagedTable
from dovetail.spark.endings import MAX_SLICE_MS
from dovetail.spark.jobs.join import resolve_join, without_deferring
from dovetail.spark.jobs.sampling import sample_keys
from dovetail.spark.jobs.sizes import files_in_a_batch, rows_by_statistics, rows_of_files
from dovetail.spark.jobs.staging import shape_of
from dovetail.spark.jobs.streamkeys import StreamKeys
from dovetail.spark.layout import arrow_schema
from dovetail.spark.sources.tables import OpenTable
from dovetail.spark.state import IDENTITY
from dovetail.spark.state.metrics import progress
from dovetail.spark.watermarks import warn_of_watermarks
from dovetail.specs import (
    TABLES,
    EnrichOptions,
    EnrichSpec,
    JobSpec,
    JoinAllOptions,
    JoinOptions,
    JoinSpec,
    staged_version,
    state_path,
)
from dovetail.twoway import TwoWaySpec

Spec = TypeVar("Spec", bound=JobSpec)

WIDTH_ROWS = 1000  # of each input, to learn how wide they are
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def explain_planned(
    left: DataFrame,
    right: DataFrame,
    options: JoinOptions,
    name: str,
    samples: tuple[pa.Table, pa.Table] | None,
    history: tuple[DataFrame, DataFrame] | None = None,
    sample_rows: int = 0,
) -> Explanation:
    """Check a join's arguments as `plan_join` would, and say what the plan would be."""
    if sample_rows < 0:
        raise ArgumentError(f"sample_rows={sample_rows!r} is not a number of 0 or more")
    spec, state, note = resolve_for_words(
        lambda chosen: resolve_join(left, right, chosen, name), options
    )
    warn_of_watermarks({"left": left, "right": right}, defers=without_deferring(spec))
    frames = history or (None if left.isStreaming else (left, right))
    if frames is not None and sample_rows and samples is None:
        one, two = (frame.limit(WIDTH_ROWS).toArrow() for frame in frames)
        samples = one, two
    plan = _planned_join(left, spec, options, samples)
    files = (files_in_a_batch(left), files_in_a_batch(right))
    expected, why_not = expect(frames, plan, sample_rows, _existing(state), files)
    return explain_join(
        replace(plan, state=state, state_note=note, expected=expected, why_not_expected=why_not)
    )


def _planned_join(
    left: DataFrame,
    spec: JoinSpec,
    options: JoinOptions,
    samples: tuple[pa.Table, pa.Table] | None,
) -> PlannedJoin:
    return PlannedJoin(
        spec=spec.twoway,
        algorithm=spec.algorithm,
        asked_algorithm=options.algorithm,
        memory_bytes=spec.memory_bytes,
        partitions=spec.partitions,
        asked_partitions=options.partitions,
        batch_rows=int(left.sparkSession.conf.get(BATCH_ROWS) or 10_000),
        streaming=left.isStreaming,
        samples=samples,
    )


def expect(
    frames: tuple[DataFrame, DataFrame] | None,
    plan: PlannedJoin,
    sample_rows: int,
    where: Path,
    files: tuple[int | None, int | None] = (None, None),
) -> tuple[Expected | None, str]:
    """What a sample of the keys lets expect; if there is none, why.

    where: a folder of the storage that the join will spill to; files: as `sample_keys` has it.
    """
    if not sample_rows:
        return None, "no sample of the inputs was asked for (sample_rows=)"
    if frames is None:
        return None, (
            "the rows of a stream cannot be read before it runs. Hand over batch DataFrames with "
            "rows like those to come, the same files say, as history=(left, right)"
        )
    _check_history(frames, plan.spec)
    sample = sample_keys(frames, plan.spec, sample_rows, by_time=plan.streaming, files=files)
    tables = plan.samples or (None, None)
    widths = [row_width(*pair).nbytes for pair in zip(plan.spec.schemas, tables, strict=True)]
    setting = Setting(
        plan.algorithm, plan.spec.within, plan.memory_bytes, plan.partitions, plan.batch_rows,
        (widths[LEFT], widths[RIGHT]),
    )  # fmt: skip
    outlook = foresee(setting, sample)
    if outlook is None:
        sampled = " and ".join(f"{len(side):,}" for side in sample.sides)
        return None, (
            f"the sample of {sampled} rows says too little: a side has none, or memory would hold "
            "next to none of them. Take a larger one (sample_rows=)"
        )
    if not outlook.spilled_rows:
        return Expected(outlook), ""
    cores = int(frames[LEFT].sparkSession.sparkContext.defaultParallelism)
    factors = cleanup_factors(plan.algorithm, max(widths))
    machine = CleanupMachine(factors, _storage(where), max(1, min(cores, plan.partitions)))
    return Expected(outlook, machine), ""


def _check_history(frames: tuple[DataFrame, DataFrame], spec: TwoWaySpec) -> None:
    keys = (spec.left_keys, spec.right_keys)
    for side, frame in enumerate(frames):
        name = SIDE_NAMES[side]
        if frame.isStreaming:
            raise ArgumentError(f"history=: the {name} DataFrame streams; read it with read")
        schema = arrow_schema(name, frame)
        for key in keys[side]:
            wanted = spec.schemas[side].field(key).type
            if key not in schema.names or schema.field(key).type != wanted:
                raise ArgumentError(
                    f"history=: the {name} DataFrame has no column {key!r} of type {wanted}, as "
                    f"the {name} input has; its columns are {columns_of(schema)}"
                )


def planned_enrich(
    stream: DataFrame,
    table: OpenTable,
    spec: EnrichSpec,
    options: EnrichOptions,
    samples: tuple[pa.Table, pa.Table] | None = None,
    keys: StreamKeys | None = None,
) -> PlannedEnrich:
    """What the cost models have to know.

    Measures the machine, for about two seconds, unless this process or the state has done so, and
    takes a sample of `keys`, if there are any to go by, unless that was done.
    """
    sample, table_sample = samples or (None, None)
    size = _table_size(table, spec, spec.state, table_sample)
    width = row_width(spec.semistream.stream, sample).nbytes
    recorded = spec.recorded
    machine = recorded.machine if recorded else _machine(stream, spec, width, size.row_bytes)
    skew = recorded.skew if recorded else UNIFORM
    if keys is not None and keys.known:
        skew = keys.skew(spec.semistream, size.rows)
    return PlannedEnrich(
        spec=spec.semistream,
        algorithm=spec.algorithm,
        asked_algorithm=options.algorithm,
        memory_bytes=spec.memory_bytes,
        partitions=spec.partitions,
        asked_partitions=options.partitions,
        streaming=stream.isStreaming,
        table=size,
        machine=machine,
        skew=skew,
        state=spec.state,
        sample=sample,
        latency=None if spec.pace is None else spec.pace.seconds,
        shedding=spec.shedding,
        batch_rows=int(stream.sparkSession.conf.get(BATCH_ROWS) or 10_000),
        drain_seconds=MAX_SLICE_MS / 1000 if stream.isStreaming else 0.0,
        why=recorded.choice.why if recorded else "",
    )


def _machine(stream: DataFrame, spec: EnrichSpec, stream_width: float, width: float) -> Machine:
    budget = None if spec.memory_bytes is None else spec.memory_bytes // spec.partitions
    return Machine(
        factors_for(stream_width, width, budget),
        _storage(_existing(spec.state)),
        int(stream.sparkSession.sparkContext.defaultParallelism),
    )


def _storage(directory: Path) -> Storage:
    """The storage of a state; one too full to be measured may still have room for the state."""
    try:
        return storage_of(directory)
    except StorageError:
        return storage_of(tempfile.gettempdir())


def _existing(path: Path | None) -> Path:
    """Where a state directory is or will be: the part of its path that is there."""
    if path is None:
        return Path(tempfile.gettempdir())
    return next(place for place in (path, *path.parents) if place.is_dir())


def _table_size(
    table: OpenTable, spec: EnrichSpec, state: Path | None, sample: pa.Table | None
) -> TableSize:
    """From the staged table if there is one; else from what Spark and the files tell."""
    staged = _staged_size(spec, state)
    if staged is not None:
        return staged
    schema = spec.semistream.table
    width = row_width(schema, None if sample is None else sample.select(schema.names))
    page_rows = max(1, int(shape_of(spec).page_bytes / max(1.0, width.nbytes)))
    rows, source = table.rows(), "the row count of its snapshot, before any deletes"
    if rows is None:
        rows = rows_of_files(table.read())
        source = "the row count of its Parquet files, before any filter"
    if rows is None:
        every = row_width(pa.schema(list(schema))).nbytes
        rows, counted = rows_by_statistics(table.read(), every)
        source = "by Spark's statistics" if counted else "guessed from Spark's estimate of its size"
    return TableSize(rows, width.nbytes, page_rows, f"{source}; a row's width {width.source}")


def _staged_size(spec: EnrichSpec, state: Path | None) -> TableSize | None:
    if state is None:
        return None
    rows, nbytes, page_rows = 0, 0.0, 1
    try:
        version = staged_version(state)
        for directory in sorted((state / TABLES / version).glob("p*")):
            part = StagedTable(directory, spec.semistream.table)
            rows += part.rows
            nbytes += part.rows * part.row_bytes
            page_rows = max(page_rows, part.page_rows)
            part.close()
    except StateError:
        return None
    return TableSize(rows, nbytes / max(1, rows), page_rows, f"as staged, {version}")


def resolve_for_words(
    resolve: Callable[[Any], Spec], options: JoinOptions | JoinAllOptions | EnrichOptions
) -> tuple[Spec, Path | None, str]:
    """The spec, the state directory, and what is to be said of that directory."""
    try:
        spec = resolve(options)
        return spec, spec.state, _state_note(spec)
    except StateError as error:
        # what is wrong with the directory belongs to the explanation; without it, the rest stands
        with tempfile.TemporaryDirectory() as empty:
            spec = resolve(replace(options, state=empty))
        state = None if options.state is None else state_path(options.state)
        return spec, state, f"DOES NOT FIT: {error}"


def _state_note(spec: JobSpec) -> str:
    if spec.state is None or not (spec.state / IDENTITY).exists():
        return "new: made when the query starts"
    return f"exists and fits, after batch {progress(spec.state).version}"
