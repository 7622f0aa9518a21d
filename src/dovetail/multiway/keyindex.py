"""The index of one join attribute of one relation: sorted codes, each with the slot of its row.

A few sorted runs, merged like those of `kernel.runs`, but of codes and slots only: a relation has
an index for each of its attributes and its rows lie in one place. Slots are positions in the
relation's own arrays; when rows leave, the slots of those behind them move up (`remove`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.runs import FAN_IN, Span, probe_run

Slots = NDArray[np.integer[Any]]

BYTES_PER_ROW = 12  #: a code and a slot


class KeyIndex:
    """Finds rows by the codes of one attribute."""

    def __init__(self) -> None:
        self._runs: list[tuple[Codes, Slots]] = []  # the slots are parts of those of all runs
        self._slots: Slots = np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._slots)

    def insert(self, codes: Codes, first: int) -> None:
        """Add rows that lie in the slots from `first` on, in any order of codes."""
        order = np.argsort(codes, kind="stable")
        runs = [*self._runs, (codes.take(order), (order + first).astype(np.int32))]
        while len(runs) >= FAN_IN:
            sizes = [len(run[0]) for run in runs[-FAN_IN:]]
            # merging into a run much larger than the rest would copy it again and again
            if sizes[0] > sum(sizes[1:]):
                break
            runs[-FAN_IN:] = [_merged(runs[-FAN_IN:])]
        self._hold(runs)

    def remove(self, gone: NDArray[np.bool_], moved: Slots) -> None:
        """Forget the slots that are marked; `moved` has the new slot of each of the others."""
        runs: list[tuple[Codes, Slots]] = []
        while self._runs:
            codes, slots = self._runs.pop(0)  # so that no more than one is in memory twice
            kept = ~gone.take(slots)
            if kept.any():
                runs.append((codes[kept], moved.take(slots[kept])))
        self._hold(runs)

    def probe(self, low: Codes, high: Codes) -> tuple[Slots, Span] | None:
        """The rows with codes in each of the inclusive ranges; equality is `low is high`.

        The span's positions are those of the slots that are returned with it.
        """
        found: Span | None = None
        base = 0
        for codes, _ in self._runs:
            span = probe_run(codes, low, high)
            if span is not None:
                if base:
                    span = Span(span.probing, span.low + base, span.high + base)
                found = span if found is None else found.joined(span)
            base += len(codes)
        return None if found is None else (self._slots, found)

    def ranges_met(self, low: Codes, high: Codes) -> NDArray[np.bool_]:
        """In which of the inclusive ranges there is the code of any row."""
        met = np.zeros(len(low), dtype=np.bool_)
        for codes, _ in self._runs:
            met |= np.searchsorted(codes, low, "left") < np.searchsorted(codes, high, "right")
        return met

    def check(self, by_slot: Codes) -> None:
        assert len(self) == len(by_slot)
        assert (np.sort(self._slots) == np.arange(len(self))).all(), "an index has lost rows"
        for codes, places in self._runs:
            assert np.shares_memory(places, self._slots), "slots are held twice"
            assert (codes[1:] >= codes[:-1]).all(), "an index is out of order"
            assert (by_slot.take(places) == codes).all(), "an index has other codes than the rows"

    def _hold(self, runs: list[tuple[Codes, Slots]]) -> None:
        """Keep these runs, with all their slots in one array."""
        parts = [slots for _, slots in runs]
        self._slots = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
        ends = np.cumsum([0, *map(len, parts)]).tolist()
        self._runs = [
            (codes, self._slots[start:stop])
            for (codes, _), start, stop in zip(runs, ends[:-1], ends[1:], strict=True)
        ]


def _merged(runs: list[tuple[Codes, Slots]]) -> tuple[Codes, Slots]:
    codes = np.concatenate([run[0] for run in runs])
    order = np.argsort(codes, kind="stable")  # a merge: the pieces are sorted already
    return codes.take(order), np.concatenate([run[1] for run in runs]).take(order)
