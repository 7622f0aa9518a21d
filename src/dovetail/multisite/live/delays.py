"""How long messages take, measured and told: what `delta` is to be.

`delta` bounds all links, so a host must know of links that it is no end of. Each measures its own,
from a message's being posted to its being safe at the other end, which is more than the delay that
the sites see. With every call it tells what it knows of all hosts: of each the longest delay of
late, and when that host said so. So word gets round also where two hosts cannot talk. A longer
delay counts at once, whoever has heard of it; a shorter one when all hosts have been heard of
lately, and each has measured all of its links.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dovetail.errors import SiteRefusedError

_REMEMBERED = 64  # calls of a link
_SAFETY = 1.5  # over what was measured
_LATELY = 10.0  # seconds
_YEAR = 366 * 24 * 3600.0
Report = tuple[float, float, bool]  #: when (by the host's own clock), the longest, of all its links


class Delays:
    """In seconds."""

    def __init__(
        self, host: str, peers: Iterable[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._clock = clock
        self._own: dict[str, deque[float]] = {p: deque(maxlen=_REMEMBERED) for p in peers}
        self._told: dict[str, Report] = {}
        self._heard: dict[str, float] = {}

    def measured(self, peer: str, seconds: float) -> None:
        """A message to another host took so long."""
        self._own[peer].append(seconds)

    def of(self, peer: str) -> float:
        """The longest of late, to another host."""
        return max(self._own[peer], default=0.0)

    def told(self, reports: Mapping[str, Sequence[Any]]) -> None:
        """What another host knows of all; of each host the newest word counts."""
        try:
            for host, (when, seconds, complete) in reports.items():
                report = (float(when), float(seconds), bool(complete))
                if not (0 <= report[0] <= time.time() + _YEAR and 0 <= report[1] <= _YEAR):
                    raise ValueError(f"{host}: {report}")
                if host in self._own and report[0] > self._told.get(host, (0.0,))[0]:
                    self._told[host] = report
                    self._heard[host] = self._clock()
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise SiteRefusedError(f"these are no delays of hosts: {error}") from error

    def reports(self) -> dict[str, Report]:
        """What is known here of all hosts."""
        complete = all(self._own.values())
        return {
            **self._told,
            self._host: (time.time(), max(map(self.of, self._own), default=0.0), complete),
        }

    @property
    def bound(self) -> float:
        """What no message should exceed; 0 if nothing is known yet."""
        return _SAFETY * max((seconds for _, seconds, _ in self.reports().values()), default=0.0)

    @property
    def complete(self) -> bool:
        """Whether all links have been measured, and all hosts have been heard of lately."""
        since = self._clock() - _LATELY
        return all(self._heard.get(host, since - 1) >= since for host in self._own) and all(
            complete for _, _, complete in self.reports().values()
        )
