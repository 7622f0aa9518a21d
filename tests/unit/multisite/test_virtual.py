"""The virtual network: order, counting, and delays by size."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.multisite.messages import HEADER_BYTES, column
from dovetail.multisite.virtual import shaped
from dovetail.sites import Header, Kind, Message, Query, Stream, TimeWindow, VirtualNetwork

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64())])
QUERY = Query(tuple(Stream(n, SCHEMA, TimeWindow(5)) for n in "AB"), (("A.k", "B.k"),), 10, 5)


def numbered(interval: int, keys: int = 0) -> Message:
    parts = {"keys": column(np.arange(keys))} if keys else {}
    return Message(Header(Kind.KEYS, 0, 1, interval=interval), parts)


def test_send_when_a_later_message_is_faster_then_does_not_overtake() -> None:
    delays = iter([9, 1, 4])
    network = VirtualNetwork(QUERY, lambda _: next(delays))
    for interval in range(3):
        network.send(numbered(interval))
    arrived = []
    while (at := network.next_arrival()) is not None:
        arrived.append((at, network.take().header.interval))
    assert arrived == [(9, 0), (9, 1), (9, 2)]


def test_send_when_counted_then_adds_up_bytes_and_messages_of_the_link() -> None:
    network = VirtualNetwork(QUERY, lambda _: 0, on_wire=True)
    network.send(numbered(1, keys=4))
    network.send(numbered(2))
    assert set(network.usage) == {("A", "B")}
    assert network.total.messages == 2
    assert network.total.nbytes == 2 * HEADER_BYTES + 32
    assert network.kinds[Kind.KEYS].nbytes == network.total.nbytes
    assert network.take().array("keys").tolist() == [0, 1, 2, 3]


def test_shaped_when_a_message_is_large_then_takes_longer() -> None:
    delay = shaped(latency=7, bandwidth=2.0)
    assert delay(numbered(1)) == 7 + round(HEADER_BYTES / 2)
    assert delay(numbered(1, keys=100)) == 7 + round((HEADER_BYTES + 800) / 2)


def test_send_when_a_latency_is_negative_then_refuses() -> None:
    with pytest.raises(ArgumentError, match="latency of -1"):
        VirtualNetwork(QUERY, lambda _: -1).send(numbered(1))
