"""The shell of every operator: arrival, the fuel of deferred work, and memory pressure.

An algorithm implements the arrival of a slice of rows (`_arrive`), its deferred work (`_deferred`),
and making room (`_reclaim`). All else is the same for every kind of join.

Arrival. A pushed batch is cut into slices that fit the working memory, by what each row takes up
(see `kernel.slices`). Before the first slice, what working memory lacks for the widest row and the
batch itself are reserved.

Deferred work comes in pieces, each drained before the next is asked for. A piece costs fuel: the
rows that it emits, and what it reads and flushes. When the fuel is spent, `poll` returns between
two pieces.

Memory pressure. `_grow` makes room until a reservation is granted, or until there is nothing left
to give up: then the error says which share of the budget would do. Making room may bring results,
so it is a generator; where no result may be emitted, `quietly` drains it and asserts there is none.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import ClassVar, NoReturn

import pyarrow as pa

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.memory import MemorySplit, Reservation, format_at_least, format_bytes
from dovetail.kernel.protocol import Context, Snapshot, Status
from dovetail.kernel.slices import SizedRows, WideRows

Results = Iterator[pa.RecordBatch]
Reclaiming = Generator[pa.RecordBatch, None, bool]  #: results on the way; whether room was made
Pieces = Iterator[tuple[str, Results]]  #: deferred work, each piece with the name of its phase

_PAPER_BLOCK_BYTES = 10 << 10
_BLOCKS_IN_BUDGET = 200  # as in the paper: 10 KB of 10,000 rows of 200 bytes
_FUEL_BYTES = 64  # that are read or flushed for as much fuel as a row costs


class Shell(ABC):
    """The base of all operators: arrival, fuel of deferred work, memory pressure."""

    name: ClassVar[str]
    split: ClassVar[MemorySplit]

    def __init__(self, context: Context, inputs: int) -> None:
        self.ctx = context
        self.working_bytes = self.split.working_bytes(context.budget.total_bytes)
        context.budget.reserve("working", self.working_bytes)
        self._slice_bytes = self.working_bytes // 8
        self.wide = WideRows(context.budget, inputs, self.split)
        self.ended = [False] * inputs
        self._status = Status.IDLE

    # -- the protocol -----------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Results:
        """Take a batch in, and emit what it joins with at once. Re-opens a finished input."""
        self._put_down()  # the rows that come need the memory
        self.ended[side] = False
        if batch.num_rows:
            yield from self._counted("arriving", self._taken_in(side, batch))

    def poll(self, fuel: int) -> Results:
        """Do deferred work until about `fuel` rows have been read or emitted; see `status`."""
        counters = self.ctx.counters
        phase = "deferred"
        for phase, work in self._deferred():
            before = counters.bytes_read + counters.flushed_bytes
            for results in (work, self._account()):
                for out in self._counted(phase, results):
                    fuel -= out.num_rows
                    yield out
            done = counters.bytes_read + counters.flushed_bytes - before
            fuel -= 1 + done // _FUEL_BYTES
            if self._stops(fuel):
                self._status = Status.MORE
                break
        else:
            yield from self._counted(phase, self._account())
            self._put_down()
            self._status = self._resting()
        yield from self._counted(phase, self._gathered())

    def finish(self, side: int) -> None:
        """Declare an input ended, as far as is known."""
        self.ended[side] = True
        self._status = Status.MORE if self.pending() else self._resting()

    def status(self) -> Status:
        """Whether the last `poll` left anything to do."""
        return self._status

    @abstractmethod
    def pending(self) -> int: ...

    @abstractmethod
    def snapshot(self) -> Snapshot: ...

    def check(self) -> None:
        """Assert the operator's invariants."""
        total = self.ctx.budget.total_bytes
        assert total is None or self.ctx.budget.used_bytes <= total

    # -- for the algorithms: what they do ---------------------------------------------------

    @abstractmethod
    def _arrive(self, side: int, rows: pa.RecordBatch) -> Results:
        """Take a slice of rows in."""

    @abstractmethod
    def _deferred(self) -> Pieces:
        """Yield pieces of deferred work, in order; each is drained before the next is asked for."""

    @abstractmethod
    def _reclaim(self, wanted: int) -> Reclaiming:
        """Give up some memory; False if there is none to give up.

        `wanted`: the bytes of a waiting reservation; 0 if something held has become larger.
        """

    def _put_down(self) -> None:  # noqa: B027  not every algorithm holds any
        """Give back the memory that only deferred work needs; what was done stays done."""

    def _account(self) -> Results:
        """Bring reservations in line with what a piece of deferred work has changed."""
        return iter(())

    def _gathered(self) -> Results:
        """Results of several pieces that waited to make up a batch together."""
        return iter(())

    def _stops(self, fuel: int) -> bool:
        """Whether deferred work stops with this much fuel left."""
        return fuel <= 0

    def _announced(self, rows: SizedRows) -> None:  # noqa: B027  most need not know
        """Called before the first rows of a batch come."""

    @abstractmethod
    def _beside_bytes(self, side: int) -> int:
        """The bytes that are kept for each row besides the row."""

    def _slices(self, rows: SizedRows) -> Iterator[pa.RecordBatch]:
        return rows.slices(self._slice_bytes, even=True)

    def _resting(self) -> Status:
        return Status.DONE if all(self.ended) else Status.IDLE

    # -- for the algorithms: memory ---------------------------------------------------------

    def _grow(self, held: Reservation, nbytes: int, what: str) -> Results:
        """Have a reservation granted, whatever has to be given up for it."""
        while not held.try_grow(nbytes):
            if not (yield from self._reclaim(nbytes)):
                self._refuse(nbytes, what)

    def _adjust(
        self,
        held: Reservation,
        needed: Callable[[], int],
        what: str,
        reclaim: Callable[[int], Reclaiming] | None = None,
    ) -> Results:
        """Bring a reservation in line with what is needed: merging changes sizes a little."""
        while (excess := needed() - held.nbytes) > 0:
            if held.try_grow(excess):
                return
            if not (yield from (reclaim or self._reclaim)(0)):
                self._refuse(excess, what)
        held.shrink(-excess)

    def _refuse(self, nbytes: int, what: str) -> NoReturn:
        budget = self.ctx.budget
        raise MemoryBudgetError(
            f"{what} of {format_bytes(nbytes)} does not fit: this partition's share of the budget "
            f"is {format_bytes(budget.total_bytes or 0)}, of which "
            f"{format_bytes(self.working_bytes)} are working memory. A share of "
            f"{format_at_least(self.split.least_for(budget.used_bytes + nbytes))} would do. Raise "
            "memory= or lower partitions=."
        )

    # -- arriving ---------------------------------------------------------------------------

    def _taken_in(self, side: int, batch: pa.RecordBatch) -> Results:
        rows = SizedRows(batch, self._beside_bytes(side))
        lacking = self.wide.lacking(side, rows)
        self._announced(rows)
        if lacking:
            yield from self._grow(self.wide.held, lacking, "what wide rows need")
        counted = self.ctx.counters.rows_in
        counted += [0] * (len(self.ended) - len(counted))
        counted[side] += batch.num_rows
        incoming = Reservation(self.ctx.budget, "input")
        yield from self._grow(incoming, self.wide.counted_input(batch.nbytes), "an input batch")
        try:
            for piece in self._slices(rows):
                yield from self._arrive(side, piece)
        finally:
            incoming.resize(0)

    def _counted(self, phase: str, results: Iterable[pa.RecordBatch]) -> Results:
        for out in results:
            self.ctx.counters.emit(phase, out.num_rows)
            yield out


class SpillingShell(Shell):
    """The shell of operators that keep rows in memory and flush some to make room.

    What is held is reserved in two parts: the rows with their indexes, and the catalogue of the
    blocks on disk.
    """

    def __init__(self, context: Context, inputs: int) -> None:
        super().__init__(context, inputs)
        self._rows_held = Reservation(context.budget, "rows")
        self._catalogue = Reservation(context.budget, "catalogue")

    @abstractmethod
    def _make_room(self, wanted: int = 0) -> bool:
        """Give up some of the rows in memory; False when there are none to give up.

        `wanted`: see `_reclaim`.
        """

    @abstractmethod
    def _held_bytes(self) -> int:
        """The bytes of the rows in memory, with their indexes."""

    def _catalogue_bytes(self) -> int:
        """The bytes of the catalogue of blocks in memory."""
        return 0

    def require(self, held: Reservation, nbytes: int, what: str) -> None:
        """Have a reservation granted; for `kernel.room`."""
        quietly(self._grow(held, nbytes, what))

    def lend(self) -> bool:
        """Give up something for blocks that are read; for `kernel.room`."""
        return self._make_room()

    def release_rows(self) -> None:
        """Give back what rows that have left memory took up."""
        self._rows_held.shrink(max(0, self._rows_held.nbytes - self._held_bytes()))

    def settle_catalogue(self) -> None:
        """Reserve what blocks that were written take up in the catalogue."""
        quietly(self._account())

    def check(self) -> None:
        super().check()
        assert self._held_bytes() <= self._rows_held.nbytes
        assert self._catalogue_bytes() <= self._catalogue.nbytes

    def _reclaim(self, wanted: int) -> Reclaiming:
        yield from ()
        return self._make_room(wanted)

    def _account(self) -> Results:
        return self._adjust(self._catalogue, self._catalogue_bytes, "the catalogue of blocks")

    def _settle_rows(self) -> Results:
        return self._adjust(self._rows_held, self._held_bytes, "rows")

    def _choose_block_bytes(self, asked: int | None, most: int) -> int:
        """The bytes of a flushed block: as asked for, or as many as in the DINER paper.

        More where the budget is large.
        """
        if asked is not None:
            return max(1, min(asked, most))
        total = self.ctx.budget.total_bytes
        if total is None:
            return most
        return min(max(_PAPER_BLOCK_BYTES, total // _BLOCKS_IN_BUDGET), most)

    def _bytes_to_flush(self, block_bytes: int, most: int, wanted: int) -> int:
        """The bytes of a block, and more of them where more is wanted.

        Several flushes before the next arrival would all be decided on the same counters, and each
        costs as much as there are rows in memory. With some to spare: rows are of about one size.
        """
        budget = self.ctx.budget
        if budget.total_bytes is None:
            return block_bytes
        unsettled = max(0, self._held_bytes() - self._rows_held.nbytes)
        lacking = budget.used_bytes + wanted + unsettled - budget.total_bytes
        if lacking <= block_bytes:
            return block_bytes
        return max(block_bytes, min(lacking + block_bytes // 2, most))


def quietly(making_room: Iterable[pa.RecordBatch]) -> None:
    """Make room where no result may be emitted, and none can come about."""
    for _ in making_room:
        raise AssertionError("making room brought a result where none can be emitted")


__all__ = ["Pieces", "Reclaiming", "Results", "Shell", "SpillingShell", "quietly"]
