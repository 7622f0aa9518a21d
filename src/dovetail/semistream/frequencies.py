"""Frequencies of codes in a staged table (f_R), by which shedding weighs stream rows.

Exact if the different codes of the table with their counts fit into an eighth of the budget; else
from a sketch of that size. Either takes two passes over the codes. The memory is reserved first,
and belongs to the operator from then on.

What was learned is written beside the table, for operators of later steps and other processes:

    frequencies-exact.bin                   the codes, then their counts
    frequencies-sketch-<bytes>-<hash>.bin   the counters; named by their size and hash functions

each behind a checksum. A file is made under a name of its own and renamed, so it is there whole or
not at all; of two that learn the same, the last one's stays. One that is damaged, or cannot be
written or read, is as good as none: the table is read again. It goes with the table's directory.

What a row is worth is the number of its results, as the paper's MAX-SUBSET has it: f_R for `inner`;
for `left` a row without a match has a result too; a row of `semi` or `anti` has one or none.
"""

import contextlib
import uuid
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.semistream.base import SemiStreamJoin
from dovetail.semistream.cache.parts import firsts_of
from dovetail.semistream.shedding import (
    Counts,
    Frequencies,
    FrequencyLookup,
    SketchedFrequencies,
)
from dovetail.semistream.spec import ANTI, LEFT_OUTER, SEMI
from dovetail.semistream.table.reading import CODE_BYTES, StagedTable

COMPONENT = "frequencies"
_SHARE = 8  # of the budget: one in so many
_ENTRY_BYTES = 16  # a code and its count
_EXACT = "frequencies-exact.bin"
_CHECKSUM_BYTES = 8
_COPIES = 10  # of the codes at hand, while they are counted
_WHAT = "what is known of the table's frequencies"


def most_bytes(budget_bytes: int | None) -> int | None:
    """The memory that frequencies may take."""
    return None if budget_bytes is None else budget_bytes // _SHARE


def learn_frequencies(operator: SemiStreamJoin) -> Iterator[pa.RecordBatch]:
    """See to it that an operator has its table's frequencies; emits what making room for them does.

    Unless an operator before has learned them, reads all codes of the table, in pieces of the
    working memory. That is not counted as reading of the join.
    """
    if operator.frequencies is not None:
        return
    held = Reservation(operator.ctx.budget, COMPONENT)
    found = yield from _remembered(operator, held)
    if found is None:
        found = yield from _learned(operator, held)
    operator.frequencies, operator.aside_bytes = found, held.nbytes


def _remembered(
    operator: SemiStreamJoin, held: Reservation
) -> Generator[pa.RecordBatch, None, FrequencyLookup | None]:
    """Frequencies learned before, if they fit; else None."""
    table, limit = operator.table, most_bytes(operator.ctx.budget.total_bytes)
    exact = table.directory / _EXACT
    size = _size(exact)
    if size is not None and (limit is None or size <= limit):
        yield from operator.make_room_for(held, size, _WHAT)
        entries = _read(exact, size)
        if entries is not None and not len(entries) % 2:
            return Frequencies(*np.split(entries, 2))
    elif limit is not None and _size(sketch := table.directory / _sketch(limit)) is not None:
        yield from operator.make_room_for(held, limit, _WHAT)
        counters = _read(sketch, SketchedFrequencies.size(limit))
        if counters is not None:
            return SketchedFrequencies(limit, counters)
    held.resize(0)
    return None


def _learned(
    operator: SemiStreamJoin, held: Reservation
) -> Generator[pa.RecordBatch, None, FrequencyLookup]:
    table, limit = operator.table, most_bytes(operator.ctx.budget.total_bytes)
    pages = max(1, operator.working_bytes // _COPIES // (CODE_BYTES * table.page_rows))
    distinct = sum(len(codes) for codes, _ in _counted(table, pages))
    if limit is None or _ENTRY_BYTES * distinct <= limit:
        yield from operator.make_room_for(held, _ENTRY_BYTES * distinct, _WHAT)
        exact = Frequencies(np.empty(distinct, dtype=np.int64), np.empty(distinct, dtype=np.int64))
        at = 0
        for codes, counts in _counted(table, pages):
            some = slice(at, at + len(codes))
            exact.codes[some], exact.counts[some] = codes, counts
            at = some.stop
        _write(table.directory / _EXACT, exact.codes, exact.counts)
        return exact
    yield from operator.make_room_for(held, limit, _WHAT)
    sketch = SketchedFrequencies(limit)
    for stored in _pieces(table, pages):
        sketch.add(stored)
    _write(table.directory / _sketch(limit), sketch.counters)
    return sketch


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


def _pieces(table: StagedTable, pages: int) -> Iterator[Codes]:
    """All codes of a table, of so many pages at a time; not counted as reading of the join."""
    for first in range(0, table.pages, pages):
        with table.uncounted():
            stored = table.codes(first, min(first + pages, table.pages))
        yield stored


def _counted(table: StagedTable, pages: int) -> Iterator[tuple[Codes, Counts]]:
    """The different codes and how often each occurs, in order; so many pages are read at a time.

    A code that goes on in the next piece comes with that one, so that it comes once.
    """
    kept, more = np.zeros(0, dtype=np.int64), 0  # the last code of the piece before, if it is open
    for stored in _pieces(table, pages):
        starts = firsts_of(stored)
        codes, counts = stored[starts], np.diff(starts, append=len(stored))
        if len(kept) and kept[0] == codes[0]:
            counts[0] += more
        elif len(kept):
            codes, counts = np.append(kept, codes), np.insert(counts, 0, more)
        kept, more = codes[-1:], int(counts[-1])
        yield codes[:-1], counts[:-1]
    if len(kept):
        yield kept, np.array([more])


def _sketch(limit: int) -> str:
    """The name of the file with a sketch of that size."""
    return f"frequencies-sketch-{limit}-{SketchedFrequencies.hashing():08x}.bin"


def _size(path: Path) -> int | None:
    """The bytes behind the checksum; None if there is no file."""
    try:
        return max(0, path.stat().st_size - _CHECKSUM_BYTES)
    except OSError:
        return None


def _read(path: Path, nbytes: int) -> Counts | None:
    """Read numbers from a file; None unless it is whole and its checksum is right."""
    try:
        with path.open("rb") as file:
            checksum = file.read(_CHECKSUM_BYTES)
            numbers = np.fromfile(file, np.int64, nbytes // 8)
            whole = numbers.nbytes == nbytes and not file.read(1)
    except OSError:
        return None
    return numbers if whole and checksum == _checksum(path, numbers) else None


def _write(path: Path, *numbers: Counts) -> None:
    """Write numbers to a file, whole or not at all; failures are ignored, as it is only a cache."""
    made = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        try:
            with made.open("wb") as file:
                file.write(_checksum(path, *numbers))
                for some in numbers:
                    some.tofile(file)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)


def _checksum(path: Path, *numbers: Counts) -> bytes:
    """Of numbers in a file of that name."""
    checksum = zlib.crc32(path.name.encode())
    for some in numbers:
        checksum = zlib.crc32(some.data, checksum)
    return checksum.to_bytes(_CHECKSUM_BYTES, "little")
