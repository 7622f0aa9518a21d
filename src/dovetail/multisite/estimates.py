"""Estimates for streams and for rows made of several, from statistics.

Statistics are given or measured (`statistics`). Between them lies the usual assumption: within a
column, all keys are about equally frequent; between columns, independence. Rows come at random, so
that a key with `x` expected rows has none with probability `exp(-x)`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.errors import ArgumentError
from dovetail.multisite.query import Query, StepKey
from dovetail.multisite.windows import CountWindow

_TINY = 1e-12


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
    `matched`: the share of the rows of a column's window whose key another column's window has. If
    some keys are much more frequent than others, that is more than the share of keys.
    """

    streams: Mapping[str, StreamStatistics]
    shared: Mapping[tuple[str, str], float] = field(default_factory=dict)
    selectivity: Mapping[tuple[str, str], float] = field(default_factory=dict)
    matched: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def distinct(self, column: str) -> float:
        stream = self.streams[column.partition(".")[0]]
        if column not in stream.distinct:
            raise ArgumentError(f"the statistics lack the number of distinct keys of {column}")
        return max(1.0, stream.distinct[column])

    def compares(self, left: str, right: str) -> bool:
        """Whether it is known how many keys two columns share."""
        return (left, right) in self.shared or (right, left) in self.shared

    def shared_keys(self, left: str, right: str) -> float:
        least = min(self.distinct(left), self.distinct(right))
        given = self.shared.get((left, right), self.shared.get((right, left), least))
        return min(given, least)

    def share_of_pairs(self, left: str, right: str) -> float:
        even = self.shared_keys(left, right) / (self.distinct(left) * self.distinct(right))
        return self.selectivity.get((left, right), self.selectivity.get((right, left), even))

    def unevenness(self, left: str, right: str) -> float:
        """The factor by which two rows match likelier than if all keys were equally frequent."""
        even = self.shared_keys(left, right) / (self.distinct(left) * self.distinct(right))
        return self.share_of_pairs(left, right) / even if even else 1.0


@dataclass(frozen=True)
class KeyClass:
    """Columns of a flow that equal each other, because it has been joined by them.

    After a join only the keys of the column with fewer are left. And a row that meets many others
    becomes many rows with one key: keys are drawn as often as `draws` says, not once for each row.
    """

    columns: frozenset[str]
    keys: float  #: distinct ones that are left
    draws: float  #: in a unit of time


@dataclass(frozen=True)
class Flow:
    """Rows on their way through a sequence: those of the head, or joined with some streams."""

    rate: float
    row_bytes: float
    head: str
    events: float  #: rows of the head in a unit of time that have come so far
    classes: tuple[KeyClass, ...] = ()

    def class_of(self, column: str) -> KeyClass | None:
        return next((c for c in self.classes if column in c.columns), None)

    def keys(self, column: str, statistics: Statistics) -> float:
        found = self.class_of(column)
        return statistics.distinct(column) if found is None else found.keys

    def draws(self, column: str) -> float:
        """The rate at which a key of a column is drawn anew."""
        found = self.class_of(column)
        if found is not None:
            return min(self.rate, found.draws)
        return self.events if column.partition(".")[0] == self.head else self.rate

    def fan(self, columns: Sequence[str]) -> float:
        """The keys of these columns that come of one row of the head."""
        return max(1.0, max(map(self.draws, columns)) / max(self.events, _TINY))


def window_time(query: Query, statistics: Statistics, name: str) -> float:
    """The time that a row stays in a stream's window."""
    window = query.stream(name).window
    if isinstance(window, CountWindow):
        return window.rows / max(statistics.streams[name].rate, 1e-9)
    return float(window.size)


def head_flow(statistics: Statistics, name: str) -> Flow:
    stream = statistics.streams[name]
    return Flow(stream.rate, stream.row_bytes, name, stream.rate)


def telling(statistics: Statistics, flow: Flow, probe: str, stored: str) -> str:
    """Of the columns that equal a probing one, that which says most about the keys that are left.

    It is the one with the fewest keys, of those that are compared with the stream's if there are.
    """
    found = flow.class_of(probe)
    columns = sorted(
        found.columns if found else (probe,), key=lambda c: (statistics.distinct(c), c)
    )
    known = [column for column in columns if statistics.compares(column, stored)]
    return (known or columns)[0]


def left_keys(statistics: Statistics, flow: Flow, probe: str, stored: str) -> tuple[float, float]:
    """The keys of a flow that a stream has, too, and how much likelier than evenly rows match."""
    column = telling(statistics, flow, probe, stored)
    least = min(statistics.distinct(column), statistics.distinct(stored))
    contained = statistics.shared_keys(column, stored) / least
    keys = contained * min(flow.keys(probe, statistics), statistics.distinct(stored))
    return keys, statistics.unevenness(column, stored)


def matched_shares(statistics: Statistics, flow: Flow, key: StepKey) -> tuple[float, float]:
    """The measured shares of the rows of a flow, and of a window, whose key the other has; or 0."""
    if len(key.probe) > 1:
        return 0.0, 0.0
    ends = (telling(statistics, flow, key.probe[0], key.stored[0]), key.stored[0])
    return statistics.matched.get(ends, 0.0), statistics.matched.get(ends[::-1], 0.0)


def joined_flow(query: Query, statistics: Statistics, flow: Flow, key: StepKey, name: str) -> Flow:
    """The rows after one more join: `r * w_next * rho` (Sect. 4.1), and which keys they have."""
    stream = statistics.streams[name]
    rows = stream.rate * window_time(query, statistics, name)
    selectivity = found = 1.0
    left: dict[tuple[str, str], float] = {}
    for probe, stored in zip(key.probe, key.stored, strict=True):
        shared, unevenness = left_keys(statistics, flow, probe, stored)
        there = max(flow.keys(probe, statistics), _TINY)
        selectivity *= min(1.0, unevenness * shared / (there * statistics.distinct(stored)))
        found *= shared / there
        left[probe, stored] = shared
    distinct = math.prod(statistics.distinct(stored) for stored in key.stored)
    found = min(1.0, found * -math.expm1(-rows / distinct))  # the share of keys that find a row
    found = max(found, matched_shares(statistics, flow, key)[0])
    survive = 1 - (1 - found) ** flow.fan(key.probe)
    return Flow(
        flow.rate * rows * selectivity,
        flow.row_bytes + stream.row_bytes,
        flow.head,
        flow.events * survive,
        _merged(flow, left, found, survive),
    )


def _merged(
    flow: Flow, left: Mapping[tuple[str, str], float], found: float, survive: float
) -> tuple[KeyClass, ...]:
    """The classes of a flow that has been joined by these pairs of columns."""
    classes = [replace(c, draws=c.draws * survive) for c in flow.classes]
    for (probe, stored), keys in left.items():
        same = [c for c in classes if probe in c.columns]
        columns = frozenset({probe, stored}.union(*(c.columns for c in same)))
        merged = KeyClass(columns, max(keys, _TINY), flow.draws(probe) * found)
        classes = [*(c for c in classes if c not in same), merged]
    return tuple(classes)


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
    draws: float  #: how often the flow has a key, which may be less often than a row: `KeyClass`
    matched_1: float = 0.0  #: the measured share of the flow's rows that find a match, if any is
    matched_2: float = 0.0  #: and of the window's
    by_count: bool = False  #: the window is one by count
    label: str = ""  #: the key of the window
    compact: bool = False

    @property
    def _lambda_1(self) -> float:
        return self.draws / self.keys_1

    @property
    def _lambda_2(self) -> float:
        return max(self.stored.rate / self.keys_2, _TINY)

    @property
    def share_1(self) -> float:
        """The share of the flow's rows whose key the stream has at all."""
        return max(self.matched_1, self.shared / self.keys_1)

    @property
    def share_2(self) -> float:
        return max(self.matched_2, self.shared / self.keys_2)

    def chance(self, share: float = 1.0) -> float:
        """The chance that an interval has rows of the flow, or of a share of its keys."""
        fan = max(1.0, self.draws / max(self.flow.events, _TINY))
        events = self.flow.events * (1 - (1 - min(1.0, share)) ** fan)
        return -math.expm1(-events * self.tau)

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
        return max(self.matched_1, self.shared / self.keys_1 * self._present)

    @property
    def f_21(self) -> float:
        """For SM-S1: a row is asked for if the flow has its key while it is in the window."""
        return self._of_window(-math.expm1(-self._lambda_1 * self.retained))

    def _of_window(self, share: float) -> float:
        """The share of the window's rows, if it is this one of those whose key the flow has."""
        return max(self.matched_2, self.shared / self.keys_2 * share)

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
        rate, own, time = max(self._lambda_1, _TINY), self._lambda_2, self.retained
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
        rate = max(self._lambda_1, _TINY)
        unfilled = math.exp(-self._lambda_2 * self.retained)
        unfilled += self._births_of_key * (1 - self._unasked_life) / rate
        return self._of_window(1 - min(1.0, unfilled) * math.exp(-rate * self.retained))


def meeting(
    query: Query, statistics: Statistics, flow: Flow, key: StepKey, name: str, delay: float
) -> Meeting:
    """A flow and the window of a stream; `delay`: by how much removal is delayed."""
    pairs = zip(key.probe, key.stored, strict=True)
    # a row leaves with the first interval that ends after its removal is due
    retained = window_time(query, statistics, name) + (delay // query.tau + 1) * query.tau
    return Meeting(
        flow,
        head_flow(statistics, name),
        math.prod(max(flow.keys(probe, statistics), _TINY) for probe in key.probe),
        math.prod(statistics.distinct(stored) for stored in key.stored),
        math.prod(left_keys(statistics, flow, *pair)[0] for pair in pairs),
        query.tau,
        retained,
        max(map(flow.draws, key.probe)),
        *matched_shares(statistics, flow, key),
        isinstance(query.stream(name).window, CountWindow),
        str(key.stored),
        query.compact,
    )
