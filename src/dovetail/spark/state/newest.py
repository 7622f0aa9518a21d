"""The newest version of each partition, as the driver sees it, held against the checkpoint.

The clock writes the versions that it has seen into its offsets, which Spark keeps in the query's
checkpoint. A state directory that was restored from a backup, whole or in part, lacks versions that
the checkpoint knows of; the rows they had taken in would be missing from every later result. So it
is refused, before a step runs where that is possible:

    offset of batch N: {..., "known": [4, 4]}     as of before batch N, one number a partition
    state            : newest 2                  older: refused
    state            : newest 5, made from 2     older, and batch 5 came since: refused
    state            : newest 4, or 5 made from 4   the right one, before or after batch 5

The version that a batch of rows commits is in the log from the next batch on, which is planned at
once, or at the next trigger. A query that was killed in between, and gets back state that is older
by just that version, is not told from one in which the batch had no rows for the partition.

A partition is read anew only when its directory has changed: the clock asks every few milliseconds
while a stream is silent.
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.errors import StateMismatchError, StateMissingError
from dovetail.spark.state.manifest import RESTORE_BOTH, read_brief
from dovetail.spark.state.versions import PartitionState

_SETTLED_NS = 2_000_000_000  # a directory changed longer ago than this shows all its changes


@dataclass(frozen=True)
class Newest:
    """A partition's newest version, as far as the clock needs it."""

    version: int = -1  #: before the first
    parent: int = -1  #: the version it was made from
    pending: int = 0  #: rows of deferred work
    outbox: str | None = None


class NewestVersions:
    """The newest version of every partition, by number; one `stat` for an unchanged partition."""

    def __init__(self, root: Path, partitions: int) -> None:
        self._states = [PartitionState(root, number) for number in range(partitions)]
        self._seen: dict[int, tuple[int, Newest]] = {}

    def __call__(self) -> list[Newest]:
        return [self._newest(state) for state in self._states]

    def _newest(self, state: PartitionState) -> Newest:
        try:
            changed = state.directory.stat().st_mtime_ns
        except FileNotFoundError:
            return Newest()
        known = self._seen.get(state.partition)
        if known is not None and known[0] == changed:
            return known[1]
        newest = _read(state)
        if time.time_ns() - changed > _SETTLED_NS:  # the clock of a directory is coarse
            self._seen[state.partition] = (changed, newest)
        return newest

    def forget_outboxes(self, newest: Sequence[Newest]) -> None:
        """Delete the results of versions that Spark will not ask for again."""
        for state, version in zip(self._states, newest, strict=True):
            if version.outbox is not None:
                with contextlib.suppress(OSError):  # it is only in the way
                    os.unlink(state.directory / version.outbox)


def _read(state: PartitionState) -> Newest:
    def look(version: int) -> Newest:
        brief = read_brief(state.path(version))
        name = brief.outbox.name if brief.outbox.batches else None
        return Newest(version, brief.parent, brief.pending, name)

    return state.newest(look) or Newest()


def check_known(root: Path, known: Sequence[int], newest: Sequence[Newest]) -> None:
    """Refuse state that lacks a version which the query's checkpoint knows of."""
    lacking = {
        number: f"batch {wanted}"
        for number, (wanted, found) in enumerate(zip(known, newest, strict=True))
        if _lacks(wanted, found)
    }
    if lacking and all(found.version < 0 for found in newest):
        raise StateMissingError(
            f"the state directory {root} is missing or empty, but the query's checkpoint knows of "
            f"batch {max(known)} in it. Put it back where it was. {RESTORE_BOTH}"
        )
    _refuse_older(root, lacking, newest)


def check_woken(root: Path, offset: Mapping[str, Any], newest: Sequence[Newest]) -> None:
    """Refuse state without the version that every partition commits when a tick wakes it."""
    known = offset["known"]
    lacking = {
        number: f"a batch after {known[number]}"
        for number in offset["wake"]
        if newest[number].version <= known[number]
    }
    _refuse_older(root, lacking, newest)


def _lacks(wanted: int, found: Newest) -> bool:
    return found.version < wanted or (found.version > wanted and found.parent < wanted)


def _refuse_older(root: Path, lacking: Mapping[int, str], newest: Sequence[Newest]) -> None:
    """Raise if a partition lacks what the checkpoint knows of."""
    if not lacking:
        return
    number, wanted = next(iter(lacking.items()))
    found = newest[number]
    stands = "has none" if found.version < 0 else f"is at batch {found.version}"
    if found.parent >= 0:
        stands += f", made from batch {found.parent}"
    others = f" (and {len(lacking) - 1} other partitions)" if len(lacking) > 1 else ""
    raise StateMismatchError(
        f"the state in {root} is older than the query's checkpoint: the checkpoint knows of "
        f"{wanted} in partition {number}, the state {stands}{others}. The rows it took in since "
        f"are missing. {RESTORE_BOTH}"
    )


def check_unused(root: Path, newest: Sequence[Newest]) -> None:
    """Refuse state that is in use, for a query whose checkpoint is new."""
    for number, found in enumerate(newest):
        if found.version > 0:  # batch 0 may be replayed
            raise StateMismatchError(
                f"the state directory {root} is in use (partition {number} is at batch "
                f"{found.version}), but this query's checkpoint is new. Give this query a state= "
                "of its own; or, if its checkpoint was deleted to start over, delete the state "
                "directory too."
            )
