"""Statistics measured from running streams, small enough to be sent now and then.

Of each join column a site sends a sample of its window's keys with their numbers of rows: the keys
with the lowest hashes. All sites use the same hash, so samples of two columns hold the same keys
wherever both columns have them; from those that both could have sampled follow the number of
distinct keys, how many are shared, the share of rows whose key is, and that of pairs of rows that
match. Of a few keys that are far more frequent than all others, a sample may miss some; the share
of pairs is then too low.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import Codes, spread
from dovetail.multisite.estimates import Statistics, StreamStatistics
from dovetail.multisite.messages import Message
from dovetail.multisite.query import Query, key_of
from dovetail.multisite.rows import RowStore
from dovetail.multisite.windows import Numbers

SAMPLE_KEYS = 128  #: of each column
_ALL = float(2**64)


def _position(codes: Codes) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Where keys fall in `[0, 1)`, each at a place of its own choosing."""
    return spread(codes).view(np.uint64) / _ALL


@dataclass(frozen=True)
class Sample:
    """Some keys of a column: those below `reach`; `reach` is 1 if it is all of them."""

    codes: Codes
    counts: Numbers
    reach: float
    rows: int  #: of the column, in all

    @classmethod
    def of(cls, codes: Codes, most: int = SAMPLE_KEYS) -> "Sample":
        keys, counts = np.unique(codes, return_counts=True)
        if len(keys) <= most:
            return cls(keys, counts, 1.0, len(codes))
        order = np.argsort(_position(keys))[: most + 1]
        reach = float(_position(keys[order[-1:]])[0])
        return cls(keys[order[:-1]], counts[order[:-1]], reach, len(codes))

    @property
    def distinct(self) -> float:
        return len(self.codes) / self.reach

    def below(self, reach: float) -> "Sample":
        chosen = _position(self.codes) < reach
        return Sample(self.codes[chosen], self.counts[chosen], reach, self.rows)

    def part(self) -> pa.RecordBatch:
        return pa.record_batch({"code": self.codes, "count": self.counts.astype(np.int32)})


def compare(left: Sample, right: Sample) -> tuple[float, float]:
    """The distinct keys that two columns share, and the share of pairs of rows that match."""
    reach = min(left.reach, right.reach)
    a, b = left.below(reach), right.below(reach)
    _, at_left, at_right = np.intersect1d(a.codes, b.codes, return_indices=True)
    matches = float((a.counts[at_left].astype(float) * b.counts[at_right]).sum()) / reach
    return len(at_left) / reach, matches / max(left.rows * right.rows, 1)


def matched(left: Sample, right: Sample) -> float:
    """The share of one column's rows whose key the other has."""
    reach = min(left.reach, right.reach)
    a, b = left.below(reach), right.below(reach)
    return float(a.counts[np.isin(a.codes, b.codes)].sum()) / max(int(a.counts.sum()), 1)


def join_columns(query: Query, name: str) -> list[str]:
    """The columns of a stream that an equality names."""
    named = {column for pair in query.on for column in pair}
    return [c for c in query.stream(name).qualified.names if c in named]


def measure(
    query: Query, name: str, store: RowStore, rows: int, intervals: int
) -> dict[str, pa.RecordBatch]:
    """The statistics of a stream's window; the stream had so many rows in the last intervals."""
    stored = max(len(store.numbers), 1)
    figures = {"rate": [rows / (intervals * query.tau)], "bytes": [store.nbytes / stored]}
    parts = {"stream": pa.record_batch(figures)}
    for column in join_columns(query, name):
        index = store.index(key_of(store.schema, [column]))
        counts = (store.numbers >= store.first) & index.valid.values
        sample = Sample.of(index.codes.values[counts])
        parts[column] = sample.part()
        parts[f"{column} reach"] = pa.record_batch({"reach": [sample.reach], "rows": [sample.rows]})
    return parts


def gather(query: Query, reports: Mapping[str, Message]) -> Statistics:
    """The statistics of a query from one report of each site."""
    samples: dict[str, Sample] = {}
    streams: dict[str, StreamStatistics] = {}
    for name, message in reports.items():
        for column in join_columns(query, name):
            sent = message.parts[column]
            codes, counts = (np.asarray(sent.column(i)).astype(np.int64) for i in (0, 1))
            reach, rows = (message.parts[f"{column} reach"].column(i)[0].as_py() for i in (0, 1))
            samples[column] = Sample(codes, counts, reach, rows)
        rate, row_bytes = (message.parts["stream"].column(i)[0].as_py() for i in (0, 1))
        distinct = {c: max(1.0, samples[c].distinct) for c in join_columns(query, name)}
        streams[name] = StreamStatistics(rate, row_bytes, distinct)
    compared = {pair: compare(samples[pair[0]], samples[pair[1]]) for pair in query.on}
    return Statistics(
        streams,
        {pair: shared for pair, (shared, _) in compared.items()},
        {pair: selectivity for pair, (_, selectivity) in compared.items()},
        {
            (left, right): matched(samples[left], samples[right])
            for pair in query.on
            for left, right in (pair, pair[::-1])
        },
    )
