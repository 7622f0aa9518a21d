"""The state directory of a streaming join; `versions` says why results come exactly once.

`identity` whose state it is · `manifest` one version · `totals` sums over all steps · `outbox` the
results of a step · `newest` the versions as the driver sees them · `metrics` records of what
happened · `durable` writing that lasts.
"""

from dovetail.spark.state.durable import make_directory
from dovetail.spark.state.identity import IDENTITY, claim, compare_identity, read_identity
from dovetail.spark.state.manifest import (
    FORMAT,
    Manifest,
    Sealed,
    SealedShed,
)
from dovetail.spark.state.outbox import Outbox, replay
from dovetail.spark.state.totals import Totals
from dovetail.spark.state.versions import PartitionState, prepare

__all__ = [
    "FORMAT",
    "IDENTITY",
    "Manifest",
    "Outbox",
    "PartitionState",
    "Sealed",
    "SealedShed",
    "Totals",
    "claim",
    "compare_identity",
    "make_directory",
    "prepare",
    "read_identity",
    "replay",
]
