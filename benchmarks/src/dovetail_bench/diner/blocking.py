"""When the classic joins would have their results: lines of reference for those that do not wait.

The nested loop, the hash and the sort-merge join of section II of the survey (Patel and Rana, "An
Enhanced Join Algorithm for Output Rate Improvement"). Nothing is run; their virtual time is worked
out from the same costs as for the others, and wherever there is a choice it is made in their
favour:

- what arrives is put on disk at no cost, and comparing is free;
- hash: the input that ends first is the one that is built on, in as much memory as it wants. From
  its end on, the other one's rows are looked up, those that have come first;
- nested loop: the input that ends first is the inner one. From its end on, it is read once for
  every memory-full of the other one's rows;
- sort-merge: the sorted runs are there when the last row has come; both are then read once, by the
  page, and merged.
"""

import numpy as np
from numpy.typing import NDArray

from dovetail_bench.diner.simulate import PAGE_BYTES, Costs, Curve
from dovetail_bench.diner.streams import TUPLE_BYTES, Keys, Streams

_PAGES_A_ROW = TUPLE_BYTES / PAGE_BYTES


def curves(streams: Streams, costs: Costs, capacity_rows: int) -> dict[str, Curve]:
    """All of them by name."""
    return {
        "nested-loop": nested_loop(streams, costs, capacity_rows),
        "hash": hash_join(streams, costs),
        "sort-merge": sort_merge(streams, costs),
    }


def hash_join(streams: Streams, costs: Costs) -> Curve:
    build, built = _first_to_end(streams)
    times = streams.times[1 - build]
    matches = _matches(streams.keys[1 - build], streams.keys[build], streams.within)
    reading = np.where(times < built, costs.transfer * _PAGES_A_ROW, 0.0)
    return _one_after_another(np.maximum(times, built), reading + costs.result * matches, matches)


def nested_loop(streams: Streams, costs: Costs, capacity_rows: int) -> Curve:
    inner, ended = _first_to_end(streams)
    times = streams.times[1 - inner]
    matches = _matches(streams.keys[1 - inner], streams.keys[inner], streams.within)
    starts = np.arange(0, len(times), max(1, capacity_rows))
    found = np.add.reduceat(matches, starts)
    last = np.append(starts[1:], len(times)) - 1
    scan = costs.transfer * _PAGES_A_ROW * len(streams.keys[inner])
    return _one_after_another(np.maximum(times[last], ended), scan + costs.result * found, found)


def sort_merge(streams: Streams, costs: Costs) -> Curve:
    keys = np.sort(streams.keys[0])
    matches = _matches(keys, streams.keys[1], streams.within)
    pages = _PAGES_A_ROW * streams.rows
    reading = np.full(len(keys), costs.transfer * pages / len(keys))
    ready = np.full(len(keys), streams.end)
    return _one_after_another(ready, reading + costs.result * matches, matches)


def _first_to_end(streams: Streams) -> tuple[int, float]:
    ends = [float(times[-1]) for times in streams.times]
    side = int(np.argmin(ends))
    return side, ends[side]


def _matches(rows: Keys, others: Keys, within: int | None) -> NDArray[np.int64]:
    """For each row, how many of the others it matches."""
    reach, others = within or 0, np.sort(others)
    first = np.searchsorted(others, rows - reach, side="left")
    return np.asarray(np.searchsorted(others, rows + reach, side="right") - first)


def _one_after_another(
    ready: NDArray[np.float64], cost: NDArray[np.float64], found: NDArray[np.int64]
) -> Curve:
    """Each piece of work begins when it is ready and the one before is done."""
    spent = np.cumsum(cost)
    done = spent + np.maximum.accumulate(ready - (spent - cost))
    return Curve(done, np.cumsum(found))
