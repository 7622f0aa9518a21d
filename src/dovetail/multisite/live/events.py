"""What can happen to a host's part of a query, as bytes of the journal."""

import json
import struct
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from dovetail.errors import StateCorruptError

_HEAD = struct.Struct("<BqQI")


class What(IntEnum):
    """The kinds of events."""

    INPUT = 1  #: rows of a stream, or how far they are complete
    MESSAGE = 2  #: of another host
    TICK = 3  #: an interval of a stream has ended
    ADVANCE = 4  #: the time has come for what waits for it
    DELTA = 5  #: the links have shown another delay


@dataclass(frozen=True)
class Event:
    """One event. `now` is in the unit of the time columns."""

    what: What
    now: int
    facts: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def pieces(self, outputs: int) -> tuple[bytes, bytes, bytes]:
        """As bytes; `outputs` is how many messages and results there were before it."""
        facts = json.dumps(self.facts).encode()
        return _HEAD.pack(self.what, self.now, outputs, len(facts)), facts, self.body

    @classmethod
    def parse(cls, data: bytes) -> tuple["Event", int]:
        """An event and the number of outputs before it."""
        try:
            what, now, outputs, length = _HEAD.unpack_from(data)
            end = _HEAD.size + length
            return cls(What(what), now, json.loads(data[_HEAD.size : end]), data[end:]), outputs
        except (struct.error, ValueError) as error:
            raise StateCorruptError(
                f"a record of the journal is no event ({error}): it was written by another version"
            ) from error


@dataclass
class Job:
    """Something that is to happen; `done` when it has, and cannot be lost any more."""

    what: What
    facts: dict[str, Any]
    body: bytes
    decoded: Any
    done: "Future[bool]"  #: False if it had happened before
