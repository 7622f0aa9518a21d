"""The condition of a multi-way join: a tree of equality and band edges.

Vocabulary. An *edge* joins columns of one input with columns of another. An *attribute* of an input
is what one or more of its edges join on; it gets one index, however many edges use it. The edges
have to form a tree over the inputs (a chain, a star, a snowflake): every input is reached, and
none in two ways. Several pairs of columns of the same two inputs make one edge with a composite
key.

A result has every column of every input, in the order of the inputs. A name that more than one
input has is prefixed with the input's name and an underscore, in each of them.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from dovetail.errors import (
    ArgumentError,
    BandKeyError,
    ColumnClashError,
    KeyTypeError,
    UnknownColumnError,
)
from dovetail.kernel.keys import KeyCodec, band_width
from dovetail.kernel.keytypes import cast_of, common_type, name_of

LEAST_INPUTS, MOST_INPUTS = 2, 8
Within = int | float | Decimal | dt.timedelta | str
#: `("r1.a", "r2.a")`, or with a third item, the distance within which the two have to be
On = Sequence[tuple[str, str] | tuple[str, str, Within]]


@dataclass(frozen=True)
class Edge:
    """`columns[0]` of input `ends[0]` match `columns[1]` of input `ends[1]`."""

    ends: tuple[int, int]
    columns: tuple[tuple[str, ...], tuple[str, ...]]
    within: int | float | None = None  #: band width in units of the key's code


@dataclass(frozen=True)
class Reach:
    """An edge as it is walked: rows of `parent` look for rows of `child`."""

    edge: int
    parent: int
    parent_attribute: int
    child: int
    child_attribute: int


@dataclass(frozen=True)
class MultiWaySpec:
    """Names and schemas of the inputs, and the edges between them. Made by `multiway_spec`."""

    names: tuple[str, ...]
    schemas: tuple[pa.Schema, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        _check_inputs(self.names, self.schemas)
        for edge in self.edges:
            _check_edge(self, edge)
        _check_tree(self)
        _ = self.output, self.codecs, self.compared  # refuse what they refuse now rather than later

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def codecs(self) -> tuple[KeyCodec, ...]:
        """One for each edge."""
        return tuple(
            KeyCodec(_compared(self.names, self.schemas, edge), edge.within) for edge in self.edges
        )

    @cached_property
    def compared(self) -> tuple[dict[str, pa.DataType], ...]:
        """For each input, its join columns, and the type that each of them is compared as."""
        found: list[dict[str, pa.DataType]] = [{} for _ in self.names]
        for edge, codec in zip(self.edges, self.codecs, strict=True):
            for end, columns in zip(edge.ends, edge.columns, strict=True):
                for column, type_ in zip(columns, codec.types, strict=True):
                    known = found[end].setdefault(column, type_)
                    if known != type_:
                        name = f"{self.names[end]}.{column}"
                        raise KeyTypeError(
                            f"{name} would be compared as {name_of(known)} with one input and as "
                            f"{name_of(type_)} with another: cast it, and what it is joined with, "
                            "to one type"
                        )
        return tuple(found)

    @cached_property
    def attributes(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """For each input, the columns of each of its attributes."""
        found: list[list[tuple[str, ...]]] = [[] for _ in self.names]
        for edge in self.edges:
            for end, columns in zip(edge.ends, edge.columns, strict=True):
                if columns not in found[end]:
                    found[end].append(columns)
        return tuple(map(tuple, found))

    @cached_property
    def reaches(self) -> tuple[tuple[Reach, ...], ...]:
        """For each input, its edges as they are walked from it."""
        found: list[list[Reach]] = [[] for _ in self.names]
        for number, edge in enumerate(self.edges):
            ends = [
                (end, self.attributes[end].index(columns))
                for end, columns in zip(edge.ends, edge.columns, strict=True)
            ]
            for here, there in (ends, ends[::-1]):
                found[here[0]].append(Reach(number, *here, *there))
        return tuple(map(tuple, found))

    @cached_property
    def output(self) -> pa.Schema:
        owners: dict[str, list[str]] = {}
        for name, schema in zip(self.names, self.schemas, strict=True):
            for column in schema.names:
                owners.setdefault(column.lower(), []).append(name)
        fields = [
            field.with_name(f"{name}_{field.name}")
            if len(owners[field.name.lower()]) > 1
            else field
            for name, schema in zip(self.names, self.schemas, strict=True)
            for field in schema
        ]
        seen: set[str] = set()
        for field in fields:
            if field.name.lower() in seen:
                raise ColumnClashError(
                    f"two columns of the result would be named {field.name!r}: a name that several "
                    "inputs have is prefixed with the input's; rename the column or the input"
                )
            seen.add(field.name.lower())
        return pa.schema(fields)

    @property
    def joins_one_attribute(self) -> bool:
        """Whether this is a star on one attribute: one value for a whole result."""
        bands = any(edge.within is not None for edge in self.edges)
        return not bands and all(len(attributes) == 1 for attributes in self.attributes)


def multiway_spec(inputs: Mapping[str, pa.Schema], on: On) -> MultiWaySpec:
    """Check the inputs and what they are joined on.

    `on` has a pair `("input.column", "input.column")` for each equality, and for a band a third
    item: a number, or a timedelta where the columns are times.
    """
    names = tuple(inputs)
    schemas = tuple(inputs.values())
    _check_inputs(names, schemas)
    pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    bands: dict[tuple[int, int], Within] = {}
    for item in _items(on):
        ends = [_resolve(names, schemas, text) for text in item[:2]]
        if ends[0][0] > ends[1][0]:
            ends.reverse()
        key = (ends[0][0], ends[1][0])
        pairs.setdefault(key, []).append((ends[0][1], ends[1][1]))
        if len(item) == 3:
            bands[key] = item[2]
    edges = []
    for key, columns in pairs.items():
        left, right = (tuple(pair[side] for pair in columns) for side in (0, 1))
        edge = Edge(key, (left, right))
        if key in bands:
            if len(columns) > 1:
                raise BandKeyError(
                    f"{names[key[0]]!r} and {names[key[1]]!r} are joined on {len(columns)} pairs "
                    "of columns, one of them a band; a band has to be their only condition"
                )
            (type_,) = _compared(names, schemas, edge)
            edge = replace(edge, within=band_width(bands[key], type_))
        edges.append(edge)
    return MultiWaySpec(names, schemas, tuple(edges))


def _compared(
    names: Sequence[str], schemas: Sequence[pa.Schema], edge: Edge
) -> tuple[pa.DataType, ...]:
    """The types that the pairs of columns of an edge are compared as."""
    found = []
    for pair in zip(*edge.columns, strict=True):
        one, two = (
            (names[end], column, schemas[end].field(column).type)
            for end, column in zip(edge.ends, pair, strict=True)
        )
        found.append(common_type(one[2], two[2]))
        if found[-1] is None:
            said = " and ".join(
                f"{name}.{column} is {name_of(t)}" for name, column, t in (one, two)
            )
            raise KeyTypeError(
                f"the join columns differ in type: {said}; cast one of them, for example "
                f"{cast_of(one, two)}"
            )
    return tuple(found)


def _no_column(name: str, column: str, known: Sequence[str]) -> UnknownColumnError:
    return UnknownColumnError(
        f"the input {name!r} has no column {column!r}; it has {', '.join(map(repr, known))}"
    )


def _items(on: Any) -> list[tuple[Any, ...]]:
    if isinstance(on, str) or not isinstance(on, Sequence) or not on:
        raise ArgumentError(
            "on= names no columns; give a list of pairs like ('r1.a', 'r2.a'), one for each edge"
        )
    for item in on:
        pair = isinstance(item, (tuple, list)) and len(item) in (2, 3)
        if not pair or not all(isinstance(text, str) for text in item[:2]):
            raise ArgumentError(
                f"on= takes pairs ('input.column', 'input.column'), with a distance as a third "
                f"item for a band; {item!r} is none"
            )
    return [tuple(item) for item in on]


def _resolve(names: Sequence[str], schemas: Sequence[pa.Schema], text: str) -> tuple[int, str]:
    """The input and the column that `"input.column"` names."""
    matching = [name for name in names if text.startswith(f"{name}.")]
    if not matching:
        raise UnknownColumnError(
            f"on= has {text!r}, but there is no such input; write 'input.column' with one of "
            f"{', '.join(map(repr, names))}"
        )
    name = max(matching, key=len)  # a name may have a dot in it
    number, column = names.index(name), text[len(name) + 1 :]
    known = schemas[number].names
    if column in known:
        return number, column
    for candidate in known:
        if candidate.lower() == column.lower():
            return number, str(candidate)
    raise _no_column(name, column, known)


def _check_inputs(names: Sequence[str], schemas: Sequence[pa.Schema]) -> None:
    if not LEAST_INPUTS <= len(names) <= MOST_INPUTS:
        raise ArgumentError(
            f"a multi-way join has {LEAST_INPUTS} to {MOST_INPUTS} inputs, not {len(names)}; join "
            "some of them first"
        )
    if len(schemas) != len(names) or len({name.lower() for name in names}) != len(names):
        raise ArgumentError(f"every input needs a name and a schema of its own: {list(names)}")
    for name, schema in zip(names, schemas, strict=True):
        lowered = [column.lower() for column in schema.names]
        if len(set(lowered)) != len(lowered):
            raise ColumnClashError(
                f"the input {name!r} has two columns of one name among {schema.names}; rename one"
            )


def _check_edge(spec: MultiWaySpec, edge: Edge) -> None:
    one, two = (spec.names[end] for end in edge.ends)
    if edge.ends[0] == edge.ends[1]:
        raise ArgumentError(
            f"on= joins the input {one!r} with itself; name it twice among the inputs to do that"
        )
    for end, columns in zip(edge.ends, edge.columns, strict=True):
        for column in columns:
            if column not in spec.schemas[end].names:
                raise _no_column(spec.names[end], column, spec.schemas[end].names)
    types = _compared(spec.names, spec.schemas, edge)
    if edge.within is not None:
        if len(edge.columns[0]) != 1:
            raise BandKeyError(f"a band between {one!r} and {two!r} needs exactly one key column")
        band_width(0, types[0])


def _check_tree(spec: MultiWaySpec) -> None:
    group = list(range(len(spec.names)))
    for edge in spec.edges:
        a, b = (group[end] for end in edge.ends)
        if a == b:
            one, two = (spec.names[end] for end in edge.ends)
            raise ArgumentError(
                f"the join graph has a cycle: {one!r} and {two!r} are connected without the pair "
                f"on {'.'.join([one, *edge.columns[0]])}. Leave it out if the others imply it; "
                "else join the rest first and filter the result by it"
            )
        group = [a if known == b else known for known in group]
    if len(set(group)) > 1:
        parts = [
            ", ".join(spec.names[i] for i, known in enumerate(group) if known == member)
            for member in sorted(set(group))
        ]
        raise ArgumentError(
            f"the join graph falls into parts that on= does not connect: {' | '.join(parts)}; add "
            "a pair between them"
        )
