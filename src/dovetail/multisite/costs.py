"""Cost model of one-way joins and plans (Appendix B).

The cost is the execution time in a unit of time: what is sent, each message at its latency plus its
bytes by the bandwidth (`S(x)`), and what is computed. The terms are the paper's (`formulas`), with
these differences:

- Sizes whose formulas are garbled in the text, or hold for full windows only, are derived again
  (`Meeting`).
- A message is counted if there is something to send. Header, row numbers and counts (`v_C`) are
  part of its size, so that predicted bytes can be held against counted ones.
- A probe costs `probe` for each probing row, since windows are indexed; with `scanned` it costs
  that for each row of the window, as in the paper, whose joins are nested loops.

The paper adds up the steps of a plan; here a copy that several of them use is kept up to date once,
and so it is counted (`Ledger`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.multisite.estimates import Flow, Statistics, head_flow, joined_flow, meeting
from dovetail.multisite.formulas import FORMULAS, ROWS, UPDATES, Sent
from dovetail.multisite.messages import HEADER_BYTES
from dovetail.multisite.plan import Algorithm, Plan
from dovetail.multisite.query import Query, StepKey


@dataclass(frozen=True)
class LinkPrice:
    """`S(x) = latency + x / bandwidth`, in units of time and bytes for each."""

    latency: float = 0.0
    bandwidth: float = math.inf
    free: bool = False  #: within one host: nothing is counted


@dataclass(frozen=True)
class Prices:
    """The costs of sending and computing, in units of time."""

    link: LinkPrice = field(default_factory=LinkPrice)
    links: Mapping[tuple[str, str], LinkPrice] = field(default_factory=dict)  #: by sites, from, to
    probe: float = 0.0  #: `c_p`
    insert: float = 0.0  #: `c_i`, `c_u`: to take a row or a key into a window, or out of it
    scanned: bool = False

    def of(self, query: Query, sender: str, receiver: str) -> LinkPrice:
        ends = (query.stream(sender).site, query.stream(receiver).site)
        return LinkPrice(free=True) if ends[0] == ends[1] else self.links.get(ends, self.link)


@dataclass(frozen=True)
class Cost:
    """In a unit of time: messages and bytes, both ways, and the time that all of it takes."""

    messages: float = 0.0
    nbytes: float = 0.0
    time: float = 0.0

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            self.messages - other.messages, self.nbytes - other.nbytes, self.time - other.time
        )

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.messages + other.messages, self.nbytes + other.nbytes, self.time + other.time
        )


_Priced = tuple[list[Sent], float]  # and the time that computing takes


class CostModel:
    """Costs of steps and plans of a query, with these statistics and prices.

    A sequence so far is the tuple of its streams, the head first. Which rows it has made depends on
    which streams these are, and not on their order, so what was computed is kept.
    """

    def __init__(self, query: Query, statistics: Statistics, prices: Prices) -> None:
        self.query = query
        self.statistics = statistics
        self.prices = prices
        self._flows: dict[tuple[str, frozenset[str]], Flow] = {}
        self._known: dict[tuple[str, frozenset[str], str, Algorithm, int], _Priced] = {}

    def flow(self, done: tuple[str, ...]) -> Flow:
        """The rows of a sequence so far."""
        where = (done[0], frozenset(done))
        if where not in self._flows:
            flow, reached = head_flow(self.statistics, done[0]), done[:1]
            while len(reached) < len(done):
                name = self._next(reached, where[1])
                flow = joined_flow(
                    self.query, self.statistics, flow, self._key(reached, name), name
                )
                reached = (*reached, name)
            self._flows[where] = flow
        return self._flows[where]

    def _next(self, reached: tuple[str, ...], among: frozenset[str]) -> str:
        """In one and the same order, so that estimates cannot depend on that of a sequence."""
        return next(
            name
            for name in self.query.names
            if name in among and name not in reached and self.query.key(reached, name) is not None
        )

    def _key(self, done: tuple[str, ...], name: str) -> StepKey:
        key = self.query.key(done, name)
        assert key is not None, (done, name)
        return key

    def step(self, done: tuple[str, ...], source: str, name: str, algorithm: Algorithm) -> Cost:
        """A sequence's rows at a source with the window of a stream, by itself."""
        sent, time = self.priced(done, name, algorithm, algorithm.delay(0, self.query.delta))
        total = Cost(time=time)
        for kind in sent:
            total += self.sent(kind, *((source, name) if kind.from_source else (name, source)))
        return total

    def priced(self, done: tuple[str, ...], name: str, algorithm: Algorithm, delay: int) -> _Priced:
        """The bytes sent in an interval, and the time of computing in a unit of time."""
        where = (done[0], frozenset(done), name, algorithm, delay)
        if where not in self._known:
            flow, key = self.flow(done), self._key(done, name)
            m = meeting(self.query, self.statistics, flow, key, name, delay)
            sent, work = FORMULAS[algorithm](m)
            probe = self.prices.probe
            if self.prices.scanned:
                probe *= m.stored.rate * m.retained
            both = (m.flow.rate + m.stored.rate) * m.tau  # each enters its own window in any case
            time = work.probes * probe + (work.inserts + both) * self.prices.insert
            self._known[where] = (sent, time / m.tau)
        return self._known[where]

    def sent(self, kind: Sent, sender: str, receiver: str) -> Cost:
        price = self.prices.of(self.query, sender, receiver)
        if price.free:
            return Cost()
        nbytes = kind.nbytes + kind.messages * HEADER_BYTES
        time = kind.messages * price.latency + nbytes / price.bandwidth
        tau = self.query.tau
        return Cost(kind.messages / tau, nbytes / tau, time / tau)

    def plan(self, plan: Plan) -> Cost:
        """All sequences of a plan; what steps share over a link is sent, and counted, once.

        Equation 1 of the paper adds up the costs of the steps by themselves (`added`).
        """
        ledger, total = Ledger(self, plan.horizon()), Cost()
        for step in plan.steps():
            total += ledger.enter(step.done, step.source, step.stream, step.algorithm)
        return total

    def added(self, plan: Plan) -> Cost:
        """The sum over all steps, each by itself (equation 1): what the planners minimise."""
        total = Cost()
        for step in plan.steps():
            total += self.step(step.done, step.source, step.stream, step.algorithm)
        return total


class Ledger:
    """What some steps send over the links, with copies of windows that they share sent once.

    Rows of a stream go to another's site for its copy there, whichever steps need that, and as the
    head's own rows in its first step. Where there is a copy, they go once for both. All else that
    concerns a copy goes once, too. What a site sends another when an interval ends, updates of the
    copy and the first step of its own rows, travels together: one latency.
    """

    def __init__(self, model: CostModel, horizon: int) -> None:
        self.query = model.query
        self._model = model
        self._horizon = horizon  #: of the whole plan: how long rows are kept for it
        self._sent: dict[tuple[str, str, str], list[Sent]] = {}
        self._known: dict[tuple[str, frozenset[str], str, str, Algorithm], Cost] = {}

    def step(self, done: tuple[str, ...], source: str, name: str, algorithm: Algorithm) -> Cost:
        """The costs that one more step would add."""
        asked = (done[0], frozenset(done), source, name, algorithm)
        if asked not in self._known:
            sent, time = self._model.priced(done, name, algorithm, self._horizon)
            total = Cost(time=time)
            for where, kind in self._placed(sent, done, source, name):
                before = self._sent.get(where, [])
                total += self._cost(where, [*before, kind]) - self._cost(where, before)
            self._known[asked] = total
        return self._known[asked]

    def enter(self, done: tuple[str, ...], source: str, name: str, algorithm: Algorithm) -> Cost:
        """Take a step in; returns what it added."""
        added = self.step(done, source, name, algorithm)
        sent, _ = self._model.priced(done, name, algorithm, self._horizon)
        for where, kind in self._placed(sent, done, source, name):
            self._sent.setdefault(where, []).append(kind)
        self._known.clear()
        return added

    def _placed(
        self, sent: Iterable[Sent], done: tuple[str, ...], source: str, name: str
    ) -> Iterator[tuple[tuple[str, str, str], Sent]]:
        """What is sent, by sender, receiver and what it may be shared with."""
        for kind in sent:
            sender, receiver = (source, name) if kind.from_source else (name, source)
            first = kind.from_source and len(done) == 1
            if first and kind.at_once:
                yield (sender, receiver, UPDATES), Sent(kind.messages, 0.0, True, UPDATES)
                kind = replace(kind, messages=0.0)
            yield (sender, receiver, ROWS if first and kind.share else kind.shared), kind

    def _cost(self, where: tuple[str, str, str], kinds: Sequence[Sent]) -> Cost:
        sender, receiver, label = where
        total = Cost()
        copied = [kind for kind in kinds if kind.shared]
        for kind in kinds:
            if not kind.shared:  # a message of its own, if with rows that go along with a copy's
                bare = replace(kind, nbytes=0.0) if copied else kind
                total += self._model.sent(bare, sender, receiver)
        if copied:
            total += self._model.sent(_once(label, kinds), sender, receiver)
        return total


def _once(label: str, kinds: Sequence[Sent]) -> Sent:
    """What several steps need sent, sent once for all of them."""
    if label != ROWS:
        messages = max(kind.messages for kind in kinds)
        return Sent(messages, max(kind.nbytes for kind in kinds), True)
    rows = max(kind.nbytes / kind.share if kind.share else 0.0 for kind in kinds)
    within = max((kind.within for kind in kinds), default=1.0)
    missed = math.prod(1 - min(1.0, kind.share / within) for kind in kinds) if within else 1.0
    return Sent(0.0, rows * within * (1 - missed), True)
