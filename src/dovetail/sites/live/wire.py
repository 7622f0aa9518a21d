"""How calls are written: paths, schemas and the one way to put something and hear the answer."""

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dovetail.errors import SiteError
from dovetail.sites.live.access import Access

INPUT = "input"
MESSAGES = "messages"
MOST_CALL_BYTES = 8 << 20  #: of the messages of one call, if they are more than one
ENVELOPE = pa.schema([("seq", pa.int64()), ("body", pa.large_binary())])


def put(
    client: Any, access: Access, path: Iterable[str], batches: list[pa.RecordBatch],
    facts: dict[str, Any], timeout: float,
) -> dict[str, Any]:  # fmt: skip
    """Put batches, at least one; returns the answer. Errors are Flight's."""
    descriptor = flight.FlightDescriptor.for_path(*path)
    writer, reader = client.do_put(descriptor, batches[0].schema, access.options(timeout))
    answer = None
    try:
        writer.write_with_metadata(batches[0], json.dumps(facts).encode())
        for batch in batches[1:]:
            writer.write_batch(batch)
        writer.done_writing()
        answer = reader.read()
    finally:
        writer.close()  # raises what the other end has said, in place of that it hung up
    if answer is None:
        raise SiteError("the call ended without an answer")
    return dict(json.loads(answer.to_pybytes()))


def envelopes(messages: Iterable[tuple[int, bytes]]) -> pa.RecordBatch:
    """Numbered messages as rows."""
    pairs = list(messages)
    return pa.record_batch([[seq for seq, _ in pairs], [body for _, body in pairs]], ENVELOPE)


def opened(batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
    """What `envelopes` was given."""
    bodies = (body.as_buffer().to_pybytes() for body in batch.column(1))
    return list(zip(batch.column(0).to_pylist(), bodies, strict=True))
