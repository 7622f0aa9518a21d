"""Sorted segments on disk: what a flush or a merge wrote, and which of their rows have met.

Vocabulary and rules are in the docstring of `merging`.

Neither the blocks of a segment nor the segments of a part are few, so both are catalogues that
page themselves out. While a segment is written or read, the lists of its blocks are open: their
newest entries are in memory. Once written, it is *sealed*: these entries go to disk as a page, and
one entry for the whole segment is left, which waits in a queue with others of its part.

An entry of a sealed segment has the fields of a block's, with meanings of their own: `dts` is the
segment's number, `code_min` its group, `ats_min` and `ats_max` are the rows of the left and the
right side, and `side` is its depth, the number of merges that it has been through.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.kernel.blocks import BLOCK, LOGGED, NEVER
from dovetail.kernel.catalogue import Catalogue, Entries, Pages, concatenated, split_tails
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context
from dovetail.kernel.runs import Run

SEGMENT = 96  #: the kind of a segment's entry, beside those of blocks and marks
_ROWS = ("ats_min", "ats_max")
_MOST_DEPTH = 60  # an entry has a byte for it
_LEAST_BLOCK_BYTES = 4 << 10
_MOST_TICKS = 32  # at which the lengths of the logs are remembered


def block_size(working_bytes: int) -> int:
    """The bytes of a block of a segment: a merge of the fan-in has one of each in memory."""
    return max(working_bytes // 32, min(working_bytes // 8, _LEAST_BLOCK_BYTES))


class Segment:
    """An open segment: rows of both sides, each side's in code order."""

    def __init__(self, pages: Pages, number: int, group: int) -> None:
        self.number = number  #: a tick, unique in its part; the `dts` of its blocks
        self.group = group
        self.blocks = (Catalogue(pages), Catalogue(pages))
        self.counts = [0, 0]  #: rows, by the side

    def append(self, side: int, block: np.void) -> None:
        self.blocks[side].append(block)
        self.counts[side] += int(block["rows"])

    def rows(self, side: int) -> int:
        return self.counts[side]

    def tails(self) -> list[Entries]:
        return [tail for blocks in self.blocks for tail in blocks.tails]

    def restore_tails(self, entries: Entries) -> None:
        for tail in split_tails(entries, "side"):
            self.blocks[int(tail[0]["side"])].restore_tail(tail)

    def forget(self) -> None:
        """Give the memory of the lists back."""
        for blocks in self.blocks:
            blocks.clear()

    def check(self) -> None:
        for blocks in self.blocks:
            blocks.check()
            known = concatenated(blocks.tails[::-1])
            assert (known["code_min"][1:] >= known["code_max"][:-1]).all(), "out of order"
            assert (known["dts"] == self.number).all()


def rows_of(entry: np.void, side: int) -> int:
    """The rows of one side in a sealed segment."""
    return int(entry[_ROWS[side]])


def pairs_met(entries: list[np.void]) -> int:
    """The number of pairs of rows in these sealed segments that are of one group, so have met."""
    groups: dict[int, list[int]] = {}
    for entry in entries:
        rows = groups.setdefault(int(entry["code_min"]), [0, 0])
        for side in SIDES:
            rows[side] += rows_of(entry, side)
    return sum(left * right for left, right in groups.values())


class Queue:
    """Sealed segments of one depth in the order of their numbers; the oldest leaves first."""

    def __init__(self, pages: Pages) -> None:
        self.known = Catalogue(pages)
        self.first = 0  # those before have left
        self._oldest: int | None = None

    def __len__(self) -> int:
        return len(self.known) - self.first

    @property
    def oldest(self) -> int:
        """The number of the next to leave."""
        if self._oldest is None:
            self._oldest = int(self.known.entry(self.first)["dts"])
        return self._oldest

    def pop(self, count: int) -> list[np.void]:
        """Take out the oldest, up to so many."""
        self._oldest = None
        stop = min(self.first + count, len(self.known))
        found = [
            entry.copy()  # of its own: a view would keep the page in memory
            for entries in self.known.entries(self.first, stop)
            for entry in entries
        ]
        self.first = stop
        if self.first == len(self.known):
            self.known.clear()
            self.first = 0
        return found

    def __iter__(self) -> Iterator[np.void]:
        for entries in self.known.entries(self.first, len(self.known)):
            yield from entries


@dataclass
class Part:
    """The sealed segments of one part of a join, less those that are being merged.

    Those in the queues are a group each; the few that are `joined` are one group together.
    """

    queues: list[Queue] = field(default_factory=list)  #: by depth
    joined: list[np.void] = field(default_factory=list)
    rows: list[int] = field(default_factory=lambda: [0, 0])  #: of all segments, merging ones too
    met: int = 0  #: pairs of these rows that have met

    def __len__(self) -> int:
        return self.waiting + len(self.joined)

    @property
    def waiting(self) -> int:
        """The segments that are a group of their own."""
        return sum(len(queue) for queue in self.queues)

    @property
    def unjoined(self) -> int:
        """The pairs of rows that have not met."""
        return self.rows[LEFT] * self.rows[RIGHT] - self.met

    def push(self, pages: Pages, entry: np.void) -> None:
        depth = int(entry["side"])
        while len(self.queues) <= depth:
            self.queues.append(Queue(pages))
        self.queues[depth].known.append(entry)

    def pop(self, count: int) -> list[np.void]:
        """Take out so many of the segments that wait, those of the least depth first.

        They are about the smallest: a merge of small ones is the cheapest.
        """
        found: list[np.void] = []
        for queue in self.queues:
            found += queue.pop(count - len(found))
        return found


class Segments:
    """The segments of all parts of one join."""

    def __init__(self, context: Context, pages: Pages, working_bytes: int) -> None:
        self._ctx = context
        self._pages = pages
        self._working_bytes = working_bytes
        self.block_bytes = block_size(working_bytes)
        self.parts: dict[int, Part] = {}
        self.unjoined: dict[int, int] = {}  #: by part, the pairs of rows that have not met
        self._fresh: dict[int, dict[int, Segment]] = {}  # that a flush is writing
        self._written: list[tuple[int, list[int]]] = []  # ticks, and how long the logs were then

    # -- writing ----------------------------------------------------------------------------

    def add(self, part: int, side: int, run: Run, number: int) -> int:
        """Append sorted rows to a segment of a flush; returns the bytes written.

        The segment is a group of its own, and complete when the part is settled.
        """
        fresh = self._fresh.setdefault(part, {})
        if number not in fresh:
            fresh[number] = Segment(self._pages, number, number)
        return self._append(part, side, run, fresh[number])

    def settle(self, part: int) -> None:
        """Seal the segments that a flush has written to a part."""
        known = self.parts.setdefault(part, Part())
        for segment in self._fresh.pop(part, {}).values():
            entry = self._seal(part, segment, 0)
            known.push(self._pages, entry)
            known.met += pairs_met([entry])
            for side in SIDES:
                known.rows[side] += segment.rows(side)
        self._count(part)

    def _append(self, part: int, side: int, run: Run, segment: Segment) -> int:
        """Write sorted rows in blocks of about one size."""
        written = 0
        for start, stop in run.cuts(0, len(run), self.block_bytes):
            piece = run.slice(start, stop)
            block = self._ctx.store.append(piece, side, LOGGED, part, segment.number)
            segment.append(side, block)
            written += int(block["length"])
        return written

    def _seal(self, part: int, segment: Segment, depth: int) -> np.void:
        """Put what is known of a segment's blocks on disk; returns the entry that is left."""
        tails = concatenated(segment.tails())
        entry: Entries = np.zeros(1, dtype=BLOCK)
        entry["kind"], entry["part"], entry["side"] = SEGMENT, part, min(depth, _MOST_DEPTH)
        entry["file"], entry["offset"], entry["length"], entry["crc"] = self._ctx.store.append_page(
            tails.tobytes()
        )
        entry["dts"], entry["code_min"] = segment.number, segment.group
        for side in SIDES:
            entry[_ROWS[side]] = segment.rows(side)
        segment.forget()
        sealed: np.void = entry[0]
        return sealed

    def open(self, entry: np.void) -> Segment:
        """A sealed segment, to be read and then to be forgotten."""
        segment = Segment(self._pages, int(entry["dts"]), int(entry["code_min"]))
        data = self._ctx.store.read_page(entry)
        segment.restore_tails(np.frombuffer(data, dtype=BLOCK))
        segment.counts = [rows_of(entry, side) for side in SIDES]
        return segment

    def _count(self, part: int) -> None:
        """Bring `unjoined` in line with the segments of a part."""
        self.unjoined.pop(part, None)
        if pairs := self.parts[part].unjoined:
            self.unjoined[part] = pairs

    def _hold(self, entries: int) -> None:
        """Account for so many more entries of segments in memory, or for fewer."""
        self._pages.tail_bytes += entries * BLOCK.itemsize

    # -- asking -----------------------------------------------------------------------------

    def rows(self, part: int, side: int) -> int:
        return self.parts[part].rows[side] if part in self.parts else 0

    def pending(self) -> int:
        """The rows of the parts in which some have not met."""
        return sum(self.rows(part, side) for part in self.unjoined for side in SIDES)

    def sealed(self, part: int) -> Iterator[np.void]:
        """All segments of a part that are not being merged."""
        if part in self.parts:
            yield from self.parts[part].joined
            for queue in self.parts[part].queues:
                yield from queue

    def _oldest(self) -> int:
        """No segment that may still be read has a lower number; `NEVER` if there is none."""
        queues = (queue for known in self.parts.values() for queue in known.queues if len(queue))
        joined = (int(entry["dts"]) for known in self.parts.values() for entry in known.joined)
        return min((*joined, *(queue.oldest for queue in queues)), default=NEVER)

    # -- state ------------------------------------------------------------------------------

    def release(self) -> None:
        """Let go of files in which all segments have been merged into others; before a snapshot.

        What was in the logs at a tick is of segments with a number up to it.
        """
        store, oldest = self._ctx.store, self._oldest()
        while self._written and self._written[0][0] < oldest:
            store.release(self._written.pop(0)[1])
        if not self._written or self._written[-1][1] != store.log_lengths:
            self._written.append((self._ctx.clock.now, store.log_lengths))
        if len(self._written) > _MOST_TICKS:
            del self._written[1::2]

    def facts(self) -> dict[str, Any]:
        parts = [
            [part, known.rows, known.met, [queue.first for queue in known.queues]]
            for part, known in self.parts.items()
        ]
        lengths = [len(entries) for entries in self.lists()]
        return {"parts": parts, "lengths": lengths, "written": self._written}

    def lists(self) -> Iterator[Entries]:
        """All that is known in memory, list by list."""
        for known in self.parts.values():
            yield np.array(known.joined, dtype=BLOCK)
            for queue in known.queues:
                yield concatenated(queue.known.tails)

    def restore(self, facts: dict[str, Any], entries: Entries) -> Iterator[Entries]:
        """Bring back what `lists` had; returns the lists that are not of this class."""
        self._written = [(tick, list(lengths)) for tick, lengths in facts["written"]]
        lists = iter(np.split(entries, np.cumsum(facts["lengths"])[:-1]))
        for part, rows, met, firsts in facts["parts"]:
            known = self.parts[part] = Part(rows=list(rows), met=met)
            known.joined = list(next(lists).copy())
            self._hold(len(known.joined))
            for first in firsts:
                queue = Queue(self._pages)
                for tail in split_tails(next(lists)):
                    queue.known.restore_tail(tail)
                queue.first = first
                known.queues.append(queue)
            self._count(part)
        return lists

    def check(self) -> None:
        assert not self._fresh, "a flush is not complete"
        for known in self.parts.values():
            assert len({int(entry["code_min"]) for entry in known.joined}) < 2
            for depth, queue in enumerate(known.queues):
                queue.known.check()
                assert 0 <= queue.first <= len(queue.known)
                for tail in queue.known.tails[:1]:
                    assert (np.diff(tail["dts"]) > 0).all(), "not in the order of their numbers"
                    assert (tail["side"] == depth).all()
                    assert (tail["code_min"] == tail["dts"]).all(), "not a group of its own"
