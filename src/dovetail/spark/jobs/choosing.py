"""The choice of an enrichment's algorithm: its state directory's, the user's, or predicted.

Once a step has claimed a directory, `auto` is the algorithm of its identity, whatever the models
would say now, and the machine is not measured again (see `state.chosen`).
"""

import contextlib
from dataclasses import replace

from pyspark.sql import DataFrame

from dovetail.costs.choice import Recorded
from dovetail.costs.retune import Tuner
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.semistream.scan.meshjoin import AMeshJoin
from dovetail.spark.jobs.enrich_costs import foreseen
from dovetail.spark.jobs.streamkeys import StreamKeys
from dovetail.spark.sources.tables import OpenTable
from dovetail.spark.state import IDENTITY, read_identity
from dovetail.spark.state.chosen import read_chosen
from dovetail.specs import EnrichOptions, EnrichSpec

_AUTO = "auto"


def is_claimed(spec: EnrichSpec) -> bool:
    """Whether a step has begun to use the state directory."""
    return spec.state is not None and (spec.state / IDENTITY).exists()


def with_kept_algorithm(spec: EnrichSpec, options: EnrichOptions) -> EnrichSpec:
    """The spec with the algorithm of a state directory in use, unless another is asked for."""
    assert spec.state is not None
    if options.algorithm != _AUTO:
        return spec
    return replace(spec, algorithm=str(read_identity(spec.state).get("algorithm")))


def kept_choice(spec: EnrichSpec) -> Recorded | None:
    """The recorded choice of a state directory in use, if it is of this algorithm."""
    assert spec.state is not None
    kept = read_chosen(spec.state)
    return kept if kept is not None and kept.choice.algorithm == spec.algorithm else None


def chosen(
    stream: DataFrame,
    table: OpenTable,
    spec: EnrichSpec,
    options: EnrichOptions,
    keys: StreamKeys,
    measured: Recorded | None = None,
) -> Recorded:
    """The choice for a state directory that keeps none.

    keys: whose skew is looked at; measured: an earlier choice, whose machine has not changed.
    """
    return Recorded.of(foreseen(stream, table, spec, options, measured, keys))


def tuner_of(
    stream: DataFrame,
    table: OpenTable,
    spec: EnrichSpec,
    options: EnrichOptions,
    recorded: Recorded,
) -> Tuner | None:
    """The tuner of an algorithm whose settings follow the arrival rate; else None."""
    if spec.algorithm == AMeshJoin.name:
        with contextlib.suppress(MemoryBudgetError, ArgumentError):  # others say what is wrong
            return Tuner.of(foreseen(stream, table, spec, options, recorded))
    return None
