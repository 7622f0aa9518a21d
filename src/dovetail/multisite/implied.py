"""Equalities that follow from those of a query: of `a = b` and `b = c`, also `a = c`.

They change no result, but let a plan join streams that are not next to each other in the join graph
as it was written, and so bring rows to one site directly.
"""

from dataclasses import replace
from itertools import combinations

from dovetail.multisite.query import Query


def implied(query: Query) -> Query:
    """The query with every equality between two streams that follows from its own."""
    classes: list[list[str]] = []
    for pair in query.on:
        met = [c for c in classes if pair[0] in c or pair[1] in c]
        merged = list(dict.fromkeys([*(column for c in met for column in c), *pair]))
        classes = [*(c for c in classes if c not in met), merged]
    known = {frozenset(pair) for pair in query.on}
    follow = [
        (left, right)
        for columns in classes
        for left, right in combinations(columns, 2)
        if left.partition(".")[0] != right.partition(".")[0]
        and frozenset((left, right)) not in known
    ]
    return replace(query, on=(*query.on, *follow))
