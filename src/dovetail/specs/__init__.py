"""Specs: checked arguments of the calls, frozen.

Every complaint about arguments is made here, before anything is planned or written. A spec is a
value: it reads nothing, and runs nothing. `job` is what any of them has, `join`, `join_all` and
`enrich` are the calls, `conditions` takes `where=` apart, `matching` says how rows find each other,
and `arguments` has the checks that calls share. Column names follow Spark's default: letter case
does not tell two columns apart.
"""

from dovetail.specs.arguments import UNBOUNDED, On, checked_span, state_path
from dovetail.specs.enrich import EnrichOptions, EnrichSpec, enrich_spec
from dovetail.specs.job import JobSpec
from dovetail.specs.join import JoinOptions, JoinSpec, join_spec
from dovetail.specs.join_all import (
    JoinAllOptions,
    JoinAllSpec,
    Known,
    OnAll,
    check_names,
    join_all_spec,
)
from dovetail.specs.matching import Within
from dovetail.specs.names import (
    EnrichAlgorithm,
    EnrichHow,
    JoinAlgorithm,
    JoinAllAlgorithm,
    JoinHow,
    Shed,
)

__all__ = [
    "UNBOUNDED",
    "EnrichAlgorithm",
    "EnrichHow",
    "EnrichOptions",
    "EnrichSpec",
    "JobSpec",
    "JoinAlgorithm",
    "JoinAllAlgorithm",
    "JoinAllOptions",
    "JoinAllSpec",
    "JoinHow",
    "JoinOptions",
    "JoinSpec",
    "Known",
    "On",
    "OnAll",
    "Shed",
    "Within",
    "check_names",
    "checked_span",
    "enrich_spec",
    "join_all_spec",
    "join_spec",
    "state_path",
]
