"""Joins of blocks on disk: one block at a time or, in Cleanup, a few together.

`cells` says what has to be joined and `odometer` in which order. Whoever asks for a step drains
it, and may then leave for as long as it likes: `put_down` gives the memory back and keeps what
remains to be done. Pieces that were read and not yet joined have to be read again. So a join that
goes on from a snapshot does not leave before something has been done that the next one will keep
(`lasting`): else workers that keep no operator could read the same blocks for ever.

Beyond the paper, each an option:
- Zone maps. A block is not read if no row of the piece it is joined with has a code that could
  match any of its codes.
- Reduction. Of a block only the rows are kept that match the piece it is joined with (a semi-join),
  and a piece takes up as many blocks as fit that way. Where the reduced relations fit into memory,
  a chunk reads each block of each relation once, so that the work grows with the sum of their
  sizes. The paper's odometer has one block of each relation in memory, so its work grows with the
  product: exponentially with the number of inputs. Where they do not fit, the odometer turns over
  pieces as large as the memory allows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.kernel.catalogue import Entries
from dovetail.kernel.protocol import Context
from dovetail.kernel.room import Lender, Room
from dovetail.multiway.cells import Box, Cell
from dovetail.multiway.combining import Combinations, Combiner
from dovetail.multiway.odometer import Level, Odometer, join_sequences
from dovetail.multiway.output import CombinationEmitter
from dovetail.multiway.relation_blocks import RelationBlocks
from dovetail.multiway.rows import Encoder, JoinRows, Part
from dovetail.multiway.spec import MultiWaySpec, Reach

_TICK_BYTES = 16  # of a row of a part: arrival and departure
#: Of the budget, for blocks in the Reactive phase, where rows in memory have to make room for them;
#: the paper's 19 blocks of 200 are less.
_REACTIVE_SHARE = 1 / 4
_MOST_AT_ONCE = 32  # blocks


@dataclass(frozen=True)
class MinerOptions:
    """The settings of MINER; the defaults are the paper's (section 5) where it has any."""

    #: bytes of a flushed block; None: the paper's 10 KB, and more where the budget is large
    block_bytes: int | None = None
    max_outer_blocks: int = 19  #: MaxOuterMem: outer blocks in memory in the Reactive phase
    max_new_arrivals: int = 1000  #: MaxNewArr: waiting rows that end the Reactive phase
    zone_maps: bool = True  #: beyond the paper: leave out blocks that cannot match
    reduce: bool = True  #: beyond the paper: keep only the rows of a block that match
    fading: bool = True  #: beyond the paper: statistics fade, and partial matches break ties
    weighing: bool = True  #: beyond the paper: flush from the relation that makes least of its rows
    #: beyond the paper: what Cleanup writes stays in memory, in case an input re-opens
    keep_copies: bool = True

    def __post_init__(self) -> None:
        least = {"block_bytes": 1, "max_outer_blocks": 1, "max_new_arrivals": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ArgumentError(f"{name}={value!r} of MINER has to be at least {lowest}")


class BlockJoins:
    """Joins the blocks of the cells, one step after the other."""

    def __init__(
        self, context: Context, spec: MultiWaySpec, encoders: Sequence[Encoder],
        joining: tuple[Combiner, CombinationEmitter], room: Room, options: MinerOptions,
    ) -> None:  # fmt: skip
        self._ctx = context
        self._spec = spec
        self._encoders = encoders
        self._combiner, self._emitter = joining
        self._room = room
        self._options = options
        self._group_bytes = room.least_bytes // 2  # working memory has room for that
        self._odometer: Odometer | None = None
        self.lasting = False  #: something has been done since the start that a snapshot keeps

    @property
    def _least_piece(self) -> int:
        return self._room.least_bytes // (len(self._spec) + 1)

    def boxes(self, cell: Cell) -> list[Box]:
        """The boxes left to join in a cell, the next one last."""
        if self._odometer is None or self._odometer.cell is not cell:
            return list(cell.boxes)
        return [box for box in (*cell.boxes[:-1], *self._odometer.remaining()) if box]

    def put_down(self) -> None:
        """Give the memory back; what was done stays done."""
        if self._odometer is not None:
            self._odometer.cell.replace(self._odometer.remaining())
            self._odometer = None
        self._room.give_back()

    def begin(self, cells: Sequence[Cell], lender: Lender, *, cleaning: bool) -> bool:
        """Have something to do; False if there is nothing. To be asked before each step."""
        if self._odometer is not None and self._odometer.exhausted:
            self.put_down()
        if self._odometer is None:
            cell = next((cell for cell in cells if cell.next_box() is not None), None)
            if cell is not None:
                self._odometer = self._open(cell, cleaning, lender)
        return self._odometer is not None

    def step(self) -> Iterator[pa.RecordBatch]:
        """Read a block or some; join when all pieces are there."""
        at = self._odometer
        assert at is not None
        if at.outer is None:
            self._read_outer(at)
            return
        level = at.levels[-1]
        self._read_next(at, level)
        self.lasting |= not level.parts
        if not level.complete:
            return
        if not level.parts:
            at.turn()
        elif at.next_reach() is not None:
            at.open()
        else:
            yield from self._join(at)
            at.turn()
            self.lasting = True

    # -- reading ----------------------------------------------------------------------------

    def _open(self, cell: Cell, cleaning: bool, lender: Lender) -> Odometer:
        box = cell.boxes[-1]
        plan = join_sequences(
            self._spec, box.outer, [b - a for a, b in zip(box.low, box.high, strict=True)]
        )
        start, stop = box.low[box.outer], box.high[box.outer]
        if not cleaning:
            stop = min(stop, start + self._options.max_outer_blocks)
        blocks, index = cell.relations[box.outer], self._index_bytes(box.outer)
        least = len(plan) * self._least_piece
        # What is left of a relation after a reduction has hardly more rows than the outer blocks:
        # where it has room for that many, one piece is all of it, and the wheels within turn once.
        # The last wheel may turn often, for nothing is within it; but not for each block alone, of
        # which few rows may be left.
        widths = [self._width(cell, box.outer)]
        if cleaning and self._options.reduce:
            widths += [self._width(cell, reach.child) for reach in plan[:-1]]
        holders = sum(widths) / widths[0]
        numbers = range(start, stop)
        _, outer = self._fitting(blocks, numbers, self._room.share(1), index)
        wanted = int(holders * outer) + least
        spare = self._room.least_bytes - wanted  # if negative, rows have to make room anyway
        last = min(self._least_piece, spare) if spare >= 0 else self._least_piece
        most = wanted + last if cleaning else min(wanted + last, self._room.share(_REACTIVE_SHARE))
        room = self._room.ask(most, lender)
        unit = (room - least - last) / sum(widths)
        count, _ = self._fitting(blocks, numbers, int(unit * widths[0]), index)
        chunk = max(1, count)
        pieces = [self._least_piece + int(unit * width) for width in widths[1:]]
        pieces += [self._least_piece] * (len(plan) - len(pieces))
        pieces[-1] = self._least_piece + last
        return Odometer(cell, box, plan, start + chunk, pieces, cleaning)

    def _width(self, cell: Cell, relation: int) -> float:
        """The mean bytes of a row in a part."""
        blocks = cell.relations[relation]
        return blocks.mean_row_bytes + self._index_bytes(relation)

    def _index_bytes(self, relation: int) -> int:
        """The bytes of a row in a part besides the row itself."""
        return self._encoders[relation].index_bytes_per_row + _TICK_BYTES

    @staticmethod
    def _fitting(blocks: RelationBlocks, numbers: range, room: int, index: int) -> tuple[int, int]:
        """The number of these blocks that fit into so many bytes, and the bytes they take up."""
        count, nbytes = 0, 0
        for _, entries in blocks.scan(0, numbers.start, numbers.stop):
            held = nbytes + np.cumsum(entries["length"] + index * entries["rows"].astype(np.int64))
            fitting = int(np.searchsorted(held, room, side="right"))
            if fitting:
                count, nbytes = count + fitting, int(held[fitting - 1])
            if fitting < len(entries):
                break
        return count, nbytes

    def _read_outer(self, at: Odometer) -> None:
        """Read a block more of the chunk; if it was the last one, the first wheel comes in."""
        outer = at.box.outer
        number = at.box.low[outer] + len(at.chunk)
        entry = at.cell.relations[outer].lists[0].entry(number)
        at.chunk.append(self._read(at.cell, outer, number, entry))
        if number + 1 == at.stop:
            at.outer = Part.joined(at.chunk, self._group_bytes)
            at.open()

    def _read(self, cell: Cell, relation: int, number: int, entry: np.void) -> Part:
        run = self._ctx.store.read(entry)
        departed = cell.relations[relation].departed(number, entry)
        return Part.of(run, self._encoders[relation], departed)

    def _next_blocks(self, at: Odometer, level: Level) -> list[tuple[int, np.void]]:
        """The next blocks for the innermost piece, with their numbers; none at the end.

        One, or in Cleanup as many as fit beside the rows that are left of them: several at once
        cost less each, and no new rows wait for the step to end.
        """
        reach, high = level.reach, at.box.high[level.reach.child]
        room = 0
        if at.cleaning and self._options.reduce:
            room = (at.piece_bytes[len(at.levels) - 1] - level.nbytes) // 2
        blocks = at.cell.relations[reach.child]
        for first, entries in blocks.scan(reach.child_attribute, level.stop, high):
            places = np.arange(len(entries))
            if self._options.zone_maps:
                places = np.flatnonzero(self._may_meet(at.part_of(reach.parent), reach, entries))
            if len(places):
                some = entries[places]
                held = some["length"] + self._index_bytes(reach.child) * some["rows"].astype(int)
                fitting = int(np.searchsorted(np.cumsum(held), room, side="right"))
                count = min(max(1, fitting), _MOST_AT_ONCE)
                return [(first + int(place), entries[place]) for place in places[:count]]
        return []

    def _may_meet(self, part: Part, reach: Reach, zone: Entries) -> NDArray[np.bool_]:
        """Which blocks have a range of codes that could match a code of the part."""
        codec = self._spec.codecs[reach.edge]
        low = codec.candidates(np.ascontiguousarray(zone["code_min"]))[0]
        high = codec.candidates(np.ascontiguousarray(zone["code_max"]))[1]
        return part.index(reach.parent_attribute).ranges_met(low, high)

    def _read_next(self, at: Odometer, level: Level) -> None:
        """Read more into the innermost piece; closes it if it is full or at its end."""
        relation = level.reach.child
        found = self._next_blocks(at, level)
        if not found:
            level.stop = at.box.high[relation]
            level.close(self._group_bytes)
            return
        read = Part.lined_up([self._read(at.cell, relation, *block) for block in found])
        part: Part | None = read
        if self._options.reduce:
            part = self._reduced(read, at.part_of(level.reach.parent), level.reach)
        level.stop = found[-1][0] + 1
        if part is not None:
            length = sum(int(entry["length"]) for _, entry in found)
            level.parts.append(part)
            level.nbytes += length * len(part) // len(read)
            level.nbytes += self._index_bytes(relation) * len(part)
        # the next block has to fit as well, whatever it is reduced to
        full = level.nbytes + self._least_piece > at.piece_bytes[len(at.levels) - 1]
        if not self._options.reduce or full or level.stop >= at.box.high[relation]:
            level.close(self._group_bytes)

    def _reduced(self, part: Part, parent: Part, reach: Reach) -> Part | None:
        """The rows of a part that match any of the piece it is joined with."""
        low, high = self._spec.codecs[reach.edge].candidates(part.codes[reach.child_attribute])
        hits = parent.index(reach.parent_attribute).probe(low, high)
        if hits is None:
            return None
        slots = np.unique(hits[1].probing)
        return part if len(slots) == len(part) else part.select(slots)

    # -- joining ----------------------------------------------------------------------------

    def _join(self, at: Odometer) -> Iterator[pa.RecordBatch]:
        """The pieces meet; what was emitted when the rows arrived is left out."""
        parts = [at.part_of(relation) for relation in range(len(self._spec))]
        newest = max(int(part.ats.max()) for part in parts)
        if newest < min(int(part.dts.min()) for part in parts):
            return  # all of them were in memory together
        sources: Sequence[JoinRows] = parts
        for found in self._combiner.combine(sources, at.box.outer, at.plan):
            fresh = _came_too_late(parts, found)
            if fresh.any():
                some = {relation: slots[fresh] for relation, slots in found.items()}
                yield from self._emitter.add(sources, some)
        yield from self._emitter.drain()


def _came_too_late(parts: Sequence[Part], found: Combinations) -> NDArray[np.bool_]:
    """In which combinations some row came when another had already left memory."""
    newest = parts[0].ats.take(found[0])
    departed = parts[0].dts.take(found[0])
    for relation in range(1, len(parts)):
        slots = found[relation]
        np.maximum(newest, parts[relation].ats.take(slots), out=newest)
        np.minimum(departed, parts[relation].dts.take(slots), out=departed)
    return np.asarray(newest >= departed)
