"""Messages of another host as they come: twice, or in a wrong order, or with some missing.

What leaves here is each message once, in order. Those that come too early wait, up to a number.
"""

from collections.abc import Iterable

from dovetail.errors import SiteRefusedError

_MOST_EARLY = 4096


class Inbox:
    """Not for several threads at once."""

    def __init__(self, peer: str, received: int) -> None:
        self.peer = peer
        self.last = received  #: all up to this number have left here
        self.repeated = 0
        self._early: dict[int, bytes] = {}

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
        for seq, body in messages:
            if seq <= self.last or seq in self._early:
                self.repeated += 1
            elif len(self._early) < _MOST_EARLY:
                self._early[seq] = body
        ready = []
        while self.last + 1 in self._early:
            self.last += 1
            ready.append((self.last, self._early.pop(self.last)))
        return ready
