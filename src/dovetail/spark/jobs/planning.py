"""Planning of every job: DataFrames in, a DataFrame out.

    each input -> tag ┐
    clock      -> tag ┴ union -> repartition by partition -> step -> the user's sink

A row goes where its job's `Route` says: to one partition, or as copies to several. A streaming plan
has the clock; a batch plan has not.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from dovetail.spark.foreach import read_batches_whole
from dovetail.spark.jobs.job import Job, Route
from dovetail.spark.layout import (
    TAG,
    mark_partition,
    placed,
    union_layout,
    woken_partition,
)
from dovetail.spark.session import check_session
from dovetail.spark.sources.clock import NAME, Clock
from dovetail.spark.sources.register import register_once
from dovetail.spark.step import batch_step, streaming_step
from dovetail.specs import JobSpec

_TARGET = "__dovetail_target"


def planned(job: Job, frames: Sequence[DataFrame]) -> DataFrame:
    """The results of a job on these inputs; nothing runs yet."""
    schemas = [frame.schema for frame in frames]
    session, streaming = frames[0].sparkSession, frames[0].isStreaming
    layout = union_layout(*schemas)
    tagged = [layout.tagged(frame, side) for side, frame in enumerate(job.rows(frames))]
    if streaming:
        tagged.append(layout.ticks(_clock(session, job.spec)))
    shuffled = _shuffled(tagged, job.routes(layout, schemas), job.spec.partitions)
    if streaming:
        # with more workers than partitions, forgotten operators would add up beyond the budget
        keep = job.spec.partitions >= check_session(session)
        step = streaming_step(job, layout, keep_operator=keep)
    else:
        step = batch_step(job, layout)
    return mark_partition(shuffled).mapInArrow(step, job.output(schemas))


def _shuffled(tagged: list[DataFrame], routes: Sequence[Route], partitions: int) -> DataFrame:
    """Shuffle all rows to their partitions, and each tick to the one that it wakes."""
    tag = F.col(TAG)
    target = woken_partition(tag)
    if not any(route.several for route in routes):
        for side, route in enumerate(routes):
            target = F.when(tag == side, route.target).otherwise(target)
        united = reduce(DataFrame.unionAll, tagged)
        return united.repartitionById(partitions, target.cast(IntegerType()))
    rows, ticks = tagged[: len(routes)], tagged[len(routes) :]
    in_place = [
        placed(frame, route.target if route.several else F.array(route.target), _TARGET)
        for frame, route in zip(rows, routes, strict=True)
    ]
    in_place += [frame.withColumn(_TARGET, target) for frame in ticks]
    united = reduce(DataFrame.unionAll, in_place)
    return united.repartitionById(partitions, F.col(_TARGET)).drop(_TARGET)


def _clock(session: SparkSession, spec: JobSpec) -> DataFrame:
    read_batches_whole()
    register_once(session, Clock)
    options = {"state": str(spec.state), "partitions": str(spec.partitions)}
    return session.readStream.format(NAME).options(**options).load()
