"""Two or more streams of random rows, small enough for the loop that knows the answer."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from dovetail.multisite.windows import Window
from dovetail.sites import Query, Stream, TimeWindow, topology

Streams = dict[str, pa.RecordBatch]
Make = Callable[..., tuple[Query, Streams]]


def random_rows(
    rng: np.random.Generator, rate: float, end: int, keys: Sequence[int], width: int
) -> pa.RecordBatch:
    """Rows of a Poisson stream, keys drawn evenly, with so many bytes besides."""
    count = rng.poisson(rate * end)
    times = np.sort(rng.integers(0, end, count))
    padding = pa.array([b"x" * width] * count, pa.binary(width))
    return pa.record_batch({"ts": times, "a": rng.choice(keys, count), "pad": padding})


@pytest.fixture
def make() -> Make:
    """A query and its streams; each stream is (rate, keys, bytes besides, window)."""

    def build(
        *streams: tuple[float, Sequence[int], int, Window], graph: str = "chain", tau: int = 10,
        delta: int = 5, intervals: int = 10, seed: int = 0,
    ) -> tuple[Query, Streams]:  # fmt: skip
        rng = np.random.default_rng(seed)
        names = "ABCDEFGH"[: len(streams)]
        batches = {
            name: random_rows(rng, rate, tau * intervals, keys, width)
            for name, (rate, keys, width, _) in zip(names, streams, strict=True)
        }
        described = tuple(
            Stream(name, batches[name].schema, window)
            for name, (*_, window) in zip(names, streams, strict=True)
        )
        return Query(described, tuple(topology(graph, names, ["a"])), tau, delta), batches

    return build


@pytest.fixture
def pair(make: Make) -> tuple[Query, Streams]:
    return make((1, range(6), 4, TimeWindow(25)), (1, range(6), 4, TimeWindow(30)))
