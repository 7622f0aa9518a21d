"""Copies of windows at other sites, and their owners' view of them.

There is one `Outlet` at the owner and one `Copy` at the holder for each pair of sites, however many
steps of the plan use them: SP-S wants all rows, SM-S1 and SM-S2 some (`W'2`), SM-S2 and SM-D1 the
keys (`V2`, `M2`). A bit for each row says whether it has been sent, by whatever step, so that no
row goes twice over a link; a first step that joins at the holder sends a row's number in its place.
(A plan that needs a copy which the one before did not need has to send the window for it.)

Links deliver in order. So the holder sees every change in the order in which the owner made it.

What leaves a copy. The owner sends how many of the rows that it has sent leave the window (`k`,
Algorithm 8); the holder removes so many of its oldest. For `M2` the paper computes `c + q - p` for
each key (Algorithm 9, line 36); these are the same rows, as tests assert. For windows by count the
paper sends the number of all rows that leave (Sect. 3.3), which would remove rows too early where
only some were sent; `k` it is there, too. What a holder of some rows cannot know is which are the
*last* ones before a head row, so it is sent the times of all rows, the clock.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import Codes
from dovetail.multisite.bloom import Bloom
from dovetail.multisite.compact import counts_parts
from dovetail.multisite.entries import CopiedEntries, OwnedEntries, distinct
from dovetail.multisite.messages import SEPARATOR, Message, column, narrowed
from dovetail.multisite.plan import LinkNeeds
from dovetail.multisite.query import StepKey, Stream, key_of
from dovetail.multisite.rows import Growing, RowStore
from dovetail.multisite.snapshots import Kept
from dovetail.multisite.windows import CountWindow, Mask, Numbers, Times

Parts = dict[str, pa.RecordBatch]
Facts = dict[str, int | bool]  #: fields of a header


def _label(kind: str, key: StepKey) -> str:
    return SEPARATOR.join([kind, *key.stored])


def in_order(keys: Iterable[StepKey]) -> list[StepKey]:
    """Keys in the same order in every process, so that a run can be repeated."""
    return sorted(keys, key=lambda key: key.stored)


class Outlet(Kept):
    """The owner's view of one copy of its window."""

    KEPT = ("base", "sent", "clock_next", "carries_rows")

    def __init__(
        self, store: RowStore, window: object, next_number: int, compact: bool = True
    ) -> None:
        self._store = store
        self._compact = compact
        self._counted = isinstance(window, CountWindow)
        self._base = store.first  # lowest number of the window, as the holder knows it
        self._sent: Mask = np.zeros(next_number - store.first, dtype=np.bool_)
        self._clock_next: int | None = None  # first row whose time the holder lacks; None: all
        self._bloomed: set[StepKey] = set()
        self._frozen: set[StepKey] = set()
        self.carries_rows = False
        self.entries: dict[StepKey, OwnedEntries] = {}

    @property
    def nbytes(self) -> int:
        return int(self._sent.nbytes) + sum(entries.nbytes for entries in self.entries.values())

    def update(
        self, needs: LinkNeeds, draining: LinkNeeds, start: int, first: int
    ) -> tuple[Parts, Facts]:
        """What the holder has to be told: rows from number `start` on are new, before `first` gone.

        Called when the store has the new rows, and still has those that leave. What only intervals
        before this one need (`draining`) is kept at the holder as it is, without what is new.
        """
        self.carries_rows = needs.rows or draining.rows
        store = self._store
        end = int(store.numbers[-1]) + 1 if len(store.numbers) else first
        end = max(end, self._base + len(self._sent))
        new = end - self._base - len(self._sent)
        self._sent = np.concatenate([self._sent, np.zeros(new, dtype=np.bool_)])
        gone = first - self._base
        parts: Parts = {}
        rows: Parts = {}
        facts: Facts = {}
        changed = new > 0 or gone > 0
        wanted = self._wanted_entries(needs, draining, parts, start, first, end)
        expired = int(np.count_nonzero(self._sent[:gone]))
        self._sent, self._base = self._sent[gone:], first
        if needs.all_rows:
            rows, facts = self._send(np.arange(first, end))
        elif wanted is not None:
            rows, facts = self._send(start + np.flatnonzero(wanted))
        parts |= rows
        if self._counted and self.carries_rows:
            begin = first if self._clock_next is None else self._clock_next
            facts |= {"trimmed": gone, "first_ref": begin}
            if begin < end:
                parts["clock"] = column(store.times[self._slots(begin, end)])
            self._clock_next = end
        else:
            self._clock_next = None
        self._bloomed &= needs.blooms
        for key in in_order(needs.blooms if changed else needs.blooms - self._bloomed):
            codes = distinct(self._codes(key, first, end))
            parts[_label("bloom", key)] = Bloom.of(codes).part()
            parts[_label("keys", key)] = column(np.array([len(codes)]))
            self._bloomed.add(key)
        if expired:
            facts["expired"] = expired
        return parts, facts

    def _wanted_entries(
        self, needs: LinkNeeds, draining: LinkNeeds, parts: Parts, start: int, first: int, end: int
    ) -> Mask | None:
        """Bring the entries up to date; which of the new rows the holder wants (`s_F`)."""
        wanted: Mask | None = None
        for key in [key for key in self.entries if key not in needs.entries]:
            del self.entries[key]
            self._frozen.add(key)
            parts[_label("frozen", key)] = column(_NONE)
        for key in in_order(self._frozen - draining.entries - needs.entries):
            parts[_label("dropped", key)] = column(_NONE)
        self._frozen &= draining.entries - needs.entries
        for key in in_order(needs.entries):
            if key in self.entries:
                entries = self.entries[key]
                index = self._store.index(key)
                slots = self._slots(start, end)
                codes, valid = index.codes.values[slots], index.valid.values[slots]
                if entries.sent.any():
                    mine = entries.is_sent(codes) & valid
                    wanted = mine if wanted is None else wanted | mine
                removed = self._codes(key, self._base, first)
                changed = len(codes) or len(removed)
                fresh, counts = entries.update(codes[valid], removed)
            else:
                entries = self.entries[key] = OwnedEntries()
                changed = True
                fresh, counts = entries.update(self._codes(key, first, end), _NONE)
                parts[_label("reset", key)] = column(_NONE)
            if changed and len(counts):
                for kind, part in counts_parts(entries.before, counts, self._compact).items():
                    parts[_label(kind, key)] = part
                if len(fresh):
                    parts[_label("entries", key)] = column(fresh)
        return wanted

    def _slots(self, begin: int, end: int) -> slice:
        base = int(self._store.numbers[0]) if len(self._store.numbers) else 0
        return slice(max(begin - base, 0), max(end - base, 0))

    def _codes(self, key: StepKey, begin: int, end: int) -> Codes:
        """The codes of the rows in a range of numbers, less those that match nothing."""
        index, slots = self._store.index(key), self._slots(begin, end)
        codes: Codes = index.codes.values[slots][index.valid.values[slots]]
        return codes

    def _send(self, numbers: Numbers) -> tuple[Parts, Facts]:
        """Those of the rows that have never been sent, for a message."""
        numbers = numbers[~self._sent[numbers - self._base]]
        if not len(numbers):
            return {}, {}
        self._sent[numbers - self._base] = True
        base = int(self._store.numbers[0])
        parts: Parts = {"rows": self._store.gather(numbers - base)}
        facts: Facts = {"first_row": int(numbers[0])}
        if int(numbers[-1]) - int(numbers[0]) + 1 != len(numbers):
            facts["contiguous"] = False
            parts["numbers"] = column(narrowed(numbers - numbers[0]))
        return parts, facts

    def snapshot(self) -> dict[str, Any]:
        """The owner's view as data, beside the window itself."""
        return {
            **super().snapshot(),
            "bloomed": [key.stored for key in in_order(self._bloomed)],
            "frozen": [key.stored for key in in_order(self._frozen)],
            "entries": [[key.stored, entries.snapshot()] for key, entries in self.entries.items()],
        }

    def restore(self, data: Mapping[str, Any]) -> Self:
        key = partial(key_of, self._store.schema)
        self._bloomed, self._frozen = (set(map(key, data[n])) for n in ("bloomed", "frozen"))
        self.entries = {key(c): OwnedEntries().restore(kept) for c, kept in data["entries"]}
        return super().restore(data)

    def request(self, key: StepKey, codes: Codes, fill: bool) -> tuple[Parts, Facts]:
        """The non-redundant semijoin (Algorithm 7): rows with these keys that were never sent.

        `fill`: the holder keeps entries for the key and will have all rows of these.
        """
        _, slots = self._store.probe(key, codes)
        if fill and key in self.entries:
            self.entries[key].mark_sent(codes)
        return self._send(np.unique(self._store.numbers[slots]))

    def request_bloom(self, key: StepKey, bloom: Bloom) -> tuple[Parts, Facts]:
        """The same by a filter of the keys."""
        index = self._store.index(key)
        alive = (self._store.numbers >= self._store.first) & index.valid.values
        slots = np.flatnonzero(alive)
        slots = slots[bloom.contains(index.codes.values[slots])]
        return self._send(np.unique(self._store.numbers[slots]))

    def shares(self, numbers: Numbers) -> bool:
        """Whether the holder keeps rows, and these, in order, are all in the window."""
        return self.carries_rows and int(numbers[0]) >= self._base

    def probe_rows(self, numbers: Numbers) -> tuple[Parts, Facts]:
        """Rows of the window that are to be joined at the holder, as rows or as references."""
        new = int(np.count_nonzero(~self._sent[numbers - self._base]))
        parts, facts = self._send(numbers)
        if new < len(numbers):
            facts["first_ref"] = int(numbers[0])
            parts["refs"] = column(narrowed(numbers - numbers[0]))
        return parts, facts


_NONE: Codes = np.zeros(0, dtype=np.int64)
_NO_BITS = np.zeros(0, dtype=np.uint8)
_NEVER = -(1 << 62)  # an interval before all others


class Copy(Kept):
    """A site's copy of another's window."""

    KEPT = ("store", "through", "gone_through", "probed_through", "clock", "clock_first")

    def __init__(self, stream: Stream, gone_through: int = _NEVER) -> None:
        self.store = RowStore(stream.qualified, stream.time_column)
        self.entries: dict[str, CopiedEntries] = {}
        self.blooms: dict[str, Bloom] = {}
        self.through: int | None = None  #: the last interval whose update has come
        self._gone_through = gone_through  # rows that only these intervals need have left
        self._probed_through = _NEVER
        self._clock = Growing()
        self._clock_first = 0

    @property
    def nbytes(self) -> int:
        entries = sum(entries.nbytes for entries in self.entries.values())
        blooms = sum(bloom.nbytes for bloom in self.blooms.values())
        return self.store.nbytes + self.store.index_bytes + self._clock.nbytes + entries + blooms

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            "entries": {label: entries.snapshot() for label, entries in self.entries.items()},
            "blooms": {label: bloom.snapshot() for label, bloom in self.blooms.items()},
        }

    def restore(self, data: Mapping[str, Any]) -> Self:
        self.entries = {n: CopiedEntries().restore(e) for n, e in data["entries"].items()}
        self.blooms = {n: Bloom(_NO_BITS, 0).restore(b) for n, b in data["blooms"].items()}
        return super().restore(data)

    def begin_probe(self, interval: int) -> bool:
        """The copy is gone by for an interval now; whether it lacks rows because it is too late."""
        self._probed_through = max(self._probed_through, interval)
        return interval <= self._gone_through

    def update(self, message: Message) -> bool:
        """Take in what `Outlet.update` made; whether something has been missed by its being late.

        That is so if the copy has been probed for its interval, and more comes than what leaves.
        """
        header = message.header
        late = bool(message.parts) and header.interval <= self._probed_through
        self.add_rows(message)
        for name, part in message.parts.items():
            kind, _, key = name.partition(SEPARATOR)
            if kind == "reset":
                self.entries[key] = CopiedEntries()
            elif kind == "frozen":
                self.entries.setdefault(key, CopiedEntries()).frozen = True
            elif kind == "dropped":
                self.entries.pop(key, None)
            elif kind == "counts":
                entries = self.entries.setdefault(key, CopiedEntries())
                fresh = message.array(f"entries{SEPARATOR}{key}")
                places = f"places{SEPARATOR}{key}"
                some = message.array(places) if places in message.parts else None
                entries.update(fresh, message.array(name), some)
            elif kind == "bloom":
                keys = int(message.array(f"keys{SEPARATOR}{key}")[0])
                self.blooms[key] = Bloom.received(part, keys)
        if header.expired:
            self.store.expire_oldest(header.expired)
        self._update_clock(message)
        self.through = header.interval
        self._gone_through = header.interval - header.step
        return late

    def _update_clock(self, message: Message) -> None:
        times = message.array("clock")
        first = message.header.first_ref
        if len(times) and first != self._clock_first + len(self._clock.values):
            self._clock.replace(times)  # it has not been kept for a while, or never
            self._clock_first = first
            return
        gone = min(message.header.trimmed, len(self._clock.values))
        if gone:
            self._clock.replace(self._clock.values[gone:])
            self._clock_first += gone
        self._clock.append(times)

    @property
    def clock(self) -> tuple[int, Times]:
        """The number of the first row of the window, and the times of all from there on."""
        return self._clock_first, self._clock.values

    def add_rows(self, message: Message) -> Numbers:
        """Take in the rows of a message; returns their numbers."""
        rows = message.parts.get("rows")
        if rows is None:
            return _NONE
        first = message.header.first_row
        if message.header.contiguous:
            numbers = np.arange(first, first + rows.num_rows)
        else:
            numbers = first + message.array("numbers")
        self.store.append(numbers, rows)
        return numbers

    def probe_rows(self, message: Message) -> pa.RecordBatch:
        """The rows that `Outlet.probe_rows` sent or referred to."""
        numbers = self.add_rows(message)
        if "refs" in message.parts:
            numbers = message.header.first_ref + message.array("refs")
        return self.store.gather(self.store.slots_of(numbers))

    def entries_of(self, key: StepKey) -> CopiedEntries:
        return self.entries.setdefault(SEPARATOR.join(key.stored), CopiedEntries())

    def bloom_of(self, key: StepKey) -> Bloom | None:
        return self.blooms.get(SEPARATOR.join(key.stored))
