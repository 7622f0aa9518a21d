"""DINER's joins of blocks on disk: in ReactiveNL, one inner block at a time.

`meeting` has the rules and the bookkeeping. Whoever asks for a step drains it, and may then
leave for as long as it likes: `put_down` gives the outer blocks in memory back, and the next step
reads them again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.kernel.catalogue import Entries, Pages, concatenated
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.matching import Emitter
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context
from dovetail.kernel.room import Lender, Room
from dovetail.kernel.runs import Run
from dovetail.twoway.diner.costs import held_bytes, total_bytes
from dovetail.twoway.diner.lists import BlockList, ListWindow, Upcoming, window_entries
from dovetail.twoway.diner.meeting import (
    Done,
    LoadedBlocks,
    Part,
    Rectangle,
    ZoneMaps,
    label,
    new_pairs,
)

_WINDOW_SHARE = 1 / 16  # of the memory for a part, for entries of blocks that are to be met


@dataclass(frozen=True)
class DinerOptions:
    """The settings of DINER; the defaults are the paper's (section 5) where it has any."""

    #: bytes of a flushed block; None: the paper's 10 KB, and more where the budget is large
    block_bytes: int | None = None
    max_outer_blocks: int = 19  #: MaxOuterMem: outer blocks in memory in the Reactive phase
    max_new_arrivals: int = 1000  #: MaxNewArr: waiting rows that end the Reactive phase
    load_ended: bool = True  #: footnote 1: once an input has ended, its blocks are loaded back
    #: beyond the paper: leave out pairs of blocks that cannot make a new pair
    zone_maps: bool = True
    #: how blocks meet in Cleanup. "loop": as in the paper. Beyond it, "sweep": by ranges of codes;
    #: "sort": the same after sorting them; "cheapest": by the zone maps
    cleanup: Literal["cheapest", "sweep", "sort", "loop"] = "cheapest"

    def __post_init__(self) -> None:
        least = {"block_bytes": 1, "max_outer_blocks": 1, "max_new_arrivals": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ArgumentError(f"{name}={value!r} of DINER has to be at least {lowest}")


@dataclass
class Chunk:
    """The outer blocks that are being joined, and the inner blocks that they have yet to meet.

    `parts` is None if the blocks do not fit into memory together: they are then read each time.
    """

    parts: list[Part] | None
    inner: Upcoming


class BlockJoins:
    """The blocks of both sides, how far they have been joined, and ReactiveNL."""

    def __init__(
        self, context: Context, codec: KeyCodec, emitter: Emitter, pages: Pages, part_bytes: int,
        options: DinerOptions,
    ) -> None:  # fmt: skip
        self._ctx = context
        self._codec = codec
        self._emitter = emitter
        self.part_bytes = part_bytes  # merging a part takes as much again
        self._options = options
        self.zones = ZoneMaps(codec)
        self.room = Room(context.budget, in_working=part_bytes)
        self.pages = pages
        self.window = window_entries(pages, int(_WINDOW_SHARE * part_bytes))
        self.blocks = (BlockList(pages), BlockList(pages))
        self.loads: list[LoadedBlocks] = []
        self.rectangle = Rectangle()
        self._chunk: Chunk | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.blocks[LEFT]), len(self.blocks[RIGHT])

    def unmet_rows(self) -> int:
        """About the rows in blocks that have not met all of the other side's; 0 if all have."""
        if not all(self.sizes):
            return 0
        rows = 0
        for blocks, joined in zip(self.blocks, self.rectangle.joined, strict=True):
            rows += -(-blocks.rows * (len(blocks) - joined) // len(blocks))
        return rows

    def put_down(self) -> None:
        """Give the outer blocks in memory back; nothing else is lost."""
        self._chunk = None
        self.room.give_back()

    def read(self, block: np.void) -> Run:
        """A flushed block, labelled."""
        return label(self._ctx.store.read(block), int(block["dts"]))

    def needs(self, side: int, start: int, stop: int, need: Callable[[Entries], Rows]) -> Rows:
        """The bytes of each block of a side in memory, from `start` on, as far as any could fit."""
        most = self._ctx.budget.total_bytes
        found: list[Rows] = [np.zeros(0, dtype=np.int64)]
        held = 0
        for entries in self.blocks[side].entries(start, min(stop, len(self.blocks[side]))):
            found.append(need(entries))
            held += int(found[-1].sum())
            if most is not None and held > most:
                break
        return np.concatenate(found)

    def parts(self, runs: Iterable[Run]) -> Iterator[Part]:
        """Labelled runs of a side, merged into parts that can be merged in working memory."""
        held: list[Run] = []
        nbytes = 0
        for run in runs:
            if held and nbytes + run.nbytes > self.part_bytes:
                yield Part(held)
                held, nbytes = [], 0
            held.append(run)
            nbytes += run.nbytes
        if held:
            yield Part(held)

    def done(self) -> list[Done]:
        """The blocks that have met, by their DTS."""
        left, right = self.blocks
        return [
            (left.dts_at(a), left.dts_at(b), right.dts_at(c), right.dts_at(d))
            for a, b, c, d in self.rectangle.done()
        ]

    def join(
        self, side: int, blocks: list[Run], outer: Iterable[Part], done: Sequence[Done] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Inner blocks of this side, labelled, meet outer rows; not where that is done."""
        inner = Part(blocks)
        low, high = self._codec.candidates(inner.run.codes)
        for part in outer:
            span = part.run.probe(low, high)
            if span is not None:
                keep = new_pairs(inner, part, side, self.loads, done)
                yield from self._emitter.match(inner.run, part.run, span, side, keep)
        yield from self._emitter.drain()

    # -- ReactiveNL -------------------------------------------------------------------------

    def react(self, most: int, lender: Lender) -> Iterator[pa.RecordBatch]:
        """The open chunk of at most `most` outer blocks meets one inner block.

        Only after `rectangle.advance`.
        """
        rectangle = self.rectangle
        if self._chunk is None:
            start = rectangle.joined[rectangle.outer]
            if not rectangle.current_inner:
                needs = self.needs(rectangle.outer, start, start + most, held_bytes)
                rectangle.chunk = self.room.fit(needs, lender)
            self._chunk = self._open_chunk(start, start + rectangle.chunk, lender)
        number = rectangle.joined[rectangle.inner] - 1
        found = self._chunk.inner.peek()
        if found is not None:
            number, block = found
            self._chunk.inner.advance()
            parts = self._chunk.parts or self._chunk_parts()
            yield from self.join(rectangle.inner, [self.read(block)], parts)
        rectangle.met(number)
        if not rectangle.chunk:
            self.put_down()

    def _open_chunk(self, start: int, stop: int, lender: Lender) -> Chunk:
        rectangle = self.rectangle
        outer = concatenated(list(self.blocks[rectangle.outer].entries(start, stop)))
        inner = Upcoming(self._inner_windows(outer))
        nbytes = total_bytes(outer)
        there = bool(inner) and self.room.ask(nbytes, lender) >= nbytes
        return Chunk(list(self._chunk_parts()) if there else None, inner)

    def _inner_windows(self, outer: Entries) -> Iterator[ListWindow]:
        """The inner blocks that the open chunk of these outer blocks has yet to meet."""
        rectangle = self.rectangle
        start, stop = rectangle.current_inner, rectangle.joined[rectangle.inner]
        blocks = self.blocks[rectangle.inner]
        if not self._options.zone_maps:
            return blocks.windows(start, stop, self.window)
        low, high = int(outer["code_min"].min()), int(outer["code_max"].max())
        windows = blocks.windows(start, stop, self.window, *self.zones.reach(low, high))
        return self.may_meet(outer, windows)

    def may_meet(self, outer: Entries, windows: Iterator[ListWindow]) -> Iterator[ListWindow]:
        """Of these blocks, those that may make a new pair with one of the outer blocks."""
        for numbers, entries in windows:
            chosen = np.flatnonzero(self.zones.may_meet(outer, entries))
            if len(chosen):
                yield numbers[chosen], entries[chosen]

    def _chunk_parts(self) -> Iterator[Part]:
        side, start = self.rectangle.outer, self.rectangle.joined[self.rectangle.outer]
        chunk = self.blocks[side].entries(start, start + self.rectangle.chunk)
        return self.parts(self.read(block) for entries in chunk for block in entries)

    # -- loads ------------------------------------------------------------------------------

    def forget_loads(self, oldest: list[int]) -> None:
        """Drop what is known of loads that concern no row outside the finished rectangle.

        `oldest` is, for each side, the least ATS of its rows in memory.
        """
        if all(self.rectangle.joined[side] == self.sizes[side] for side in SIDES):
            self.loads[:] = [load for load in self.loads if load.until >= oldest[1 - load.side]]
