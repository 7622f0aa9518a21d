"""Cost model of tree plans, and the search for the cheapest (Sect. 4.2).

A level is a plan of two streams, so its cost is that of any such plan, with the rate of the prefix
that the levels below give it. The paper leaves the search open; here it is greedy, as Algorithm 10
is: from each first stream the cheapest level, again and again, and the cheapest of these trees.
"""

from collections.abc import Sequence
from dataclasses import replace

from dovetail.errors import ArgumentError
from dovetail.multisite.costs import Cost, CostModel, Prices
from dovetail.multisite.estimates import Statistics, StreamStatistics
from dovetail.multisite.plan import PAPER, Algorithm
from dovetail.multisite.query import Query
from dovetail.multisite.tree import TreeJoin, TreePlan


def tree_cost(plan: TreePlan, statistics: Statistics, prices: Prices) -> Cost:
    """What a tree costs: its levels, each with the rate of the prefix that the others give it."""
    total = Cost()
    known = statistics.streams[plan.first]
    for level in plan.levels:
        prefix, added = level.query.names
        pairs = list(level.query.on)
        base = [(level.base(a), b) for a, b in pairs]
        at_level = Statistics(
            {prefix: known, added: statistics.streams[added]},
            {pair: statistics.shared_keys(*of) for pair, of in zip(pairs, base, strict=True)},
            {pair: statistics.share_of_pairs(*of) for pair, of in zip(pairs, base, strict=True)},
        )
        model = CostModel(level.query, at_level, prices)
        total += model.plan(level.plan)
        flows = [model.flow((name, other)) for name, other in ((prefix, added), (added, prefix))]
        distinct = {
            f"{level.name}.{column}": keys
            for name in level.streams
            for column, keys in statistics.streams[name].distinct.items()
        }
        size = flows[0].row_bytes + (0 if level.below else 8)  # the time, once
        known = StreamStatistics(sum(flow.rate for flow in flows), size, distinct)
    return total


def cheapest_tree(
    query: Query, statistics: Statistics, prices: Prices, algorithms: Sequence[Algorithm] = PAPER
) -> TreePlan:
    """From each first stream, the cheapest level again and again; the cheapest of these trees."""
    pairs = [(a, b) for a in algorithms for b in algorithms if a.at_source != b.at_source]
    if not pairs:
        raise ArgumentError(
            f"of {', '.join(algorithms)} no tree can be made: each of its joins needs an algorithm "
            "that joins at the source and one that joins at the destination"
        )
    trees: list[TreePlan] = []
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
        trees.append(TreePlan(query, first, joins))
    return min(trees, key=lambda tree: tree_cost(tree, statistics, prices).time)


def _part_cost(
    query: Query, first: str, joins: list[TreeJoin], statistics: Statistics, prices: Prices
) -> float:
    """What the lower levels of a tree cost."""
    names = {first, *(join.stream for join in joins)}
    streams = tuple(stream for stream in query.streams if stream.name in names)
    on = tuple(pair for pair in query.on if {c.partition(".")[0] for c in pair} <= names)
    part = replace(query, streams=streams, on=on)
    return tree_cost(TreePlan(part, first, joins), statistics, prices).time
