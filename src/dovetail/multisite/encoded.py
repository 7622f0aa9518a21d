"""Record batches as bytes and back, where nothing in the bytes is trusted.

Arrow reads a stream without looking into its buffers: an offset that points elsewhere is followed
when the value is used, into memory that is not the batch's. So every batch that comes from outside,
from another process or from a file, goes through `read_batch`: first what it would take in memory,
by the lengths that its metadata states, then the decoding, then a full validation.

A stream has a schema, its dictionaries and one batch.
"""

import struct
from typing import Any

import pyarrow as pa

from dovetail.errors import ArgumentError

ANY_SIZE = 1 << 62
_LENGTH = struct.Struct("<q")
_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
_SPAN = struct.Struct("<qq")  # of a buffer in a body: where it begins and how long it is
# places of the fields in the tables of Arrow's Message.fbs and Schema.fbs
_MESSAGE_HEADER = 2
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_DICTIONARY_DATA = 1


class TooLargeError(ArgumentError):
    """A batch that would take more memory than it may."""


def batch_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def read_batch(data: Any, most_bytes: int = ANY_SIZE) -> pa.RecordBatch:
    """The batch of an IPC stream, all of its values valid; anything else is an `ArgumentError`.

    One that would take more than `most_bytes` is refused before any of it is decompressed.
    """
    buffer = pa.py_buffer(data)
    try:
        size = max(buffer.size, _decoded_bytes(buffer))
        if size > most_bytes:
            raise TooLargeError(f"a batch of {size:,} bytes, more than {most_bytes:,}")
        with pa.ipc.open_stream(buffer) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
        str((batch.schema.names, batch.schema.types))  # names are text, too
    except (pa.ArrowException, OSError, struct.error, StopIteration, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        text = str(error).partition("\n")[0] or type(error).__name__
        raise ArgumentError(f"malformed Arrow data: {text}") from error
    return batch


def _decoded_bytes(buffer: pa.Buffer) -> int:
    """What the buffers of a stream take when they are decompressed, by what it states itself.

    Refuses a stream that is not a schema, dictionaries and one batch.
    """
    size, kinds = 0, []
    reader = pa.ipc.MessageReader.open_stream(buffer)
    for message in reader:
        kinds.append(message.type)
        if message.type != "schema":
            size += _stated_bytes(message)
    if kinds[:1] != ["schema"] or kinds[-1:] != ["record batch"]:
        raise ArgumentError("malformed Arrow data: a stream of a schema and one batch is wanted")
    if others := [kind for kind in kinds[1:-1] if kind != "dictionary"]:
        raise ArgumentError(f"malformed Arrow data: a {others[0]} before the one batch")
    return size


def _stated_bytes(message: pa.ipc.Message) -> int:
    """The decompressed length of all buffers of a batch or dictionary.

    Arrow has verified that all references within the metadata stay within it.
    """
    data, body = memoryview(message.metadata), message.body
    header = _table(data, _I32.unpack_from(data, 0)[0], _MESSAGE_HEADER)
    if header is not None and message.type == "dictionary":
        header = _table(data, header, _DICTIONARY_DATA)
    if header is None:
        raise ArgumentError("malformed Arrow data: a batch without its header")
    spans = _table(data, header, _BATCH_BUFFERS)
    compressed = _table(data, header, _BATCH_COMPRESSION) is not None
    if spans is None:
        return 0
    (count,) = _U32.unpack_from(data, spans)
    size = 0
    available = 0 if body is None else body.size
    content = memoryview(b"" if body is None else body)
    for offset, length in _SPAN.iter_unpack(data[spans + 4 : spans + 4 + _SPAN.size * count]):
        if offset < 0 or length < 0 or offset + length > available:
            raise ArgumentError("malformed Arrow data: a buffer lies outside of its message")
        stated = length
        if compressed and length >= _LENGTH.size:
            (stated,) = _LENGTH.unpack_from(content, offset)
            if stated < -1:
                raise ArgumentError("malformed Arrow data: a buffer of a negative length")
            stated = length if stated == -1 else stated  # left as it was
        size += stated
    return size


def _table(data: memoryview, table: int, field: int) -> int | None:
    """Where a flatbuffers table keeps what one of its fields refers to; None if it has none."""
    vtable = table - _I32.unpack_from(data, table)[0]
    place = 4 + 2 * field
    if place >= _U16.unpack_from(data, vtable)[0]:
        return None
    offset = int(_U16.unpack_from(data, vtable + place)[0])
    if not offset:
        return None
    at = table + offset
    return at + int(_U32.unpack_from(data, at)[0])
