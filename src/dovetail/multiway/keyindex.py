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

BYTES_PER_ROW = 16  #: a code, a slot, and the slot once more among those of all runs


class KeyIndex:
    """Finds rows by the codes of one attribute."""

    def __init__(self) -> None:
        self._runs: list[tuple[Codes, Slots]] = []
        self._slots: Slots | None = None  # of all runs, one behind the other

    def __len__(self) -> int:
        return sum(len(codes) for codes, _ in self._runs)

    def insert(self, codes: Codes, first: int) -> None:
        """Add rows that lie in the slots from `first` on, in any order of codes."""
        order = np.argsort(codes, kind="stable")
        self._runs.append((codes.take(order), (order + first).astype(np.int32)))
        while len(self._runs) >= FAN_IN:
            sizes = [len(run[0]) for run in self._runs[-FAN_IN:]]
            # merging into a run much larger than the rest would copy it again and again
            if sizes[0] > sum(sizes[1:]):
                break
            self._runs[-FAN_IN:] = [_merged(self._runs[-FAN_IN:])]
        self._slots = None

    def remove(self, gone: NDArray[np.bool_], moved: Slots) -> None:
        """Forget the slots that are marked; `moved` has the new slot of each of the others."""
        runs: list[tuple[Codes, Slots]] = []
        for codes, slots in self._runs:
            kept = ~gone.take(slots)
            if kept.any():
                runs.append((codes[kept], moved.take(slots[kept]).astype(np.int32)))
        self._runs, self._slots = runs, None

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
        return None if found is None else (self._all_slots(), found)

    def ranges_met(self, low: Codes, high: Codes) -> NDArray[np.bool_]:
        """In which of the inclusive ranges there is the code of any row."""
        met = np.zeros(len(low), dtype=np.bool_)
        for codes, _ in self._runs:
            met |= np.searchsorted(codes, low, "left") < np.searchsorted(codes, high, "right")
        return met

    def check(self, by_slot: Codes) -> None:
        slots = self._all_slots()
        assert len(slots) == len(by_slot)
        assert (np.sort(slots) == np.arange(len(slots))).all(), "an index has lost rows"
        for codes, places in self._runs:
            assert (codes[1:] >= codes[:-1]).all(), "an index is out of order"
            assert (by_slot.take(places) == codes).all(), "an index has other codes than the rows"

    def _all_slots(self) -> Slots:
        if self._slots is None:
            parts = [slots for _, slots in self._runs]
            self._slots = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
        return self._slots


def _merged(runs: list[tuple[Codes, Slots]]) -> tuple[Codes, Slots]:
    codes = np.concatenate([run[0] for run in runs])
    order = np.argsort(codes, kind="stable")  # a merge: the pieces are sorted already
    return codes.take(order), np.concatenate([run[1] for run in runs]).take(order)
