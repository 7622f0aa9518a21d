"""Joins over sites on a virtual network, as in the experiments of the semijoin paper.

The execution time is the paper's: over all messages, the latency of the link and the bytes by its
bandwidth, in a second of arrivals (Sect. 5.1). It is added up, not waited for: at the paper's own
defaults 375 KB/s are to go over a link of 128 KB/s. Messages arrive after the latency alone, so
that results are complete. What one site sends another when an interval ends travels together and
counts as one message. What the paper adds for processing at the sites is left out; the seconds
that it takes here are a fact beside the result.

Rows have a time and a key. The bytes that they have besides are counted where rows are sent, but
not carried. Where only what is sent matters, the last join of a sequence, which sends nothing, is
left out: at the paper's parameters it can make fifty million results a second.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from dovetail.multisite.messages import HEADER_BYTES
from dovetail.multisite.plan import PlacedStep
from dovetail.multisite.waiting import Task
from dovetail.sites import (
    Algorithm,
    CostModel,
    Kind,
    LinkPrice,
    Message,
    Plan,
    Prices,
    Query,
    Simulation,
    Site,
    Statistics,
    Stream,
    StreamStatistics,
    TimeWindow,
    algorithm_10,
    exhaustive,
    greedy,
    implied,
    joint,
    topology,
)

Rng = np.random.Generator
Streams = dict[str, pa.RecordBatch]
Found = TypeVar("Found")
# planners, and all rows to one site
JOINT, GREEDY, EXHAUSTIVE, ALGORITHM_10 = "joint", "greedy", "exhaustive", "algorithm-10"
CENTRAL = "central"
WHY_CENTRAL = (
    "where joint brings all streams to one site it sends what `central` counts, and a little more: "
    "which of the rows begin a sequence, with a header, and in an interval without new rows a "
    "message about those that leave the window. With few rows a second the latter weighs most"
)
TAU = 100  #: milliseconds, the paper's execution interval
_COLUMN = "a"
_MS = 1000.0
_SCHEMA = pa.schema([("ts", pa.int64()), (_COLUMN, pa.int64())])


@dataclass(frozen=True)
class Feed:
    """A stream of the experiments; its keys are drawn evenly."""

    rate: float  #: rows a second
    row_bytes: int
    keys: int  #: distinct ones, `1 / f`
    window: int  #: milliseconds
    first_key: int = 0


@dataclass(frozen=True)
class Net:
    """Links that are all alike."""

    latency: int = 25  #: milliseconds
    kbps: float = 1024

    @property
    def bandwidth(self) -> float:
        """Bytes in a millisecond."""
        return self.kbps * 1024 / 8 / _MS

    @property
    def prices(self) -> Prices:
        return Prices(LinkPrice(self.latency, self.bandwidth))


@dataclass(frozen=True)
class Shipped:
    """What a plan sent in a second of arrivals, and what that takes."""

    messages: float
    nbytes: float
    seconds: float  #: the execution time
    results: int  #: in all; 0 if the last joins were left out
    cpu_seconds: float  #: of this machine, for a second of arrivals


def make_query(
    feeds: Mapping[str, Feed], graph: str, net: Net, tau: int = TAU, *, compact: bool = True
) -> Query:
    streams = tuple(Stream(n, _SCHEMA, TimeWindow(feed.window)) for n, feed in feeds.items())
    on = tuple(topology(graph, list(feeds), [_COLUMN]))
    return Query(streams, on, tau, net.latency, compact=compact)


def statistics_of(query: Query, feeds: Mapping[str, Feed]) -> Statistics:
    """What the feeds were drawn from."""
    keys = {n: set(range(f.first_key, f.first_key + f.keys)) for n, f in feeds.items()}
    shared = {
        (a, b): float(len(keys[a.split(".")[0]] & keys[b.split(".")[0]])) for a, b in query.on
    }
    return Statistics(
        {
            name: StreamStatistics(
                feed.rate / _MS, feed.row_bytes, {f"{name}.{_COLUMN}": float(feed.keys)}
            )
            for name, feed in feeds.items()
        },
        shared,
    )


def rows_of(times: ArrayLike, keys: ArrayLike) -> pa.RecordBatch:
    columns = [pa.array(np.asarray(values, dtype=np.int64)) for values in (times, keys)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def draw(feeds: Mapping[str, Feed], rng: Rng, end: int, *, evenly: bool = False) -> Streams:
    """Rows of every stream until a time, at random moments or as far apart as the rate says."""
    streams = {}
    for name, feed in feeds.items():
        count = round(feed.rate * end / _MS) if evenly else rng.poisson(feed.rate * end / _MS)
        times = np.arange(count) * _MS / feed.rate if evenly else rng.integers(0, end, count)
        keys = feed.first_key + rng.integers(0, feed.keys, count)
        streams[name] = rows_of(np.sort(times), keys)
    return streams


def times_and_keys(rows: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.asarray(rows.column(0)), np.asarray(rows.column(1))


@dataclass(frozen=True)
class Span:
    """Intervals in which windows fill, and those after them that count."""

    warm: int
    counted: int
    tau: int = TAU

    @classmethod
    def of(cls, query: Query, counted: int) -> "Span":
        """Long enough before for the windows and their delayed removal."""
        longest = max(s.window.size for s in query.streams if isinstance(s.window, TimeWindow))
        delays = 3 * (len(query.names) - 1) * query.delta
        return cls(-(-(longest + delays) // query.tau) + 2, counted, query.tau)

    @property
    def intervals(self) -> int:
        return self.warm + self.counted

    @property
    def begin(self) -> int:
        """When those that count begin, and until when there are rows."""
        return self.warm * self.tau

    @property
    def end(self) -> int:
        return self.intervals * self.tau

    @property
    def seconds(self) -> float:
        return self.counted * self.tau / _MS


class _WithoutLastJoin(Site):
    """A site that leaves out the joins after which nothing is sent."""

    def join_copy(self, step: PlacedStep, task: Task) -> None:
        if step.index < len(self.query.names) - 2:
            super().join_copy(step, task)

    def receive(self, message: Message, now: int) -> None:
        header = message.header
        if header.kind != Kind.PROBE or header.step < len(self.query.names) - 2:
            super().receive(message, now)
        elif "probe" not in message.parts:  # rows that the copy is to keep
            self.copy(self.query.names[header.sender]).probe_rows(message)


class _Counting(Simulation):
    """Counts what belongs to the intervals that count."""

    def __init__(self, plan: Plan, net: Net, sizes: Mapping[str, int], warm: int) -> None:
        super().__init__(plan, lambda _: net.latency)
        self.nbytes = self.found = 0
        self._alone = 0
        self._together: set[tuple[int, int, int]] = set()
        self.network.log = self._count
        self._sizes = sizes
        self._warm = warm

    def leave_out_last_joins(self, plan: Plan) -> None:
        self.sites = {
            name: _WithoutLastJoin(name, plan, self.network, self._emit) for name in self.sites
        }

    def _emit(self, interval: int, rows: pa.RecordBatch) -> None:
        if interval > self._warm:
            self.found += rows.num_rows

    def _count(self, message: Message) -> None:
        header = message.header
        if header.interval <= self._warm:
            return
        self.nbytes += carried(message, self._sizes)
        if self.network.now == self.query.tick_time(header.interval):
            self._together.add((header.interval, header.sender, header.receiver))
        else:
            self._alone += 1

    @property
    def messages(self) -> int:
        return self._alone + len(self._together)


def carried(message: Message, sizes: Mapping[str, int]) -> int:
    """The bytes of a message if rows had all that they have."""
    total = HEADER_BYTES
    for label, part in message.parts.items():
        if label in ("rows", "probe"):
            streams = {name.partition(".")[0] for name in part.schema.names}
            total += part.num_rows * sum(sizes[name] for name in streams)
        else:
            total += part.nbytes
    return total


def ship(
    plan: Plan, streams: Streams, sizes: Mapping[str, int], net: Net, span: Span,
    *, results: bool = False,
) -> Shipped:  # fmt: skip
    """Run a plan. With `results`, all of it, otherwise without the last joins."""
    simulation = _Counting(plan, net, sizes, span.warm)
    if not results:
        simulation.leave_out_last_joins(plan)
    begin = time.process_time()
    simulation.run(streams, span.intervals)
    cpu = time.process_time() - begin
    sent = simulation.messages * net.latency + simulation.nbytes / net.bandwidth
    return Shipped(
        simulation.messages / span.seconds,
        simulation.nbytes / span.seconds,
        sent / _MS / span.seconds,
        simulation.found,
        cpu / (span.end / _MS),
    )


def central(streams: Streams, sizes: Mapping[str, int], net: Net, span: Span) -> float:
    """The execution time if all rows go to one site, the one where that costs least.

    Counted, not run: a message for every interval of a stream that has rows.
    """
    times = {}
    for name, rows in streams.items():
        arrivals, _ = times_and_keys(rows)
        arrivals = arrivals[(arrivals >= span.begin) & (arrivals < span.end)]
        messages = len(np.unique(arrivals // span.tau))
        nbytes = messages * HEADER_BYTES + len(arrivals) * sizes[name]
        times[name] = messages * net.latency + nbytes / net.bandwidth
    return (sum(times.values()) - max(times.values())) / _MS / span.seconds


@dataclass(frozen=True)
class Choice:
    """A plan, and the costs by which it was chosen."""

    plan: Plan
    model: CostModel

    @property
    def predicted(self) -> float:
        return self.model.plan(self.plan).time

    @property
    def added(self) -> float:
        """By equation 1."""
        return self.model.added(self.plan).time


def meets_at_one_site(plan: Plan) -> bool:
    """Whether the rows of all sequences end up at the same site."""
    ends = set()
    for placed in plan.placed.values():
        last = placed[-1]
        name = last.source if last.algorithm.at_source else last.stream
        ends.add(plan.query.stream(name).site)
    return len(ends) == 1


def simple_share(plan: Plan) -> float:
    """The share of the steps that send full rows without asking for keys first."""
    steps = list(plan.steps())
    return sum(step.algorithm in (Algorithm.SP_S, Algorithm.SP_D) for step in steps) / len(steps)


def planned(model: CostModel) -> dict[str, Choice]:
    """The plan of every planner, ours first, which also joins by equalities that follow."""
    wider = CostModel(implied(model.query), model.statistics, model.prices)
    return {
        JOINT: Choice(joint(wider), wider),
        GREEDY: Choice(greedy(model), model),
        EXHAUSTIVE: Choice(exhaustive(model), model),
        ALGORITHM_10: Choice(algorithm_10(model), model),
    }


def ship_all(
    choices: Mapping[str, Choice], streams: Streams, sizes: Mapping[str, int], net: Net, span: Span
) -> dict[str, float]:
    """The execution time of every plan on the same streams; one that two chose runs once."""
    unique = dict.fromkeys(choice.plan for choice in choices.values())
    times = {plan: ship(plan, streams, sizes, net, span).seconds for plan in unique}
    found = {name: times[choice.plan] for name, choice in choices.items()}
    return {**found, CENTRAL: central(streams, sizes, net, span)}


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """The place of each value in their order; equal values share the middle of theirs."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[place]


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's; None where one side is all the same."""
    a, b = ranks(left), ranks(right)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
