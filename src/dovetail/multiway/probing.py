"""The order in which relations are probed: by estimated selectivity (section 4.1).

The paper's symbols: `LocalJoins` of an edge is `local_joins`, `Tups` of a relation is its number of
rows in memory, and the join selectivity factor of an edge is
`sigma = LocalJoins / (Tups_i * Tups_j)`. (The scan has `Local Joins`, and the fraction in one line;
the text leaves no doubt about it.) The probing sequence of an arriving relation takes, of the edges
that lead from a relation that is in to one that is not, the one with the least factor.

One thing differs. The paper sets `LocalJoins` to 0 with each flush, and right after that every
factor is 0 and says nothing. Here an edge that has found nothing since the last flush keeps the
factor it had before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.multiway.spec import MultiWaySpec, Reach


@dataclass
class Selectivity:
    """The counts of one edge."""

    local_joins: int = 0
    before: float = 0.0  #: the factor as of the last flush

    def factor(self, rows: tuple[int, int]) -> float:
        if not self.local_joins:
            return self.before
        return self.local_joins / max(1, rows[0] * rows[1])


@dataclass
class ProbeOrder:
    """The selectivities of all edges, and the plans that follow from them."""

    spec: MultiWaySpec
    edges: list[Selectivity] = field(init=False)

    def __post_init__(self) -> None:
        self.edges = [Selectivity() for _ in self.spec.edges]

    def found(self, counts: Sequence[int]) -> None:
        """Count the pairs of rows that matched on each edge."""
        for edge, count in zip(self.edges, counts, strict=True):
            edge.local_joins += count

    def flushed(self, rows: Sequence[int]) -> None:
        """Begin anew, from the factors as they are with so many rows in memory."""
        for edge, factor in zip(self.edges, self.factors(rows), strict=True):
            edge.before, edge.local_joins = factor, 0

    def factors(self, rows: Sequence[int]) -> list[float]:
        return [
            known.factor((rows[edge.ends[0]], rows[edge.ends[1]]))
            for known, edge in zip(self.edges, self.spec.edges, strict=True)
        ]

    def plan(self, first: int, rows: Sequence[int]) -> list[Reach]:
        """The edges in the order in which rows of relation `first` walk them."""
        factors = self.factors(rows)
        plan: list[Reach] = []
        reached = {first}
        while len(reached) < len(self.spec):
            open_edges = [
                reach
                for number in sorted(reached)
                for reach in self.spec.reaches[number]
                if reach.child not in reached
            ]
            plan.append(min(open_edges, key=lambda reach: factors[reach.edge]))
            reached.add(plan[-1].child)
        return plan

    def facts(self) -> list[list[float]]:
        return [[edge.local_joins, edge.before] for edge in self.edges]

    def restore(self, facts: Sequence[Sequence[float]]) -> None:
        self.edges = [Selectivity(int(count), before) for count, before in facts]
