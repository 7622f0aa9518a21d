"""Versioned state: what makes a join on Spark exactly once.

    state/
      identity.json          whose state this is; written once
      p00000/                one directory for each partition
        v000000000007        the manifest of version 7: written once, never changed
        b7-<attempt>-*.arrows   blocks that version 7 added, with older ones that it took along
        b7-<attempt>-catalogue.bin  pages of the list of blocks, likewise
        b7-<attempt>-out.arrows the outbox: version 7's results
        b7-<attempt>-shed.arrows   the rows that version 7 left out (see `shedding`)
        latest               the number of the newest version, -1 before the first: a cross-check
        metrics.jsonl        a record of each step

Versions are numbered by Spark's batch id. A step of batch N starts from the newest version below
N, and works in files of its own. Committing is one hard link: the manifest appears whole or not
at all, and the first attempt to link it wins. Only then do the results leave, out of the winner's
outbox. So whatever an attempt did before it lost, died or was killed, every attempt of batch N
that emits anything emits the same rows, and the state after N is the state that goes with them.
That holds for a replay after a crash, for two attempts at once, and for a sink that has committed
batch N although Spark has not: replaying N sends the outbox again, and computes nothing.

A partition that gets no row in a batch makes no version. Version N-1 (and its outbox) is deleted
when a later version has been committed and the next step begins; the last outbox, when the query
rests (see `clock`).

A manifest says which version, partition and query it belongs to, so one that stands under another
name is found out. Which versions there should be is known to the query's checkpoint, through the
clock's offsets: state that is older than the checkpoint is refused (see `newest`).

The directories are made when a query starts for the first time (`prepare`, called by the clock's
source on the driver). No step makes them: one that does not find its own knows that it was lost.
Their permissions are no wider than those of the directory that they are made in.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dovetail.errors import StateCorruptError, StateError, StateMissingError
from dovetail.spark import faults
from dovetail.spark.state.durable import link_durably, make_directory, reading, storing, sync
from dovetail.spark.state.manifest import RESTORE_BOTH, Manifest, read, write

T = TypeVar("T")

_VERSION = re.compile(r"v(\d{12})")
_SEGMENT = re.compile(r"b(\d+)-")


class PartitionState:
    """The versions of one partition; `query`, if given, is the one that they have to be of."""

    def __init__(self, root: Path, partition: int, query: str | None = None) -> None:
        self.root = root
        self.partition = partition
        self.query = query
        self.directory = root / f"p{partition:05d}"

    def versions(self) -> list[int]:
        """The committed versions, oldest first."""
        return sorted(int(m[1]) for m in map(_VERSION.fullmatch, self._names()) if m)

    def committed(self, version: int) -> Manifest | None:
        return self.read(version) if self.path(version).exists() else None

    def read(self, version: int) -> Manifest:
        """A committed version; `FileNotFoundError` if a later step has just deleted it."""
        path = self.path(version)
        manifest = read(path)
        self._check_belonging(path, version, manifest)
        return manifest

    def newest(self, read: Callable[[int], T]) -> T | None:
        """What is read of the newest version; None if there is none."""
        while versions := self.versions():
            with contextlib.suppress(FileNotFoundError):  # a later step has just replaced it
                return read(versions[-1])
        return None

    def parent_of(self, version: int) -> Manifest | None:
        """The version that a step of batch `version` starts from; None for the first step."""
        earlier = [number for number in self.versions() if number < version]
        found = earlier[-1] if earlier else -1
        newest = self._latest()
        if newest >= version and not self.path(version).exists():
            raise StateMissingError(
                f"{self.path(version)} is gone: partition {self.partition} is at batch {newest}, "
                f"but the query's checkpoint asks for batch {version} again. {RESTORE_BOTH}"
            )
        if found < newest < version:
            raise StateMissingError(
                f"{self.path(newest)} is gone: the state of partition {self.partition} after "
                f"batch {newest} is needed for batch {version}. {RESTORE_BOTH}"
            )
        return self.read(found) if earlier else None

    def begin(self, version: int, parent: Manifest | None) -> str:
        """Prepare an attempt: make room, and return the stem of the names of its files."""
        if parent is not None:
            self._collect_garbage(parent)
        return f"b{version}-{uuid.uuid4().hex[:12]}"

    def commit(self, manifest: Manifest) -> Manifest:
        """Make a version durable, or yield to the attempt that was first. Returns the winner."""
        version, attempt = manifest.version, manifest.attempt
        path = self.path(version)
        temporary = self.directory / f"{attempt}.tmp"
        with storing(path, "commit a version to"):
            faults.fault_point("before-manifest")
            write(temporary, manifest)
            faults.fault_point("before-link")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            faults.fault_point("after-link")
            sync(self.directory)
            temporary.unlink()
            self._remember_latest(version, attempt)
        faults.fault_point("after-commit")
        return self.read(version)

    def discard(self, version: int, attempt: str) -> None:
        """Delete what a failed attempt wrote, unless it was committed after all."""
        with contextlib.suppress(OSError, StateError):
            winner = self.committed(version)
            if winner is None or winner.attempt != attempt:
                for name in self._names():
                    if name.startswith(attempt):
                        (self.directory / name).unlink(missing_ok=True)

    def path(self, version: int) -> Path:
        return self.directory / f"v{version:012d}"

    def _check_belonging(self, path: Path, version: int, found: Manifest) -> None:
        """Refuse a manifest that was made for another version, partition or query."""
        belongs: list[tuple[str, object, object]] = [
            ("version", found.version, version),
            ("partition", found.partition, self.partition),
            ("query", found.query, found.query if self.query is None else self.query),
        ]
        for what, is_of, wanted in belongs:
            if is_of != wanted:
                raise StateCorruptError(
                    f"the manifest {path} is that of {what} {is_of}, not of {what} {wanted}:"
                    f" it was put in another one's place. {RESTORE_BOTH}"
                )

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []

    def _latest(self) -> int:
        path = self.directory / "latest"
        gone = f"{path} is gone, and with it the state of partition {self.partition}."
        damaged = (
            f"{path} does not hold a version number; if the versions beside it (v000...) are "
            "intact, write the highest of their numbers into it"
        )
        with reading(path, gone=f"{gone} {RESTORE_BOTH}", damaged=damaged):
            return int(path.read_text())

    def _remember_latest(self, version: int, attempt: str) -> None:
        if self._latest() < version:
            temporary = self.directory / f"{attempt}.latest.tmp"
            temporary.write_text(str(version))
            temporary.replace(self.directory / "latest")

    def _collect_garbage(self, parent: Manifest) -> None:
        """Delete what neither the parent version nor a step that may be running can need."""
        needed = set(parent.files)
        for name in self._names():
            segment, version = _SEGMENT.match(name), _VERSION.fullmatch(name)
            old_segment = segment and int(segment[1]) <= parent.version and name not in needed
            if old_segment or (version and int(version[1]) < parent.version):
                with storing(self.directory / name, "delete"):
                    (self.directory / name).unlink(missing_ok=True)
                faults.fault_point("mid-collect")


def prepare(root: Path, partitions: int) -> None:
    """Make the directories of a state that is used for the first time; keep what is there."""
    with storing(root, "write to"):
        for number in range(partitions):
            directory = PartitionState(root, number).directory
            make_directory(directory)
            link_durably(directory / "latest", b"-1")
