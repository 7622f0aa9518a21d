"""Load shedding and latency bounds of a lookup join: settings and measured rates.

Rates. Polyzotis et al. (see `shedding`), section 4.1: a stream comes at λ rows a second and is
served at μ. While `λ > μ` the join falls behind without end, and has to leave the share `1 - μ / λ`
of the rows out. Here both are measured, step by step. The rows of a step came between its start
and the start of the step before it. They were taken in in the time for which the step was busy;
where partitions take turns on a core, only every so many seconds are theirs. To keep just `μ / λ`
of the rows would keep steps as long as they had become when shedding began; so a little less is
kept (`SPARE`), and steps get shorter until what Spark takes for each is a tenth of them.

Waits. A row waits from the start of the step that takes it in to the end of the step in which it
is settled. The rows of a step are told apart from others by their arrival numbers.

Pace. A scan settles a row after one turn through all pages. In steps of `τ` seconds, the one in
which the row arrives among them, it is settled within `L` seconds if a turn takes `L / τ - 1` steps
or fewer; that is `wait_seconds` of `costs.meshjoin` solved for the pages of a step.

Everything here is a value: no clock is read. Times are seconds of any one clock.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

HORIZON_SECONDS = 10.0  #: what was observed so long ago weighs 1/e of what is observed now
SPARE = 1.1  #: how many times as many rows as are kept could be served


@dataclass(frozen=True)
class Rates:
    """Rows a second."""

    arrival: float
    service: float

    @property
    def ratio(self) -> float:
        """ρ: above 1, the stream outruns the join."""
        return self.arrival / self.service

    @property
    def relief(self) -> float:
        """The ratio of rows that come to rows that are to be kept; 1 to keep them all."""
        return self.ratio * SPARE if self.ratio > 1 else 1.0


@dataclass(frozen=True)
class Shedding:
    """Settings of load shedding: the strategy, and where shed rows go."""

    strategy: str
    to: Path | None = None  #: None: they are counted, and gone
    turns: int = 1  #: partitions that share a core
    rates: Rates | None = None  #: in place of measured ones


@dataclass(frozen=True)
class Pace:
    """A latency bound, and the scan rate that keeps it."""

    seconds: float
    pages: int = 0  #: of a step, as long as it is not known how often steps come; 0: all

    def quota(self, table_pages: int, interval: float | None) -> int:
        """The pages that a step has to scan at least."""
        if not interval:
            return min(self.pages, table_pages) or table_pages
        loops = max(1, int(self.seconds / interval) - 1)
        return -(-table_pages // loops)


@dataclass(frozen=True)
class Load:
    """Arrival and service rates of a partition; `after` adds a step. Sums fade with time.

    An interval is from the start of a step to the start of the next. The rows of the next came in
    it, and the step was busy in it. So the sums of both are over the same intervals: a source that
    hands out as much each time is never too fast, however long a step takes.
    """

    started: float | None = None  #: the last step
    last_taken: int = 0  #: the rows that it took in
    last_busy: float = 0.0  #: the seconds for which it was busy; 0 if that is not to count
    arrived: float = 0.0  #: rows, in
    span: float = 0.0  #: so many seconds
    taken: float = 0.0  #: rows taken in, in
    busy: float = 0.0  #: so many seconds
    interval: float | None = None  #: between steps while rows wait
    carry: float = 0.0  #: the part of a row by which too few were kept so far

    @classmethod
    def of(cls, facts: dict[str, Any] | None) -> Self:
        return cls(**(facts or {}))

    def facts(self) -> dict[str, Any]:
        """The facts that `of` takes."""
        return asdict(self)

    def rates(self, turns: int) -> Rates | None:
        """None as long as too little is known."""
        if not (self.span > 0 and self.taken > 0 and self.busy > 0):
            return None
        return Rates(self.arrived / self.span, self.taken / self.busy / turns)

    def during(self, started: float, arrived: int, turns: int) -> Rates | None:
        """In the middle of a step, when so many of its rows have come: what is known by now.

        Or what was known when it began, if that is more of a load: most rows are still to come.
        """
        known = (self.rates(turns), self._until(started, arrived).rates(turns))
        return max((r for r in known if r is not None), key=lambda r: r.ratio, default=None)

    def after(
        self, started: float, arrived: int, taken: int, busy: float, *, rows_waited: bool
    ) -> Self:
        """`rows_waited`: when the step began, so that it came as soon as it could.

        The first step of all does not count, as it is slower than those that follow.
        """
        known = self.interval
        if rows_waited and self.started is not None and started > self.started:
            interval = started - self.started
            known = interval if known is None else (known + interval) / 2
        return replace(
            self._until(started, arrived),
            started=started,
            last_taken=taken,
            last_busy=0.0 if self.started is None else busy,
            interval=known,
        )

    def _until(self, started: float, arrived: int) -> Self:
        """With the interval that ended then; none did if the clock was set back."""
        if self.started is None or started <= self.started or not self.last_busy > 0:
            return self
        interval = started - self.started
        fading = math.exp(-interval / HORIZON_SECONDS)
        # what came over a long time, each moment weighed by its own age
        weight = -math.expm1(-interval / HORIZON_SECONDS) * HORIZON_SECONDS / interval
        return replace(
            self,
            arrived=self.arrived * fading + arrived * weight,
            span=self.span * fading + interval * weight,
            taken=self.taken * fading + self.last_taken * weight,
            busy=self.busy * fading + self.last_busy * weight,
        )

    def share(self, rows: int, ratio: float) -> tuple[int, Self]:
        """The number of rows to keep. What is rounded off is carried over to the next batch."""
        if ratio <= 1:
            return rows, self
        exact = rows / ratio + self.carry
        kept = min(rows, int(exact))
        return kept, replace(self, carry=min(exact - kept, 1.0))


@dataclass(frozen=True)
class Waits:
    """The steps whose rows wait: the number of the first row of each, and when the step began."""

    steps: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, facts: Sequence[Sequence[float]] | None) -> Self:
        return cls(tuple((int(first), float(began)) for first, began in facts or ()))

    def facts(self) -> list[list[float]]:
        """The facts that `of` takes."""
        return [list(step) for step in self.steps]

    def joined_by(self, first: int, began: float) -> Self:
        """With the rows from number `first` on, of a step that began then."""
        return replace(self, steps=(*self.steps, (first, began)))

    def settled(self, oldest: int | None, now: float) -> tuple[Self, float | None]:
        """After all rows before number `oldest`, or all of them, were settled.

        Also returns the longest wait of a step whose last row was settled now; None if none was.
        """
        ends = [first for first, _ in self.steps[1:]]
        done = len(self.steps) if oldest is None else sum(end <= oldest for end in ends)
        if not done:
            return self, None
        longest = max(now - began for _, began in self.steps[:done])
        return replace(self, steps=self.steps[done:]), max(0.0, longest)

    def age(self, now: float) -> float:
        """The seconds that the oldest row has been waiting."""
        return max((now - began for _, began in self.steps), default=0.0)
