"""A look at why two ends do not come to talk, where the other end dies meanwhile."""

import gc
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from dovetail.multisite.live.access import Access
from dovetail.multisite.live.handshake import tls_problem

RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: close says that the connection is gone


@pytest.fixture
def dying() -> Iterator[str]:
    """The address of an end that resets every connection at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
                caller.close()

        thread = threading.Thread(target=reset, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize("scheme", ["grpc", "grpc+tls"])
def test_look_when_the_other_end_resets_then_says_nothing_and_leaves_no_socket(
    scheme: str, dying: str
) -> None:
    for _ in range(50):
        assert tls_problem(f"{scheme}://{dying}", Access("a token of some length")) is None
    gc.collect()  # a socket left open would be a warning, which is an error here
