"""Explanations of `join_all`: collects what Spark knows of the inputs for `costs`.

Pairs of rows that match are counted by hashing keys into buckets: two rows of one bucket match, but
for those that share it by chance, whose number is known. Of a band, rows share a range of values,
and a fixed part of the pairs in it match (see `sampling`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.costs.cascade import Counted
from dovetail.costs.explain_all import PlannedJoinAll, explain_join_all
from dovetail.costs.explanation import Explanation
from dovetail.costs.keysample import BUCKETS
from dovetail.kernel.protocol import LEFT
from dovetail.multiway import Edge
from dovetail.spark.jobs.bands import band_partitions
from dovetail.spark.jobs.checks import planned_facts
from dovetail.spark.jobs.join_all import cell_counts
from dovetail.spark.jobs.join_words import WIDTH_ROWS
from dovetail.spark.jobs.sampling import MATCHING_IN_CELL
from dovetail.spark.jobs.shares import Inputs, checked_history
from dovetail.spark.layout import keys_of, partition_of, with_keys
from dovetail.specs import JoinAllOptions, JoinAllSpec


def explained_join_all(
    inputs: Inputs,
    spec: JoinAllSpec,
    options: JoinAllOptions,
    note: str,
    chosen_by: str,
    to_count: Inputs | None,
    *,
    count: bool,
) -> Explanation:
    """Say what a join of several inputs will do.

    note: what there is to say of its state directory; chosen_by: how its shares were; to_count:
    batch DataFrames, in place of inputs that stream.
    """
    first = next(iter(inputs.values()))
    plan = PlannedJoinAll(
        spec=spec.multiway,
        grid=spec.grid,
        most_partitions=spec.most_partitions,
        chosen_by=chosen_by,
        **planned_facts(spec, options, first, note),
    )
    frames = to_count or (None if first.isStreaming else inputs)
    if not count:
        return explain_join_all(replace(plan, why_not_counted="count=False"))
    if frames is None:
        why = (
            "the rows of a stream cannot be read before it runs. Hand over batch DataFrames with "
            "rows like those to come, the same files say, as history={name: ...}"
        )
        return explain_join_all(replace(plan, why_not_counted=why))
    ordered = checked_history(frames, spec)
    samples = tuple(frame.limit(WIDTH_ROWS).toArrow() for frame in ordered.values())
    return explain_join_all(replace(plan, samples=samples, counted=counted(ordered, spec)))


def counted(frames: Inputs, spec: JoinAllSpec) -> Counted:
    """Rows, pairs and the fullest partition of batch DataFrames, which are read."""
    keyed = [with_keys(f, keys) for f, keys in zip(frames.values(), spec.keys, strict=True)]
    rows = tuple(float(frame.count()) for frame in keyed)
    pairs = tuple(
        _pairs(keyed, edge, codec.types)
        for edge, codec in zip(spec.multiway.edges, spec.multiway.codecs, strict=True)
    )
    cells = cell_counts(frames, spec)
    loads = [sum(some.get(cell, 0) for some in cells) for cell in range(spec.partitions)]
    fullest = int(np.argmax(loads))
    return Counted(rows, pairs, tuple(float(some.get(fullest, 0)) for some in cells))


def _pairs(frames: list[DataFrame], edge: Edge, compared: Sequence[pa.DataType]) -> float:
    """About how many pairs of rows an edge joins."""
    one, two = (_buckets(frames[edge.ends[side]], edge, side, compared) for side in (0, 1))
    shared = float(one @ two)
    by_chance = float(one.sum() * two.sum()) / BUCKETS
    matching = max(0.0, (shared - by_chance) / (1 - 1 / BUCKETS))
    return matching * (1.0 if edge.within is None else MATCHING_IN_CELL)


def _buckets(
    frame: DataFrame, edge: Edge, side: int, compared: Sequence[pa.DataType]
) -> NDArray[np.float64]:
    """The rows of each bucket."""
    keys, types = keys_of(frame, edge.columns[side], compared)
    if edge.within is None:
        bucket = partition_of(keys, types, BUCKETS)
    else:
        ranges = band_partitions(keys[0], types[0], edge.within, BUCKETS, LEFT + side)
        bucket = F.explode(ranges)
    found = frame.select(bucket.alias("bucket")).groupBy("bucket").count().toArrow()
    counts = np.zeros(BUCKETS)
    counts[found.column("bucket").to_numpy()] = found.column("count").to_numpy()
    return counts


def reason(first: DataFrame, options: JoinAllOptions, history: Inputs | None, *, kept: bool) -> str:
    """The words for what the shares were chosen by."""
    if kept:
        return "as the state directory was begun with"
    given = options.sizes is not None
    if history is not None:
        sizes = ", going by the sizes given" if given else ""
        return f"so that the least comes to the fullest one by a sample of history={sizes}"
    sizes = "going by what Spark knows of the inputs' sizes (sizes= tells otherwise)"
    if given:
        sizes = "going by the sizes given"
    elif first.isStreaming:
        sizes = "taking the streams to be equally long (sizes= tells otherwise)"
    return (
        f"so that the least comes to each partition, {sizes}, keys spread evenly (history= tells "
        "otherwise)"
    )
