"""Dovetail: bounded-memory stream joins for Apache Spark.

    joined = dovetail.join(left, right, on="key", memory="64MB", state="checkpoints/join")
    enriched = dovetail.enrich(stream, table, on="key", memory="64MB", state="checkpoints/enrich")
    paths = dovetail.join_all({"a": a, "b": b, "c": c}, on="key", memory="64MB", state="...")

A map of the package, top to bottom; imports point downwards only:
- `api` the public calls · `cli` the command
- `spark` the runtime on Spark: plan, step, state, clock, metrics
- `specs` checked arguments
- `costs` plans in words, for `explain`
- `twoway`, `multiway`, `semistream` the join algorithms, one a file: two streams; several; a stream
  and a table
- `kernel` operator protocol, keys, index, memory budget, blocks on disk; numpy and pyarrow only
- `errors` what can go wrong, and what to do

Benchmarks are a package of their own, in `benchmarks/`, which adds the command `dovetail bench`;
oracles and generators for tests are in `tests/support/`.
"""

from dovetail.api import (
    enrich,
    explain,
    explain_enrich,
    explain_join_all,
    join,
    join_all,
    progress,
    refresh,
)
from dovetail.errors import DovetailError

__version__ = "0.1.0"
__all__ = [
    "DovetailError",
    "__version__",
    "enrich",
    "explain",
    "explain_enrich",
    "explain_join_all",
    "join",
    "join_all",
    "progress",
    "refresh",
]
