"""The choice of `auto`: of the algorithms that can do the job, the highest predicted rate.

An algorithm can do it if it joins on the condition that is asked for, its least settings fit the
budget, and its rows need not wait longer than `latency`. Seek is taken unless another is predicted
to be clearly faster: predictions are not exact, and Seek is the one that loses least when they are
wrong. It never reads more than a scan does, and settles rows as soon as nothing more comes.

The choice is made once for a state directory, and `Recorded` is what is kept of it there: a machine
that is busy on another day would else make a query change its algorithm, which its state does not
survive.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from dovetail.costs.latency import pages_within
from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.predictions import (
    ALIKE,
    Machine,
    PlannedEnrich,
    Prediction,
    partitions_at_once,
    predict,
)
from dovetail.costs.skew import UNIFORM, Skew
from dovetail.costs.storage import Storage
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.semistream import ALGORITHMS
from dovetail.semistream.seek.operator import Seek

CANDIDATES = ("seek", "ssbj", "ameshjoin", "inl")  #: of `auto`; of equals, the first


@dataclass(frozen=True)
class Choice:
    """An algorithm, why it is that one, and what it is predicted to do."""

    algorithm: str
    why: str
    predicted: Prediction


def choose(plan: PlannedEnrich) -> Choice:
    """Choose for `plan`, whose own algorithm does not matter unless one was asked for."""
    predictions = {one.algorithm: one for one in predict(plan)}
    if plan.asked_algorithm != "auto":
        return Choice(plan.algorithm, "as asked", predictions[plan.algorithm])
    problems = {name: _problem(plan, predictions[name]) for name in CANDIDATES}
    able = [predictions[name] for name in CANDIDATES if not problems[name]]
    seek = predictions[Seek.name]
    if not able:
        return Choice(Seek.name, f"none can do it here; seek: {problems[Seek.name]}", seek)
    fastest = max(able, key=lambda one: one.rate)
    if problems[Seek.name]:
        why = f"the fastest that can do it; seek: {problems[Seek.name]}"
        return Choice(fastest.algorithm, why, fastest)
    if fastest.rate > ALIKE * seek.rate:
        why = f"predicted to be {fastest.rate / seek.rate:.1f} times as fast as seek"
        return Choice(fastest.algorithm, why, fastest)
    return Choice(Seek.name, _beside(seek, able), seek)


def _beside(seek: Prediction, able: list[Prediction]) -> str:
    """Why Seek, in numbers."""
    others = [one for one in able if one is not seek]
    if not others:
        return "no other can do it here"
    rival = max(others, key=lambda one: one.rate)
    ratio = seek.rate / rival.rate
    if ratio < ALIKE:
        return f"predicted to be as fast as {rival.algorithm}, the fastest of the others, or nearly"
    return f"predicted to be {ratio:.1f} times as fast as {rival.algorithm}, the next"


def _problem(plan: PlannedEnrich, one: Prediction) -> str:
    """Why an algorithm cannot do the job; empty if it can."""
    spec = plan.spec
    equality = spec.within is None and bool(spec.stream_keys)
    if not equality and not ALGORITHMS[one.algorithm].joins_conditions:
        return "joins on equal keys only"
    if one.problem or plan.latency is None:
        return one.problem
    try:
        pages_within(replace(plan, algorithm=one.algorithm), plan.latency)
    except (ArgumentError, MemoryBudgetError):
        return "rows would wait too long"
    return ""


@dataclass(frozen=True)
class Recorded:
    """The record of a choice in a state directory: enough to go on without measuring again."""

    choice: Choice
    machine: Machine
    at_once: int  #: partitions that run at the same time
    skew: Skew = UNIFORM  #: of the keys, by which it was predicted

    @classmethod
    def of(cls, plan: PlannedEnrich) -> Self:
        chosen = choose(plan)
        told = replace(chosen, predicted=chosen.predicted.on_spark)
        return cls(told, plan.machine, partitions_at_once(plan), plan.skew)

    def of_a_partition(self) -> dict[str, float] | None:
        """The prediction for one partition; None if the algorithm cannot do the job."""
        told = self.choice.predicted
        if not told.rate:
            return None
        return {
            "rate": told.rate / self.at_once,
            "wait_seconds": told.wait_seconds,
            "bytes_per_row": told.scanned_per_row,
        }

    def facts(self) -> dict[str, Any]:
        """The record as JSON, for `read`."""
        return asdict(self)

    @classmethod
    def read(cls, facts: dict[str, Any]) -> Self:
        """Raises `KeyError` or `TypeError` if that is something else."""
        choice, machine = facts["choice"], facts["machine"]
        predicted = Prediction(**choice["predicted"])
        factors, storage = MeshFactors(**machine["factors"]), Storage(**machine["storage"])
        return cls(
            Choice(choice["algorithm"], choice["why"], predicted),
            Machine(factors, storage, int(machine["cores"])),
            int(facts["at_once"]),
            Skew(**facts.get("skew", {})),
        )
