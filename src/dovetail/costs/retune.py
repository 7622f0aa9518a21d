"""AMESHJOIN's settings from step to step: `Retuner` for a stream, `Tuner` for rows in batches.

Polyzotis et al., section 3.3: w and b follow the arrival rate λ, which is averaged over time. A
step brings rows that have come since the step before, all at once. So settings have to do for two
rates: the average, and the one at which the rows at hand are done within `patience_seconds`. Else a
burst after a silence would be served at the rate of the silence.

`Tuned` is what is remembered between steps. It is small, and part of the state, so a step that is
repeated has the settings of the first attempt.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from dovetail.costs.meshjoin import MeshModel, MeshPlan, best_rate, try_least_memory
from dovetail.costs.predictions import PlannedEnrich, Share
from dovetail.errors import ArgumentError


@dataclass(frozen=True)
class Retuner:
    """Online tuning (section 3.3): settings that follow the arrival rate.

    `observe` returns the tuner that knows one observation more; `plan` is what to use next. The
    rate is averaged with exponentially fading weights, by time and not by observation, so that
    short and long loops count as they should. Settings change only when the average is more than
    `tolerance` away from what they were made for, and they are made for `tolerance` more than the
    average: so they keep up until they are changed. Where the budget does not allow that, the plan
    is the fastest that it does allow, and `keeps_up` says whether that is enough.
    """

    model: MeshModel
    memory_bytes: int
    plan: MeshPlan
    rate: float  #: the average, in rows a second
    tuned_rate: float  #: the average that the plan was made for
    latency: float | None = None
    tolerance: float = 0.2
    horizon_seconds: float = 60.0  #: an observation of that age weighs 1/e of a new one

    @classmethod
    def start(
        cls, model: MeshModel, memory_bytes: int, rate: float, latency: float | None = None
    ) -> Self:
        """A tuner that expects this rate. Raises as `best_rate` does."""
        fastest = best_rate(model, memory_bytes, latency)
        return cls(model, memory_bytes, fastest, rate, rate, latency)._retuned()

    @property
    def keeps_up(self) -> bool:
        return self.plan.rate >= self.rate

    def observe(self, rows: float, seconds: float) -> Self:
        """After `rows` rows arrived in `seconds` seconds."""
        if not (rows >= 0 and seconds >= 0):
            raise ArgumentError(f"{rows} rows in {seconds} seconds: neither can be negative")
        age = seconds / self.horizon_seconds
        # rows spread over `seconds`, each weighed by its own age; at once, if that is 0
        weight = -math.expm1(-age) / age if age else 1.0
        rate = self.rate * math.exp(-age) + weight * rows / self.horizon_seconds
        tuner = replace(self, rate=rate)
        changed = abs(rate - self.tuned_rate) > self.tolerance * self.tuned_rate
        return tuner._retuned() if changed else tuner

    def settings_for(self, rate: float) -> MeshPlan:
        """The least that keeps up with a rate, or the fastest that the budget allows."""
        plan = try_least_memory(self.model, rate, self.latency)
        if plan is None or plan.memory_bytes > self.memory_bytes:
            plan = best_rate(self.model, self.memory_bytes, self.latency)
        return plan

    def _retuned(self) -> Self:
        plan = self.settings_for(self.rate * (1 + self.tolerance))
        return replace(self, plan=plan, tuned_rate=self.rate)


@dataclass(frozen=True)
class Tuned:
    """Settings, the average rate that they were made for, and how it has been since."""

    w: int
    b: int
    rate: float  #: of arrival, averaged
    tuned_rate: float
    at: float  #: when rows came last

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None) -> Self | None:
        """From what `facts` gave; None for None."""
        return None if facts is None else cls(**facts)

    def facts(self) -> dict[str, Any]:
        return asdict(self)


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
        if known.rate:
            retuner = self._retuner(known).observe(rows, seconds)
        else:
            retuner = Retuner.start(self.model, self.memory_bytes, rows / seconds, self.latency)
        steady = retuner.tuned_rate * (1 + retuner.tolerance)
        plan = retuner.settings_for(max(steady, rows / self.patience_seconds))
        return Tuned(plan.batch_rows, plan.pages, retuner.rate, retuner.tuned_rate, now)

    def _retuner(self, known: Tuned) -> Retuner:
        plan = self.model.plan(known.w, known.b)
        budget = self.memory_bytes
        return Retuner(self.model, budget, plan, known.rate, known.tuned_rate, self.latency)
