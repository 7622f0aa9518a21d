"""The public calls: arguments in, DataFrames out.

Spark is imported when it is first needed, so that `import dovetail` is quick and works without
Java.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol

from dovetail import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dovetail.spark.jobs.refresh import Refreshed
    from dovetail.spark.state.metrics import Progress

P = ParamSpec("P")


class _Plan(Protocol):
    def dataframe(self) -> "DataFrame": ...


def _carried_out(plan_of: Callable[P, _Plan]) -> Callable[P, "DataFrame"]:
    """Turn a function that makes a plan into one that returns the plan's DataFrame."""

    @functools.wraps(plan_of)
    def call(*args: P.args, **kwargs: P.kwargs) -> "DataFrame":
        return plan_of(*args, **kwargs).dataframe()

    signature = inspect.signature(plan_of)
    call.__signature__ = signature.replace(return_annotation="DataFrame")  # type: ignore[attr-defined]
    call.__module__ = __name__
    return call


join = _carried_out(plan.join)
join_all = _carried_out(plan.join_all)
enrich = _carried_out(plan.enrich)


def refresh(state: str | Path, table: "DataFrame | str | Path | None" = None) -> "Refreshed":
    """Stage a table that has changed anew; a running `enrich` takes it up with its next rows.

    A row that is being joined finishes on the version it began with. Returns the `version` in use
    and whether it is a `changed` one; printed, that is "staged as v000002" or "unchanged, v000001".
    It is the same if the table's files (of an Iceberg or Delta table: its snapshot) are.

    table: needed if the table was given to `enrich` as a DataFrame.

    >>> print(dovetail.refresh("ckpt/orders-enrich"))
    """
    from dovetail.spark.jobs.refresh import restage
    from dovetail.spark.session import active_session

    return restage(state, table, active_session())


def progress(state: str | Path) -> "Progress":
    """The progress of a join so far, from its state directory; needs no running query.

    >>> print(dovetail.progress("ckpt/join"))
    """
    from dovetail.spark.state.metrics import progress as read_progress

    return read_progress(state)
