"""Plans from costs: greedy (Algorithm 10), greedy with a look ahead, and exhaustive.

All find a sequence for each stream by itself. Where a sequence can go, and at what cost, depends on
which streams it has joined and where its rows are. So of the algorithms for a next stream only two
matter, the cheapest that joins at the source and the cheapest that joins at the destination.

- `algorithm_10` takes the cheapest next step, again and again. It does not see that a cheap step
  may multiply the rows that the next one has to move, nor that rows which are few had better go to
  the stream whose window is dear to copy.
- `greedy` completes the sequence by Algorithm 10 after each of the next steps there are, and takes
  the step with the cheapest whole. Polynomial, and never dearer than Algorithm 10.
- `exhaustive` covers every order and every algorithm. Of two beginnings that have joined the same
  streams and are at the same place only the cheaper goes on, so it is exact at 2^m states.

The costs of steps do not add up, though: steps of different sequences share copies of windows, and
a plan that brings all streams to one site sends each of them once, not once for every head.

- `refine` takes a plan and finds the cheapest sequence of one head after the other, given what the
  others send anyway, until no change makes the whole cheaper.
- `joint` does so from several plans, `greedy`'s and one for each site at which rows may meet.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from dovetail.multisite.costs import Cost, CostModel, Ledger
from dovetail.multisite.plan import PAPER, Algorithm, Plan, Step
from dovetail.multisite.query import Query


class StepCosts(Protocol):
    """What a planner needs to know: the cost of one more step."""

    query: Query

    def step(self, done: tuple[str, ...], source: str, name: str, algorithm: Algorithm) -> Cost:
        """Of joining the rows of a sequence so far, at a source, with one more stream."""


_FEW = 5  # streams: up to here every sequence is looked at, and every start
_SOME = 7  # up to here every next step
_STARTS = 3  # the cheapest, beyond few
_LEAST_GAIN = 1e-9  # of a cost: less is rounding
_Place = tuple[tuple[str, ...], str]  # the streams joined, the head first, and where the rows are
_Way = tuple[float, tuple[Step, ...]]  # steps and what they cost
_Find = Callable[[StepCosts, str, Sequence[Algorithm]], _Way]


def _options(
    costs: StepCosts, place: _Place, algorithms: Sequence[Algorithm]
) -> Iterator[tuple[float, Step]]:
    """The next steps that an equality allows: of those to one place, the cheapest."""
    done, source = place
    for name in costs.query.names:
        if name in done or costs.query.key(done, name) is None:
            continue
        for at_source in (True, False):
            found = [
                (costs.step(done, source, name, algorithm).time, Step(name, algorithm))
                for algorithm in algorithms
                if algorithm.at_source == at_source
            ]
            if found:
                yield min(found, key=lambda option: option[0])


def _after(place: _Place, step: Step) -> _Place:
    done, source = place
    return (*done, step.stream), source if step.algorithm.at_source else step.stream


def _cheapest_next(costs: StepCosts, place: _Place, algorithms: Sequence[Algorithm]) -> _Way:
    """From a place to the end by Algorithm 10."""
    total, steps = 0.0, []
    while len(place[0]) < len(costs.query.names):
        cost, step = min(_options(costs, place, algorithms), key=lambda option: option[0])
        total += cost
        steps.append(step)
        place = _after(place, step)
    return total, tuple(steps)


def _by_algorithm_10(costs: StepCosts, head: str, algorithms: Sequence[Algorithm]) -> _Way:
    return _cheapest_next(costs, ((head,), head), algorithms)


def _looking_ahead(costs: StepCosts, head: str, algorithms: Sequence[Algorithm]) -> _Way:
    """After each step, what every next one leads to if Algorithm 10 goes on from there."""
    place: _Place = ((head,), head)
    best = _cheapest_next(costs, place, algorithms)
    spent = 0.0
    taken: tuple[Step, ...] = ()
    while len(place[0]) < len(costs.query.names):
        options = {step: cost for cost, step in _options(costs, place, algorithms)}
        for step, cost in options.items():
            rest, steps = _cheapest_next(costs, _after(place, step), algorithms)
            if spent + cost + rest < best[0]:
                best = (spent + cost + rest, (*taken, step, *steps))
        step = best[1][len(taken)]
        spent, taken = spent + options[step], (*taken, step)
        place = _after(place, step)
    return best


def _cheapest(costs: StepCosts, head: str, algorithms: Sequence[Algorithm]) -> _Way:
    """The cheapest way from a place to the end, of all places that can be reached."""
    known: dict[tuple[frozenset[str], str], _Way] = {}

    def rest(place: _Place) -> _Way:
        where = (frozenset(place[0]), place[1])
        if where not in known:
            best: _Way | None = None
            for cost, step in _options(costs, place, algorithms):
                further, steps = rest(_after(place, step))
                if best is None or cost + further < best[0]:
                    best = (cost + further, (step, *steps))
            known[where] = best or (0.0, ())
        return known[where]

    return rest(((head,), head))


def _plan(costs: StepCosts, find: _Find, algorithms: Sequence[Algorithm]) -> Plan:
    names = costs.query.names
    return Plan(costs.query, {head: find(costs, head, algorithms)[1] for head in names})


def algorithm_10(costs: StepCosts, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The paper's greedy plan: the cheapest next step, again and again."""
    return _plan(costs, _by_algorithm_10, algorithms)


def greedy(costs: StepCosts, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The next step that leads to the cheapest whole by Algorithm 10, again and again."""
    return _plan(costs, _looking_ahead, algorithms)


def exhaustive(costs: StepCosts, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The cheapest of all plans, by the sum of its steps."""
    return _plan(costs, _cheapest, algorithms)


def refine(model: CostModel, plan: Plan, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The plan with other sequences where that makes the whole of it cheaper."""
    find = _find(model.query)
    best, improved = model.plan(plan).time, True
    while improved:
        improved = False
        for head in model.query.names:
            others = Ledger(model, plan.horizon())
            for step in plan.steps():
                if step.head != head:
                    others.enter(step.done, step.source, step.stream, step.algorithm)
            steps = find(others, head, algorithms)[1]
            changed = Plan(plan.query, {**plan.sequences, head: steps})
            cost = model.plan(changed).time
            if cost < best * (1 - _LEAST_GAIN):
                best, plan, improved = cost, changed, True
    return plan


def joint(model: CostModel, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The cheapest plan that is found if what steps share is counted once."""
    find = _find(model.query)
    starts = [greedy(model, algorithms)]
    starts += [_plan(_MeetingAt(model, site), find, algorithms) for site in model.query.names]
    starts = sorted(dict.fromkeys(starts), key=lambda plan: model.plan(plan).time)
    if len(model.query.names) > _FEW:
        starts = starts[:_STARTS]
    plans = [refine(model, start, algorithms) for start in starts]
    return min(plans, key=lambda plan: model.plan(plan).time)


def _find(query: Query) -> _Find:
    """The best search that does not take long."""
    if len(query.names) <= _FEW:
        return _cheapest
    return _looking_ahead if len(query.names) <= _SOME else _by_algorithm_10


class _MeetingAt:
    """Costs as if all windows were copied to one site, whatever comes there."""

    def __init__(self, model: CostModel, site: str) -> None:
        self.query = model.query
        self._model = model
        self._site = site

    def step(self, done: tuple[str, ...], source: str, name: str, algorithm: Algorithm) -> Cost:
        if source == self._site and algorithm.at_source:
            return Cost()
        return self._model.step(done, source, name, algorithm)
