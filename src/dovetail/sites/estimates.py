"""What is known of the streams, and what follows for one of them or for rows made of several.

Statistics are given or measured (`statistics`). Between them lies the usual assumption: within a
column, all keys are about equally frequent; between columns, independence. Rows come at random, so
that a key with `x` expected rows has none with probability `exp(-x)`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.errors import ArgumentError
from dovetail.sites.query import Query, StepKey
from dovetail.sites.windows import CountWindow


@dataclass(frozen=True)
class StreamStatistics:
    """Of one stream: `r_i`, `F_Si`, and for each join column the distinct keys `1 / f_i`."""

    rate: float  #: rows in a unit of time
    row_bytes: float
    distinct: Mapping[str, float]  #: by qualified column


@dataclass(frozen=True)
class Statistics:
    """Of all streams of a query.

    `shared`: how many distinct keys two joined columns have in common, and `selectivity`, the share
    of pairs of rows that match, each by the pair of columns in the query. Where they are not given,
    the keys of the column with fewer are taken to be among the other's (Table 4 of the paper).
    """

    streams: Mapping[str, StreamStatistics]
    shared: Mapping[tuple[str, str], float] = field(default_factory=dict)
    selectivity: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def distinct(self, column: str) -> float:
        stream = self.streams[column.partition(".")[0]]
        if column not in stream.distinct:
            raise ArgumentError(f"the statistics lack the number of distinct keys of {column}")
        return max(1.0, stream.distinct[column])

    def shared_keys(self, left: str, right: str) -> float:
        least = min(self.distinct(left), self.distinct(right))
        given = self.shared.get((left, right), self.shared.get((right, left), least))
        return min(given, least)

    def share_of_pairs(self, left: str, right: str) -> float:
        even = self.shared_keys(left, right) / (self.distinct(left) * self.distinct(right))
        return self.selectivity.get((left, right), self.selectivity.get((right, left), even))


@dataclass(frozen=True)
class Flow:
    """Rows on their way through a sequence: those of the head, or joined with some streams."""

    rate: float
    row_bytes: float


def window_time(query: Query, statistics: Statistics, name: str) -> float:
    """How long a row stays in a stream's window."""
    window = query.stream(name).window
    if isinstance(window, CountWindow):
        return window.rows / max(statistics.streams[name].rate, 1e-9)
    return float(window.size)


def head_flow(statistics: Statistics, name: str) -> Flow:
    return Flow(statistics.streams[name].rate, statistics.streams[name].row_bytes)


def joined_flow(
    query: Query, statistics: Statistics, flow: Flow, key: StepKey, name: str
) -> Flow:  # fmt: skip
    """The rows after one more join: `r * w_next * rho` (Sect. 4.1)."""
    stream = statistics.streams[name]
    rows = stream.rate * window_time(query, statistics, name)
    selectivity = math.prod(
        statistics.share_of_pairs(probe, stored)
        for probe, stored in zip(key.probe, key.stored, strict=True)
    )
    return Flow(flow.rate * rows * selectivity, flow.row_bytes + stream.row_bytes)


@dataclass(frozen=True)
class Meeting:
    """A flow (1) and a window (2) that are about to be joined, in the paper's terms.

    `f_12`, the share of the flow's rows that find a match, and `f_21`, the share of the window's
    rows that are ever asked for, are what the paper writes `min(1, f_i / f_j)`: its text says "of
    the semijoin from S_i to S_j", its use and Fig. 7(c) that it is the share of S_i that is left.
    That is their value when every key is there all the time; for windows in which a key may be
    missing they are derived here from the rates. The numbers of distinct keys `k_i` and `m_i`,
    whose formula in Table 4 is garbled (`min(1/f, w/f * 100)`), are those of a random sample.
    """

    flow: Flow
    stored: Flow
    keys_1: float
    keys_2: float
    shared: float
    tau: float
    retained: float  #: how long a row is in the window, its delayed removal included
    by_count: bool = False  #: the window is one by count
    label: str = ""  #: the key of the window
    compact: bool = False

    @property
    def _lambda_1(self) -> float:
        return self.flow.rate / self.keys_1

    @property
    def _lambda_2(self) -> float:
        return max(self.stored.rate / self.keys_2, 1e-12)

    @property
    def share_1(self) -> float:
        """The share of the flow's rows whose key the stream has at all."""
        return self.shared / self.keys_1

    @property
    def share_2(self) -> float:
        return self.shared / self.keys_2

    @property
    def batch_keys(self) -> float:
        """`m_1`: distinct keys of the flow in one interval."""
        return self.keys_1 * -math.expm1(-self._lambda_1 * self.tau)

    @property
    def window_keys(self) -> float:
        """`k_2`: distinct keys in the window."""
        return self.keys_2 * self._present

    @property
    def _present(self) -> float:
        return -math.expm1(-self._lambda_2 * self.retained)

    @property
    def changing_keys(self) -> float:
        """Keys of the window that rows of an interval enter or leave."""
        return self.keys_2 * -math.expm1(-2 * self._lambda_2 * self.tau)

    @property
    def f_12(self) -> float:
        return self.share_1 * self._present

    @property
    def f_21(self) -> float:
        """For SM-S1: a row is asked for if the flow has its key while it is in the window."""
        return self.share_2 * -math.expm1(-self._lambda_1 * self.retained)

    @property
    def births(self) -> float:
        """New keys of the window in a unit of time: rows that find no other of their key."""
        return self.keys_2 * self._births_of_key

    @property
    def _births_of_key(self) -> float:
        return self._lambda_2 * math.exp(-self._lambda_2 * self.retained)

    @property
    def _unasked_life(self) -> float:
        """The chance that the flow never has a key while that is in the window, from its birth.

        A key lives as long as rows of it follow within `retained` of each other; this is the
        Laplace transform of that time at the flow's rate of the key.
        """
        rate, own, time = max(self._lambda_1, 1e-12), self._lambda_2, self.retained
        both = rate + own
        waiting = -math.expm1(-both * time) / both + math.exp(-both * time) / rate
        return min(1.0, max(0.0, 1 + rate / own - 1 / (own * waiting)))

    @property
    def fills(self) -> float:
        """Keys in a unit of time that SM-S2 asks for: the first time that the flow has them."""
        return self.shared * self._births_of_key * (1 - self._unasked_life)

    @property
    def f_21_filled(self) -> float:
        """For SM-S2: as `f_21`, but a row also goes when its key has been asked for before."""
        rate = max(self._lambda_1, 1e-12)
        unfilled = math.exp(-self._lambda_2 * self.retained)
        unfilled += self._births_of_key * (1 - self._unasked_life) / rate
        return self.share_2 * (1 - min(1.0, unfilled) * math.exp(-rate * self.retained))


def meeting(
    query: Query, statistics: Statistics, flow: Flow, key: StepKey, name: str, delay: float
) -> Meeting:
    """A flow and the window of a stream; `delay`: by how much removal is delayed."""
    distinct = [
        math.prod(statistics.distinct(column) for column in columns)
        for columns in (key.probe, key.stored)
    ]
    shared = math.prod(
        statistics.shared_keys(probe, stored)
        for probe, stored in zip(key.probe, key.stored, strict=True)
    )
    retained = window_time(query, statistics, name) + delay + query.tau
    stored = head_flow(statistics, name)
    by_count = isinstance(query.stream(name).window, CountWindow)
    return Meeting(
        flow,
        stored,
        distinct[0],
        distinct[1],
        shared,
        query.tau,
        retained,
        by_count,
        str(key.stored),
        query.compact,
    )
