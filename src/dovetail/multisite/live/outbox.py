"""Messages to another host that it has not acknowledged yet, in order.

For experiments they may be held back: each by a latency, and all by a bandwidth, as
`S(x) = latency + x / bandwidth` has it; or the link may be cut.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.multisite.live.deployment import Shape


@dataclass(frozen=True)
class Posted:
    """A message on its way, and the time before which it has not arrived."""

    seq: int
    body: bytes
    arrives: float
    posted: float


class Outbox:
    """Any thread may call."""

    def __init__(self, shape: Shape, clock: Callable[[], float] = time.monotonic) -> None:
        self.acknowledged = 0  #: all up to this number have been taken in at the other end
        self.last = 0  #: the number of the newest message
        self.nbytes = 0
        self.refusal: str | None = None  #: why the other end does not take them, nor will later
        self.shape = shape
        self._clock = clock
        self._waiting: deque[Posted] = deque()
        self._free_at = 0.0  # when the link is through with all that it was given
        self._changed = threading.Condition()
        self._closed = False

    def add(self, seq: int, body: bytes) -> None:
        """Post a message; its number is one more than the last, or was seen before."""
        with self._changed:
            if seq <= self.last:
                return
            now = self._clock()
            self._free_at = max(self._free_at, now) + len(body) / self.shape.bandwidth
            self._waiting.append(Posted(seq, body, self._free_at + self.shape.latency, now))
            self.last = seq
            self.nbytes += len(body)
            self._changed.notify_all()

    def take(self, most_bytes: int, timeout: float) -> list[Posted]:
        """The first messages, as many as have had their delay and go into so many bytes.

        Waits for one, if there is none, up to `timeout` seconds. They stay until `acknowledge`.
        """
        with self._changed:
            deadline = self._clock() + timeout
            while not self._closed:
                now = self._clock()
                if self._ready(now):
                    return self._first(most_bytes, now)
                if now >= deadline:
                    break
                at = self._waiting[0].arrives if self._waiting and not self.shape.cut else deadline
                self._changed.wait(max(0.0, min(at, deadline) - now))
            return []

    def _ready(self, now: float) -> bool:
        return bool(self._waiting) and not self.shape.cut and self._waiting[0].arrives <= now

    def _first(self, most_bytes: int, now: float) -> list[Posted]:
        chosen: list[Posted] = []
        size = 0
        for posted in self._waiting:
            size += len(posted.body)
            if posted.arrives > now or (chosen and size > most_bytes):
                break
            chosen.append(posted)
        return chosen

    def acknowledge(self, through: int) -> None:
        with self._changed:
            while self._waiting and self._waiting[0].seq <= through:
                self.nbytes -= len(self._waiting.popleft().body)
            self.acknowledged = max(self.acknowledged, through)
            self._changed.notify_all()

    def reshape(self, shape: Shape) -> None:
        """Change what is done to the link; what is on its way keeps its delay."""
        with self._changed:
            self.shape = shape
            self._changed.notify_all()

    def kept(self) -> list[tuple[int, bytes]]:
        """All that is not acknowledged, for a snapshot."""
        with self._changed:
            return [(posted.seq, posted.body) for posted in self._waiting]

    def restore(self, last: int, kept: list[tuple[int, bytes]]) -> None:
        with self._changed:
            self.last = self.acknowledged = kept[0][0] - 1 if kept else last
        for seq, body in kept:
            self.add(seq, body)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
