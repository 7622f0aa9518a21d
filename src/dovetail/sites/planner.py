"""Plans from costs: greedy (Algorithm 10) and exhaustive.

Both find a sequence for each stream by itself. `greedy` adds the stream and algorithm that are
cheapest next. `exhaustive` tries every order and every algorithm, and leaves out a beginning as
soon as it costs as much as the best whole sequence so far, which is greedy's at first; so its plan
is the cheapest of all, as far as the costs of steps add up.

They do not quite: steps of different sequences share copies of windows. `refine` starts from a plan
and changes one step's algorithm at a time, whichever saves most by the cost of the whole plan,
until nothing does.
"""

from collections.abc import Iterator, Sequence

from dovetail.sites.costs import CostModel
from dovetail.sites.estimates import Flow
from dovetail.sites.plan import PAPER, Algorithm, Plan, Step

_Option = tuple[float, str, Algorithm]


def _options(
    model: CostModel, flow: Flow, done: tuple[str, ...], source: str,
    algorithms: Sequence[Algorithm],
) -> Iterator[_Option]:  # fmt: skip
    """Every next step that an equality allows, and its cost."""
    for name in model.query.names:
        if name not in done and model.query.key(done, name) is not None:
            for algorithm in algorithms:
                yield model.step(flow, done, source, name, algorithm).time, name, algorithm


def _greedy_sequence(
    model: CostModel, head: str, algorithms: Sequence[Algorithm]
) -> tuple[float, list[Step]]:
    flow, source = model.head(head), head
    done: tuple[str, ...] = (head,)
    total, steps = 0.0, []
    while len(done) < len(model.query.names):
        cost, name, algorithm = min(
            _options(model, flow, done, source, algorithms), key=lambda option: option[0]
        )
        total += cost
        steps.append(Step(name, algorithm))
        flow = model.joined(flow, done, name)
        done = (*done, name)
        source = source if algorithm.at_source else name
    return total, steps


def greedy(model: CostModel, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The cheapest next step, again and again."""
    return Plan(
        model.query,
        {head: _greedy_sequence(model, head, algorithms)[1] for head in model.query.names},
    )


class _Search:
    """The cheapest sequence of one head, depth first, cheapest options first."""

    def __init__(self, model: CostModel, algorithms: Sequence[Algorithm], head: str) -> None:
        self._model = model
        self._algorithms = algorithms
        self.best, self.steps = _greedy_sequence(model, head, algorithms)
        self._extend(model.head(head), (head,), head, 0.0, [])

    def _extend(
        self, flow: Flow, done: tuple[str, ...], source: str, cost: float, steps: list[Step]
    ) -> None:
        if len(done) == len(self._model.query.names):
            if cost < self.best:
                self.best, self.steps = cost, steps
            return
        for more, name, algorithm in sorted(
            _options(self._model, flow, done, source, self._algorithms), key=lambda o: o[0]
        ):
            if cost + more >= self.best:
                return
            self._extend(
                self._model.joined(flow, done, name),
                (*done, name),
                source if algorithm.at_source else name,
                cost + more,
                [*steps, Step(name, algorithm)],
            )


def exhaustive(model: CostModel, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The cheapest of all plans."""
    return Plan(
        model.query,
        {head: _Search(model, algorithms, head).steps for head in model.query.names},
    )


def refine(model: CostModel, plan: Plan, algorithms: Sequence[Algorithm] = PAPER) -> Plan:
    """The plan with other algorithms where that makes the whole of it cheaper."""
    best = model.plan(plan).time
    while True:
        changed = [(model.plan(other).time, other) for other in _neighbours(plan, algorithms)]
        cost, other = min(changed, key=lambda option: option[0])
        if cost >= best:
            return plan
        best, plan = cost, other


def _neighbours(plan: Plan, algorithms: Sequence[Algorithm]) -> Iterator[Plan]:
    """Every plan that differs in the algorithm of one step."""
    for head, steps in plan.sequences.items():
        for index, step in enumerate(steps):
            for algorithm in algorithms:
                if algorithm != step.algorithm:
                    sequence = [*steps[:index], Step(step.stream, algorithm), *steps[index + 1 :]]
                    yield Plan(plan.query, {**plan.sequences, head: sequence})
