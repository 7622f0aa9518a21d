"""Two-way joins of streamed relations, one algorithm a file, all behind the same protocol."""

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.twoway.base import TwoWayJoin, TwoWaySpec
from dovetail.twoway.diner.operator import Diner, PaperDiner
from dovetail.twoway.rivals.dphj import DoublePipelinedJoin
from dovetail.twoway.rivals.hmj import HashMergeJoin
from dovetail.twoway.rivals.pmj import ProgressiveMergeJoin
from dovetail.twoway.rivals.rpj import RateBasedJoin
from dovetail.twoway.shj import SymmetricHashJoin
from dovetail.twoway.xjoin.operator import XJoin

ALGORITHMS: dict[str, type[TwoWayJoin]] = {
    "shj": SymmetricHashJoin,
    "xjoin": XJoin,
    "diner": Diner,
    "diner-paper": PaperDiner,
    "hmj": HashMergeJoin,
    "rpj": RateBasedJoin,
    "pmj": ProgressiveMergeJoin,
    "dphj": DoublePipelinedJoin,
}

__all__ = [
    "ALGORITHMS",
    "Diner",
    "DoublePipelinedJoin",
    "HashMergeJoin",
    "PaperDiner",
    "ProgressiveMergeJoin",
    "RateBasedJoin",
    "SymmetricHashJoin",
    "TwoWayJoin",
    "TwoWaySpec",
    "XJoin",
    "checked_algorithm",
    "make",
]


def checked_algorithm(algorithm: str, within: object) -> str:
    """The algorithm that a name stands for, `auto` resolved; refuses what it cannot do."""
    if algorithm == "auto":
        return "diner"
    if algorithm not in ALGORITHMS:
        names = ", ".join(["auto", *ALGORITHMS])
        raise ArgumentError(f"algorithm={algorithm!r} is not known; choose one of {names}")
    if within is not None and not ALGORITHMS[algorithm].joins_bands:
        able = ", ".join(name for name, kind in ALGORITHMS.items() if kind.joins_bands)
        raise ArgumentError(
            f"algorithm={algorithm!r} cannot do a band join; within= works with {able}"
        )
    return algorithm


def make(
    algorithm: str, spec: TwoWaySpec, context: Context, snapshot: Snapshot | None = None
) -> TwoWayJoin:
    """An operator by name, new or restored."""
    return ALGORITHMS[algorithm](spec, context, snapshot)
