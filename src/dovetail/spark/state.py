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
They are open to nobody to whom the directory that they are made in is closed.
"""

import contextlib
import json
import os
import re
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import (
    StateCorruptError,
    StateError,
    StateMismatchError,
    StateMissingError,
    StorageError,
)
from dovetail.kernel.blocks import BLOCK, storage_problem
from dovetail.kernel.protocol import Snapshot
from dovetail.spark.faults import fault_point

FORMAT = 3
IDENTITY = "identity.json"
RESTORE_BOTH = (
    "Restore the state directory and the query's checkpoint together, as they were at one moment, "
    "or start over with new ones."
)
_VERSION = re.compile(r"v(\d{12})")
_SEGMENT = re.compile(r"b(\d+)-")


@dataclass(frozen=True)
class Manifest:
    """One committed version of a partition."""

    version: int
    header: dict[str, Any]
    snapshot: Snapshot

    @property
    def token(self) -> str:
        """Names the attempt that committed this version."""
        return cast("str", self.header["attempt"])

    @property
    def totals(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.header["totals"])


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
        head, body = _unpack(path)
        header = json.loads(head)
        self._check_belonging(path, version, header)
        blocks: NDArray[np.void] = np.frombuffer(body, dtype=BLOCK)
        return Manifest(version, header, Snapshot(header["operator"], blocks))

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

    def commit(
        self, version: int, attempt: str, header: dict[str, Any], snapshot: Snapshot
    ) -> Manifest:
        """Make a version durable, or yield to the attempt that was first. Returns the winner."""
        path = self.path(version)
        temporary = self.directory / f"{attempt}.tmp"
        header = {
            **header,
            "attempt": attempt,
            "format": FORMAT,
            "version": version,
            "partition": self.partition,
            "query": self.query,
        }
        try:
            fault_point("before-manifest")
            _write_durably(temporary, _pack(header, snapshot))
            fault_point("before-link")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            fault_point("after-link")
            _sync_directory(self.directory)
            temporary.unlink()
            self._remember_latest(version, attempt)
        except OSError as error:
            raise storage_problem(error, path, "commit a version to") from error
        fault_point("after-commit")
        return self.read(version)

    def discard(self, version: int, attempt: str) -> None:
        """Delete what a failed attempt wrote, unless it was committed after all."""
        with contextlib.suppress(OSError, StateError):
            winner = self.committed(version)
            if winner is None or winner.token != attempt:
                for name in self._names():
                    if name.startswith(attempt):
                        (self.directory / name).unlink(missing_ok=True)

    def path(self, version: int) -> Path:
        return self.directory / f"v{version:012d}"

    def _check_belonging(self, path: Path, version: int, header: dict[str, Any]) -> None:
        """Refuse a manifest that was made for another version, partition or query."""
        belongs: dict[str, int | str] = {"version": version, "partition": self.partition}
        if self.query is not None:
            belongs["query"] = self.query
        for what, wanted in belongs.items():
            if header[what] != wanted:
                raise StateCorruptError(
                    f"the manifest {path} is that of {what} {header[what]}, not of {what} {wanted}:"
                    f" it was put in another one's place. {RESTORE_BOTH}"
                )

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []

    def _latest(self) -> int:
        path = self.directory / "latest"
        try:
            return int(path.read_text())
        except FileNotFoundError:
            raise StateMissingError(
                f"{path} is gone, and with it the state of partition {self.partition}. "
                f"{RESTORE_BOTH}"
            ) from None
        except OSError as error:
            raise storage_problem(error, path, "read") from error
        except ValueError:
            raise StateCorruptError(
                f"{path} does not hold a version number; if the versions beside it (v000...) are "
                "intact, write the highest of their numbers into it"
            ) from None

    def _remember_latest(self, version: int, attempt: str) -> None:
        if self._latest() < version:
            temporary = self.directory / f"{attempt}.latest.tmp"
            temporary.write_text(str(version))
            temporary.replace(self.directory / "latest")

    def _collect_garbage(self, parent: Manifest) -> None:
        """Delete what neither the parent version nor a step that may be running can need."""
        needed = set(parent.header["files"])
        for name in self._names():
            segment, version = _SEGMENT.match(name), _VERSION.fullmatch(name)
            old_segment = segment and int(segment[1]) <= parent.version and name not in needed
            if old_segment or (version and int(version[1]) < parent.version):
                try:
                    (self.directory / name).unlink(missing_ok=True)
                except OSError as error:
                    raise storage_problem(error, self.directory / name, "delete") from error
                fault_point("mid-collect")


class Outbox:
    """The results of one step, on disk until the step is committed."""

    def __init__(self, directory: Path, attempt: str, schema: pa.Schema, kind: str = "out") -> None:
        self.name = f"{attempt}-{kind}.arrows"
        self._path = directory / self.name
        self._schema = schema
        self._handle: Any = None
        self.batches: list[tuple[int, int, int]] = []  # offset, length, checksum
        self.rows = self.nbytes = 0

    def put(self, batch: pa.RecordBatch) -> None:
        message = batch.serialize()
        try:
            if self._handle is None:
                self._handle = self._path.open("xb")
                self._handle.write(self._schema.serialize())
            offset = self._handle.tell()
            self._handle.write(message)
        except OSError as error:
            raise storage_problem(error, self._path, "write results to") from error
        self.batches.append((offset, message.size, zlib.crc32(message)))
        self.rows += batch.num_rows
        self.nbytes += message.size

    def seal(self) -> dict[str, Any]:
        """Make the results durable; returns what a manifest says of them."""
        if self._handle is not None:
            try:
                self._handle.flush()
                os.fsync(self._handle.fileno())
            except OSError as error:
                raise storage_problem(error, self._path, "write results to") from error
            self.close()
        return {"name": self.name, "batches": self.batches, "rows": self.rows}

    def close(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):  # of a write that has failed before
                self._handle.close()
            self._handle = None


def replay(
    directory: Path, outbox: dict[str, Any], schema: pa.Schema, *, own: bool = False
) -> Iterator[pa.RecordBatch]:
    """The results of a committed step; `own`: which has just written them, so they are whole."""
    if not outbox["batches"]:
        return
    path = directory / outbox["name"]
    try:
        with path.open("rb") as handle:
            for offset, length, checksum in outbox["batches"]:
                handle.seek(offset)
                data = handle.read(length)
                if len(data) != length or (not own and zlib.crc32(data) != checksum):
                    raise StateCorruptError(
                        f"the results in {path} are damaged at byte {offset}. {RESTORE_BOTH}"
                    )
                yield pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    except FileNotFoundError as error:
        raise StateMissingError(
            f"{path} is gone, but its batch is being replayed. {RESTORE_BOTH}"
        ) from error


def make_directory(path: Path) -> None:
    """Make a directory and those above it, with at most the permissions of the one they are in."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(folder.parent.stat().st_mode & 0o777, exist_ok=True)


def prepare(root: Path, partitions: int) -> None:
    """Make the directories of a state that is used for the first time; keep what is there."""
    try:
        for number in range(partitions):
            directory = PartitionState(root, number).directory
            make_directory(directory)
            temporary = directory / f"{uuid.uuid4().hex}.tmp"
            _write_durably(temporary, b"-1")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, directory / "latest")
            temporary.unlink()
    except OSError as error:
        raise storage_problem(error, root, "write to") from error


def claim(root: Path, identity: dict[str, Any], query: str, batch: int) -> None:
    """Make sure that the state directory is this query's; the first step of all claims it."""
    path = root / IDENTITY
    if not path.exists():
        prepared, used = any(root.glob("p*/latest")), any(root.glob("p*/v*"))
        if (used or not prepared) and not path.exists():  # another task may just have claimed it
            raise StateMissingError(
                f"the state directory {root} is missing or lacks its {IDENTITY}, but the query's "
                f"checkpoint is at batch {batch}. Put the state back where it was, or start over "
                "with a new state directory and a new checkpoint."
            )
        try:
            temporary = root / f"{uuid.uuid4().hex}.tmp"
            claim = {"format": FORMAT, "query": query, **identity}
            _write_durably(temporary, json.dumps(claim, indent=1).encode())
            fault_point("mid-claim")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()
        except OSError as error:
            raise storage_problem(error, root, "write to") from error
    known = read_identity(root)
    if known["query"] == query and any(known.get(name) != identity[name] for name in identity):
        # settings that were changed are refused when a query is planned
        raise StateMismatchError(
            f"two joins of this query share the state directory {root}. Give each a state= of its "
            "own, and start over with a new checkpoint."
        )
    compare_identity(root, known, identity)
    if known["query"] != query:
        raise StateMismatchError(
            f"the state directory {root} belongs to another query ({known['query']}, this one is "
            f"{query}). Give this query a state= of its own; or, if its checkpoint was deleted to "
            "start over, delete the state directory too."
        )


def read_identity(root: Path) -> dict[str, Any]:
    path = root / IDENTITY
    try:
        known = json.loads(path.read_text())
        if not isinstance(known, dict):
            raise ValueError("not an object")
        return known
    except FileNotFoundError:
        raise StateMissingError(
            f"{root} is not a Dovetail state directory: it has no {IDENTITY}. Check the path."
        ) from None
    except ValueError:
        raise StateCorruptError(
            f"{path} is damaged: it does not say whose state this is. {RESTORE_BOTH}"
        ) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error


def compare_identity(root: Path, known: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse a state directory whose join was set up differently."""
    if known.get("format") != FORMAT:
        raise StateMismatchError(
            f"{root} was written in format {known.get('format')}, this version reads {FORMAT}"
        )
    for name, value in identity.items():
        if known.get(name) != value:
            raise StateMismatchError(
                f"the state directory {root} was made with {name}={known.get(name)!r}, but now "
                f"{name}={value!r} is asked for. Go back to the old setting, or start over with a "
                "new state directory and a new checkpoint."
            )


def read_head(path: Path) -> dict[str, Any]:
    """The header of a manifest, from its first bytes alone; the rest of it is not checked."""
    try:
        with path.open("rb") as handle:
            size = int(handle.readline().split(b" ")[2])
            return cast("dict[str, Any]", json.loads(handle.read(size)))
    except (ValueError, LookupError):
        raise damaged_manifest(path) from None


def damaged_manifest(path: Path) -> StateCorruptError:
    return StateCorruptError(f"the manifest {path} is damaged. {RESTORE_BOTH}")


def _pack(header: dict[str, Any], snapshot: Snapshot) -> bytes:
    head = json.dumps({**header, "operator": snapshot.meta}).encode()
    body = snapshot.blocks.tobytes()
    prefix = f"dovetail {FORMAT} {len(head)} {len(body)} {zlib.crc32(head + body)}\n".encode()
    return prefix + head + body


def _unpack(path: Path) -> tuple[bytes, bytes]:
    try:
        data = path.read_bytes()
        prefix, _, rest = data.partition(b"\n")
        magic, _, head_size, body_size, checksum = prefix.split(b" ")
        head, body = rest[: int(head_size)], rest[int(head_size) :]
        whole = len(body) == int(body_size) and zlib.crc32(rest) == int(checksum)
        if magic != b"dovetail" or not whole:
            raise ValueError("checksum")
    except FileNotFoundError:
        raise  # a later step has just deleted it
    except ValueError:
        raise damaged_manifest(path) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error
    return head, body


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = ["Manifest", "Outbox", "PartitionState", "StorageError", "claim", "replay"]
