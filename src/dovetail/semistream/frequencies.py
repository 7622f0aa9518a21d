"""f_R of a staged table: how many of its rows have a code, and so what leaving a row out loses.

Exact if the different codes of the table with their counts fit into an eighth of the budget, which
takes two passes over the codes; else from a sketch of that size, in one. The memory is reserved
first, and belongs to the operator from then on.

What a row is worth is the number of its results, as the paper's MAX-SUBSET has it: f_R for `inner`;
for `left` a row without a match has a result too; a row of `semi` or `anti` has one or none.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.semistream.base import SemiStreamJoin
from dovetail.semistream.shedding import (
    Counts,
    Frequencies,
    FrequencyLookup,
    SketchedFrequencies,
    check_sketches,
)
from dovetail.semistream.spec import ANTI, LEFT_OUTER, SEMI
from dovetail.semistream.table import CODE_BYTES, StagedTable

COMPONENT = "frequencies"
_SHARE = 8  # of the budget: one in so many
_ENTRY_BYTES = 16  # a code and its count


def most_bytes(budget_bytes: int | None) -> int | None:
    """The memory that frequencies may take."""
    return None if budget_bytes is None else budget_bytes // _SHARE


def check_frequencies(table: StagedTable, budget_bytes: int | None) -> None:
    """Refuse now what would be missed later: the package for sketches, if one may be needed."""
    limit = most_bytes(budget_bytes)
    if limit is not None and table.rows * _ENTRY_BYTES > limit:
        check_sketches()


def learn_frequencies(operator: SemiStreamJoin) -> Iterator[pa.RecordBatch]:
    """See to it that an operator has its table's frequencies; emits what making room for them does.

    Reads all codes of the table, in pieces of the working memory. That is not counted as reading
    of the join.
    """
    if operator.frequencies is not None:
        return
    table, limit = operator.table, most_bytes(operator.ctx.budget.total_bytes)
    held = Reservation(operator.ctx.budget, COMPONENT)
    pages = max(1, operator.working_bytes // 4 // (CODE_BYTES * table.page_rows))
    with table.uncounted():
        distinct = sum(len(codes) for codes, _ in _counted(table, pages))
    if limit is None or _ENTRY_BYTES * distinct <= limit:
        what = "the frequencies of the table's codes"
        yield from operator.make_room_for(held, _ENTRY_BYTES * distinct, what)
        with table.uncounted():
            operator.frequencies = _exact(table, pages, distinct)
    else:
        yield from operator.make_room_for(held, limit, "a sketch of the table's frequencies")
        with table.uncounted():
            operator.frequencies = _sketched(table, pages, limit)
    operator.aside_bytes = held.nbytes


class Worth:
    """The results that each row of one batch has, as the strategies see it."""

    def __init__(self, inner: FrequencyLookup, how: str, valid: NDArray[np.bool_] | None) -> None:
        """`valid`: which rows of the batch can match at all; None is all."""
        self._inner = inner
        self._how = how
        self._valid = valid

    def of(self, codes: Codes) -> Counts:
        counts = self._inner.of(codes)
        if self._valid is not None:
            counts = np.where(self._valid, counts, 0)
        if self._how == LEFT_OUTER:
            return np.maximum(counts, 1)
        if self._how == SEMI:
            return np.minimum(counts, 1)
        return (counts == 0).astype(np.int64) if self._how == ANTI else counts


def _exact(table: StagedTable, pages: int, distinct: int) -> Frequencies:
    codes, counts = np.empty(distinct, dtype=np.int64), np.empty(distinct, dtype=np.int64)
    at = 0
    for piece, count in _counted(table, pages):
        codes[at : at + len(piece)], counts[at : at + len(piece)] = piece, count
        at += len(piece)
    return Frequencies.counted(codes, counts)


def _sketched(table: StagedTable, pages: int, nbytes: int) -> SketchedFrequencies:
    sketch = SketchedFrequencies(nbytes)
    for first in range(0, table.pages, pages):
        sketch.add(table.codes(first, min(first + pages, table.pages)))
    return sketch


def _counted(table: StagedTable, pages: int) -> Iterator[tuple[Codes, Counts]]:
    """The different codes and how often each occurs, in order; so many pages are read at a time.

    A code that goes on in the next piece comes with that one, so that it comes once.
    """
    kept, more = np.zeros(0, dtype=np.int64), 0  # the last code of the piece before, if it is open
    for first in range(0, table.pages, pages):
        stored = table.codes(first, min(first + pages, table.pages))
        starts = np.flatnonzero(np.diff(stored, prepend=~stored[:1]))
        codes, counts = stored[starts], np.diff(starts, append=len(stored))
        if len(kept) and kept[0] == codes[0]:
            counts[0] += more
        elif len(kept):
            codes, counts = np.append(kept, codes), np.insert(counts, 0, more)
        kept, more = codes[-1:], int(counts[-1])
        yield codes[:-1], counts[:-1]
    if len(kept):
        yield kept, np.array([more])
