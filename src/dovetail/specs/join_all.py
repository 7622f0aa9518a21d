"""The arguments of `dovetail.join_all`, and the spec of several streams that they lead to.

`on=` has an item for each condition: a pair `("input.column", "input.column")`, which with a third
item is a band; or the bare name of a column that several inputs have, on which all of these are
joined. Whatever it says has to be a tree over all inputs, which `multiway.spec` checks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dovetail.costs.cellloads import HashSample, choose_by_sample
from dovetail.costs.shares import Grid, choose_grid, dimensions_of
from dovetail.costs.widths import row_width
from dovetail.errors import ArgumentError, UnknownColumnError
from dovetail.multiway import MIN_BYTES_PER_INPUT, MultiWaySpec, checked_algorithm, multiway_spec
from dovetail.multiway.spec import LEAST_INPUTS
from dovetail.specs.arguments import (
    check_distance,
    check_how,
    checked_memory,
    checked_partitions,
    checked_whole,
    state_path,
)
from dovetail.specs.job import JobOptions, JobSpec, describe
from dovetail.specs.matching import Within

OnAll = str | tuple[Any, ...] | Sequence[str | tuple[Any, ...]]


@dataclass(frozen=True)
class JoinAllSpec(JobSpec):
    """A checked join of several inputs, as it was asked for."""

    multiway: MultiWaySpec
    grid: Grid
    most_partitions: int  #: that were asked for; the grid may have fewer

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return self.multiway.schemas

    @property
    def output(self) -> pa.Schema:
        return self.multiway.output

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """Of each input, the columns that it is joined on."""
        return tuple(
            tuple(dict.fromkeys(name for columns in attributes for name in columns))
            for attributes in self.multiway.attributes
        )

    def identity(self) -> dict[str, Any]:
        """The facts that must not change during the life of a state directory."""
        names, edges = self.multiway.names, self.multiway.edges
        ends = [
            [
                f"{names[edge.ends[side]]}.{column}"
                for edge in edges
                for column in edge.columns[side]
            ]
            for side in (0, 1)
        ]
        bands = [
            f"{edge.within!r} from {names[edge.ends[0]]}.{edge.columns[0][0]}"
            f" to {names[edge.ends[1]]}.{edge.columns[1][0]}"
            for edge in edges
            if edge.within is not None
        ]
        return {
            "job": "join_all",
            "algorithm": self.algorithm,
            "partitions": self.most_partitions,
            "on": ends,
            "within": ", ".join(bands) or None,
            "inputs": {
                name: describe(schema)
                for name, schema in zip(names, self.multiway.schemas, strict=True)
            },
            "shares": list(self.grid.shares),
        }


@dataclass(frozen=True)
class JoinAllOptions(JobOptions):
    """The arguments of `dovetail.join_all` besides the inputs, as the caller gave them."""

    on: OnAll
    within: Within = None
    sizes: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Known:
    """Facts about a join besides its arguments."""

    partitions: int  #: if none are asked for
    memory_bytes: int | None = None  #: likewise; None: unbounded
    rows: Sequence[float] | None = None  #: of each input, about; None: as many of each
    shares: Sequence[int] | None = None  #: that a state directory was begun with
    samples: Sequence[HashSample] | None = None  #: of each input; None: keys are spread evenly


def join_all_spec(
    inputs: Mapping[str, pa.Schema], options: JoinAllOptions, known: Known
) -> JoinAllSpec:
    """Check the arguments against the schemas of the inputs."""
    check_how(options.how, "join_all", ("inner",))
    check_names(inputs)
    conditions = list(_conditions(inputs, options))
    multiway = multiway_spec(inputs, conditions)
    _check_distances(inputs, conditions)
    algorithm = checked_algorithm(options.algorithm)
    most = checked_partitions(options.partitions, known.partitions)
    rows = _sizes(multiway.names, options.sizes) or known.rows or [1.0] * len(multiway)
    grid = _grid(multiway, rows, most, known)
    least = MIN_BYTES_PER_INPUT * len(multiway)
    return JoinAllSpec(
        multiway=multiway,
        grid=grid,
        most_partitions=most,
        algorithm=algorithm,
        memory_bytes=checked_memory(options.memory, grid.partitions, least, known.memory_bytes),
        partitions=grid.partitions,
        state=None if options.state is None else state_path(options.state),
        slice_ms=checked_whole(options.slice_ms, "slice_ms"),
    )


def check_names(inputs: Any) -> None:
    """Refuse anything but a mapping of names that `input.column` can be read by."""
    if not isinstance(inputs, Mapping):
        raise ArgumentError(
            'join_all takes its inputs by name: {"orders": orders, "payments": payments, ...}'
        )
    if len(inputs) < LEAST_INPUTS:
        raise ArgumentError(f"join_all takes {LEAST_INPUTS} inputs or more, not {len(inputs)}")
    for name in inputs:
        if not isinstance(name, str) or not name.strip() or "." in name:
            raise ArgumentError(
                f"{name!r} cannot be the name of an input: it has to be a text without a dot, so "
                "that 'input.column' in on= tells where it ends"
            )


def _grid(spec: MultiWaySpec, rows: Sequence[float], most: int, known: Known) -> Grid:
    dimensions = dimensions_of(spec)
    if known.shares is not None and len(known.shares) == len(dimensions):
        return Grid(dimensions, tuple(known.shares))
    pairs = zip(rows, spec.schemas, strict=True)
    weights = [float(count) * row_width(schema).nbytes for count, schema in pairs]
    if known.samples is not None:
        return choose_by_sample(dimensions, weights, most, known.samples)
    return choose_grid(dimensions, weights, most)


def _conditions(
    inputs: Mapping[str, pa.Schema], options: JoinAllOptions
) -> Iterator[tuple[Any, ...]]:
    """Pairs, with a third item for a band; bare names spelled out, and none twice."""
    on: Any = options.on
    is_pair = isinstance(on, tuple) and bool(on) and isinstance(on[0], str)
    items = [on] if isinstance(on, str) or is_pair else on
    if not isinstance(items, Sequence) or not items:
        raise ArgumentError(
            "on= names no columns; give pairs like ('r1.a', 'r2.a'), or a name that inputs share"
        )
    seen: dict[frozenset[str], Any] = {}
    for item in items:
        for pair in _shared(inputs, item) if isinstance(item, str) else [_pair(item)]:
            ends = frozenset(end.lower() for end in pair[:2])
            within = pair[2] if len(pair) == 3 else options.within
            if ends not in seen:
                seen[ends] = within
                yield pair[:2] if within is None else (*pair[:2], within)
            elif seen[ends] != within:
                raise ArgumentError(
                    f"on= joins {pair[0]!r} and {pair[1]!r} twice, within different distances: "
                    f"{seen[ends]!r} and {within!r}; leave one of them out"
                )


def _check_distances(
    inputs: Mapping[str, pa.Schema], conditions: Sequence[tuple[Any, ...]]
) -> None:
    for end, _, *within in conditions:
        name, _, column = end.partition(".")
        if within:
            (field,) = (f for f in inputs[name] if f.name.lower() == column.lower())
            check_distance(within[0], field.type)


def _pair(item: Any) -> tuple[Any, ...]:
    fits = isinstance(item, (tuple, list)) and len(item) in (2, 3)
    if not fits or not all(isinstance(end, str) for end in item[:2]):
        raise ArgumentError(
            "on= takes pairs ('input.column', 'input.column'), with a distance as a third item for "
            f"a band, or names of columns that inputs share; {item!r} is none of these"
        )
    return tuple(item)


def _shared(inputs: Mapping[str, pa.Schema], column: str) -> list[tuple[str, str]]:
    """All inputs that have a column are joined on it."""
    holders = [
        f"{name}.{column}"
        for name, schema in inputs.items()
        if column.lower() in (known.lower() for known in schema.names)
    ]
    if len(holders) < 2:
        raise UnknownColumnError(
            f"on= has {column!r}, but {'only one input has' if holders else 'no input has'} a "
            "column of that name. A name stands for all inputs that have the column; to join two "
            "different ones write a pair, ('input.column', 'input.column')"
        )
    return [(holders[0], other) for other in holders[1:]]


def _sizes(names: Sequence[str], sizes: Any) -> list[float] | None:
    if sizes is None:
        return None
    fits = isinstance(sizes, Mapping) and set(sizes) == set(names)
    if not fits or not all(_is_size(size) for size in sizes.values()):
        raise ArgumentError(
            f"sizes={sizes!r} has to say of each input about how many rows it has: a number above "
            f"0 for {', '.join(map(repr, names))}"
        )
    return [float(sizes[name]) for name in names]


def _is_size(size: Any) -> bool:
    return isinstance(size, (int, float)) and not isinstance(size, bool) and 0 < size < float("inf")
