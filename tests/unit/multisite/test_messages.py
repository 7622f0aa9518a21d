"""Messages through bytes and back."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.multisite.messages import HEADER_BYTES, Header, Kind, Message, column, decode, encode
from dovetail.multisite.messages import narrowed as narrow

HEADER = Header(Kind.ROWS, 2, 0, 1, 3, False, True, 77, 5, 6, 1 << 40, 9)


def test_message_when_encoded_then_decodes_to_the_same() -> None:
    rows = pa.record_batch({"S1.ts": [1, 2], "S1.k": ["a", None]})
    message = Message(HEADER, {"rows": rows, "numbers": column(np.array([3, 9]))})
    again = decode(encode(message))
    assert again.header == HEADER
    assert {n: p.to_pydict() for n, p in again.parts.items()} == {
        n: p.to_pydict() for n, p in message.parts.items()
    }


@pytest.mark.parametrize("cut", [3, HEADER_BYTES + 4, -5])
def test_decode_when_bytes_are_cut_off_then_says_so(cut: int) -> None:
    data = encode(Message(HEADER, {"keys": column(np.arange(9))}))
    with pytest.raises(ArgumentError, match="not a message"):
        decode(data[:cut])


def test_nbytes_when_counted_then_is_header_and_data() -> None:
    assert Message(HEADER).nbytes == HEADER_BYTES == len(HEADER.pack())
    assert Message(HEADER, {"keys": column(np.arange(9))}).nbytes == HEADER_BYTES + 72


@pytest.mark.parametrize(("most", "width"), [(255, 1), (256, 2), (65_536, 4), (1 << 33, 8)])
def test_narrow_when_values_are_small_then_takes_the_narrowest_type(most: int, width: int) -> None:
    values = np.array([0, most])
    assert narrow(values).itemsize == width
    assert narrow(values).tolist() == values.tolist()
