"""Compares a multi-way join with cascades of two-way joins: rows shuffled, and kept.

Both ways take a row in by shuffling it to a partition, which then keeps it for as long as the join
lives; so the rows that travel are the rows that are kept. The one operator pays with copies, where
inputs are joined on different columns (`shares`); a cascade pays with intermediate results, each of
which is the input of the next join.

Intermediate results are estimated from the pairs that each edge has by itself, the edges taken to
be independent of one another. The cascade is the best of all orders in which each input is joined
with those before it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.costs.shares import Grid
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.multiway import MultiWaySpec
from dovetail.multiway.rows import Encoder


@dataclass(frozen=True)
class Counted:
    """Counts of a join's inputs; rows with a null in a join column are left out."""

    rows: tuple[float, ...]
    pairs: tuple[float, ...]  #: of rows that match, for each edge
    heaviest: tuple[float, ...]  #: rows of each input in the fullest partition


@dataclass(frozen=True)
class Cost:
    """The rows that one way of joining takes in."""

    rows: float  #: that are shuffled, copies and intermediate results among them
    shuffled_bytes: float
    state_bytes: float  #: the same rows with their indexes, in memory and on disk


@dataclass(frozen=True)
class Cascade:
    """Two-way joins, one after the other."""

    order: tuple[int, ...]
    intermediate: tuple[float, ...]  #: rows of each result but the last
    cost: Cost


def results_of(spec: MultiWaySpec, counted: Counted, inputs: Sequence[int]) -> float:
    """About how many results the join of some inputs has, which edges connect."""
    known = set(inputs)
    found = math.prod(counted.rows[i] for i in known)
    for edge, pairs in zip(spec.edges, counted.pairs, strict=True):
        if known.issuperset(edge.ends):
            possible = counted.rows[edge.ends[0]] * counted.rows[edge.ends[1]]
            found *= pairs / max(possible, 1.0)
    return found


def cost_of_all(
    spec: MultiWaySpec, grid: Grid, rows: Sequence[float], widths: Sequence[float]
) -> Cost:
    """The one operator: every row as often as it is copied."""
    sent = [count * grid.copies(i) for i, count in enumerate(rows)]
    index = [Encoder(spec, i).index_bytes_per_row for i in range(len(spec))]
    held = [width + extra for width, extra in zip(widths, index, strict=True)]
    return Cost(sum(sent), _dot(sent, widths), _dot(sent, held))


def best_cascade(spec: MultiWaySpec, counted: Counted, widths: Sequence[float]) -> Cascade:
    """The order of two-way joins that keeps the least."""
    every = (_cascade(spec, counted, widths, order) for order in _orders(spec))
    return min(every, key=lambda one: (one.cost.state_bytes, one.order))


def _cascade(
    spec: MultiWaySpec, counted: Counted, widths: Sequence[float], order: tuple[int, ...]
) -> Cascade:
    between = [results_of(spec, counted, order[:size]) for size in range(2, len(order))]
    rows = [*(counted.rows[i] for i in order), *between]
    wide = [sum(widths[i] for i in order[:size]) for size in range(2, len(order))]
    each = [*(widths[i] for i in order), *wide]
    held = [width + INDEX_BYTES_PER_ROW for width in each]
    return Cascade(order, tuple(between), Cost(sum(rows), _dot(rows, each), _dot(rows, held)))


def _orders(spec: MultiWaySpec) -> Iterator[tuple[int, ...]]:
    """All orders in which every input is connected with one before it; the first two as named."""
    neighbours = [{reach.child for reach in reaches} for reaches in spec.reaches]

    def extend(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(order) == len(spec):
            yield order
            return
        near = set().union(*(neighbours[i] for i in order)) - set(order)
        for number in sorted(near):
            if len(order) > 1 or number > order[0]:
                yield from extend((*order, number))

    for first in range(len(spec)):
        yield from extend((first,))


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
