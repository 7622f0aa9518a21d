"""What a streaming join keeps on disk: `versions` says how that makes it exactly once.

`identity` whose state it is · `manifest` one version · `outbox` its results · `newest` the versions
as the driver sees them · `metrics` records of what happened · `durable` writing that lasts.
"""

from dovetail.spark.state.durable import make_directory
from dovetail.spark.state.identity import IDENTITY, claim, compare_identity, read_identity
from dovetail.spark.state.manifest import (
    FORMAT,
    RESTORE_BOTH,
    Manifest,
    damaged_manifest,
    read_head,
)
from dovetail.spark.state.outbox import Outbox, replay
from dovetail.spark.state.versions import PartitionState, prepare

__all__ = [
    "FORMAT",
    "IDENTITY",
    "RESTORE_BOTH",
    "Manifest",
    "Outbox",
    "PartitionState",
    "claim",
    "compare_identity",
    "damaged_manifest",
    "make_directory",
    "prepare",
    "read_head",
    "read_identity",
    "replay",
]
