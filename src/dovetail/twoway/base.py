"""The base of two-way joins: the spec, the split of the budget, and the arrival of rows.

Arrival. A pushed batch is cut into slices that fit the working memory, by what each row takes up
(see `kernel.slices`). A slice is encoded, freed of rows whose key can match nothing, sorted into a
run, made room for, joined with the other side's rows in memory, and inserted. Making room is the
algorithm's own (`_make_room`). What surrounds it is the shell's (`kernel.shell`).

Memory. Of the budget, `WORKING_SHARE` is set aside at the start for transient needs: sorting,
merging, probing, output batches, blocks read back. The rest holds rows, their index, the input
batch (half of it at most), the block catalogue, and what working memory lacks for very wide rows.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import RESIDENT
from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.keytypes import compared_types
from dovetail.kernel.matching import Emitter, OutputLayout
from dovetail.kernel.memory import MemorySplit, require_share
from dovetail.kernel.predicates import Predicate
from dovetail.kernel.probing import Span
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES, SIDES, Context, Snapshot
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run, SortedRuns, sort_run
from dovetail.kernel.shell import Results, SpillingShell

WORKING_SHARE = 3 / 8
MIN_BUDGET_BYTES = 64 << 10

Note = Callable[[Run, Span], None]  #: takes note of what was found in a run


@dataclass(frozen=True)
class TwoWaySpec:
    """The condition of a join of two relations, and the columns of a result."""

    left: pa.Schema
    right: pa.Schema
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    within: int | float | None = None  #: band width in units of the key's code
    residual: Predicate | None = None  #: what pairs whose keys match have to satisfy besides
    #: how many columns at each side's end are there for keys and residual only
    hidden: tuple[int, int] = (0, 0)

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
        left, right = (
            list(schema)[: len(schema) - hidden]
            for schema, hidden in zip(self.schemas, self.hidden, strict=True)
        )
        if self.within is not None:
            fields = [
                field.with_name(f"{side}_{field.name}") if field.name in self.shared else field
                for side, shown in zip(SIDE_NAMES, (left, right), strict=True)
                for field in shown
            ]
            return OutputLayout(pa.schema(fields), tuple(range(len(right))), len(left))
        own = tuple(n for n, field in enumerate(right) if field.name not in self.shared)
        return OutputLayout(pa.schema([*left, *(right[n] for n in own)]), own, len(left))


def _wide_needs(widest: Sequence[int]) -> int:
    """The bytes for the widest rows: of two blocks, their result, and a copy in the making."""
    return 2 * sum(widest) + max(widest)


class TwoWayJoin(SpillingShell):
    """The arriving phase, shared by every two-way algorithm."""

    split: ClassVar[MemorySplit] = MemorySplit(
        WORKING_SHARE, frozenset({"rows", "loaded", "outer"}), _wide_needs
    )
    joins_bands: ClassVar[bool] = False
    emitter_kind: ClassVar[type[Emitter]] = Emitter  #: what makes results of pairs
    memory: tuple[SortedRuns, SortedRuns]

    def __init__(
        self, spec: TwoWaySpec, context: Context, snapshot: Snapshot | None = None
    ) -> None:
        require_share(context.budget.total_bytes, MIN_BUDGET_BYTES, "a join needs")
        super().__init__(context, len(SIDES))
        self.spec = spec
        self._emitter = self.emitter_kind(
            spec.codec, spec.key_columns, spec.layout, self.working_bytes // 8, spec.residual
        )
        self._build(snapshot)
        if snapshot is not None:
            self.wide.restore(snapshot.meta["widest"])
            self._restore(snapshot)

    def _build(self, snapshot: Snapshot | None) -> None:
        """Build the algorithm's empty structures; `snapshot` says how they are divided."""
        bounded = self.ctx.budget.total_bytes is not None
        self.memory = self._new_memory(2 * self.working_bytes // 5 if bounded else 1 << 62)

    def _new_memory(self, merge_bytes: int) -> tuple[SortedRuns, SortedRuns]:
        return SortedRuns(merge_bytes), SortedRuns(merge_bytes)

    def check(self) -> None:
        super().check()
        for memory in self.memory:
            memory.check()

    # -- for the algorithms -----------------------------------------------------------------

    @abstractmethod
    def _restore(self, snapshot: Snapshot) -> None: ...

    def _codes(self, codes: Codes) -> Codes:
        """The codes that this algorithm orders its rows by."""
        return codes

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

    def _arrive(self, side: int, rows: pa.RecordBatch) -> Results:
        run = self._sorted(side, rows)
        if run is None:
            return
        yield from self._grow(self._rows_held, run.nbytes, "rows")
        run.ats[:] = self.ctx.clock.tick()  # after the flushes that made room for it
        yield from self._take_in(side, run)
        yield from self._settle_rows()

    def _take_in(self, side: int, run: Run) -> Results:
        """Join rows with the other side's in memory, and store them."""
        yield from self._match(side, run)
        self.memory[side].insert(run)

    def _match(self, side: int, run: Run, note: Note = lambda _run, _span: None) -> Results:
        """Join rows with the other side's in memory; `note` is called with all that is found."""
        low, high = self.spec.codec.candidates(run.codes)
        for stored, span in self.memory[1 - side].probe(low, high):
            note(stored, span)
            yield from self._emitter.match(run, stored, span, side)
        yield from self._emitter.drain()

    def _held_bytes(self) -> int:
        return sum(memory.nbytes for memory in self.memory)

    def _beside_bytes(self, side: int) -> int:
        return 2 * INDEX_BYTES_PER_ROW

    def _gathered(self) -> Results:
        return self._emitter.drain()

    def _persist_memory(self) -> list[np.void]:
        blocks: list[np.void] = []
        for side in SIDES:
            blocks += self.memory[side].persist(
                lambda run, side=side: self.ctx.store.append(run, side, RESIDENT)  # type: ignore[misc]
            )
        return blocks


__all__ = ["LEFT", "RIGHT", "SIDE_NAMES", "TwoWayJoin", "TwoWaySpec"]
