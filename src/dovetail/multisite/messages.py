"""Messages between sites: a small fixed header, and named Arrow record batches.

A header is `HEADER_BYTES` long however it travels. Sites are written as the positions of their
streams in the query; `PLANNER` stands for the endpoint that plans.
"""

import struct
from dataclasses import dataclass, field, fields
from enum import IntEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.multisite.encoded import batch_bytes, read_batch

PLANNER = -1
MOST_OPEN = 255  #: intervals that an UPDATE can say its sender is not done with
SEPARATOR = "\x1f"  #: in the name of a part: what it is, and the columns of the key it is of
_HEADER = struct.Struct("<BhhhhBBqqqqq")
_PART = struct.Struct("<BHQ")  # how it is written, bytes of the name, bytes of the part
_AS_STREAM, _AS_NUMBERS = 0, 1
_KINDS_OF_NUMBERS = frozenset(
    np.dtype(kind).str
    for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """The kinds of messages."""

    UPDATE = 1  #: of a copy of the sender's window: rows, `k`, entries and counts
    PROBE = 2  #: rows to be joined with the receiver's window
    KEYS = 3  #: join keys, to be looked up in the receiver's window
    ROWS = 4  #: answer: the rows with these keys that had not been sent before
    FOUND = 5  #: answer: those of the keys that occur
    DROP = 6  #: the copy of the sender's window is not needed any more
    PASSED = 7  #: which intervals are done with the receiver's window
    STATISTICS = 8
    PREPARE = 9  #: a new plan; do not go beyond its first interval
    READY = 10  #: answer to it
    COMMIT = 11  #: the new plan holds


@dataclass(frozen=True)
class Header:
    """Where a message comes from, and what it belongs to."""

    kind: Kind
    sender: int
    receiver: int
    head: int = 0  #: the stream whose join sequence this is
    #: its place in the sequence; of an UPDATE: how many intervals, up to this one, still count in
    #: the sender's window, or `MOST_OPEN`
    step: int = 0
    contiguous: bool = True  #: the rows are numbered from `first_row` on without a gap
    accepted: bool = True  #: of a COMMIT: all are ready
    interval: int = 0
    expired: int = 0  #: `k`: how many of the rows that were sent have left the window
    trimmed: int = 0  #: how many rows have left a count window, sent or not
    first_row: int = 0  #: the number of the first of the rows
    first_ref: int = 0  #: the number of the first row of the clock, or that is referred to

    def pack(self) -> bytes:
        return _HEADER.pack(*(getattr(self, f.name) for f in fields(self)))

    @classmethod
    def unpack(cls, data: bytes) -> "Header":
        kind, sender, receiver, head, step, contiguous, accepted, *rest = _HEADER.unpack(data)
        return cls(
            Kind(kind), sender, receiver, head, step, bool(contiguous), bool(accepted), *rest
        )


@dataclass(frozen=True)
class Message:
    """A header and its parts. Parts that have no rows are left out."""

    header: Header
    parts: dict[str, pa.RecordBatch] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The header and the data in the parts, without what a wire format adds."""
        return HEADER_BYTES + sum(int(part.nbytes) for part in self.parts.values())

    def array(self, name: str) -> NDArray[np.int64]:
        """The one column of a part as 64-bit numbers; empty if there is no such part."""
        part = self.parts.get(name)
        if part is None:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(part.column(0)).astype(np.int64)


def column(values: NDArray[np.generic]) -> pa.RecordBatch:
    """A part of one column."""
    return pa.RecordBatch.from_arrays([pa.array(values)], names=["v"])


def narrowed(values: NDArray[np.int64]) -> NDArray[np.generic]:
    """Numbers that are not negative, in the narrowest type that holds them."""
    most = int(values.max()) if len(values) else 0
    for type_ in (np.uint8, np.uint16, np.uint32):
        if most <= np.iinfo(type_).max:
            return values.astype(type_)
    return values


def text(value: str) -> pa.RecordBatch:
    """A part of one string."""
    return pa.RecordBatch.from_arrays([pa.array([value])], names=["v"])


def encode(message: Message) -> bytes:
    """The message as bytes: the header, then every part with its name.

    A part is an Arrow IPC stream; one that `column` made of numbers is these numbers after the name
    of their type, as the schema would be longer than most of them.
    """
    pieces = [message.header.pack()]
    for name, batch in message.parts.items():
        label, numbers = name.encode(), _numbers(batch)
        if numbers is None:
            written, body = _AS_STREAM, batch_bytes(batch)
        else:
            kind = numbers.dtype.str.encode()
            written, body = _AS_NUMBERS, bytes([len(kind)]) + kind + numbers.tobytes()
        pieces += [_PART.pack(written, len(label), len(body)), label, body]
    return b"".join(pieces)


def _numbers(batch: pa.RecordBatch) -> NDArray[np.generic] | None:
    """The numbers of a part that is nothing else."""
    if batch.schema.names != ["v"] or batch.schema.metadata is not None:
        return None
    values = batch.column(0)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    return None if values.null_count else np.asarray(values)


def _part(written: int, body: bytes) -> pa.RecordBatch:
    if written == _AS_STREAM:
        return read_batch(body, len(body))  # nobody compresses parts
    if written != _AS_NUMBERS:
        raise ValueError(f"a part is written in a way ({written}) that is not known")
    start = 1 + body[0]
    kind = body[1:start].decode("ascii")
    if kind not in _KINDS_OF_NUMBERS:
        raise ValueError(f"a part of numbers of a kind ({kind!r}) that is not known")
    return column(np.frombuffer(body[start:], dtype=np.dtype(kind)))


def decode(data: bytes) -> Message:
    """Decode what `encode` made. Anything else is an `ArgumentError`."""
    try:
        header = Header.unpack(data[:HEADER_BYTES])
        parts, at = {}, HEADER_BYTES
        while at < len(data):
            written, name_bytes, body_bytes = _PART.unpack_from(data, at)
            at += _PART.size
            name = data[at : at + name_bytes].decode()
            at += name_bytes
            if at + body_bytes > len(data):
                raise ValueError("the last part is cut off")
            if name in parts:
                raise ValueError(f"the part {name!r} comes twice")
            parts[name] = _part(written, data[at : at + body_bytes])
            at += body_bytes
    except (struct.error, ValueError, TypeError, IndexError, pa.ArrowException) as error:
        raise ArgumentError(
            f"not a message between sites ({error}); do both ends run the same version?"
        ) from error
    return Message(header, parts)
