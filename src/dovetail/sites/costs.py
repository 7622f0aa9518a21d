"""What a one-way join and a plan cost, before they run (Appendix B).

The cost is the execution time in a unit of time: what is sent, each message at its latency plus its
bytes by the bandwidth (`S(x)`), and what is computed. The terms are the paper's, one function for
each algorithm, with these differences:

- Sizes whose formulas are garbled in the text, or hold for full windows only, are derived again
  (`Meeting`).
- A message is counted if there is something to send. Header, row numbers and counts (`v_C`) are
  part of its size, so that predicted bytes can be held against counted ones.
- A probe costs `probe` for each probing row, since windows are indexed; with `scanned` it costs
  that for each row of the window, as in the paper, whose joins are nested loops.

The paper adds up the steps of a plan; here a copy that several of them use is kept up to date once,
and so it is counted (`CostModel.plan`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dovetail.sites.bloom import ASKING_ERROR, ERROR, bits_for
from dovetail.sites.estimates import (
    Flow,
    Meeting,
    Statistics,
    head_flow,
    joined_flow,
    meeting,
)
from dovetail.sites.messages import HEADER_BYTES
from dovetail.sites.plan import Algorithm, PlacedStep, Plan
from dovetail.sites.query import Query

KEY_BYTES = 8.0  #: `P_S`: a key travels as its code
_COUNT_BYTES = 1.0  # of an entry of v_C, unless a key has more than 255 rows
_NUMBER_BYTES = 2.0  # of a row that is not sent with its neighbours
_TIME_BYTES = 8.0  # of a row's time, for windows by count


@dataclass(frozen=True)
class LinkPrice:
    """`S(x) = latency + x / bandwidth`, in units of time and bytes for each."""

    latency: float = 0.0
    bandwidth: float = math.inf
    free: bool = False  #: within one host: nothing is counted


@dataclass(frozen=True)
class Prices:
    """What sending and computing cost, in units of time."""

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

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.messages + other.messages, self.nbytes + other.nbytes, self.time + other.time
        )


@dataclass(frozen=True)
class _Sent:
    """A kind of message: how many in an interval, and the bytes in all of them.

    What concerns the copy of a window is sent once for all steps that use it. `shared` says what it
    is; of the rows of the sender's own stream, `share` is the part that is sent, and `within` the
    part that can be: rows whose key the other stream has at all.
    """

    messages: float
    nbytes: float
    from_source: bool
    shared: str = ""
    share: float = 0.0
    within: float = 1.0


@dataclass(frozen=True)
class _Work:
    """Rows in an interval: that probe a window, and that enter or leave one besides the flow."""

    probes: float
    inserts: float


_Terms = tuple[list[_Sent], _Work]
_ROWS = "rows"


def _some(expected: float) -> float:
    """The chance that there is something to send, if so much is expected."""
    return -math.expm1(-expected)


def _copied(m: Meeting, share: float, within: float) -> list[_Sent]:
    """What the owner sends so that its copy has a share of the rows, and knows the ranks."""
    rows = share * m.stored.rate * m.tau
    row_bytes = m.stored.row_bytes + (_NUMBER_BYTES if share < 1 else 0.0)
    sent = [
        _Sent(0.0, rows * row_bytes, False, _ROWS, share, within),
        _Sent(_some(m.stored.rate * m.tau), 0.0, False, "updates"),
    ]
    if m.by_count:
        sent.append(_Sent(0.0, m.stored.rate * m.tau * _TIME_BYTES, False, "clock"))
    return sent


def _entries(m: Meeting) -> list[_Sent]:
    """What the owner sends so that its copy knows the keys: `v_J` and `v_C`."""
    counts = m.window_keys * _COUNT_BYTES
    if m.compact:
        counts = min(counts, m.changing_keys * (_COUNT_BYTES + _place_bytes(m.window_keys)))
    nbytes = m.births * m.tau * KEY_BYTES + counts
    return [
        _Sent(0.0, nbytes, False, f"entries of {m.label}"),
        _Sent(_some(m.stored.rate * m.tau), 0.0, False, "updates"),
    ]


def _place_bytes(places: float) -> float:
    return 1.0 if places <= 1 << 8 else 2.0 if places <= 1 << 16 else 4.0


def _probing(m: Meeting, share: float, within: float = 1.0) -> _Sent:
    """A share of the flow, sent to the window."""
    rows = share * m.flow.rate * m.tau
    return _Sent(_some(rows), rows * m.flow.row_bytes, True, share=share, within=within)


def _sp_s(m: Meeting) -> _Terms:
    return _copied(m, 1.0, 1.0), _Work(m.flow.rate * m.tau, m.stored.rate * m.tau)


def _sp_d(m: Meeting) -> _Terms:
    return [_probing(m, 1.0)], _Work(m.flow.rate * m.tau, 0.0)


def _sm_s1(m: Meeting) -> _Terms:
    asks = _some(m.flow.rate * m.tau)
    sent = [
        _Sent(asks, m.batch_keys * KEY_BYTES, True),
        _Sent(asks, 0.0, False),
        *_copied(m, m.f_21, m.share_2),
    ]
    return sent, _Work(m.batch_keys + m.flow.rate * m.tau, m.stored.rate * m.tau * m.f_21)


def _sm_s1_bloom(m: Meeting) -> _Terms:
    asks = _some(m.flow.rate * m.tau)
    by_error = (1 - m.f_21) * (1 - (1 - ASKING_ERROR) ** (asks * m.retained / m.tau))
    share = m.f_21 + by_error
    sent = [
        _Sent(asks, bits_for(math.ceil(m.batch_keys), ASKING_ERROR) / 8 + asks * 8, True),
        _Sent(asks, 0.0, False),
        *_copied(m, share, 1.0),
    ]
    probes = m.stored.rate * m.retained + m.flow.rate * m.tau
    return sent, _Work(probes, m.stored.rate * m.tau * share)


def _sm_s2(m: Meeting) -> _Terms:
    asked = m.fills * m.tau
    asks = _some(asked)
    sent = [
        *_copied(m, m.f_21_filled, m.share_2),
        *_entries(m)[:1],
        _Sent(asks, asked * KEY_BYTES, True),
        _Sent(asks, 0.0, False),
    ]
    rows = m.stored.rate * m.tau * (2 + m.f_21_filled)
    return sent, _Work(m.flow.rate * m.tau * 2 + asked, rows + m.births * m.tau * 2)


def _sm_d1(m: Meeting) -> _Terms:
    rows = m.flow.rate * m.tau * m.f_12
    changes = m.stored.rate * m.tau * 2 + m.births * m.tau * 2
    return [*_entries(m), _probing(m, m.f_12, m.share_1)], _Work(
        m.flow.rate * m.tau + rows, changes
    )


def _sm_d1_bloom(m: Meeting) -> _Terms:
    share = m.f_12 + (1 - m.f_12) * ERROR
    updates = _some(m.stored.rate * m.tau)
    nbytes = updates * (bits_for(math.ceil(m.window_keys)) / 8 + 8)
    sent = [
        _Sent(0.0, nbytes, False, f"filter of {m.label}"),
        _Sent(updates, 0.0, False, "updates"),
        _probing(m, share),
    ]
    return sent, _Work(m.flow.rate * m.tau * (1 + share), m.stored.rate * m.retained)


def _sm_d2(m: Meeting) -> _Terms:
    asks = _some(m.flow.rate * m.tau)
    found = m.batch_keys * m.f_12 * KEY_BYTES
    if m.compact:
        found = min(found, m.batch_keys / 8 + asks / 2)
    sent = [
        _Sent(asks, m.batch_keys * KEY_BYTES, True),
        _Sent(asks, found, False),
        _probing(m, m.f_12, m.share_1),
    ]
    return sent, _Work(m.batch_keys + m.flow.rate * m.tau * (1 + m.f_12), 0.0)


_FORMULAS: dict[Algorithm, Callable[[Meeting], _Terms]] = {
    Algorithm.SP_S: _sp_s,
    Algorithm.SP_D: _sp_d,
    Algorithm.SM_S1: _sm_s1,
    Algorithm.SM_S2: _sm_s2,
    Algorithm.SM_D1: _sm_d1,
    Algorithm.SM_D2: _sm_d2,
    Algorithm.SM_S1B: _sm_s1_bloom,
    Algorithm.SM_D1B: _sm_d1_bloom,
}


class CostModel:
    """Costs of steps and plans of a query, with these statistics and prices."""

    def __init__(self, query: Query, statistics: Statistics, prices: Prices) -> None:
        self.query = query
        self.statistics = statistics
        self.prices = prices

    def head(self, name: str) -> Flow:
        return head_flow(self.statistics, name)

    def joined(self, flow: Flow, done: tuple[str, ...], name: str) -> Flow:
        key = self.query.key(done, name)
        assert key is not None, (done, name)
        return joined_flow(self.query, self.statistics, flow, key, name)

    def step(
        self, flow: Flow, done: tuple[str, ...], source: str, name: str, algorithm: Algorithm
    ) -> Cost:
        """One one-way join of a flow at a source with the window of a stream, by itself."""
        sent, time = self._terms(flow, done, name, algorithm)
        total = Cost(time=time)
        for kind in sent:
            total += self._sent(kind, *((source, name) if kind.from_source else (name, source)))
        return total

    def _terms(
        self, flow: Flow, done: tuple[str, ...], name: str, algorithm: Algorithm
    ) -> tuple[list[_Sent], float]:
        """What is sent in an interval, and the time that is computed in a unit of time."""
        key = self.query.key(done, name)
        assert key is not None, (done, name)
        delay = algorithm.delay(0, self.query.delta)
        m = meeting(self.query, self.statistics, flow, key, name, delay)
        sent, work = _FORMULAS[algorithm](m)
        probe = self.prices.probe
        if self.prices.scanned:
            probe *= m.stored.rate * m.retained
        both = (m.flow.rate + m.stored.rate) * m.tau  # each enters its own window in any case
        time = work.probes * probe + (work.inserts + both) * self.prices.insert
        return sent, time / m.tau

    def _sent(self, kind: _Sent, sender: str, receiver: str) -> Cost:
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
        total = Cost()
        shared: dict[tuple[str, str, str], list[_Sent]] = {}
        for placed, flow, done in self._walk(plan):
            sent, time = self._terms(flow, done, placed.stream, placed.algorithm)
            total += Cost(time=time)
            for kind in sent:
                ends = (placed.source, placed.stream)
                ends = ends if kind.from_source else ends[::-1]
                needs = plan.needs.get(ends)
                own = kind.share and placed.index == 0 and kind.from_source
                label = _ROWS if own and needs is not None and needs.rows else kind.shared
                if label:
                    shared.setdefault((*ends, label), []).append(kind)
                    kind = replace(kind, nbytes=0.0, messages=kind.messages * (not kind.shared))
                total += self._sent(kind, *ends)
        for (sender, receiver, label), kinds in shared.items():
            total += self._sent(_once(label, kinds), sender, receiver)
        return total

    def added(self, plan: Plan) -> Cost:
        """The sum over all steps, each by itself (equation 1): what the planners minimise."""
        total = Cost()
        for placed, flow, done in self._walk(plan):
            total += self.step(flow, done, placed.source, placed.stream, placed.algorithm)
        return total

    def _walk(self, plan: Plan) -> Iterator[tuple[PlacedStep, Flow, tuple[str, ...]]]:
        """Every step of a plan with the rows that reach it."""
        for head, placed in plan.placed.items():
            flow = self.head(head)
            done: tuple[str, ...] = (head,)
            for step in placed:
                yield step, flow, done
                flow = self.joined(flow, done, step.stream)
                done = (*done, step.stream)


def _once(label: str, kinds: list[_Sent]) -> _Sent:
    """What several steps need sent, sent once for all of them."""
    if label != _ROWS:
        messages = max(kind.messages for kind in kinds)
        return _Sent(messages, max(kind.nbytes for kind in kinds), True)
    rows = max(kind.nbytes / kind.share if kind.share else 0.0 for kind in kinds)
    within = max((kind.within for kind in kinds), default=1.0)
    missed = math.prod(1 - min(1.0, kind.share / within) for kind in kinds) if within else 1.0
    return _Sent(0.0, rows * within * (1 - missed), True)
