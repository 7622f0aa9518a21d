"""AMESHJOIN's settings from step to step: `meshjoin.Retuner` for rows that come in batches.

Polyzotis et al., section 3.3: w and b follow the arrival rate λ, which is averaged over time. A
step brings rows that have come since the step before, all at once. So settings have to do for two
rates: the average, and the one at which the rows at hand are done within `patience_seconds`. Else a
burst after a silence would be served at the rate of the silence.

`Tuned` is what is remembered between steps. It is small, and part of the state, so a step that is
repeated has the settings of the first attempt.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from dovetail.costs.explain_enrich import PlannedEnrich, _Share
from dovetail.costs.meshjoin import MeshModel, Retuner, best_rate


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
    """How one partition's settings are found."""

    model: MeshModel
    memory_bytes: int
    latency: float | None = None
    patience_seconds: float = 2.0  #: for the rows of a batch; a step's longest slice

    @classmethod
    def of(cls, plan: PlannedEnrich) -> Self:
        """Raises `MemoryBudgetError` if not one row fits, `ArgumentError` for its latency."""
        share = _Share(plan)
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
