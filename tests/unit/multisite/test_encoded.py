"""Batches as bytes: what is let through is valid, and is known in size before it is decoded."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.multisite.encoded import TooLargeError, batch_bytes, read_batch
from dovetail.multisite.messages import Header, Kind, Message, column, decode, encode
from support.malformed import (
    POINTING_ELSEWHERE,
    beyond_their_child,
    not_utf8,
    out_of_dictionary,
    strings,
)

ROWS = pa.record_batch(
    {
        "n": pa.array([1, None, 3]),
        "text": ["a", None, "ccc"],
        "word": pa.array(["x", "y", "x"]).dictionary_encode(),
        "pair": pa.array([{"a": 1, "b": ["p"]}, None, {"a": 3, "b": []}]),
        "none": pa.nulls(3),
    }
)
MALFORMED = {
    **{name: strings(offsets) for name, offsets in POINTING_ELSEWHERE.items()},
    "no UTF-8": not_utf8(3),
    "no word of the dictionary": out_of_dictionary(3),
    "lists beyond their child": beyond_their_child(3),
    "inside a struct": pa.StructArray.from_arrays(
        [strings(POINTING_ELSEWHERE["far beyond"])], ["inner"]
    ),
    "inside a dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2], pa.int8()), strings(POINTING_ELSEWHERE["just beyond"])
    ),
}


def written(*batches: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=settings) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_batch_when_written_and_read_then_is_the_same(compression: str | None) -> None:
    assert read_batch(written(ROWS, compression=compression)).equals(ROWS)
    assert read_batch(batch_bytes(ROWS.slice(1, 1))).equals(ROWS.slice(1, 1))
    assert read_batch(batch_bytes(ROWS.slice(0, 0))).equals(ROWS.slice(0, 0))


@pytest.mark.parametrize("kind", MALFORMED)
def test_batch_when_it_points_outside_of_itself_then_is_refused(kind: str) -> None:
    batch = pa.RecordBatch.from_arrays([MALFORMED[kind]], ["v"])
    with pytest.raises(ArgumentError, match="malformed Arrow data"):
        read_batch(batch_bytes(batch))
    with pytest.raises(ArgumentError, match=r"not a message between sites .*malformed Arrow data"):
        decode(encode(Message(Header(Kind.ROWS, 1, 0), {"rows": batch})))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", ["values", "dictionary"])
def test_batch_when_it_would_inflate_beyond_the_limit_then_is_not_decompressed(
    compression: str, kind: str
) -> None:
    values = pa.array(np.zeros(1 << 20, np.int64))
    if kind == "dictionary":
        values = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), values)
    batch = pa.RecordBatch.from_arrays([values], ["v"])
    data = written(batch, compression=compression)
    assert len(data) < 1 << 17
    before = pa.default_memory_pool().bytes_allocated(), pa.default_memory_pool().max_memory()
    with pytest.raises(TooLargeError, match=r"a batch of 8,\d{3},\d{3} bytes, more than 1,048,576"):
        read_batch(data, 1 << 20)
    assert (pa.default_memory_pool().bytes_allocated(), pa.default_memory_pool().max_memory()) == (
        before
    )
    assert read_batch(data, 1 << 24).equals(batch)


def test_message_when_a_part_is_compressed_then_is_refused_as_none_is() -> None:
    batch = pa.record_batch({"v": pa.array(["x" * 10_000])})
    good = encode(Message(Header(Kind.ROWS, 1, 0), {"rows": batch}))
    part = batch_bytes(batch)
    packed = written(batch, compression="zstd")
    bad = good.replace(len(part).to_bytes(8, "little") + b"rows" + part,
                       len(packed).to_bytes(8, "little") + b"rows" + packed)  # fmt: skip
    assert bad != good
    with pytest.raises(ArgumentError, match=r"a batch of 10,\d{3} bytes, more than"):
        decode(bad)


def test_batch_when_the_stream_is_another_then_is_refused() -> None:
    schema = batch_bytes(ROWS)[:8]
    for data in (
        b"",
        schema,
        b"\xff" * 64,
        b"\0" * 64,
        batch_bytes(ROWS)[:-90],
        written(ROWS, ROWS),
    ):
        with pytest.raises(ArgumentError, match="malformed Arrow data"):
            read_batch(data)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(b"O", "is not known"), (b"V8", "is not known"), (b"i8,i8", "is not known"),
     (b"<M8[s]", "is not known"), (b"<U4", "is not known")],
)  # fmt: skip
def test_message_when_numbers_are_of_an_odd_kind_then_is_refused(kind: bytes, said: str) -> None:
    good = encode(Message(Header(Kind.KEYS, 1, 0), {"keys": column(np.arange(2))}))
    begin = good.index(b"\x03<i8")
    at = begin - len(b"keys") - 8
    body = bytes([len(kind)]) + kind + good[begin + 4 :]
    bad = good[:at] + len(body).to_bytes(8, "little") + b"keys" + body
    with pytest.raises(ArgumentError, match=said):
        decode(bad)
