"""Multi-way joins of streamed relations, one algorithm a file, behind the same protocol.

`spec` what is joined · `miner`, `mjoin` the algorithms · `base` arrival, flushing, Cleanup ·
`rows`, `keyindex`, `ticks`, `payload` rows in memory · `combining`, `probing`, `output` rows to
results · `areas`, `flushing` MINER's policy · `cells`, `odometer`, `blockjoins` the work on disk ·
`state` snapshots.
"""

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.multiway.base import MultiWayJoin
from dovetail.multiway.blockjoins import MinerOptions
from dovetail.multiway.holding import MIN_BYTES_PER_INPUT
from dovetail.multiway.miner.operator import Miner, PaperMiner
from dovetail.multiway.mjoin import MJoin
from dovetail.multiway.spec import Edge, MultiWaySpec, multiway_spec

ALGORITHMS: dict[str, type[MultiWayJoin]] = {
    "miner": Miner,
    "miner-paper": PaperMiner,
    "mjoin": MJoin,
}

__all__ = [
    "ALGORITHMS",
    "MIN_BYTES_PER_INPUT",
    "Edge",
    "MJoin",
    "Miner",
    "MinerOptions",
    "MultiWayJoin",
    "MultiWaySpec",
    "PaperMiner",
    "checked_algorithm",
    "make",
    "multiway_spec",
]


def checked_algorithm(algorithm: str) -> str:
    """The algorithm that a name stands for, `auto` resolved."""
    if algorithm == "auto":
        return Miner.name
    if algorithm not in ALGORITHMS:
        names = ", ".join(["auto", *ALGORITHMS])
        raise ArgumentError(f"algorithm={algorithm!r} is not known; choose one of {names}")
    return algorithm


def make(
    algorithm: str, spec: MultiWaySpec, context: Context, snapshot: Snapshot | None = None
) -> MultiWayJoin:
    """An operator by name, new or restored."""
    return ALGORITHMS[algorithm](spec, context, snapshot)
