"""Rows so far with rows of a window: pairs by key, limited by the window (constraint 3)."""

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.probing import Rows
from dovetail.multisite.plan import PlacedStep
from dovetail.multisite.query import Query, times_of
from dovetail.multisite.rows import RowStore, empty
from dovetail.multisite.windows import Mask, Times, TimeWindow


def probe_codes(step: PlacedStep, rows: pa.RecordBatch) -> tuple[Codes, Mask | None]:
    """The join keys of rows, and which of the rows can match at all (None: all)."""
    return step.key.codec.encode([rows.column(name) for name in step.key.probe])


def select(rows: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    return rows if mask.all() else rows.take(pa.array(np.flatnonzero(mask)))


def same_values(rows: pa.RecordBatch, left: str, right: str) -> Mask:
    """Which rows have equal values in two columns."""
    pair = [rows.column(left)], [rows.column(right)]
    codec = KeyCodec((pair[0][0].type,))
    codes, valid = zip(*(codec.encode(side) for side in pair), strict=True)
    same = np.asarray(codes[0] == codes[1])
    for mask in (*valid, codec.verify(*pair)):
        if mask is not None:
            same &= mask
    return same


def join_rows(
    query: Query, step: PlacedStep, rows: pa.RecordBatch, store: RowStore,
    clock: tuple[int, Times],
) -> pa.RecordBatch:  # fmt: skip
    """Every row with the stored rows that it meets; columns of the stored rows come last.

    `clock`: the number of a row of the window, and the times of it and all that follow.
    """
    codes, valid = probe_codes(step, rows)
    if valid is not None:
        rows, codes = select(rows, valid), codes[valid]
    probing, slots = store.probe(step.stored, codes)
    if len(probing):
        keep = _within(query, step, rows, store, clock, probing, slots)
        if not keep.all():
            probing, slots = probing[keep], slots[keep]
    if not len(probing):
        return empty(step.output)
    left, right = rows.take(pa.array(probing)), store.gather(slots)
    same = step.key.codec.verify(
        [left.column(name) for name in step.key.probe],
        [right.column(name) for name in step.key.stored],
    )
    joined = pa.RecordBatch.from_arrays([*left.columns, *right.columns], schema=step.output)
    return joined if same is None else select(joined, same)


def _within(
    query: Query, step: PlacedStep, rows: pa.RecordBatch, store: RowStore,
    clock: tuple[int, Times], probing: Rows, slots: Rows,
) -> Mask:  # fmt: skip
    window = query.stream(step.stream).window
    heads = times_of(rows.column(query.stream(step.head).time_column))
    ties = query.rank(step.stream) < query.rank(step.head)
    if isinstance(window, TimeWindow):
        return window.limit(heads[probing], store.times[slots], ties)
    first, times = clock
    before = first + window.before(heads, times, ties)
    return window.limit(before[probing], store.numbers[slots])
