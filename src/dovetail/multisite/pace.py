"""Pace: decides when a copy may be probed, and when rows may leave a window.

`Timed` is the paper's model (Sect. 2.2): messages take at most `delta`, so a copy is complete that
long after an interval has ended (constraint 1, delayed probe), and rows may go when the longest way
through the plan is over (constraint 2, delayed removal). A message that takes longer makes results
wrong; sites count those that came when a copy had been probed without them, or when rows that they
were to meet had left (`Site.late`). `delta` may be changed while running, to what the links have
shown.

`Heartbeats` waits for what it needs to know instead of for the time at which it must be so. An
owner sends an update for every interval, if only a header; a copy is complete when that has come. A
site reports to the owner which intervals it is done with; rows leave when every step of the plan
that probes them is past them. So results are right however long messages take, and no later than
they can be.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

from dovetail.multisite.plan import Plan
from dovetail.multisite.query import Query
from dovetail.multisite.snapshots import Kept

PlanAt = Callable[[int], Plan]
Wait = Callable[[int], int]  #: by `delta`, how much later than its interval's end a row may come
Passed = tuple[str, int]  #: the head and the place of a step


def no_wait(_delta: int) -> int:
    """The rows of a stream are there when the query's lateness is over."""
    return 0


class Timed(Kept):
    """By the clock, trusting in `delta`."""

    KEPT = ("delta", "settled")
    reports = False  #: whether updates are sent for every interval, and progress is reported

    def __init__(
        self, query: Query, plan_at: PlanAt, first_interval: int, wait: Wait = no_wait
    ) -> None:
        self.delta = query.delta  #: the longest delay of a message, as it is known now
        self._query = query
        self._plan_at = plan_at
        self._settled = first_interval - 1
        self._wait = wait

    @property
    def wait(self) -> int:
        """How long an interval is kept open, after the query's lateness, for rows of joins."""
        return self._wait(self.delta)

    def ready(self, through: int | None, interval: int, heard_until: int) -> bool:
        """Whether a copy, updated `through` an interval, is complete for this one.

        `heard_until`: all messages that arrived by this time have been taken in.
        """
        return heard_until >= self.due(interval)

    def due(self, interval: int) -> int:
        """The time at which a copy is complete for the interval."""
        return self._query.tick_time(interval) + self.wait + self.delta

    def passed(self, step: Passed, interval: int) -> None:
        """A step is done with an interval, which the clock tells here."""

    def settled(self, ticked: int, now: int) -> int:
        """The last interval, of those up to `ticked`, that is over with all before it."""
        settled = self._settled
        while settled < ticked:
            over = self._query.tick_time(settled + 1) + self.wait
            over += self._plan_at(settled + 1).horizon(self.delta)
            # a message that takes the longest time arrives just then, and after this
            if over >= now:
                break
            settled += 1
        return settled

    def settle(self, ticked: int, now: int) -> int:
        """The same, and it stays over whatever `delta` will be."""
        self._settled = self.settled(ticked, now)
        return self._settled


class Heartbeats(Kept):
    """By what has been heard."""

    KEPT = ("settled",)
    reports = True
    delta = wait = 0  # it does not go by time

    def __init__(self, owner: str, plan_at: PlanAt, first_interval: int) -> None:
        self._owner = owner
        self._plan_at = plan_at
        self._settled = first_interval - 1
        self._passed: dict[Passed, set[int]] = {}

    def ready(self, through: int | None, interval: int, heard_until: int) -> bool:
        return through is not None and through >= interval

    def due(self, interval: int) -> None:
        """Nobody knows."""

    def passed(self, step: Passed, interval: int) -> None:
        """A step is done with an interval."""
        self._passed.setdefault(step, set()).add(interval)

    def settled(self, ticked: int, now: int) -> int:
        while self._settled < ticked:
            steps = self._plan_at(self._settled + 1).probing[self._owner]
            if any(self._settled + 1 not in self._passed.get(step, ()) for step in steps):
                break
            self._settled += 1
            for step in steps:
                self._passed[step].discard(self._settled)
        return self._settled

    settle = settled

    def snapshot(self) -> dict[str, Any]:
        passed = [[*step, sorted(intervals)] for step, intervals in self._passed.items()]
        return {**super().snapshot(), "passed": passed}

    def restore(self, data: Mapping[str, Any]) -> Self:
        self._passed = {(head, place): set(passed) for head, place, passed in data["passed"]}
        return super().restore(data)


Pace = Timed | Heartbeats  #: one site's answer to both questions
