"""Joins of a stream with a table that is larger than memory: one algorithm a file.

`spec` says which rows belong together, `table` is the staged table that all of them read, `base`
(arrival) and `emission` what they share, `cache` the cache of Seek and SSBJ, `shedding` what to
leave out when a stream outruns them.
"""

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.semistream.base import SemiStreamJoin
from dovetail.semistream.cache.values import KEYS_SCHEMA
from dovetail.semistream.inl.operator import IndexNestedLoops
from dovetail.semistream.scan.meshjoin import AMeshJoin, MeshJoin
from dovetail.semistream.scan.ssbj import Ssbj
from dovetail.semistream.seek.operator import Seek, SeekUncached
from dovetail.semistream.spec import HOWS, SemiStreamSpec
from dovetail.semistream.table.reading import StagedTable
from dovetail.semistream.table.writing import TableWriter

ALGORITHMS: dict[str, type[SemiStreamJoin]] = {
    kind.name: kind for kind in (MeshJoin, AMeshJoin, Ssbj, IndexNestedLoops, Seek, SeekUncached)
}


def make(
    algorithm: str,
    spec: SemiStreamSpec,
    context: Context,
    table: StagedTable,
    snapshot: Snapshot | None = None,
) -> SemiStreamJoin:
    """An operator, new or as of a snapshot."""
    return ALGORITHMS[algorithm](spec, context, table, snapshot)


def checked_algorithm(algorithm: str) -> str:
    """The name of a known algorithm; `auto` is Seek, unless the cost models say otherwise."""
    if algorithm == "auto":
        return Seek.name
    if algorithm not in ALGORITHMS:
        raise ArgumentError(
            f"algorithm={algorithm!r} is not known to enrich; there are 'auto', "
            f"{', '.join(map(repr, ALGORITHMS))}"
        )
    return algorithm


__all__ = [
    "ALGORITHMS",
    "HOWS",
    "KEYS_SCHEMA",
    "SemiStreamJoin",
    "SemiStreamSpec",
    "StagedTable",
    "TableWriter",
    "checked_algorithm",
    "make",
]
