"""Cost model of Cleanup: the time for reading from storage, and for joining.

    seconds = (rows read * row + results * result) / workers + blocks * seek + bytes / speed

`row` and `result` are processor times, measured with the operator's own Cleanup: once with inputs
that have no key in common, and once with inputs that have many results. Storage is that of
`storage`; the workers share it. Not part of it: what Spark does besides, its micro-batches and
the user's sink.
"""

import math
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.costs.replay import STAMP_BYTES, Forecast
from dovetail.costs.storage import Storage
from dovetail.costs.widths import filler
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import SIDES, Context, Status
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.twoway import TwoWaySpec, make

_ROWS = 30_000  # of either side
_BATCH_ROWS = 2_000
_MEMORY_SHARE = 1 / 5  # of what all rows would take
_KEY_BYTES = 8
_MATCHES = 4  # of a row, where there are any
_FUEL = 1 << 16


@dataclass(frozen=True)
class CleanupFactors:
    """Processor seconds."""

    row: float  #: for a row that is read back
    result: float  #: for a result


@dataclass(frozen=True)
class CleanupMachine:
    """The machine and the storage of a Cleanup."""

    factors: CleanupFactors
    storage: Storage
    workers: int


def cleanup_seconds(forecast: Forecast, machine: CleanupMachine) -> float:
    """The expected time of everything that is left to do after the last row, at most."""
    factors = machine.factors
    work = forecast.read_rows * factors.row + forecast.later * factors.result
    return work / machine.workers + reading_seconds(forecast, machine)


def reading_seconds(forecast: Forecast, machine: CleanupMachine) -> float:
    """The part of it that is spent waiting for storage, if none of the blocks is cached."""
    return machine.storage.read_seconds(forecast.read_blocks, forecast.read_bytes)


def cleanup_factors(algorithm: str, row_bytes: float) -> CleanupFactors:
    """The factors for rows of about that width; measured once in the life of this process."""
    width = 1 << max(4, min(12, round(math.log2(max(1.0, row_bytes)))))
    return _measured(algorithm, width)


@lru_cache(maxsize=64)
def _measured(algorithm: str, width: int) -> CleanupFactors:
    rng = np.random.default_rng(0)
    apart = [rng.permutation(_ROWS) * 2 + side for side in SIDES]
    together = [rng.integers(0, _ROWS // _MATCHES, _ROWS) for _ in SIDES]
    seconds, rows, _ = _clean(algorithm, width, apart)
    row = seconds / max(1.0, rows)
    seconds, rows, results = _clean(algorithm, width, together)
    return CleanupFactors(row, max(seconds - rows * row, 0.0) / max(1, results))


def _clean(algorithm: str, width: int, keys: list[NDArray[np.int64]]) -> tuple[float, float, int]:
    """Processor seconds of a Cleanup, the rows that it read, and its results."""
    rest = pa.binary(width - _KEY_BYTES)
    spec = TwoWaySpec(
        pa.schema([("key", pa.int64()), ("left", rest)]),
        pa.schema([("key", pa.int64()), ("right", rest)]),
        ("key",), ("key",),
    )  # fmt: skip
    budget_bytes = int(_MEMORY_SHARE * len(SIDES) * _ROWS * (width + INDEX_BYTES_PER_ROW))
    wide = filler(rest.byte_width, _BATCH_ROWS)
    with tempfile.TemporaryDirectory(prefix="dovetail-calibrate-") as directory:
        store = BlockStore(Path(directory), spec.schemas, "calibrate")
        try:
            join = make(algorithm, spec, Context(Budget(budget_bytes), store))
            for start in range(0, _ROWS, _BATCH_ROWS):
                for side in SIDES:
                    columns = [pa.array(keys[side][start : start + _BATCH_ROWS]), wide]
                    batch = pa.RecordBatch.from_arrays(columns, schema=spec.schemas[side])
                    for _ in join.push(side, batch):
                        pass
            for side in SIDES:
                join.finish(side)
            before, results, began = join.ctx.counters.bytes_read, 0, time.thread_time()
            while join.status() is not Status.DONE:
                results += sum(out.num_rows for out in join.poll(_FUEL))
            seconds = time.thread_time() - began
            read_bytes = join.ctx.counters.bytes_read - before
        finally:
            store.close()
    return seconds, read_bytes / (width + STAMP_BYTES), results
