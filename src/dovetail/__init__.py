"""Dovetail: bounded-memory stream joins for Apache Spark.

    joined = dovetail.join(left, right, on="key", memory="64MB", state="checkpoints/join")
    enriched = dovetail.enrich(stream, table, on="key", memory="64MB", state="checkpoints/enrich")
    paths = dovetail.join_all({"a": a, "b": b, "c": c}, on="key", memory="64MB", state="...")

A map of the package, top to bottom; imports point downwards only:
- `api` the public calls · `plan` the same, as plans that explain themselves · `sites` the public
  names for joins of distant streams · `cli` the command
- `spark` the runtime on Spark: jobs, step, state, sources
- `specs` checked arguments
- `costs` models, predictions, and plans in words · `multisite` joins of streams at distant sites
- `twoway`, `multiway`, `semistream` the join algorithms, one a file: two streams; several; a stream
  and a table
- `kernel` operator protocol, keys, index, memory budget, blocks on disk; numpy and pyarrow only
- `errors` what can go wrong, and what to do

Benchmarks are a package of their own, in `benchmarks/`, which adds the command `dovetail bench`;
oracles and generators for tests are in `tests/support/`.

A public name is imported when it is first asked for: Spark starts several processes for a query
that need little of all this.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail import plan, sites
    from dovetail.api import enrich, join, join_all, progress, refresh
    from dovetail.costs.explanation import Explanation
    from dovetail.errors import DovetailError
    from dovetail.spark.state.metrics import Progress

__version__ = "0.1.0"
__all__ = [
    "DovetailError",
    "Explanation",
    "Progress",
    "__version__",
    "enrich",
    "join",
    "join_all",
    "plan",
    "progress",
    "refresh",
    "sites",
]
_HOMES = {
    "DovetailError": "dovetail.errors",
    "Explanation": "dovetail.costs.explanation",
    "Progress": "dovetail.spark.state.metrics",
    **dict.fromkeys(("enrich", "join", "join_all", "progress", "refresh"), "dovetail.api"),
}


def __getattr__(name: str) -> Any:
    if name in ("plan", "sites"):
        return importlib.import_module(f"dovetail.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
