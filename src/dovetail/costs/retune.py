"""AMESHJOIN's settings from step to step.

Polyzotis et al., section 3.3: w and b follow the arrival rate λ, which is averaged over time, with
exponentially fading weights, by time and not by observation, so that short and long steps count as
they should. Settings change only when the average is more than `TOLERANCE` away from what they were
made for, and they are made for `TOLERANCE` more than the average: so they keep up until they are
changed. Where the budget does not allow that, they are the fastest that it does allow.

A step brings rows that have come since the step before, all at once. So settings have to do for two
rates: the average, and the one at which the rows at hand are done within `patience_seconds`. Else a
burst after a silence would be served at the rate of the silence.

`Tuned` is what is remembered between steps.
"""

import math
from dataclasses import dataclass
from typing import Self

from dovetail.costs.meshjoin import MeshModel, MeshPlan, best_rate, try_least_memory
from dovetail.costs.predictions import PlannedEnrich, Share
from dovetail.costs.tuned import Tuned

TOLERANCE = 0.2  #: of the average, by which it may move before settings change
_HORIZON_SECONDS = 60.0  # an observation of that age weighs 1/e of a new one


@dataclass(frozen=True)
class Tuner:
    """The tuner of one partition's settings."""

    model: MeshModel
    memory_bytes: int
    latency: float | None = None
    patience_seconds: float = 2.0  #: for the rows of a batch; a step's longest slice

    @classmethod
    def of(cls, plan: PlannedEnrich) -> Self:
        """Raises `MemoryBudgetError` if not one row fits, `ArgumentError` for its latency."""
        share = Share(plan)
        latency = None if plan.latency is None else plan.latency / share.turns
        best_rate(share.mesh, share.room, latency)  # raises if there are no settings at all
        return cls(share.mesh, int(share.room), latency)

    def after(self, known: Tuned | None, rows: int, now: float) -> Tuned:
        """The settings with which `rows` rows that have come by `now` are taken in.

        Rows of the same `now` came together. As long as no rate is known, settings are the fastest.
        """
        if known is None:
            fastest = best_rate(self.model, self.memory_bytes, self.latency)
            return Tuned(fastest.batch_rows, fastest.pages, 0.0, 0.0, now)
        seconds = max(0.0, now - known.at)
        if not (known.rate or seconds):
            return known
        rate = averaged(known.rate, rows, seconds) if known.rate else rows / seconds
        tuned_rate = known.tuned_rate
        if not known.rate or abs(rate - tuned_rate) > TOLERANCE * tuned_rate:
            tuned_rate = rate
        plan = self.settings_for(max(tuned_rate * (1 + TOLERANCE), rows / self.patience_seconds))
        return Tuned(plan.batch_rows, plan.pages, rate, tuned_rate, now)

    def settings_for(self, rate: float) -> MeshPlan:
        """The least that keeps up with a rate, or the fastest that the budget allows."""
        plan = try_least_memory(self.model, rate, self.latency)
        if plan is None or plan.memory_bytes > self.memory_bytes:
            plan = best_rate(self.model, self.memory_bytes, self.latency)
        return plan


def averaged(known: float, rows: float, seconds: float) -> float:
    """The average rate after `rows` rows more have come in so many seconds."""
    age = seconds / _HORIZON_SECONDS
    # rows spread over `seconds`, each weighed by its own age; at once, if that is 0
    weight = -math.expm1(-age) / age if age else 1.0
    return known * math.exp(-age) + weight * rows / _HORIZON_SECONDS
