"""Attribute shares (HyperCube): the split of a multi-way join's rows over partitions.

Source: Afrati and Ullman, "Optimizing Joins in a Map-Reduce Environment" (EDBT 2010), section 2.

Vocabulary. A *dimension* is a set of join columns, at most one key of each input, that have one
value in any result. Its *share* is into how many parts it is cut. Partitions are the cells of a
grid: a row goes to the part of its value in each dimension that it has a column in, and to all
parts of the others. A result has one value in each dimension, so exactly one cell has all of its
rows. With a single dimension, that is a hash partitioning.

Bands. Values that a band links differ, so they are cut into ranges (`spark/bands`). One of the
columns, and those equal to it, are the *anchor*: rows that have it are in the range of its value
alone. The others go to every range that the anchor's value can be in, one or two.

Load. Keys taken to be spread evenly, an input of w bytes brings w divided by the shares of its
dimensions to each partition. Shares are the whole numbers for which the sum is least, their product
at most the number of partitions asked for. Larger shares never bring more, so the last one is what
the others leave. How full the fullest partition is, with the keys that there are, a sample tells
(`cellloads`).
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.multiway import MultiWaySpec

BANDS_IN_A_CELL = 8  #: how many times as wide as a band a range of values is
_SPILL_OVER = 2 / BANDS_IN_A_CELL  # of the rows beside an anchor go to a second range
_LONG_MAX = int(np.iinfo(np.int64).max)
CLEARLY = 1 - 1e-9  #: so that rounding does not choose between equal loads

Column = tuple[int, str]  # an input and a column of it


@dataclass(frozen=True)
class Dimension:
    """Join columns that have one value in a result, or values in reach of an anchor's."""

    columns: tuple[tuple[str, ...], ...]  #: of each input; none if it has no part in this
    reach: int | float | None = None  #: of a band: how far values may be from the anchor's
    anchored: tuple[bool, ...] = ()  #: of a band: which inputs have the anchor
    divisible: bool = True

    def __contains__(self, relation: int) -> bool:
        return bool(self.columns[relation])

    def copies(self, relation: int, share: int) -> float:
        """To how many parts a row of an input goes."""
        if relation not in self:
            return share
        beside = self.reach is not None and not self.anchored[relation]
        return 1 + _SPILL_OVER * (1 - 1 / share) if beside else 1


@dataclass(frozen=True)
class Grid:
    """The partitions of a multi-way join: dimensions and their shares."""

    dimensions: tuple[Dimension, ...]
    shares: tuple[int, ...]

    @property
    def partitions(self) -> int:
        return math.prod(self.shares)

    def copies(self, relation: int) -> float:
        """To how many partitions a row of an input goes, on average."""
        pairs = zip(self.dimensions, self.shares, strict=True)
        return math.prod(dimension.copies(relation, share) for dimension, share in pairs)


def dimensions_of(spec: MultiWaySpec) -> tuple[Dimension, ...]:
    """The dimensions of a join. Columns that the same inputs have are hashed together."""
    exact: dict[tuple[int, ...], list[tuple[str, ...]]] = {}
    found = []
    for members in _components(spec, bands=True):
        columns = _by_input(spec, members)
        if any(_within(spec, members)):
            found.append(_band_dimension(spec, members, columns))
            continue
        inputs = tuple(number for number, names in enumerate(columns) if names)
        known = exact.setdefault(inputs, [() for _ in spec.names])
        exact[inputs] = [a + b for a, b in zip(known, columns, strict=True)]
    return (*(Dimension(tuple(columns)) for columns in exact.values()), *found)


def choose_grid(dimensions: Sequence[Dimension], weights: Sequence[float], partitions: int) -> Grid:
    """The shares that bring the least to a partition; `weights` are the sizes of the inputs."""
    return likely_grids(dimensions, weights, partitions, 1)[0]


def likely_grids(
    dimensions: Sequence[Dimension], weights: Sequence[float], partitions: int, most: int
) -> list[Grid]:
    """The shares that bring the least to a partition first, `most` of them or fewer.

    No share of any of them could be larger.
    """
    divisible = [number for number, one in enumerate(dimensions) if one.divisible]
    best: list[tuple[float, dict[int, int]]] = []

    def clearly_less(load: float, than: tuple[float, dict[int, int]]) -> bool:
        return load < than[0] * CLEARLY

    def search(depth: int, left: int, loads: list[float], chosen: dict[int, int]) -> None:
        rest = divisible[depth:]
        least = sum(
            load / left if any(i in dimensions[n] for n in rest) else load
            for i, load in enumerate(loads)
        )
        if len(best) == most and not clearly_less(least, best[-1]):
            return
        if not rest:
            if _is_largest(chosen.values(), partitions):
                place = sum(not clearly_less(least, known) for known in best)
                best.insert(place, (least, chosen))
                del best[most:]
            return
        one = dimensions[rest[0]]
        for share in range(left, 0, -1) if len(rest) > 1 else (left,):
            brought = [load * one.copies(i, share) / share for i, load in enumerate(loads)]
            search(depth + 1, left // share, brought, {**chosen, rest[0]: share})

    search(0, partitions, [max(weight, 1e-9) for weight in weights], {})
    every = range(len(dimensions))
    return [Grid(tuple(dimensions), tuple(one.get(n, 1) for n in every)) for _, one in best]


def _is_largest(shares: Collection[int], partitions: int) -> bool:
    """Whether a larger share would make too many partitions, whichever it is."""
    product = math.prod(shares)
    return all(product // share * (share + 1) > partitions for share in shares)


def _components(spec: MultiWaySpec, *, bands: bool) -> Iterator[list[Column]]:
    """Columns that equalities connect, or that bands connect as well."""
    group: dict[Column, set[Column]] = {}
    for edge in spec.edges:
        for pair in zip(*edge.columns, strict=True):
            one, two = zip(edge.ends, pair, strict=True)
            for column in (one, two):
                group.setdefault(column, {column})
            if edge.within is None or bands:
                merged = group[one] | group[two]
                group.update(dict.fromkeys(merged, merged))
    seen: set[Column] = set()
    for column, members in group.items():
        if column not in seen:
            seen |= members
            yield [known for known in group if known in members]


def _by_input(spec: MultiWaySpec, members: Sequence[Column]) -> list[tuple[str, ...]]:
    """For each input its column; one is enough, because several are equal in any result."""
    first: dict[int, str] = {}
    for relation, column in members:
        first.setdefault(relation, column)
    return [(first[i],) if i in first else () for i in range(len(spec))]


def _within(spec: MultiWaySpec, members: Sequence[Column]) -> Iterator[bool]:
    known = set(members)
    for edge in spec.edges:
        yield edge.within is not None and (edge.ends[0], edge.columns[0][0]) in known


def _band_dimension(
    spec: MultiWaySpec, members: Sequence[Column], columns: list[tuple[str, ...]]
) -> Dimension:
    """The anchor is the column that the others are least far from."""
    equal = [set(part) for part in _components(spec, bands=False) if part[0] in set(members)]
    reach, _, anchor = min(
        (max(_distances(spec, part).values()), -len(part), number)
        for number, part in enumerate(equal)
    )
    anchored = tuple((i, *names) in equal[anchor] for i, names in enumerate(columns))
    relation, column = members[0]
    type_ = spec.schemas[relation].field(column).type
    no_range = pa.types.is_time(type_) or pa.types.is_duration(type_)
    divisible = not no_range and reach * BANDS_IN_A_CELL <= _LONG_MAX
    return Dimension(tuple(columns), reach, anchored, divisible)


def _distances(spec: MultiWaySpec, start: set[Column]) -> dict[Column, int | float]:
    """How far the values of each column may be from that of these, in a result."""
    found: dict[Column, int | float] = dict.fromkeys(start, 0)
    for _ in spec.edges:  # none is farther away than there are edges
        for edge in spec.edges:
            for pair in zip(*edge.columns, strict=True):
                ends = list(zip(edge.ends, pair, strict=True))
                for here, there in (ends, ends[::-1]):
                    if here in found and there not in found:
                        found[there] = found[here] + (edge.within or 0)
    return found
