"""Tree ordering: one order of joins for all streams, with intermediate results kept (Sect. 4.2).

`((S1 join S2) join S3) join ...`: each join is one of two streams, the next one and the *prefix*,
what the joins before it have produced. So a tree plan is a row of two-way joins, each an ordinary
query of two streams; the results of one, with the time of their latest row, are a stream of the
next. A prefix lives at one site, so of the two one-way joins of a level one joins at its source and
the other at its destination.

A prefix is kept as long as the longest of its windows; a result then has to have every row within
its own window, which is checked as it is made. Rows of the prefix are complete when the level
before has had its time, so every level's intervals close that much later. Windows by count would
need the ranks of the rows in each stream at every level, and heartbeats the end of an interval's
results: trees take neither.

Against linear ordering: nothing is joined twice for different heads, at the price of sending and
keeping intermediate results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.sites.costs import Cost, CostModel, Prices
from dovetail.sites.estimates import Statistics, StreamStatistics
from dovetail.sites.plan import PAPER, Algorithm, Plan, Step
from dovetail.sites.query import Query, Stream, times_of
from dovetail.sites.virtual import Latency, Link, Simulation, Usage
from dovetail.sites.windows import TimeWindow

_TIME = "time"  # the time of a row of a prefix; its other columns have a dot in their names


@dataclass(frozen=True)
class TreeJoin:
    """One level: the stream it adds, how its rows meet the prefix, and how the prefix meets it."""

    stream: str
    to_prefix: Algorithm
    from_prefix: Algorithm


@dataclass(frozen=True)
class Level:
    """The query of two streams that one level of a tree is."""

    query: Query
    plan: Plan
    streams: tuple[str, ...]  #: of the whole query, that it has joined


class TreePlan:
    """An order of streams, and the two algorithms of each join."""

    def __init__(self, query: Query, first: str, joins: Sequence[TreeJoin]) -> None:
        self.query = query
        self.first = first
        self.joins = tuple(joins)
        self.levels: list[Level] = []
        names = [first, *(join.stream for join in joins)]
        if sorted(names) != sorted(query.names):
            raise ArgumentError(f"a tree joins every stream once; this one joins {names}")
        for stream in query.streams:
            if not isinstance(stream.window, TimeWindow):
                raise ArgumentError(
                    f"stream {stream.name!r} has a window by count: tree ordering needs windows "
                    "by time, use a linear plan"
                )
        prefix, lateness = query.stream(first), query.lateness
        for index, join in enumerate(joins):
            level = self._level(prefix, tuple(names[: index + 1]), join, lateness)
            self.levels.append(level)
            prefix = self._result(level, join, prefix)
            lateness += level.plan.horizon() + 1

    def _level(self, prefix: Stream, done: tuple[str, ...], join: TreeJoin, lateness: int) -> Level:
        if join.to_prefix.at_source == join.from_prefix.at_source:
            raise ArgumentError(
                f"the joins of {join.stream!r} with the prefix leave results at two sites: "
                f"{join.to_prefix} from it and {join.from_prefix} to it; one of them must join at "
                "its source and the other at its destination"
            )
        added = self.query.stream(join.stream)
        on = tuple(
            (mine if len(done) == 1 else f"{prefix.name}.{mine}", new)
            for pair in self.query.on
            for mine, new in (pair, pair[::-1])
            if mine.partition(".")[0] in done and new.partition(".")[0] == join.stream
        )
        if not on:
            raise ArgumentError(f"no equality joins {join.stream!r} with {', '.join(done)}")
        whole = self.query
        query = Query((prefix, added), on, whole.tau, whole.delta, lateness, whole.compact)
        plan = Plan(
            query,
            {
                prefix.name: [Step(added.name, join.from_prefix)],
                added.name: [Step(prefix.name, join.to_prefix)],
            },
        )
        return Level(query, plan, (*done, join.stream))

    def _result(self, level: Level, join: TreeJoin, prefix: Stream) -> Stream:
        """The results of a level as a stream, where they are."""
        streams = [self.query.stream(name) for name in level.streams]
        fields = [f for stream in streams for f in stream.qualified]
        window = TimeWindow(max(s.window.size for s in streams if isinstance(s.window, TimeWindow)))
        home = self.query.stream(join.stream).site if join.to_prefix.at_source else prefix.site
        schema = pa.schema([(_TIME, pa.int64()), *fields])
        return Stream("+".join(level.streams), schema, window, time=_TIME, site=home)

    def rows_of(self, level: Level, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results of a level that are within every window, as rows of the next one's prefix."""
        prefix = level.query.streams[0].name
        names = [n.removeprefix(f"{prefix}.") if "+" in prefix else n for n in results.schema.names]
        columns: dict[str, Any] = dict(zip(names, results.columns, strict=True))
        streams = [self.query.stream(name) for name in level.streams]
        times = np.stack([times_of(columns[stream.time_column]) for stream in streams])
        latest = times.max(axis=0)
        keep = np.ones(len(latest), dtype=np.bool_)
        for stream, own in zip(streams, times, strict=True):
            if isinstance(stream.window, TimeWindow):
                keep &= own >= latest - stream.window.size
        order = [_TIME, *(name for stream in streams for name in stream.qualified.names)]
        columns[_TIME] = pa.array(latest)
        rows = pa.RecordBatch.from_arrays([columns[name] for name in order], names=order)
        return rows if keep.all() else rows.take(pa.array(np.flatnonzero(keep)))


class TreeSimulation:
    """A tree plan on virtual networks, level by level: each only feeds the next."""

    def __init__(self, plan: TreePlan, latency: Latency | None = None) -> None:
        self.plan = plan
        self.results: dict[int, list[pa.RecordBatch]] = {}
        self.usage: dict[Link, Usage] = {}
        self._simulations = [Simulation(level.plan, latency) for level in plan.levels]

    def run(self, streams: Mapping[str, pa.RecordBatch], intervals: int) -> None:
        """Take whole streams through so many intervals."""
        prefix = streams[self.plan.first]
        for level, simulation in zip(self.plan.levels, self._simulations, strict=True):
            first, added = level.query.names
            simulation.run({first: prefix, added: streams[added]}, intervals)
            self.results = {
                interval: [self.plan.rows_of(level, rows) for rows in found]
                for interval, found in simulation.results.items()
            }
            schema = self.plan.rows_of(level, _no_rows(level.query)).schema
            found = [rows for batches in self.results.values() for rows in batches]
            prefix = pa.Table.from_batches(found, schema).combine_chunks()
            prefix = (prefix.to_batches() or [_empty_like(schema)])[0]
            for link, used in simulation.network.usage.items():
                total = self.usage.setdefault(link, Usage())
                total.messages += used.messages
                total.nbytes += used.nbytes
                total.rows += used.rows

    def table(self, interval: int) -> pa.Table:
        """The results of an interval."""
        query = self.plan.query
        schema = pa.schema([f for stream in query.streams for f in stream.qualified])
        batches = [rows.select(query.result_columns) for rows in self.results.get(interval, [])]
        return pa.Table.from_batches(batches, schema=schema)


def _empty_like(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _no_rows(query: Query) -> pa.RecordBatch:
    return _empty_like(pa.schema([f for stream in query.streams for f in stream.qualified]))


def tree_cost(plan: TreePlan, statistics: Statistics, prices: Prices) -> Cost:
    """What a tree costs: its levels, each with the rate of the prefix that the others give it."""
    total = Cost()
    known = statistics.streams[plan.first]
    for level in plan.levels:
        prefix, added = level.query.names
        pairs = list(level.query.on)
        base = [(_base(a, prefix), _base(b, added)) for a, b in pairs]
        at_level = Statistics(
            {prefix: known, added: statistics.streams[added]},
            {pair: statistics.shared_keys(*of) for pair, of in zip(pairs, base, strict=True)},
            {pair: statistics.share_of_pairs(*of) for pair, of in zip(pairs, base, strict=True)},
        )
        model = CostModel(level.query, at_level, prices)
        total += model.plan(level.plan)
        flows = [model.flow((name, other)) for name, other in ((prefix, added), (added, prefix))]
        distinct = {
            f"{'+'.join(level.streams)}.{column}": keys
            for name in level.streams
            for column, keys in statistics.streams[name].distinct.items()
        }
        size = flows[0].row_bytes + (0 if "+" in prefix else 8)  # the time, once
        known = StreamStatistics(sum(flow.rate for flow in flows), size, distinct)
    return total


def _base(column: str, stream: str) -> str:
    return column.removeprefix(f"{stream}.") if "+" in stream else column


def cheapest_tree(
    query: Query, statistics: Statistics, prices: Prices, algorithms: Sequence[Algorithm] = PAPER
) -> TreePlan:
    """From each first stream, the cheapest level again and again; the cheapest of these trees."""
    pairs = [(a, b) for a in algorithms for b in algorithms if a.at_source != b.at_source]
    best: tuple[float, TreePlan] | None = None
    for first in query.names:
        joins: list[TreeJoin] = []
        while len(joins) + 1 < len(query.names):
            done = {first, *(join.stream for join in joins)}
            options = [
                [*joins, TreeJoin(name, *pair)]
                for name in query.names
                if name not in done and query.key(done, name) is not None
                for pair in pairs
            ]
            joins = min(options, key=lambda o: _part_cost(query, first, o, statistics, prices))
        plan = TreePlan(query, first, joins)
        cost = tree_cost(plan, statistics, prices).time
        if best is None or cost < best[0]:
            best = (cost, plan)
    assert best is not None
    return best[1]


def _part_cost(
    query: Query, first: str, joins: list[TreeJoin], statistics: Statistics, prices: Prices
) -> float:
    """What the lower levels of a tree cost."""
    names = {first, *(join.stream for join in joins)}
    part = Query(
        tuple(stream for stream in query.streams if stream.name in names),
        tuple(pair for pair in query.on if {c.partition(".")[0] for c in pair} <= names),
        query.tau,
        query.delta,
        query.lateness,
        query.compact,
    )
    return tree_cost(TreePlan(part, first, joins), statistics, prices).time
