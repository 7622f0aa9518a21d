"""MESHJOIN's five cost factors as they are on this machine, measured with the kernel's own steps.

Each factor is the time of one vectorised step over its rows, the median of several repetitions:

- receive: the key column of a batch, int64, to codes (`KeyCodec.encode`); strings cost more;
- add: batches sorted into runs and merged into a window, as `SortedRuns` does it;
- expire: the rows of the older half of a run filtered out, which rewrites those that stay;
- probe: sorted table rows looked up in a run of the window's size (`Run.probe`);
- output: candidate pairs to row numbers, and the rows of both sides taken.

The steps are those of numpy and Arrow on one thread's share of the machine as busy as it is now:
measure where, and while, the join will run. Nothing is read from disk; see `storage`.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from dovetail.costs.meshjoin import MeshFactors
from dovetail.errors import ArgumentError
from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.runs import Run, SortedRuns, sort_run

_REPETITIONS = 7
_PATIENCE_SECONDS = 0.2  # for each factor; five of them, and the making of the rows
_KEY_BYTES = 8
_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Sizes:
    """The shape of the join that is measured for."""

    stream_row_bytes: int = 64
    table_row_bytes: int = 128
    batch_rows: int = 4096
    window_rows: int = 1 << 16
    table_rows: int = 1 << 13  #: that are read at a time

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ArgumentError(f"{name}={value}: must be 1 or more")


@dataclass(frozen=True)
class Calibration:
    """Measured factors, and what they were measured with."""

    factors: MeshFactors
    sizes: Sizes = field(default_factory=Sizes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, in place of what was there."""
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Raises `ArgumentError` if it is something else."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(MeshFactors(**found["factors"]), Sizes(**found["sizes"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"{Path(path)} is not a calibration ({error}): calibrate again and save it there"
            ) from error


def calibrate(sizes: Sizes | None = None) -> Calibration:
    """Measure the factors, in about a second or less."""
    sizes = sizes or Sizes()
    generator = np.random.default_rng(0)
    window = _random_run(generator, sizes.window_rows, sizes.stream_row_bytes)
    # keys that the window has too, so that every probe finds something
    table_keys = np.sort(generator.choice(window.codes, sizes.table_rows))
    table = _rows(table_keys, sizes.table_row_bytes)
    factors = MeshFactors(
        expire=_expire_seconds(window),
        receive=_receive_seconds(generator, sizes),
        add=_add_seconds(window.rows, sizes.batch_rows),
        probe=_probe_seconds(window, table_keys),
        output=_output_seconds(window, table_keys, table),
    )
    return Calibration(factors, sizes)


def _expire_seconds(window: Run) -> float:
    half = max(1, len(window) // 2)
    arrival = np.random.default_rng(1).permutation(len(window))
    return _median_seconds(lambda: window.filter(arrival >= half)) / half


def _receive_seconds(generator: np.random.Generator, sizes: Sizes) -> float:
    codec = KeyCodec((pa.int64(),))
    keys = generator.integers(0, 1 << 40, sizes.batch_rows)
    column = _rows(keys, sizes.stream_row_bytes).column(0)
    return _median_seconds(lambda: codec.encode([column])) / sizes.batch_rows


def _add_seconds(rows: pa.RecordBatch, batch_rows: int) -> float:
    shuffled = rows.take(pa.array(np.random.default_rng(2).permutation(rows.num_rows)))
    codes = shuffled.column(0).to_numpy()

    def fill() -> None:
        held = SortedRuns(_UNLIMITED)
        for start in range(0, len(codes), batch_rows):
            batch = shuffled.slice(start, batch_rows)
            held.insert(sort_run(codes[start : start + batch_rows], 1, batch))

    return _median_seconds(fill) / len(codes)


def _probe_seconds(window: Run, keys: Codes) -> float:
    window.probe(keys, keys)  # makes the directory, which a run does once
    return _median_seconds(lambda: window.probe(keys, keys)) / len(keys)


def _output_seconds(window: Run, keys: Codes, table: pa.RecordBatch) -> float:
    span = window.probe(keys, keys)
    assert span is not None, "the keys were taken from the window"
    results = int((span.high - span.low).sum())

    def produce() -> None:
        for table_rows, window_rows in span.pairs(1 << 17):
            table.take(pa.array(table_rows))
            window.rows.take(pa.array(window_rows))

    return _median_seconds(produce) / results


def _random_run(generator: np.random.Generator, rows: int, row_bytes: int) -> Run:
    keys = generator.integers(0, 1 << 40, rows)
    return sort_run(keys, 1, _rows(keys, row_bytes))


def _rows(keys: Codes, row_bytes: int) -> pa.RecordBatch:
    """Rows with these keys and the rest of their bytes in one more column."""
    columns = {"key": pa.array(keys)}
    rest = row_bytes - _KEY_BYTES
    if rest > 0:
        filler = pa.py_buffer(bytes(rest * len(keys)))
        columns["rest"] = pa.Array.from_buffers(pa.binary(rest), len(keys), [None, filler])
    return pa.record_batch(columns)


def _median_seconds(step: Callable[[], object]) -> float:
    """The median time of several repetitions, of which the first, cold, does not count."""
    seconds: list[float] = []
    begin = time.perf_counter()
    for _ in range(1 + _REPETITIONS):
        start = time.perf_counter()
        step()
        now = time.perf_counter()
        seconds.append(now - start)
        if now - begin > _PATIENCE_SECONDS:
            break
    return max(statistics.median(seconds[1:] or seconds), 1e-12)
