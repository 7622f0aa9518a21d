"""Intervals that are over by the wall clock, but whose rows are still on their way.

While a site is away, or takes no rows because it is behind, whoever sends rows waits and tries
again. So when it goes on, the intervals that have ended meanwhile are held: each until all the
producers that may be waiting have put rows from beyond it. A producer has caught up when it has put
rows that are newer than the hold, and no more than an interval old; one from which nothing comes,
or which does not get nearer to the present, is waited for a while only. What comes later still is
late.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.multisite.query import Query

_ANYONE = "\0"  # no producer is called so
GRACE_SECONDS = 10.0  #: since a producer last came nearer to the present


@dataclass
class _Hold:
    since: int
    deadline: float
    producers: set[str] = field(default_factory=set)  # that have not caught up
    lags: dict[str, int] = field(default_factory=dict)  # how near to the present each has come


class Holds:
    """Of the streams of a host."""

    def __init__(self, query: Query, clock: Callable[[], float] = time.monotonic) -> None:
        self._query = query
        self._clock = clock
        self._holds: dict[str, _Hold] = {}

    def begin(self, stream: str, producers: Iterable[str], now: int, seconds: float = 0.0) -> None:
        """Rows of these producers have not been taken, or will not be for so many seconds.

        If none is named, whoever comes first is waited for.
        """
        hold = self._holds.setdefault(stream, _Hold(now, 0.0))
        hold.since = now
        hold.deadline = max(hold.deadline, self._clock() + seconds + GRACE_SECONDS)
        hold.producers.update(producers)
        if not hold.producers:
            hold.producers.add(_ANYONE)

    def may_end(self, stream: str, interval: int, newest: Mapping[str, int], now: int) -> bool:
        """Whether to let an interval end; `newest`: the time of each producer's newest row."""
        hold = self._holds.get(stream)
        if hold is None:
            return True
        if _ANYONE in hold.producers and newest:
            hold.producers.discard(_ANYONE)
            hold.producers.update(newest)
        for producer in [name for name in hold.producers if name in newest]:
            self._look_at(hold, producer, newest[producer], now)
        if not hold.producers or self._clock() >= hold.deadline:
            del self._holds[stream]
            return True
        ended = self._query.tick_time(interval)
        return all(newest.get(producer, ended - 1) >= ended for producer in hold.producers)

    def producers(self, stream: str) -> Iterable[str]:
        """Those whose rows the intervals of a stream are held for."""
        hold = self._holds.get(stream)
        return hold.producers if hold is not None else ()

    def _look_at(self, hold: _Hold, producer: str, newest: int, now: int) -> None:
        lag = now - newest
        if newest >= hold.since and lag <= self._query.tau + self._query.lateness:
            hold.producers.discard(producer)
        elif lag < hold.lags.setdefault(producer, lag):
            hold.lags[producer] = lag
            hold.deadline = max(hold.deadline, self._clock() + GRACE_SECONDS)
