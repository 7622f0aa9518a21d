"""MESHJOIN and AMESHJOIN: a cyclic scan of the table, shared by all waiting rows.

Source: Polyzotis et al., "Meshing Streaming Updates with Persistent Data in an Active Data
Warehouse" (2008), sections 3.1 (MESHJOIN), 3.3 (AMESHJOIN, Fig. 6) and 3.4 (order, conditions).

Vocabulary. An iteration takes `w` rows in as one *packet*, reads the next `b` pages of the table,
cyclically, and joins them with every waiting packet. Until `w` rows have come the packet is open,
however many batches they come in; `poll` closes it as it is. A packet remembers the page it started
at, and leaves when the scan comes round to it: by then it has met every page once. The hash table H
is the packets' sorted runs, the queue Q their list. (The paper's plain MESHJOIN keeps `b` fixed and
needs no start pages; with them, `w` and `b` may change between any two iterations.)

Pages are sorted here, which the paper does not assume: a page meets only the slice of a packet that
lies in its range of codes. Every page is read all the same; `seek` is the algorithm that skips.

Invariants. The packets' first pages are in scan order; the oldest has met the most pages; no packet
has met more than all. `check` asserts them.

Worked example: Example 3.1 of the paper is a test, to the entry.

Degenerate cases. An empty table settles every row at once. With `b` of at least all pages, an
iteration is a whole scan and no packet outlives it.
"""

import base64
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run, merge_runs, own
from dovetail.semistream.base import SemiStreamJoin, first_number, kept
from dovetail.semistream.scan.packets import BYTES_PER_ROW, Packet, packet_bytes
from dovetail.semistream.spec import STREAM, SemiStreamSpec
from dovetail.semistream.table.reading import CODE_BYTES, StagedTable


class MeshJoin(SemiStreamJoin):
    """Any condition; `w` and `b` stay as they were set."""

    name: ClassVar[str] = "meshjoin"
    joins_conditions: ClassVar[bool] = True
    counts_matches: ClassVar[bool] = False  #: how many rows have is part of the state
    window_share: ClassVar[float] = 3 / 4  #: of memory that is not fixed; the rest is for input

    def __init__(
        self,
        spec: SemiStreamSpec,
        context: Context,
        table: StagedTable,
        snapshot: Snapshot | None = None,
        *,
        w: int | None = None,
        b: int | None = None,
    ) -> None:
        super().__init__(spec, context, table, snapshot)
        self.packets: list[Packet] = []
        self._open: list[Run] = []  # the rows of the packet that is to be filled
        self.page = 0  #: the page that the scan reads next
        self.scanned = 0  #: pages, by this object
        self.b = min(b or self._read_pages(), max(1, table.pages))
        self._asked_w = w
        if snapshot is not None:
            self._restore(snapshot.meta, iter(snapshot.blocks))

    # -- settings ---------------------------------------------------------------------------

    @property
    def w(self) -> int:
        """The rows of a packet: as asked for, or what the memory for the window allows."""
        if self._asked_w is not None:
            return self._asked_w
        loops = -(-max(1, self.table.pages) // self.b)
        row_bytes = self._stream_row_bytes + INDEX_BYTES_PER_ROW + BYTES_PER_ROW + 8
        row_bytes += 0 if self.spec.within is None else 16
        return max(1, int(self._window_bytes() / (loops * row_bytes)))

    def _window_bytes(self) -> int:
        """The memory that packets may take."""
        total = self.ctx.budget.total_bytes
        if total is None:
            return 1 << 30
        return max(1, int((total - self._fixed_bytes()) * self.window_share))

    def _fixed_bytes(self) -> int:
        """The memory that is not for packets whatever comes."""
        return self.working_bytes + self.table.nbytes + self.aside_bytes

    def _read_pages(self) -> int:
        """The pages whose codes working memory has room for."""
        return max(1, self.working_bytes // 4 // (CODE_BYTES * self.table.page_rows))

    def _slice_rows(self) -> int:
        return max(1, self.w - self._open_rows)

    # -- an iteration -----------------------------------------------------------------------

    def pending(self) -> int:
        return sum(len(packet.run) for packet in self.packets) + self._open_rows

    def oldest(self) -> int | None:
        runs = [*(packet.run for packet in self.packets), *self._open]
        return first_number((run, 0) for run in runs)

    @property
    def _open_rows(self) -> int:
        return sum(len(run) for run in self._open)

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        """Fill the open packet; whenever it has `w` rows, there is an iteration."""
        if not self.table.pages:
            none = np.zeros(len(run), dtype=np.int64)
            yield from self._settle_run(run, none, none, self.table)
            return
        start = 0
        while True:
            room = self.w - self._open_rows  # an iteration may change SSBJ's cache, and `w` with it
            if room <= 0:
                yield from self._work()
            elif start == len(run):
                return
            else:
                stop = min(start + room, len(run))
                piece = run if stop - start == len(run) else own(run.slice(start, stop))
                yield from self._hold(piece)
                self._open.append(piece)
                start = stop

    def _close(self) -> None:
        """The open packet begins its scan."""
        runs, self._open = self._merged(self._open), []
        self.packets += [self._packet(run, self.page, 0) for run in runs]

    def _merged(self, runs: list[Run]) -> list[Run]:
        """Some runs as one, if there is memory to put it together in; else as they are."""
        # one behind the other, and once more in order: half of the working memory is for that
        copies = max(0, 2 * sum(run.nbytes for run in runs) - self.working_bytes // 2)
        if len(runs) < 2 or not self._window.try_grow(copies):
            return runs
        merged = merge_runs(runs)
        merged.arrange()
        self._window.shrink(copies)
        more = self._waiting_bytes(merged) - sum(map(self._waiting_bytes, runs))
        return [merged] if more <= 0 or self._window.try_grow(more) else runs

    def _waiting_bytes(self, run: Run) -> int:
        ranges = self.spec.within is not None
        return packet_bytes(run, ordered=self.spec.ordered, ranges=ranges)

    def _held_bytes(self) -> int:
        held = sum(packet.nbytes for packet in self.packets)
        return held + sum(map(self._waiting_bytes, self._open))

    def _packet(self, run: Run, start: int, seen: int) -> Packet:
        low, high = self.spec.candidates(run.codes)
        first = np.full(len(run), -1) if self.spec.ordered else None
        matched = np.zeros(len(run), dtype=np.bool_)
        counts = np.zeros(len(run), dtype=np.int32)
        return Packet(run, low, high, start, seen, matched, counts, first)

    def _work(self) -> Iterator[pa.RecordBatch]:
        self._close()
        yield from self._iterate()

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        if not self.packets:
            self._close()
        yield from self._iterate()

    def _iterate(self) -> Iterator[pa.RecordBatch]:
        """Read `b` pages and join them with all packets, page ranges in scan order."""
        left = self.b
        while left > 0 and self.packets:
            # no further than where the newest packet leaves, or the table or the memory ends
            newest = self.table.pages - self.packets[-1].seen
            count = min(left, newest, self.table.pages - self.page, self._read_pages())
            stored = self.table.codes(self.page, self.page + count)
            base = self.table.page_start(self.page)
            self._scanned(stored, base)
            for packet in self.packets:
                met = min(count, self.table.pages - packet.seen)  # older ones may leave before
                end = self.table.page_start(self.page + met) - base
                yield from self._join(packet, stored[:end], base)
                packet.seen += met
            left -= count
            self.scanned += count
            self.page = (self.page + count) % self.table.pages
            while self.packets and self.packets[0].seen == self.table.pages:
                packet = self.packets.pop(0)
                yield from self._dequeue(packet)
                self._window.resize(self._held_bytes())
            if self.page == 0:
                self._new_cycle()

    def _join(self, packet: Packet, stored: Codes, base: int) -> Iterator[pa.RecordBatch]:
        """Some pages meet the slice of a packet that may match them."""
        run = packet.run
        start = int(np.searchsorted(packet.high, stored[0], side="left"))
        stop = int(np.searchsorted(packet.low, stored[-1], side="right"))
        if start >= stop:
            return
        low = np.searchsorted(stored, packet.low[start:stop], side="left")
        high = np.searchsorted(stored, packet.high[start:stop], side="right")
        found = np.flatnonzero(high > low)
        if not len(found):
            return
        low, high, rows = base + low[found], base + high[found], start + found
        packet.meet(rows, low, high)
        if not self.spec.ordered:
            yield from self._meet(run.rows, rows, low, high, self.table, packet.matched)

    def _dequeue(self, packet: Packet) -> Iterator[pa.RecordBatch]:
        """A packet has met the whole table."""
        if packet.first is None:
            yield from self._leave(packet.run.rows, packet.matched)
            return
        low: Rows = np.maximum(packet.first, 0)
        yield from self._settle_run(packet.run, low, low + packet.counts, self.table)

    def _scanned(self, stored: Codes, base: int) -> None:
        """Called with the pages just read, before they are joined."""

    def _new_cycle(self) -> None:
        """Called when the scan is back at the first page."""

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        counts = self.spec.ordered or self.counts_matches
        blocks = [
            block
            for packet in self.packets
            for block in packet.persist(self.ctx.store, counts=counts)
        ]
        blocks += [kept(run, STREAM, self.ctx.store) for run in self._open]
        packets = [{**one.facts(), "matched": _pack_bits(one.matched)} for one in self.packets]
        meta = {**self._meta(), "page": self.page, "packets": packets, "open": len(self._open)}
        return Snapshot(meta, np.array(blocks, dtype=BLOCK))

    def _restore(self, meta: dict[str, Any], blocks: Iterator[np.void]) -> None:
        self.page = meta["page"]
        for facts in meta["packets"]:
            run = self.ctx.store.read(next(blocks))
            packet = self._packet(run, facts["start"], facts["seen"])
            self._window.grow(packet.nbytes)
            packet.matched = _unpack_bits(facts["matched"], len(run))
            packet.recall(facts["kept"], blocks, self.ctx.store)
            self.packets.append(packet)
        for block in islice(blocks, meta["open"]):
            run = self.ctx.store.read(block)
            self._window.grow(self._waiting_bytes(run))
            self._open.append(run)

    def check(self) -> None:
        super().check()
        pages = self.table.pages
        assert 0 <= self.page < max(1, pages)
        assert self._window.nbytes >= self._held_bytes()
        assert self._open_rows < self.w or self._asked_w is None
        seen = [packet.seen for packet in self.packets]
        assert seen == sorted(seen, reverse=True)
        for packet in self.packets:
            assert packet.seen < pages
            assert (packet.start + packet.seen) % pages == self.page


class AMeshJoin(MeshJoin):
    """MESHJOIN whose `w` and `b` follow the stream."""

    name: ClassVar[str] = "ameshjoin"

    def tune(self, w: int, b: int) -> None:
        """Change the settings; from the next iteration on."""
        if w < 1 or b < 1:
            raise ArgumentError(f"w={w} and b={b} have to be at least 1")
        self._asked_w = w
        self.b = min(b, max(1, self.table.pages))


def _pack_bits(bits: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(bits).tobytes()).decode() if bits.any() else ""


def _unpack_bits(text: str, count: int) -> NDArray[np.bool_]:
    if not text:
        return np.zeros(count, dtype=np.bool_)
    packed = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(packed, count=count).astype(np.bool_)
