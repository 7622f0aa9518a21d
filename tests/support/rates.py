"""Predicted and measured rates of joins of a stream with a staged table, side by side.

For tests of the cost models. Rates are in processor time of this thread, so that
what else runs on the machine does not count; everything lies in the page cache, and what is read of
it is charged with `MEMORY`, as fast as memory is.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dovetail.costs.calibrate import calibrate, sizes_for
from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.predictions import Machine, PlannedEnrich, TableSize, predict
from dovetail.costs.skew import Skew
from dovetail.costs.ssbj import zipf
from dovetail.costs.storage import Storage
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import Context
from dovetail.semistream import ALGORITHMS, KEYS_SCHEMA, SemiStreamSpec, StagedTable
from dovetail.semistream.spec import STREAM
from dovetail.semistream.table.reading import page_bytes_for
from support.semistream import stage

ALGORITHMS_COMPARED = ("seek", "ssbj", "meshjoin", "inl")
MEMORY = Storage("memory", 0.0, 3e9)
_KEY = "key"


@dataclass(frozen=True)
class Setting:
    """A table, a stream, and a budget as a share of the table."""

    table_rows: int
    table_row_bytes: int
    stream_row_bytes: int
    share: float
    skew: float = 0.0
    rows: int = 50_000  #: of the stream: four times what fills window and cache, or more
    batch_rows: int = 10_000

    @property
    def budget_bytes(self) -> int:
        return int(self.share * self.table_rows * self.table_row_bytes)

    @property
    def page_bytes(self) -> int:
        """As pages are staged for such a budget."""
        return page_bytes_for(self.budget_bytes)

    @property
    def spec(self) -> SemiStreamSpec:
        schemas = (_schema(self.stream_row_bytes), _schema(self.table_row_bytes))
        return SemiStreamSpec(*schemas, (_KEY,), (_KEY,))


@dataclass(frozen=True)
class Compared:
    """Rows a second of processor time."""

    algorithm: str
    setting: Setting
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured."""
        return abs(self.predicted / self.measured - 1)

    def __str__(self) -> str:
        one = self.setting
        return (
            f"{self.algorithm:<9} {one.table_rows:>9,} rows of {one.table_row_bytes} B, "
            f"memory {one.share:.0%}, skew {one.skew:g}: predicted {self.predicted:>10,.0f}, "
            f"measured {self.measured:>10,.0f} rows/s, off by {self.error:.0%}"
        )


def compare(
    setting: Setting,
    factors: MeshFactors | None = None,
    algorithms: Sequence[str] = ALGORITHMS_COMPARED,
    seed: int = 1,
) -> list[Compared]:
    """Run each algorithm, and predict it with factors measured just now, unless some are given."""
    rng = np.random.default_rng(seed)
    spec = setting.spec
    found = []
    with tempfile.TemporaryDirectory(prefix="dovetail-rates-") as name:
        directory = Path(name)
        keys = rng.permutation(setting.table_rows)
        staged = stage(spec, _rows(keys, spec.table), directory / "table", setting.page_bytes)
        size = TableSize(staged.rows, staged.row_bytes, staged.page_rows, "as staged")
        staged.close()
        sizes = setting.stream_row_bytes, setting.table_row_bytes, setting.budget_bytes
        known = factors or calibrate(sizes_for(*sizes))
        told = {one.algorithm: one.rate for one in predict(_plan(setting, size, known))}
        drawn = np.searchsorted(
            np.cumsum(zipf(setting.table_rows, setting.skew)), rng.random(setting.rows)
        )
        sought = rng.permutation(keys)[np.minimum(drawn, setting.table_rows - 1)]
        for algorithm in algorithms:
            # with neither window nor cache, a few rows tell as much
            some = sought[: len(sought) // 8] if algorithm == "inl" else sought
            measured = _measured_rate(algorithm, setting, directory, some)
            found.append(Compared(algorithm, setting, told[algorithm], measured))
    return found


def _plan(setting: Setting, size: TableSize, factors: MeshFactors) -> PlannedEnrich:
    return PlannedEnrich(
        spec=setting.spec,
        algorithm="seek",
        asked_algorithm="auto",
        memory_bytes=setting.budget_bytes,
        partitions=1,
        asked_partitions=1,
        streaming=True,
        table=size,
        machine=Machine(factors, MEMORY, cores=1),
        skew=Skew(setting.skew),
        batch_rows=setting.batch_rows,
    )


def _measured_rate(algorithm: str, setting: Setting, directory: Path, sought: Rows) -> float:
    spec = setting.spec
    table = StagedTable(directory / "table", spec.table)
    table.verify()  # a long stream checks each page only once
    store = BlockStore(directory, (*spec.schemas, KEYS_SCHEMA), f"rates-{algorithm}")
    try:
        context = Context(Budget(setting.budget_bytes), store)
        join = ALGORITHMS[algorithm](spec, context, table)
        half = len(sought) // 2
        for batch in _batches(sought[:half], setting):
            for _ in join.push(STREAM, batch):
                pass
        batches = list(_batches(sought[half:], setting))
        waited = join.pending()
        started = time.thread_time()
        for batch in batches:
            for _ in join.push(STREAM, batch):
                pass
        seconds = max(time.thread_time() - started, 1e-9)
        return (len(sought) - half + waited - join.pending()) / seconds
    finally:
        store.close()
        table.close()


def _batches(keys: Rows, setting: Setting) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(keys), setting.batch_rows):
        yield _rows(keys[start : start + setting.batch_rows], setting.spec.stream)


def _schema(row_bytes: int) -> pa.Schema:
    return pa.schema([(_KEY, pa.int64()), ("rest", pa.binary(row_bytes - 8))])


def _rows(keys: Rows, schema: pa.Schema) -> pa.RecordBatch:
    rest = schema.field(1).type
    filler = pa.py_buffer(bytes(rest.byte_width * len(keys)))
    columns = [pa.array(keys), pa.Array.from_buffers(rest, len(keys), [None, filler])]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
