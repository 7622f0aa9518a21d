"""What a call asks for, checked: arguments in, frozen specs out.

Every complaint about arguments is made here, before anything is planned or written. `job` is what
the runtime has to know of any job, `join` and `enrich` are the two calls, and `arguments` has the
checks that both make. Column names follow Spark's default: letter case does not tell two columns
apart.
"""

from dovetail.specs.arguments import On, state_path
from dovetail.specs.enrich import (
    CURRENT,
    TABLES,
    EnrichOptions,
    EnrichSpec,
    enrich_spec,
    staged_version,
)
from dovetail.specs.job import JobSpec
from dovetail.specs.join import JoinOptions, JoinSpec, Within, join_spec

__all__ = [
    "CURRENT",
    "TABLES",
    "EnrichOptions",
    "EnrichSpec",
    "JobSpec",
    "JoinOptions",
    "JoinSpec",
    "On",
    "Within",
    "enrich_spec",
    "join_spec",
    "staged_version",
    "state_path",
]
