"""Rows of a window, by sequence number, with an index for each key they are probed by.

The same store holds a stream's own window, whose numbers are dense, and the copy of another's,
whose numbers have gaps and come in any order. Rows leave lowest number first, so one number tells
which are left; they are given up for good once they are half of all.

A key's index is a few sorted runs of (code, slot), compacted like an LSM tree; docs/decisions/021
says why it is not `SortedRuns`. A slot is a row's place in the store, until rows are given up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows, probe_run
from dovetail.kernel.runs import FAN_IN
from dovetail.multisite.query import StepKey, key_of, times_of
from dovetail.multisite.snapshots import Kept
from dovetail.multisite.windows import Numbers, Times

_FEW = 64  # dead rows are not worth the trouble
_ALL = 1 << 62


class Growing(Kept):
    """An array that grows at its end, in amortised constant time per value.

    What `values` gave is never written over: a message that is still on its way may hold it.
    """

    def __init__(self, dtype: type = np.int64) -> None:
        self._data: NDArray[Any] = np.zeros(16, dtype=dtype)
        self._length = 0

    @property
    def values(self) -> NDArray[Any]:
        return self._data[: self._length]

    @property
    def nbytes(self) -> int:
        return int(self._data.nbytes)

    def append(self, values: NDArray[Any]) -> None:
        needed = self._length + len(values)
        if needed > len(self._data):
            data = np.zeros(max(needed, 2 * len(self._data)), dtype=self._data.dtype)
            data[: self._length] = self.values
            self._data = data
        self._data[self._length : needed] = values
        self._length = needed

    def replace(self, values: NDArray[Any]) -> None:
        self._data = np.array(values, dtype=self._data.dtype)
        self._length = len(values)

    def snapshot(self) -> NDArray[Any]:
        return self.values

    def restore(self, data: Any) -> Self:
        self.replace(data)
        return self


@dataclass
class KeyIndex(Kept):
    """The codes of one key of all rows of a store, and sorted runs of them."""

    KEPT = ("codes", "valid", "runs")

    key: StepKey
    codes: Growing = field(default_factory=Growing)  #: by slot
    valid: Growing = field(default_factory=lambda: Growing(np.bool_))
    runs: list[tuple[Codes, Rows]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        runs = sum(int(codes.nbytes + slots.nbytes) for codes, slots in self.runs)
        return self.codes.nbytes + self.valid.nbytes + runs

    def add(self, rows: pa.RecordBatch, first_slot: int) -> None:
        codes, valid = self.key.codec.encode([rows.column(name) for name in self.key.stored])
        slots = np.arange(first_slot, first_slot + len(codes))
        self.codes.append(codes)
        self.valid.append(np.ones(len(codes), dtype=np.bool_) if valid is None else valid)
        if valid is not None:
            codes, slots = codes[valid], slots[valid]
        if len(codes):
            self._insert(codes, slots)

    def _insert(self, codes: Codes, slots: Rows) -> None:
        order = np.argsort(codes, kind="stable")
        self.runs.append((codes[order], slots[order]))
        while _are_to_merge([len(run) for run, _ in self.runs[-FAN_IN:]]):
            merged, slots = map(np.concatenate, zip(*self.runs[-FAN_IN:], strict=True))
            order = np.argsort(merged, kind="stable")
            self.runs[-FAN_IN:] = [(merged[order], slots[order])]

    def probe(self, codes: Codes) -> tuple[Rows, Rows]:
        """Pairs of a position in `codes` and a slot with that code."""
        order = np.argsort(codes, kind="stable")
        wanted = codes[order]
        found = [
            (order[probing], slots[stored])
            for run, slots in self.runs
            if (span := probe_run(run, wanted, wanted)) is not None
            for probing, stored in span.pairs(_ALL)
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return (
            np.concatenate([probing for probing, _ in found]),
            np.concatenate([stored for _, stored in found]),
        )


class RowStore(Kept):
    """Rows with their numbers and times. `first` is the lowest number that still counts.

    A snapshot has the runs of indexes, too, as these say in which order rows are found.
    """

    KEPT = ("first", "chunks", "numbers", "times")

    def __init__(self, schema: pa.Schema, time_column: str) -> None:
        self.schema = schema
        self.first = 0
        self._time_column = time_column
        self._chunks: list[pa.RecordBatch] = []
        self._numbers = Growing()
        self._times = Growing()
        self.indexes: dict[StepKey, KeyIndex] = {}
        self._by_number: Rows | None = None

    def __len__(self) -> int:
        return int(np.count_nonzero(self._numbers.values >= self.first))

    @property
    def numbers(self) -> Numbers:
        """By slot; also of rows that no longer count."""
        return self._numbers.values

    @property
    def times(self) -> Times:
        return self._times.values

    @property
    def nbytes(self) -> int:
        return sum(int(chunk.nbytes) for chunk in self._chunks)

    @property
    def index_bytes(self) -> int:
        """The bytes of indexes, numbers and times, beside the rows."""
        indexes = sum(index.nbytes for index in self.indexes.values())
        return self._numbers.nbytes + self._times.nbytes + indexes

    def snapshot(self) -> dict[str, Any]:
        indexes = [[key.stored, index.snapshot()] for key, index in self.indexes.items()]
        return {**super().snapshot(), "indexes": indexes}

    def restore(self, data: Mapping[str, Any]) -> Self:
        for columns, index in data["indexes"]:
            key = key_of(self.schema, columns)
            self.indexes[key] = KeyIndex(key).restore(index)
        return super().restore(data)

    def append(self, numbers: Numbers, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        first_slot = len(self.numbers)
        self._numbers.append(numbers)
        self._times.append(times_of(rows.column(self._time_column)))
        self._by_number = None
        for index in self.indexes.values():
            index.add(rows, first_slot)
        self._chunks.append(rows)
        while _are_to_merge([chunk.num_rows for chunk in self._chunks[-FAN_IN:]]):
            self._chunks[-FAN_IN:] = [pa.concat_batches(self._chunks[-FAN_IN:])]

    def index(self, key: StepKey) -> KeyIndex:
        """The index on a key, made when it is first asked for."""
        if key not in self.indexes:
            index = self.indexes[key] = KeyIndex(key)
            slot = 0
            for chunk in self._chunks:
                index.add(chunk, slot)
                slot += chunk.num_rows
        return self.indexes[key]

    def probe(self, key: StepKey, codes: Codes) -> tuple[Rows, Rows]:
        """Pairs of a position in `codes` and the slot of a row that still counts."""
        probing, slots = self.index(key).probe(codes)
        counts = self.numbers[slots] >= self.first
        if counts.all():
            return probing, slots
        return probing[counts], slots[counts]

    def gather(self, slots: Rows) -> pa.RecordBatch:
        """The rows in these slots, in this order."""
        if not len(slots):
            return empty(self.schema)
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(slots))
        ends = np.cumsum([chunk.num_rows for chunk in self._chunks])
        home = np.searchsorted(ends, slots, side="right")
        order = np.argsort(home, kind="stable")
        cuts = np.searchsorted(home[order], np.arange(len(ends) + 1))
        parts = [
            chunk.take(pa.array(slots[order[cuts[i] : cuts[i + 1]]] - (ends[i] - chunk.num_rows)))
            for i, chunk in enumerate(self._chunks)
            if cuts[i] < cuts[i + 1]
        ]
        if len(parts) == 1:
            return parts[0]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(parts).take(pa.array(back))

    def slots_of(self, numbers: Numbers) -> Rows:
        """Where the rows of these numbers are; numbers that are not there are left out."""
        if self._by_number is None:
            self._by_number = np.argsort(self.numbers, kind="stable")
        ordered = self.numbers[self._by_number]
        at = np.searchsorted(ordered, numbers)
        at = np.minimum(at, len(ordered) - 1)
        there = ordered[at] == numbers if len(ordered) else np.zeros(len(numbers), dtype=np.bool_)
        slots: Rows = self._by_number[at[there]]
        return slots

    def expire(self, first: int) -> None:
        """Rows with lower numbers count no more."""
        self.first = max(self.first, first)
        alive = self.numbers >= self.first
        dead = len(alive) - int(np.count_nonzero(alive))
        if dead > _FEW and 2 * dead > len(alive):
            self._compact(np.flatnonzero(alive))

    def _compact(self, slots: Rows) -> None:
        rows = self.gather(slots)
        self._numbers.replace(self.numbers[slots])
        self._times.replace(self.times[slots])
        self._chunks = [rows] if rows.num_rows else []
        self._by_number = None
        keys, self.indexes = list(self.indexes), {}
        for key in keys:
            self.index(key)

    def expire_oldest(self, count: int) -> None:
        """The `count` lowest of the rows that count are to count no more (Algorithm 8, line 9)."""
        alive = self.numbers[self.numbers >= self.first]
        count = min(count, len(alive))
        if count:
            self.expire(int(np.partition(alive, count - 1)[count - 1]) + 1)


def _are_to_merge(newest: list[int]) -> bool:
    """Whether the newest runs or chunks, of these sizes, are to be one, as they are alike."""
    return len(newest) == FAN_IN and newest[0] <= sum(newest[1:])


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """No rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
