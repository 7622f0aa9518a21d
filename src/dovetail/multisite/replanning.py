"""The planner at work: it hears statistics, and changes the plan when that pays.

When every site has reported for an interval, the cheapest plan for what was measured is compared
with the one in use. If the one in use costs more than `gain` times as much, the sites are asked to
change (see `schedule` for how they agree), at the earliest interval that all can have heard of in
time, so that none has to wait if messages keep to `delta`.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from dovetail.multisite.copies import Parts
from dovetail.multisite.costs import CostModel, Prices
from dovetail.multisite.estimates import Statistics
from dovetail.multisite.messages import PLANNER, Header, Kind, Message, decode, encode, text
from dovetail.multisite.network import Network
from dovetail.multisite.plan import Plan
from dovetail.multisite.planner import joint
from dovetail.multisite.snapshots import Kept
from dovetail.multisite.statistics import gather

Choose = Callable[[CostModel], Plan]
_TRIPS = 3  # PREPARE, READY, COMMIT


class Planner(Kept):
    """The endpoint that plans. Like a site, it is driven from outside and only sends."""

    KEPT = ("delta", "ready")

    def __init__(
        self, plan: Plan, network: Network, prices: Prices, *, choose: Choose = joint,
        gain: float = 1.2,
    ) -> None:  # fmt: skip
        self.query = plan.query
        self.delta = plan.query.delta  #: the longest delay of a message, as it is known now
        self.plan = plan  #: the newest that all sites agreed on
        self.changes: list[tuple[int, Plan]] = []  #: with their first intervals
        self.statistics: Statistics | None = None
        self._network = network
        self._prices = prices
        self._choose = choose
        self._gain = gain
        self._reports: dict[int, dict[str, Message]] = {}
        self._offer: tuple[int, Plan] | None = None
        self._answers: dict[int, int] = {}  # by site: the interval it has reached, if too far
        self._ready = 0
        self._later: Plan | None = None

    def snapshot(self) -> dict[str, Any]:
        """What it has heard and agreed on, as data."""
        return {
            **super().snapshot(),
            "plan": self.plan.to_json(),
            "changes": [[interval, plan.to_json()] for interval, plan in self.changes],
            "reports": [
                [interval, {name: encode(message) for name, message in reports.items()}]
                for interval, reports in self._reports.items()
            ],
            "offer": self._offer and [self._offer[0], self._offer[1].to_json()],
            "answers": list(self._answers.items()),
            "later": self._later and self._later.to_json(),
        }

    def restore(self, data: Mapping[str, Any]) -> Self:
        plan_of = partial(Plan.from_json, self.query)
        self.plan = plan_of(data["plan"])
        self.changes = [(interval, plan_of(text)) for interval, text in data["changes"]]
        self._reports = {
            interval: {name: decode(message) for name, message in reports.items()}
            for interval, reports in data["reports"]
        }
        offer, later = data["offer"], data["later"]
        self._offer = offer and (offer[0], plan_of(offer[1]))
        self._answers, self._later = dict(data["answers"]), later and plan_of(later)
        return super().restore(data)

    def receive(self, message: Message, now: int) -> None:
        header = message.header
        if header.kind == Kind.STATISTICS:
            reports = self._reports.setdefault(header.interval, {})
            reports[self.query.names[header.sender]] = message
            if len(reports) == len(self.query.names):
                self._reports = {n: r for n, r in self._reports.items() if n > header.interval}
                self.consider(gather(self.query, reports), now)
        elif header.kind == Kind.READY and self._offer and header.interval == self._offer[0]:
            self._ready += 1
            if "reached" in message.parts:
                self._answers[header.sender] = int(message.array("reached")[0])
            if self._ready == len(self.query.names):
                self._conclude(now)

    def consider(self, statistics: Statistics, now: int) -> None:
        """Change the plan, if another is much cheaper by these statistics."""
        self.statistics = statistics
        model = CostModel(self.query, statistics, self._prices)
        best = self._choose(model)
        costs = model.plan(self.plan).time, model.plan(best).time
        if self._offer is None and best != self.plan and costs[0] > self._gain * costs[1]:
            self.change(best, now)

    def change(self, plan: Plan, now: int) -> None:
        """Ask all sites to go by another plan, after the change that is under way, if any."""
        if self._offer is not None:
            self._later = plan
            return
        reached = (now - self.query.lateness) / self.query.tau
        ahead = _TRIPS * self.delta / self.query.tau
        self._propose(plan, math.floor(reached + ahead) + 1)

    def _propose(self, plan: Plan, interval: int) -> None:
        self._offer, self._ready, self._answers = (interval, plan), 0, {}
        self._broadcast(Kind.PREPARE, interval, {"plan": text(plan.to_json())})

    def _conclude(self, now: int) -> None:
        assert self._offer is not None
        interval, plan = self._offer
        self._offer = None
        self._broadcast(Kind.COMMIT, interval, accepted=not self._answers)
        if self._answers:
            # as many intervals later as the slowest message made it too early, and one for luck
            late = max(self._answers.values()) - interval + 1
            self._propose(plan, max(self._answers.values()) + late + 1)
        else:
            self.plan = plan
            self.changes.append((interval, plan))
            if self._later is not None:
                later, self._later = self._later, None
                # no sooner than the one just agreed on
                self.change(later, max(now, self.query.tick_time(interval)))

    def _broadcast(
        self, kind: Kind, interval: int, parts: Parts | None = None,
        accepted: bool = True,
    ) -> None:  # fmt: skip
        for rank in range(len(self.query.names)):
            header = Header(kind, PLANNER, rank, accepted=accepted, interval=interval)
            self._network.send(Message(header, parts or {}))
