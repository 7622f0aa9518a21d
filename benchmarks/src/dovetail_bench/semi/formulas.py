"""The cost formulas of the semijoin paper as they are printed (Appendix B), to compare with.

Where the print is damaged it is read so: the numbers of distinct keys, `min(1/f, w/f * 100)` in
Table 4, are the lesser of the keys there are and the rows there are. `f_ij` is the share of S_i
that is left, as it is used, and not of S_j, as its words have it. `s_F` is inside the bracket of
SM-S2's last `S(...)`, and SM-D2's last shipment is `B'_1`. What is printed whole stays, also where
it does not follow from the algorithm (`sites.formulas` says where, and has what does).

A joined stream has the rate of Sect. 4.1, the bytes of all its streams and the fewest of their
keys. All shipments are printed as if they were always made, `S(0)` being the latency; the paper's
text says that an empty one is not. `empty_ships` is that choice.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.sites import Algorithm, Cost, Query
from dovetail_bench.semi.runs import Feed, Net

OPERATION = 1e-4  #: milliseconds to probe, insert, update or hash one tuple: 10 million a second
PARTIAL_BYTES = 5.0  #: `P_S`: one of the attributes, of which 250 are 1,250 bytes
_COUNT = 4.0  # bytes of k, the constant c of SM-S1's last term


@dataclass(frozen=True)
class Side:
    """`r`, `F_S`, `1 / f` and, in tuples, `w` and `wp`."""

    rate: float  #: in a millisecond
    row_bytes: float
    keys: float
    window: float
    tau: float

    @property
    def batch(self) -> float:
        return self.rate * self.tau

    @property
    def batch_keys(self) -> float:
        return min(self.keys, self.batch)

    @property
    def window_keys(self) -> float:
        return min(self.keys, self.window)


@dataclass(frozen=True)
class Pair:
    """A stream and the one that it is joined with; `f_ij` is the share of S_i that is left."""

    a: Side
    b: Side

    @property
    def f12(self) -> float:
        return min(1.0, self.b.keys / self.a.keys)

    @property
    def f21(self) -> float:
        return min(1.0, self.a.keys / self.b.keys)


_Terms = tuple[list[float], float]  # bytes of each shipment, and operations, in an interval


def _sp_s(p: Pair) -> _Terms:
    return [p.b.batch * p.b.row_bytes], p.a.batch * (1 + p.b.window) + p.b.batch


def _sp_d(p: Pair) -> _Terms:
    return [p.a.batch * p.a.row_bytes], p.a.batch * (1 + p.b.window) + p.b.batch


def _sm_s1(p: Pair) -> _Terms:
    a, b, f21 = p.a, p.b, p.f21
    sent = [a.batch_keys * PARTIAL_BYTES, b.batch * f21 * b.row_bytes, _COUNT]
    work = a.batch + a.batch_keys * b.window + b.batch * (f21 + 1) + a.batch * b.window * f21
    return sent, work


def _sm_s2(p: Pair) -> _Terms:
    a, b, f21 = p.a, p.b, p.f21
    missing = b.window_keys * (1 - p.f12)
    new = b.batch_keys * (1 - f21)
    sent = [
        missing * PARTIAL_BYTES,
        missing * b.row_bytes,
        new * PARTIAL_BYTES + b.batch * f21 * b.row_bytes,
    ]
    work = 3 * a.batch + missing * b.window + b.batch * (b.window_keys + 1) + 2 * new
    return sent, work


def _sm_d1(p: Pair) -> _Terms:
    a, b = p.a, p.b
    new = b.batch_keys * (1 - p.f21)
    sent = [a.batch * p.f12 * a.row_bytes, new * PARTIAL_BYTES]
    work = a.batch * (1 + b.window_keys + p.f12 * b.window)
    return sent, work + b.batch * (b.window_keys + 1) + 2 * new


def _sm_d2(p: Pair) -> _Terms:
    a, b, f12, keys = p.a, p.b, p.f12, p.a.batch_keys
    sent = [keys * PARTIAL_BYTES, keys * f12 * PARTIAL_BYTES, a.batch * f12 * a.row_bytes]
    work = a.batch + keys * b.window + keys * f12 * a.batch + a.batch * f12 * b.window + b.batch
    return sent, work


_FORMULAS: dict[Algorithm, Callable[[Pair], _Terms]] = {
    Algorithm.SP_S: _sp_s,
    Algorithm.SP_D: _sp_d,
    Algorithm.SM_S1: _sm_s1,
    Algorithm.SM_S2: _sm_s2,
    Algorithm.SM_D1: _sm_d1,
    Algorithm.SM_D2: _sm_d2,
}


class PaperCosts:
    """Appendix B for the planners."""

    def __init__(
        self, query: Query, feeds: Mapping[str, Feed], net: Net, *, empty_ships: bool = True
    ) -> None:
        self.query = query
        self._feeds = feeds
        self._net = net
        self._empty_ships = empty_ships

    def _side(self, done: tuple[str, ...]) -> Side:
        feeds = [self._feeds[name] for name in done]
        head, *others = feeds
        rate, keys = head.rate / 1000, float(head.keys)
        for feed in others:
            rate *= feed.rate * feed.window / 1000 / max(keys, feed.keys)
            keys = min(keys, feed.keys)
        size = math.fsum(feed.row_bytes for feed in feeds)
        return Side(rate, size, keys, rate * head.window, self.query.tau)

    def step(self, done: tuple[str, ...], source: str, name: str, algorithm: Algorithm) -> Cost:
        sent, work = _FORMULAS[algorithm](Pair(self._side(done), self._side((name,))))
        made = [nbytes for nbytes in sent if nbytes or self._empty_ships]
        total = math.fsum(made)
        ships = len(made) * self._net.latency + total / self._net.bandwidth
        tau = self.query.tau
        return Cost(len(made) / tau, total / tau, (ships + work * OPERATION) / tau)
