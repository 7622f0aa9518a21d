"""Tree ordering: one order of joins for all streams, with intermediate results kept (Sect. 4.2).

`((S1 join S2) join S3) join ...`: each join is one of two streams, the next one and the *prefix*,
what the joins before it have produced. So a tree plan is a row of two-way joins, each an ordinary
query of two streams; the results of one, with the time of their latest row, are a stream of the
next. A prefix lives at one site, so of the two one-way joins of a level one joins at its source and
the other at its destination.

A prefix is kept as long as the longest of its windows; a result then has to have every row within
its own window, which is checked as it is made (`rows_of`). The rows of an interval of a prefix are
complete when the level below is done with it (`prefixes`): with heartbeats that is known; by
`delta` it is a matter of time, so every level's intervals close that much later (`Level.wait`).

What trees do not take. Windows by count: which rows of a stream are the last ones before a later
row of another is known at the stream's own site only, and a prefix is elsewhere. Another plan while
they run: what a prefix has kept of earlier intervals is of no use to another tree.

Against linear ordering: nothing is joined twice for different heads, at the price of sending and
keeping intermediate results.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.multisite.matching import select
from dovetail.multisite.plan import Algorithm, Plan, Step
from dovetail.multisite.query import Query, Stream, times_of
from dovetail.multisite.rows import empty
from dovetail.multisite.virtual import Latency, Link, Simulation, Usage
from dovetail.multisite.windows import TimeWindow

_TIME = "time"  # the time of a row of a prefix; its other columns have a dot in their names
_JOINED = "+"  # between the streams in the name of a prefix


@dataclass(frozen=True)
class TreeJoin:
    """One level: the stream it adds, how its rows meet the prefix, and how the prefix meets it."""

    stream: str
    to_prefix: Algorithm
    from_prefix: Algorithm


@dataclass(frozen=True)
class Level:
    """A unit that is planned and joined by itself: a linear plan, or one join of a tree."""

    query: Query
    plan: Plan
    streams: tuple[str, ...]  #: of the whole query, that have been joined after it
    home: str = ""  #: of a tree's: the stream, of the two, at whose site its results are
    below: tuple[Plan, ...] = ()  #: of the levels whose results it takes

    @property
    def name(self) -> str:
        """The name of the stream that its results are."""
        return _JOINED.join(self.streams)

    def base(self, column: str) -> str:
        """The name of a column in the whole query."""
        return column.removeprefix(f"{self.query.names[0]}.") if self.below else column

    def wait(self, delta: int) -> int:
        """How long after an interval's end, by `delta`, all results of the levels below are there.

        The last message of a level may come just when its time is over, so its results are handed
        on a unit later; the level above is to find them there, so its intervals end after another.
        """
        return sum(plan.horizon(delta) + 2 for plan in self.below)


class TreePlan:
    """An order of streams, and the two algorithms of each join."""

    def __init__(self, query: Query, first: str, joins: Sequence[TreeJoin]) -> None:
        self.query = query
        self.first = first
        self.joins = tuple(joins)
        self.levels: tuple[Level, ...] = ()
        names = [first, *(join.stream for join in joins)]
        if sorted(names) != sorted(query.names):
            raise ArgumentError(f"a tree joins every stream once; this one joins {names}")
        check_streams(query)
        prefix = query.stream(first)
        for index, join in enumerate(joins):
            level = self._level(prefix, tuple(names[: index + 1]), join)
            self.levels = (*self.levels, level)
            prefix = self._result(level)

    def _level(self, prefix: Stream, done: tuple[str, ...], join: TreeJoin) -> Level:
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
        query = replace(whole, streams=(prefix, added), on=on)
        plan = Plan(
            query,
            {
                prefix.name: [Step(added.name, join.from_prefix)],
                added.name: [Step(prefix.name, join.to_prefix)],
            },
        )
        home = added.name if join.to_prefix.at_source else prefix.name
        below = tuple(level.plan for level in self.levels)
        return Level(query, plan, (*done, join.stream), home, below)

    def _result(self, level: Level) -> Stream:
        """The results of a level as a stream, where they are."""
        streams = [self.query.stream(name) for name in level.streams]
        fields = [f for stream in streams for f in stream.qualified]
        window = TimeWindow(max(s.window.size for s in streams if isinstance(s.window, TimeWindow)))
        schema = pa.schema([(_TIME, pa.int64()), *fields])
        site = level.query.stream(level.home).site
        return Stream(level.name, schema, window, time=_TIME, site=site)

    def rows_of(self, level: Level, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results of a level that are within every window, as rows of the next one's prefix."""
        names = [level.base(name) for name in results.schema.names]
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
        return select(rows, keep)

    def results_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the last level as results of the query."""
        return rows.select(self.query.result_columns)

    def to_json(self) -> str:
        joins = ([j.stream, j.to_prefix.value, j.from_prefix.value] for j in self.joins)
        return json.dumps([self.first, *joins])

    @classmethod
    def of_list(cls, query: Query, parts: Sequence[Any]) -> "TreePlan":
        """The first stream; then, for each join, its stream and the algorithms to and from it."""
        first, *joins = parts
        return cls(query, first, [TreeJoin(s, Algorithm(a), Algorithm(b)) for s, a, b in joins])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreePlan) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        joins = (f"{j.to_prefix} {j.stream} {j.from_prefix}" for j in self.joins)
        return " + ".join([self.first, *joins])


AnyPlan = Plan | TreePlan


def check_streams(query: Query) -> None:
    """Refuse streams that no tree can join."""
    for stream in query.streams:
        if not isinstance(stream.window, TimeWindow):
            raise ArgumentError(
                f"stream {stream.name!r} has a window by count: tree ordering needs windows by "
                "time, use a linear plan"
            )
        if _JOINED in stream.name:
            raise ArgumentError(
                f"stream {stream.name!r} has a {_JOINED!r} in its name, which stands for joined "
                "streams in a tree: give it another name, or use a linear plan"
            )


def levels_of(plan: AnyPlan) -> tuple[Level, ...]:
    """The levels of a plan, those whose results others take first."""
    if isinstance(plan, TreePlan):
        return plan.levels
    return (Level(plan.query, plan, plan.query.names),)


def plan_of_json(query: Query, text: str) -> AnyPlan:
    """Read a plan of either kind, as `to_json` made it."""
    data = json.loads(text)
    if isinstance(data, list):
        return TreePlan.of_list(query, data)
    return Plan.from_json(query, text)


class TreeSimulation:
    """A tree plan on virtual networks, level by level: each only feeds the next."""

    def __init__(self, plan: TreePlan, latency: Latency | None = None) -> None:
        self.plan = plan
        self.results: dict[int, list[pa.RecordBatch]] = {}
        self.usage: dict[Link, Usage] = {}
        self._simulations = [Simulation(_delayed(level), latency) for level in plan.levels]

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
            schema = self.plan.rows_of(level, empty(level.query.result_schema)).schema
            found = [rows for batches in self.results.values() for rows in batches]
            prefix = pa.Table.from_batches(found, schema).combine_chunks()
            prefix = (prefix.to_batches() or [empty(schema)])[0]
            for link, used in simulation.network.usage.items():
                self.usage[link] = self.usage.get(link, Usage()) + used

    def table(self, interval: int) -> pa.Table:
        """The results of an interval."""
        batches = [self.plan.results_of(rows) for rows in self.results.get(interval, [])]
        return pa.Table.from_batches(batches, self.plan.query.result_schema)


def _delayed(level: Level) -> Plan:
    """The plan of a level whose rows come when the levels below have had their time."""
    query = level.query
    late = query.lateness + level.wait(query.delta)
    return Plan(replace(query, lateness=late), level.plan.sequences)
