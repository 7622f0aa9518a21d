"""A manifest: what a version of a partition consists of, in one file with a checksum."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dovetail.errors import StateCorruptError
from dovetail.kernel.blocks import storage_problem
from dovetail.kernel.protocol import Snapshot

FORMAT = 3
RESTORE_BOTH = (
    "Restore the state directory and the query's checkpoint together, as they were at one moment, "
    "or start over with new ones."
)


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


def pack(header: dict[str, Any], snapshot: Snapshot) -> bytes:
    head = json.dumps({**header, "operator": snapshot.meta}).encode()
    body = snapshot.blocks.tobytes()
    prefix = f"dovetail {FORMAT} {len(head)} {len(body)} {zlib.crc32(head + body)}\n".encode()
    return prefix + head + body


def unpack(path: Path) -> tuple[bytes, bytes]:
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
