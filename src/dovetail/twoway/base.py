"""What every two-way join has: the spec, the split of its budget, and the arrival of rows.

Arrival. A pushed batch is cut into slices that fit the working memory, by what each row takes up
(see `kernel.slices`). A slice is encoded, freed of rows whose key can match nothing, sorted into a
run, made room for, joined with the other side's rows in memory, and inserted. Making room is the
algorithm's own (`_make_room`).

Memory. Of the budget, `WORKING_SHARE` is set aside at the start for transient needs: sorting,
merging, probing, output batches, blocks read back. The rest holds rows, their index, the input
batch (half of it at most), the block catalogue, and what working memory lacks for very wide rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import RESIDENT
from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.keytypes import compared_types
from dovetail.kernel.matching import Emitter, OutputLayout
from dovetail.kernel.memory import Reservation, format_at_least, format_bytes
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES, SIDES, Context, Snapshot, Status
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run, SortedRuns, sort_run
from dovetail.kernel.slices import SizedRows, WideRows

WORKING_SHARE = 3 / 8
MIN_BUDGET_BYTES = 64 << 10
_UNBOUNDED_WORKING_BYTES = 64 << 20
_MOVABLE = frozenset({"rows", "loaded", "outer"})  # what can be given up for rows that come


@dataclass(frozen=True)
class TwoWaySpec:
    """Which rows of two relations match, and what a result looks like."""

    left: pa.Schema
    right: pa.Schema
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    within: int | float | None = None  #: band width in units of the key's code

    @cached_property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        return self.left, self.right

    @cached_property
    def key_columns(self) -> tuple[list[int], list[int]]:
        return (
            [self.left.get_field_index(name) for name in self.left_keys],
            [self.right.get_field_index(name) for name in self.right_keys],
        )

    @cached_property
    def codec(self) -> KeyCodec:
        types = compared_types(self.left, self.right, self.left_keys, self.right_keys)
        return KeyCodec(types, self.within)

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The keys that have one name on both sides."""
        return tuple(a for a, b in zip(self.left_keys, self.right_keys, strict=True) if a == b)

    @cached_property
    def layout(self) -> OutputLayout:
        """A key of one name on both sides appears once, with the left side's value.

        The two of a band are two values: both are there, named for their sides.
        """
        if self.within is not None:
            fields = [
                field.with_name(f"{side}_{field.name}") if field.name in self.shared else field
                for side, schema in zip(SIDE_NAMES, self.schemas, strict=True)
                for field in schema
            ]
            return OutputLayout(pa.schema(fields), tuple(range(len(self.right))))
        right = tuple(i for i, name in enumerate(self.right.names) if name not in self.shared)
        fields = [*self.left, *(self.right.field(index) for index in right)]
        return OutputLayout(pa.schema(fields), right)


class TwoWayJoin(ABC):
    """The arriving phase, shared by every two-way algorithm."""

    name: ClassVar[str]
    joins_bands: ClassVar[bool] = False
    emitter_kind: ClassVar[type[Emitter]] = Emitter  #: what makes results of pairs

    def __init__(
        self, spec: TwoWaySpec, context: Context, snapshot: Snapshot | None = None
    ) -> None:
        self.spec = spec
        self.ctx = context
        total = context.budget.total_bytes
        if total is not None and total < MIN_BUDGET_BYTES:
            raise MemoryBudgetError(
                f"a partition's share of the budget is {format_bytes(total)}, but a join needs at "
                f"least {format_bytes(MIN_BUDGET_BYTES)} a partition: raise memory= or lower "
                "partitions="
            )
        self.working_bytes = _UNBOUNDED_WORKING_BYTES if total is None else _working_share(total)
        context.budget.reserve("working", self.working_bytes)
        self._slice_bytes = self.working_bytes // 8
        self._emitter = self.emitter_kind(
            spec.codec, spec.key_columns, spec.layout, self.working_bytes // 8
        )
        merge_bytes = (1 << 62) if total is None else 2 * self.working_bytes // 5
        self.memory = (SortedRuns(merge_bytes), SortedRuns(merge_bytes))
        self._rows_held = Reservation(context.budget, "rows")
        self.wide = WideRows(
            context.budget, len(SIDES), _wide_needs, _working_share, lambda *_: 0, _MOVABLE
        )
        self.ended = [False, False]
        self._status = Status.IDLE
        if snapshot is not None:
            self.wide.restore(snapshot.meta["widest"])
            self._restore(snapshot)

    # -- the protocol -----------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self.ended[side] = False
        if not batch.num_rows:
            return
        rows = SizedRows(batch, 2 * INDEX_BYTES_PER_ROW)
        if lacking := self.wide.lacking(side, rows):
            self._grow(self.wide.held, lacking, "what wide rows need")
        self.ctx.counters.rows_in[side] += batch.num_rows
        incoming = Reservation(self.ctx.budget, "input")
        self._grow(incoming, self.wide.counted_input(batch.nbytes), "an input batch")
        try:
            for piece in rows.slices(self._slice_bytes, even=True):
                for out in self._arrive(side, piece):
                    self.ctx.counters.emit("arriving", out.num_rows)
                    yield out
        finally:
            incoming.resize(0)

    def finish(self, side: int) -> None:
        self.ended[side] = True
        self._status = Status.MORE if self.pending() else self._resting()

    def status(self) -> Status:
        return self._status

    @abstractmethod
    def poll(self, fuel: int) -> Iterator[pa.RecordBatch]: ...

    @abstractmethod
    def pending(self) -> int: ...

    @abstractmethod
    def snapshot(self) -> Snapshot: ...

    def check(self) -> None:
        for memory in self.memory:
            memory.check()
        assert self._held_bytes() <= self._rows_held.nbytes
        total = self.ctx.budget.total_bytes
        assert total is None or self.ctx.budget.used_bytes <= total

    # -- for the algorithms -----------------------------------------------------------------

    @abstractmethod
    def _make_room(self) -> bool:
        """Give up some of the rows in memory; False when there are none to give up."""

    @abstractmethod
    def _restore(self, snapshot: Snapshot) -> None: ...

    def _codes(self, codes: Codes) -> Codes:
        """The codes that this algorithm orders its rows by."""
        return codes

    def _inserted(self, side: int, run: Run) -> None:  # noqa: B027  most need not know
        """Called when a run has been inserted, before it may be merged with others."""

    def _resting(self) -> Status:
        return Status.DONE if all(self.ended) else Status.IDLE

    def _sorted(self, side: int, rows: pa.RecordBatch) -> Run | None:
        """Rows that came as a run without ticks, less those whose key matches nothing."""
        columns = [rows.column(index) for index in self.spec.key_columns[side]]
        codes, valid = self.spec.codec.encode(columns)
        if valid is not None and not valid.all():
            self.ctx.counters.rows_unmatched_key += int((~valid).sum())
            codes, rows = codes[valid], rows.filter(pa.array(valid))
            if not len(codes):
                return None
        return sort_run(self._codes(codes), 0, rows)

    def _arrive(self, side: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        run = self._sorted(side, rows)
        if run is None:
            return
        self._grow(self._rows_held, run.nbytes, "rows")
        run.ats[:] = self.ctx.clock.tick()  # after the flushes that made room for it
        low, high = self.spec.codec.candidates(run.codes)
        for stored, span in self.memory[1 - side].probe(low, high):
            yield from self._emitter.match(run, stored, span, side)
        yield from self._emitter.drain()
        self._inserted(side, run)
        self.memory[side].insert(run)
        self._settle()

    def _settle(self) -> None:
        """Bring the reservation in line with what is held: merging changes sizes a little."""
        while (excess := self._held_bytes() - self._rows_held.nbytes) > 0:
            if self._rows_held.try_grow(excess):
                return
            if not self._make_room():
                self._refuse(excess, "rows")
        self._rows_held.shrink(-excess)

    def _held_bytes(self) -> int:
        return sum(memory.nbytes for memory in self.memory)

    def _grow(self, reservation: Reservation, nbytes: int, what: str) -> None:
        while not reservation.try_grow(nbytes):
            if not self._make_room():
                self._refuse(nbytes, what)

    def _refuse(self, nbytes: int, what: str) -> None:
        budget = self.ctx.budget
        least = (budget.used_bytes + nbytes) if budget.total_bytes else nbytes
        raise MemoryBudgetError(
            f"{what} of {format_bytes(nbytes)} does not fit: this partition's share of the budget "
            f"is {format_bytes(budget.total_bytes or 0)}, of which "
            f"{format_bytes(self.working_bytes)} are working memory. A share of "
            f"{format_at_least(int(least / (1 - WORKING_SHARE)) + 1)} would do. Raise memory= or "
            "lower partitions=."
        )

    def _persist_memory(self) -> list[np.void]:
        blocks: list[np.void] = []
        for side in SIDES:
            blocks += self.memory[side].persist(
                lambda run, side=side: self.ctx.store.append(run, side, RESIDENT)  # type: ignore[misc]
            )
        return blocks


def _wide_needs(widest: Sequence[int]) -> int:
    """Two blocks that meet, their result, and a copy in the making."""
    return 2 * sum(widest) + max(widest)


def _working_share(partition_bytes: int) -> int:
    return int(partition_bytes * WORKING_SHARE)


__all__ = ["LEFT", "RIGHT", "SIDE_NAMES", "TwoWayJoin", "TwoWaySpec"]
