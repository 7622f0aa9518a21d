"""Example 4 of the paper to the entry, and the synchronous updates against counting anew."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.keys import KeyCodec
from dovetail.multisite.compact import all_counts, counts_parts, found_keys, found_parts
from dovetail.multisite.copies import Copy, Facts, Outlet, Parts
from dovetail.multisite.entries import CopiedEntries, OwnedEntries, distinct
from dovetail.multisite.messages import Header, Kind, Message
from dovetail.multisite.plan import LinkNeeds
from dovetail.multisite.query import StepKey, Stream
from dovetail.multisite.rows import RowStore
from dovetail.multisite.windows import TimeWindow
from support.copies import check_copy

A, C, D, E, F = 1, 3, 4, 5, 6  # the join values a, c, d, e, f of Fig. 5
SCHEMA = pa.schema([("ts", pa.int64()), ("j", pa.int64()), ("v", pa.string())])
STREAM = Stream("S2", SCHEMA, TimeWindow(100))
KEY = StepKey(("S2.j",), ("S2.j",), KeyCodec((pa.int64(),)))
NEEDS = LinkNeeds(some_rows=True, entries=frozenset([KEY]))
NOTHING = LinkNeeds()
HEADER = Header(Kind.UPDATE, 1, 0)


def rows(first_time: int, *tuples: tuple[int, str]) -> pa.RecordBatch:
    keys, values = zip(*tuples, strict=True)
    times = range(first_time, first_time + len(tuples))
    return pa.RecordBatch.from_arrays(
        [pa.array(times, pa.int64()), pa.array(keys, pa.int64()), pa.array(values)],
        schema=STREAM.qualified,
    )


def message(kind: Kind, answer: tuple[Parts, Facts]) -> Message:
    parts, facts = answer
    return Message(Header(kind, 1, 0, **facts), parts)  # type: ignore[arg-type]


class Link:
    """A window W2 at N2, and its copy at N1."""

    def __init__(self) -> None:
        self.window = RowStore(STREAM.qualified, STREAM.time_column)
        self.outlet = Outlet(self.window, STREAM.window, 0)
        self.copy = Copy(STREAM)
        self._next = 0

    def update(self, *new: tuple[int, str], expire: int = 0) -> Message:
        start = self._next
        if new:
            batch = rows(start, *new)
            self.window.append(np.arange(start, start + len(new)), batch)
            self._next += len(new)
        first = self.window.first + expire
        sent = message(Kind.UPDATE, self.outlet.update(NEEDS, NOTHING, start, first))
        self.window.expire(first)
        self.copy.update(sent)
        return sent

    def ask(self, *keys: int) -> Message:
        codes = np.array(keys, dtype=np.int64)
        sent = message(Kind.ROWS, self.outlet.request(KEY, codes, fill=True))
        self.copy.add_rows(sent)
        self.copy.entries_of(KEY).fill(codes)
        return sent

    def v2(self) -> list[tuple[int, int, int]]:
        entries = self.outlet.entries[KEY]
        return list(
            zip(entries.codes.tolist(), entries.counts.tolist(), entries.sent * 1, strict=True)
        )

    def m2(self) -> list[tuple[int, int, list[str]]]:
        """`<j, c, ll>`, as in Fig. 5."""
        entries, store = self.copy.entries_of(KEY), self.copy.store
        found = []
        for code, filled in zip(entries.codes.tolist(), entries.filled, strict=True):
            _, slots = store.probe(KEY, np.array([code]))
            slots = slots[np.argsort(store.numbers[slots])]
            values = store.gather(slots).column("S2.v").to_pylist() if filled else []
            found.append((code, len(values), values))
        return found


def test_update_when_it_is_example_4_then_v2_m2_and_shipment_are_those_of_the_paper() -> None:
    link = Link()
    # Fig. 5(a): W2 in the order of arrival; c and a have been asked for
    link.update((C, "y"), (A, "x"), (A, "y"), (E, "x"))
    link.ask(C, A)
    assert link.v2() == [(C, 1, 1), (A, 2, 1), (E, 1, 0)]
    assert link.m2() == [(C, 1, ["y"]), (A, 2, ["x", "y"]), (E, 0, [])]

    # Fig. 5(b): insert <d,x>, <a,z>, <f,w>; remove <c,y>, <a,x>
    sent = link.update((D, "x"), (A, "z"), (F, "w"), expire=2)
    label = "\x1fS2.j"
    assert sent.array("entries" + label).tolist() == [D, F]  # v_J
    assert sent.array("counts" + label).tolist() == [0, 2, 1, 1, 1]  # v_C, for c, a, e, d, f
    assert sent.parts["rows"].to_pydict() == {"S2.ts": [5], "S2.j": [A], "S2.v": ["z"]}  # s_F
    assert sent.header.expired == 2  # k: <c,y> and <a,x> had both been sent

    # Fig. 5(c)
    assert link.v2() == [(A, 2, 1), (E, 1, 0), (D, 1, 0), (F, 1, 0)]
    assert link.m2() == [(A, 2, ["y", "z"]), (E, 0, []), (D, 0, []), (F, 0, [])]
    check_copy(link.copy)


def test_request_when_rows_were_sent_then_sends_only_the_others() -> None:
    link = Link()
    link.update((A, "x"), (C, "y"), (A, "z"))
    assert link.ask(A).parts["rows"].column("S2.v").to_pylist() == ["x", "z"]
    assert "rows" not in link.ask(A).parts
    again = link.ask(A, C)
    assert again.parts["rows"].column("S2.v").to_pylist() == ["y"]


def test_update_when_rows_never_sent_expire_then_k_does_not_count_them() -> None:
    link = Link()
    link.update((A, "x"), (C, "y"), (A, "z"))
    link.ask(C)
    assert link.update(expire=3).header.expired == 1
    assert len(link.copy.store) == 0


def test_probe_rows_when_some_were_sent_then_refers_to_them_by_number() -> None:
    link = Link()
    link.update((A, "x"), (C, "y"), (A, "z"), (D, "w"))
    link.ask(C)
    sent = message(Kind.PROBE, link.outlet.probe_rows(np.array([0, 1, 3])))
    assert sent.parts["rows"].column("S2.v").to_pylist() == ["x", "w"]
    assert link.copy.probe_rows(sent).column("S2.v").to_pylist() == ["x", "y", "w"]
    sent = message(Kind.PROBE, link.outlet.probe_rows(np.array([0, 1, 3])))
    assert set(sent.parts) == {"refs"}
    assert link.copy.probe_rows(sent).column("S2.v").to_pylist() == ["x", "y", "w"]


def test_entries_when_updated_at_random_then_both_ends_agree_with_a_count() -> None:
    rng = np.random.default_rng(4)
    owned, copied = OwnedEntries(), CopiedEntries()
    window: list[int] = []
    for _ in range(200):
        new = rng.integers(0, 9, rng.integers(0, 5)).tolist()
        gone = [window.pop(0) for _ in range(rng.integers(0, len(window) + 1))]
        window += new
        fresh, counts = owned.update(np.array(new, dtype=int), np.array(gone, dtype=int))
        some = np.flatnonzero(counts != owned.before)  # either way of writing the counts
        copied.update(*((fresh, counts) if len(window) % 2 else (fresh, counts[some], some)))
        expected = Counter(window)
        for entries in (owned, copied):
            assert dict(zip(entries.codes.tolist(), entries.counts.tolist(), strict=True)) == (
                expected
            )
        assert owned.codes.tolist() == copied.codes.tolist()


def test_distinct_when_codes_repeat_then_keeps_the_order_of_first_occurrence() -> None:
    assert distinct(np.array([5, 2, 5, 9, 2])).tolist() == [5, 2, 9]


def test_counts_when_few_of_many_keys_change_then_are_sent_with_their_places() -> None:
    before = np.arange(1, 1001) % 200
    counts = before.copy()
    counts[[3, 500]] += 1
    for compact, places in ((True, [3, 500]), (False, None)):
        sent = Message(HEADER, counts_parts(before, counts, compact))
        assert ("places" in sent.parts) == compact
        found = sent.array("places") if compact else None
        assert (None if found is None else found.tolist()) == places
        assert all_counts(before, sent.array("counts"), found).tolist() == counts.tolist()
        assert (sent.nbytes < 100) == compact


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("compact", [True, False])
def test_found_when_written_as_keys_or_bits_then_is_read_back(share: float, compact: bool) -> None:
    rng = np.random.default_rng(1)
    keys = rng.permutation(1000)
    found = rng.random(1000) < share
    sent = Message(HEADER, found_parts(keys, found, compact))
    assert found_keys(sent, keys).tolist() == keys[found].tolist()
    assert ("bits" in sent.parts) == (compact and share > 0.1)
