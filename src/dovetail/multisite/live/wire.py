"""The wire format of calls, and the one way to ask and hear the answer.

All calls but the reading of results are Flight actions: their bodies are bytes that nobody has
decoded, so a site sees what it is given before Arrow does (`dovetail.multisite.encoded`). The rows
of a Flight upload would be decompressed before it could say no.
"""

import json
import struct
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dovetail.errors import SiteError, SiteRefusedError
from dovetail.multisite.live.access import Access

PUT = "put"
MESSAGES = "messages"
MOST_CALL_BYTES = 8 << 20  #: of the messages of one call, if they are more than one
_FACTS = struct.Struct("<I")  # bytes of the facts before what is put
_MESSAGE = struct.Struct("<qQ")  # its number, and its bytes
_ALIGNMENT = 64  # of what is put, as Arrow wants it


def call(client: Any, access: Access, name: str, body: bytes, timeout: float) -> dict[str, Any]:
    """Ask a site for something; returns the answer. Errors are Flight's."""
    answers = list(client.do_action(flight.Action(name, body), access.options(timeout)))
    try:
        (answer,) = answers
        return dict(json.loads(answer.body.to_pybytes()))
    except (ValueError, TypeError) as error:
        raise SiteError(f"{name!r} was not answered as a site does: {error}") from error


def packed(facts: dict[str, Any], *pieces: bytes) -> bytes:
    """The body of a call that puts something."""
    head = json.dumps(facts).encode()
    head += b" " * (-(_FACTS.size + len(head)) % _ALIGNMENT)
    return b"".join([_FACTS.pack(len(head)), head, *pieces])


def unpacked(body: pa.Buffer) -> tuple[bytes, pa.Buffer]:
    """The facts and what is put, of which nothing is copied."""
    if body.size >= _FACTS.size:
        (length,) = _FACTS.unpack_from(memoryview(body))
        begin = _FACTS.size + length
        if begin <= body.size:
            return body.slice(_FACTS.size, length).to_pybytes(), body.slice(begin)
    raise SiteRefusedError("a call that is cut off; do both ends run the same version?")


def envelopes(messages: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Numbered messages, to be put."""
    return [piece for seq, body in messages for piece in (_MESSAGE.pack(seq, len(body)), body)]


def opened(data: pa.Buffer) -> list[tuple[int, bytes]]:
    """What `envelopes` was given."""
    found, at = [], 0
    view = memoryview(data)
    while at < len(view):
        if at + _MESSAGE.size > len(view):
            break
        seq, length = _MESSAGE.unpack_from(view, at)
        begin, at = at + _MESSAGE.size, at + _MESSAGE.size + length
        found.append((seq, bytes(view[begin:at])))
    if at != len(view):
        raise SiteRefusedError("messages that are cut off; do both ends run the same version?")
    return found
