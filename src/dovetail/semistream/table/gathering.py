"""Rows by their positions, out of one batch or several."""

import itertools
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pyarrow as pa

from dovetail.kernel.probing import Rows
from dovetail.kernel.slices import Sizes, sizes_in

NOTHING = pa.RecordBatch.from_arrays([], schema=pa.schema([]))  #: no columns, so no rows


def positions_of(begins: Rows, counts: Rows) -> Rows:
    """All positions of some ranges, one range after the other."""
    ends = np.cumsum(counts)
    return cast("Rows", np.repeat(begins - ends + counts, counts) + np.arange(counts.sum()))


def stretches(values: Rows) -> Iterator[tuple[int, int]]:
    """The places `[start, stop)` where neighbours are equal."""
    if len(values):
        bounds = np.flatnonzero(np.diff(values)) + 1
        yield from itertools.pairwise([0, *bounds.tolist(), len(values)])


def gathered(
    positions: Rows, numbers: Rows, schema: pa.Schema, fetch: Callable[[int, Rows], pa.RecordBatch]
) -> pa.RecordBatch:
    """Rows out of several batches as one batch, in the order of `positions`.

    `numbers` says which batch each position lies in; below zero it is a row of nulls.
    """
    order: Rows | None = None
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        positions, numbers = positions[order], numbers[order]
    if len(numbers) and numbers[0] < 0:
        schema = _nullable(schema)
    parts = []
    for start, stop in stretches(numbers):
        if numbers[start] < 0:
            parts.append(_nulls(stop - start, schema))
        else:
            parts.append(fetch(int(numbers[start]), positions[start:stop]))
    found = _concat(parts, schema) if parts else _nulls(0, schema)
    return found if order is None else found.take(pa.array(_inverse(order)))


def with_nulls(
    positions: Rows, schema: pa.Schema, fetch: Callable[[Rows], pa.RecordBatch]
) -> pa.RecordBatch:
    """Rows in the order of `positions`, which are fetched in ascending order.

    A negative position is a row of nulls.
    """
    order: Rows | None = None
    if (positions[1:] < positions[:-1]).any():
        order = np.argsort(positions, kind="stable")
        positions = positions[order]
    absent = int(np.searchsorted(positions, 0))
    found = fetch(positions[absent:])
    if absent:
        schema = _nullable(schema)
        found = _concat([_nulls(absent, schema), found], schema)
    return found if order is None else found.take(pa.array(_inverse(order)))


def take_rows(
    rows: pa.RecordBatch, positions: Rows, columns: tuple[int, ...] | None
) -> pa.RecordBatch:
    """Rows of a batch; a negative position is a row of nulls."""
    if columns is not None:
        if not columns:
            return NOTHING
        rows = rows.select(list(columns))
    absent = positions < 0
    if not absent.any():
        return rows.take(pa.array(positions))
    rows = pa.RecordBatch.from_arrays(rows.columns, schema=_nullable(rows.schema))
    return rows.take(pa.array(positions, mask=absent))


def sizes_at(rows: pa.RecordBatch, positions: Rows) -> Sizes:
    """The bytes of rows of a batch; a negative position is a row of nulls."""
    fixed, variable = sizes_in(rows.columns)
    sizes = np.full(len(positions), int(fixed) + 1)
    if variable is not None and len(variable):
        sizes += np.where(positions < 0, 0, variable[np.maximum(positions, 0)])
    return sizes


def _inverse(order: Rows) -> Rows:
    """The permutation that undoes another."""
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return back


def _concat(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(parts) == 1:
        return pa.RecordBatch.from_arrays(parts[0].columns, schema=schema)
    columns = [
        pa.concat_arrays([part.column(index) for part in parts]) for index in range(len(schema))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _nulls(count: int, schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])
