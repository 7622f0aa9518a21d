"""Calibration: measures the factors of the cost models with the operators' own code.

MESHJOIN runs in the middle of a join, with reads and batches of several sizes (`trials.Scan`). What
a loop takes is linear in what it does: steps (`call`), chunks that rows are fetched from (`chunk`),
table rows (`probe`) and stream rows. The factors are those that explain the measured loops best, by
least squares of relative errors, none below 0. Of what a stream row takes in all, `receive`,
`lookup`, `output` and `expire` are what these take by themselves (`trials.Steps`), as they do where
a row is settled from a cache; the rest is what it costs to wait for the table, `add`.

Why whole loops, of several sizes: a packet is a call of its own in every loop, and so is each chunk
of table rows, however few rows there are. From one size it cannot be told what belongs to calls and
what to rows. And steps by themselves, over and over, take half of what they do in a join, where
they find nothing in the processor's caches, and where mapped rows are given back again and again
(so how much may be resident is one of the sizes). `mesh-model` has predicted beside measured rates.

Times are processor times. What a read has to wait for is not part of them; see `storage`.
"""

import math
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np

from dovetail.costs.fitting import fit
from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.trials import Scan, Steps, trial_table
from dovetail.errors import ArgumentError
from dovetail.semistream.base import release_bytes_of
from dovetail.semistream.table.reading import RELEASE_BYTES

# loops of a scan, and rows of a packet that match in each
_SCANS = ((1, 64), (1, 2048), (2, 32), (4, 16), (4, 1024), (16, 8), (16, 128), (32, 4), (32, 64))
_TABLE_BYTES = 32 << 20  # at most
_ROUNDS = 3
_SLICE_SECONDS, _LEAST_LOOPS = 0.012, 3  # of a scan in a round
_PATIENCE_SECONDS = 1.0  # after which no round begins


@dataclass(frozen=True)
class Sizes:
    """The shape of the join that is measured for."""

    stream_row_bytes: int = 64
    table_row_bytes: int = 128
    table_rows: int = 1 << 18  #: at most; fewer of wide rows
    release_bytes: int = RELEASE_BYTES  #: of the table that may be resident

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ArgumentError(f"{name}={value}: must be 1 or more")


def calibrate(sizes: Sizes) -> MeshFactors:
    """Measure the factors, in about a second or less, with a temporary folder of up to 35 MB."""
    rows = max(1, min(sizes.table_rows, _TABLE_BYTES // sizes.table_row_bytes))
    with (
        tempfile.TemporaryDirectory(prefix="dovetail-calibrate-") as name,
        trial_table(Path(name), sizes.stream_row_bytes, sizes.table_row_bytes, rows) as table,
    ):
        scans = [Scan(table, *scan, sizes.release_bytes) for scan in _SCANS]
        _measure(scans)
        steps = np.array([scan.steps for scan in scans])
        seconds = np.array([median(scan.seconds) for scan in scans])
        parts = Steps(table).seconds_per_row()
    call, chunk, probe, row = (max(float(one), 1e-12) for one in fit(steps, seconds))
    known = sum(parts.values())
    scale = min(1.0, row / known)
    parts = {name: part * scale for name, part in parts.items()}
    add = max(row - known, 1e-12)
    return MeshFactors(call=call, chunk=chunk, probe=probe, add=add, **parts)


def _measure(scans: list[Scan]) -> None:
    """In turns: a slow spell of the machine then weighs on all of them."""
    end = time.perf_counter() + _PATIENCE_SECONDS
    for _ in range(_ROUNDS):
        for scan in scans:
            scan.go_on(_SLICE_SECONDS, _LEAST_LOOPS)
        if time.perf_counter() > end:
            return


def factors_for(
    stream_row_bytes: float, table_row_bytes: float, partition_bytes: int | None
) -> MeshFactors:
    """The factors for joins like that; measured once in the life of this process."""
    return _factors_for(sizes_for(stream_row_bytes, table_row_bytes, partition_bytes))


_factors_for = lru_cache(maxsize=64)(calibrate)


def sizes_for(
    stream_row_bytes: float, table_row_bytes: float, partition_bytes: int | None
) -> Sizes:
    """The measurements for rows of about these widths, in a partition with such a budget.

    All of it is rounded to powers of two, so that similar joins share a measurement.
    """
    return Sizes(
        _power_of_two(stream_row_bytes, 3, 14),
        _power_of_two(table_row_bytes, 3, 14),
        release_bytes=_power_of_two(release_bytes_of(partition_bytes), 22, 24),
    )


def _power_of_two(nbytes: float, least: int, most: int) -> int:
    return int(1 << max(least, min(most, round(math.log2(max(1.0, nbytes))))))
