"""The manifest of a version of a partition: one file with a checksum.

    dovetail <format> <bytes of the header> <bytes of the blocks> <checksum>
    header: a `Manifest` in JSON
    blocks: the newest entries of the list of blocks, as they are in memory

`write` and `read` are the only functions that know this. What was added to the format later may be
missing in what is read; it then has its default.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dovetail.costs.tuned import Tuned
from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.protocol import Snapshot
from dovetail.semistream.overload import Load, Waits
from dovetail.spark.endings import Silence
from dovetail.spark.state.durable import reading, write_durably
from dovetail.spark.state.totals import Totals

FORMAT = 3
RESTORE_BOTH = (
    "Restore the state directory and the query's checkpoint together, as they were at one moment, "
    "or start over with new ones."
)


@dataclass(frozen=True)
class Sealed:
    """A complete outbox, as a manifest names it."""

    name: str
    batches: tuple[tuple[int, int, int], ...] = ()  #: offset, length and checksum of each
    rows: int = 0

    @property
    def nbytes(self) -> int:
        return sum(length for _, length, _ in self.batches)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        batches = tuple((offset, length, crc) for offset, length, crc in facts["batches"])
        return cls(**{**facts, "batches": batches})

    def facts(self) -> dict[str, Any]:
        """JSON, as a manifest has it."""
        return asdict(self)


@dataclass(frozen=True)
class SealedShed(Sealed):
    """The sealed outbox of rows that were shed, and the directory that they go to."""

    to: str = ""


@dataclass(frozen=True)
class Brief:
    """The facts of a version that the clock needs."""

    parent: int  #: the version it was made from; -1 for the first
    pending: int  #: rows of deferred work
    outbox: Sealed


@dataclass(frozen=True)
class Manifest(Brief):
    """One version of a partition."""

    version: int  #: the batch that made it
    partition: int
    query: str | None
    attempt: str  #: that committed it, and that its files are named after
    snapshot: Snapshot
    files: tuple[str, ...]  #: that the snapshot needs
    phase: str
    silence: Silence
    totals: Totals
    budget_bytes: int | None  #: over all partitions
    made_by: tuple[str | None, str] = (None, "")  #: the run of the query, and the plan
    tuned: Tuned | None = None  #: settings that follow the arrivals
    load: Load | None = None  #: of a stream that may be too fast
    waits: Waits | None = None  #: of rows that may wait
    shed: SealedShed | None = None


#: what JSON has as it is
_PLAIN = (
    "parent", "pending", "phase", "budget_bytes", "attempt", "version", "partition", "query",
)  # fmt: skip
#: what only some jobs have
_MAYBE: dict[str, Any] = {"tuned": Tuned, "load": Load, "waits": Waits, "shed": SealedShed}


def write(path: Path, manifest: Manifest) -> None:
    """Write a manifest to a new file, durably."""

    def facts(*names: str) -> dict[str, Any]:
        parts = {name: getattr(manifest, name) for name in names}
        return {n: part.facts() if hasattr(part, "facts") else part for n, part in parts.items()}

    header = {
        **facts("parent", "files", "outbox", "pending", "phase"),
        **manifest.silence.facts(),
        **facts("totals", "tuned", "budget_bytes", "made_by", "load", "waits", "shed", "attempt"),
        "format": FORMAT,
        **facts("version", "partition", "query"),
        "operator": manifest.snapshot.meta,
    }
    head, body = json.dumps(header).encode(), manifest.snapshot.blocks.tobytes()
    prefix = f"dovetail {FORMAT} {len(head)} {len(body)} {zlib.crc32(head + body)}\n".encode()
    write_durably(path, prefix + head + body)


def read(path: Path) -> Manifest:
    """The manifest in a file; `FileNotFoundError` if there is none."""
    with reading(path, damaged=_damaged(path)):
        data = path.read_bytes()
        prefix, _, rest = data.partition(b"\n")
        magic, _, head_size, body_size, checksum = prefix.split(b" ")
        head, body = rest[: int(head_size)], rest[int(head_size) :]
        whole = len(body) == int(body_size) and zlib.crc32(rest) == int(checksum)
        if magic != b"dovetail" or not whole:
            raise ValueError("checksum")
        return _manifest(json.loads(head), body)


def read_brief(path: Path) -> Brief:
    """Read the facts for the clock from the first bytes of the file; the rest is not checked."""
    with reading(path, damaged=_damaged(path)), path.open("rb") as handle:
        size = int(handle.readline().split(b" ")[2])
        head = json.loads(handle.read(size))
        return Brief(int(head["parent"]), int(head["pending"]), Sealed.of(head["outbox"]))


def _manifest(head: Mapping[str, Any], body: bytes) -> Manifest:
    run, plan = head.get("made_by", (None, ""))
    known = {name for name, facts in head.items() if facts is not None}
    return Manifest(
        **{name: head[name] for name in _PLAIN},
        outbox=Sealed.of(head["outbox"]),
        snapshot=Snapshot(head["operator"], np.frombuffer(body, dtype=BLOCK)),
        files=tuple(head["files"]),
        silence=Silence.of(head),
        totals=Totals.of(head["totals"]),
        made_by=(run, plan),
        **{name: kind.of(head[name]) for name, kind in _MAYBE.items() if name in known},
    )


def _damaged(path: Path) -> str:
    return f"the manifest {path} is damaged. {RESTORE_BOTH}"
