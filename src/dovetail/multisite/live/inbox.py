"""Messages of another host as they come: twice, or in a wrong order, or with some missing.

What leaves here is each message once, in order. Those that come too early wait, up to a number and
so many bytes; what is beyond that will be sent again.
"""

from collections.abc import Iterable, Iterator

from dovetail.errors import SiteRefusedError

_MOST_EARLY = 4096


class Inbox:
    """Not for several threads at once."""

    def __init__(self, peer: str, received: int, early_bytes: int) -> None:
        self.peer = peer
        self.last = received  #: all up to this number have left here
        self.repeated = 0
        self._early: dict[int, bytes] = {}
        self._most_bytes = early_bytes
        self._early_bytes = 0

    def check(self, first: int, last: int) -> None:
        """Whether the other end still has all that is missing here, and not less than was had.

        `first` is the first number that it has kept, `last` the newest it has given.
        """
        if first > self.last + 1:
            raise SiteRefusedError(
                f"messages {self.last + 1} to {first - 1} of {self.peer!r} have been acknowledged "
                "here and are lost: the journal of this site is damaged or of an earlier time. "
                "Stop the query at all sites and start it anew."
            )
        if last < self.last:
            raise SiteRefusedError(
                f"{self.peer!r} has sent {last} messages, but {self.last} have come from it: its "
                "journal is damaged or of an earlier time. Stop the query at all sites and start "
                "it anew."
            )

    def take(self, messages: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Those that are next, in order."""
        ready: list[tuple[int, bytes]] = []
        for seq, body in messages:
            if seq <= self.last or seq in self._early:
                self.repeated += 1
            elif seq == self.last + 1:
                self.last = seq
                ready += [(seq, body), *self._following()]
            elif len(self._early) < _MOST_EARLY and (
                self._early_bytes + len(body) <= self._most_bytes
            ):
                self._early[seq] = body
                self._early_bytes += len(body)
        return ready

    def _following(self) -> Iterator[tuple[int, bytes]]:
        """What has waited for the message that has just come."""
        while self.last + 1 in self._early:
            self.last += 1
            body = self._early.pop(self.last)
            self._early_bytes -= len(body)
            yield self.last, body
