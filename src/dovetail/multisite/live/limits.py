"""Limits of a host: what it takes and keeps."""

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import ArgumentError, SiteRefusedError


@dataclass(frozen=True)
class Limits:
    """Of one host. `durable`: the journal survives a power failure, not only the process."""

    message_bytes: int = 256 << 20  #: of one message between hosts
    put_bytes: int = 32 << 20  #: of one call with rows
    outbox_bytes: int = 64 << 20  #: not acknowledged, before no interval is begun
    input_bytes: int = 64 << 20  #: rows that wait for their interval to end
    state_bytes: int = 2 << 30  #: of a query: windows, copies of others, rows on their way
    result_bytes: int = 16 << 30  #: of a query, on disk: not given up, before no interval is begun
    snapshot_bytes: int = 64 << 20  #: of events, before a snapshot takes their place
    durable: bool = True

    def __post_init__(self) -> None:
        if min(value for name, value in vars(self).items() if name.endswith("_bytes")) < 1:
            raise ArgumentError(f"limits of a site must be 1 byte or more: {self}")

    def hindrance(self, unacknowledged: Mapping[str, int], results: int) -> str | None:
        """Why no interval may be begun now: bytes that wait, by host, and of results."""
        for peer, nbytes in unacknowledged.items():
            if nbytes > self.outbox_bytes:
                return f"{nbytes:,} bytes to {peer!r} are not acknowledged (outbox_bytes)"
        if results > self.result_bytes:
            return (
                f"{results:,} bytes of results wait to be read and trimmed, more than "
                f"{self.result_bytes:,} (result_bytes)"
            )
        return None

    def check_state(self, nbytes: int) -> None:
        if nbytes > self.state_bytes:
            raise SiteRefusedError(
                f"windows and copies of others' windows take {nbytes:,} bytes, more than the "
                f"{self.state_bytes:,} of the limit (state_bytes). Raise it and start the site "
                "again: it goes on where it was. Or stop the query and make windows shorter"
            )

    def check_sent(self, peer: str, seq: int, nbytes: int) -> None:
        """Of a message to another host."""
        if nbytes > self.message_bytes:
            raise SiteRefusedError(
                f"message {seq} to {peer!r} has {nbytes:,} bytes, more than the "
                f"{self.message_bytes:,} of the limit (message_bytes). Raise it at all sites and "
                "start them again: they go on where they were"
            )

    def check_received(self, host: str, nbytes: int) -> None:
        """Of a message to this host."""
        if nbytes > self.message_bytes:
            raise SiteRefusedError(
                f"a message of {nbytes:,} bytes, but site {host!r} takes at most "
                f"{self.message_bytes:,} (message_bytes): raise the limit, or make tau shorter"
            )
