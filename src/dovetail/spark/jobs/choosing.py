"""The choice of an algorithm, as a state directory keeps it.

`chosen.json` says which algorithm it is and why, what it is predicted to do, and what was measured
of the machine for that. It is written when a query is planned and its table staged, whose size is
then known and not guessed. Once a step has claimed the directory it stays as it is: from then on
`auto` is the algorithm of the identity, whatever the models would say now, and the machine is not
measured again.
"""

import contextlib
import json
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.costs.choice import Recorded
from dovetail.costs.retune import Tuner
from dovetail.errors import ArgumentError, MemoryBudgetError, StateCorruptError
from dovetail.kernel.files import storage_problem
from dovetail.semistream.meshjoin import AMeshJoin
from dovetail.spark.state import IDENTITY, make_directory, read_identity
from dovetail.specs import EnrichOptions, EnrichSpec

if TYPE_CHECKING:  # who only reads a choice need not wait for Spark to load
    from pyspark.sql import DataFrame

    from dovetail.spark.jobs.streamkeys import StreamKeys
    from dovetail.spark.sources.tables import OpenTable

CHOSEN = "chosen.json"
_AUTO = "auto"


def with_algorithm(
    stream: "DataFrame",
    table: "OpenTable",
    spec: EnrichSpec,
    options: EnrichOptions,
    keys: "StreamKeys",
) -> EnrichSpec:
    """The spec with the algorithm that is kept, asked for or chosen. Writes nothing.

    keys: whose skew is looked at, unless the algorithm is kept.
    """
    from dovetail.spark.jobs.explain_join import planned_enrich  # which asks for the spec in turn

    kept = None
    if stream.isStreaming and _claimed(spec):
        assert spec.state is not None
        kept = read_chosen(spec.state)
        if options.algorithm == _AUTO:
            algorithm = str(read_identity(spec.state).get("algorithm"))
            spec = replace(spec, algorithm=algorithm)
            options = replace(options, algorithm=algorithm)
    if kept is None or kept.choice.algorithm != spec.algorithm:
        kept = Recorded.of(planned_enrich(stream, table, spec, options, keys=keys))
    spec = replace(spec, algorithm=kept.choice.algorithm, recorded=kept, tuner=None)
    if spec.algorithm != AMeshJoin.name:
        return spec
    with contextlib.suppress(MemoryBudgetError, ArgumentError):  # others say what is wrong
        spec = replace(spec, tuner=Tuner.of(planned_enrich(stream, table, spec, options)))
    return spec


def _claimed(spec: EnrichSpec) -> bool:
    return spec.state is not None and (spec.state / IDENTITY).exists()


def record(spec: EnrichSpec) -> None:
    """Keep the choice, unless it is that of a directory in use."""
    assert spec.state is not None
    assert spec.recorded is not None
    path = spec.state / CHOSEN
    if _claimed(spec) and path.exists():
        return
    temporary = path.with_name(f"{CHOSEN}.{uuid.uuid4().hex}.tmp")
    try:
        make_directory(spec.state)
        with temporary.open("x") as handle:
            json.dump(spec.recorded.facts(), handle, indent=1)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        raise storage_problem(error, path, "write to") from error


def read_chosen(state: Path) -> Recorded | None:
    """What a state directory keeps of its choice; None if it is new."""
    path = state / CHOSEN
    try:
        return Recorded.read(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise StateCorruptError(
            f"{path} is damaged: it does not say which algorithm was chosen. Restore it from a "
            f"backup; or delete it, if {IDENTITY} beside it still names the algorithm."
        ) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error
