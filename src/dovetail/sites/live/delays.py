"""How long messages take, measured and told: what `delta` is to be.

A host measures its own links, from a message's being posted to its being safe at the other end,
which is more than the delay that the sites see. It tells the others the longest of late, because
`delta` bounds all links.
"""

from collections import deque

_REMEMBERED = 64  # calls of a link
_SAFETY = 1.5  # over what was measured


class Delays:
    """In seconds."""

    def __init__(self) -> None:
        self._own: dict[str, deque[float]] = {}
        self._told: dict[str, float] = {}

    def measured(self, peer: str, seconds: float) -> None:
        """A message to another host took so long."""
        self._own.setdefault(peer, deque(maxlen=_REMEMBERED)).append(seconds)

    def told(self, peer: str, seconds: float) -> None:
        """What another host says of its links."""
        self._told[peer] = seconds

    def of(self, peer: str) -> float:
        """The longest of late, to another host."""
        return max(self._own.get(peer, ()), default=0.0)

    @property
    def longest(self) -> float:
        """Of the links from here."""
        return max(map(self.of, list(self._own)), default=0.0)

    @property
    def bound(self) -> float:
        """What no message should exceed; 0 if nothing is known yet."""
        return _SAFETY * max([self.longest, *self._told.values()])
