"""Small runs of the operators' own steps on this machine, timed for `calibrate`.

A table is staged in a temporary folder. `Scan` is MESHJOIN in the middle of a join with it: as many
packets wait as ever will. `Steps` are parts of what a row goes through, by themselves.

Times are processor times of this thread, so that other work on the machine counts as little as it
can: a partition has a core while it runs. What a read has to wait for is not part of them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dovetail.costs.widths import filler
from dovetail.kernel.blocks import BLOCK, BlockStore
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Budget
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Run
from dovetail.semistream import SemiStreamJoin, SemiStreamSpec, StagedTable, TableWriter
from dovetail.semistream.scan.meshjoin import MeshJoin
from dovetail.semistream.spec import STREAM, TABLE
from dovetail.semistream.table.reading import CHUNK_PAGES

PAGES = 256  #: of the table, if it has as many rows: 16 chunks
_KEY = "key"
_KEY_BYTES = 8
_WINDOW_BYTES = 4 << 20  # of the rows that wait, at most
_RESULT_BYTES = 8 << 20  # of a loop, at most
_SEARCHED_ROWS = 1 << 15  # as many as a cache of values may have
_FRESH_BATCHES = 4  # in turn, so that a loop does not know its rows
_STEP_ROWS = 4096
_FEW = 8  # so many times fewer rows tell what a step takes whatever their number
_REPETITIONS = 5


class TrialTable:
    """A staged table, and a stream of rows that each match one of its rows."""

    def __init__(
        self, directory: Path, stream_row_bytes: int, table_row_bytes: int, rows: int
    ) -> None:
        row_bytes = max(2 * _KEY_BYTES, table_row_bytes)  # with something to fetch
        schemas = (_schema(stream_row_bytes), _schema(row_bytes))
        self.spec = SemiStreamSpec(*schemas, (_KEY,), (_KEY,))
        self._rng = np.random.default_rng(0)
        self._keys = np.sort(self._rng.integers(0, 1 << 40, rows))
        codes, _ = self.spec.encode(TABLE, _rows(self._keys, self.spec.table))
        writer = TableWriter(directory / "table", self.spec.table, -(-rows // PAGES) * row_bytes)
        writer.append(codes, _rows(self._keys, self.spec.table))  # their codes are in order, too
        writer.finish()
        self.codes: Codes = codes
        self.row_bytes = row_bytes + max(_KEY_BYTES, stream_row_bytes)  #: of a result
        self.stream_row_bytes = stream_row_bytes
        self.staged = StagedTable(directory / "table", self.spec.table)
        self.staged.verify()  # a long stream checks each page only once
        self.store = BlockStore(directory, self.spec.schemas, "calibrate")

    def batch(self, rows: int) -> pa.RecordBatch:
        """Rows of the stream."""
        return _rows(self._rng.choice(self._keys, rows), self.spec.stream)

    def run(self, rows: int) -> Run:
        """The same as they are when they have been taken in."""
        batch = self.batch(rows)
        codes, _ = self.spec.encode(STREAM, batch)
        order = np.argsort(codes)
        return Run(codes[order], np.arange(rows), batch.take(pa.array(order)))

    def close(self) -> None:
        self.store.close()
        self.staged.close()


@contextmanager
def trial_table(
    directory: Path, stream_row_bytes: int, table_row_bytes: int, rows: int
) -> Iterator[TrialTable]:
    table = TrialTable(directory, stream_row_bytes, table_row_bytes, rows)
    try:
        yield table
    finally:
        table.close()


class Scan:
    """MESHJOIN, which reads the table in so many loops; in each, so many rows of a packet match."""

    def __init__(
        self, table: TrialTable, loops: int, matching_rows: int, release_bytes: int
    ) -> None:
        staged = table.staged
        pages = -(-staged.pages // min(loops, staged.pages))
        loops = -(-staged.pages // pages)
        most = _WINDOW_BYTES // (loops * table.stream_row_bytes), _RESULT_BYTES // table.row_bytes
        rows = max(1, min(loops * matching_rows, *most))
        context = Context(Budget(None), table.store)
        self._join = MeshJoin(table.spec, context, staged, w=rows, b=pages)
        for turn in range(loops - 1, 0, -1):
            seen = turn * pages
            packet = self._join._packet(table.run(rows), -seen % staged.pages, seen)
            self._join.packets.append(packet)
        self._join._window.grow(self._join._held_bytes())
        self._batches = [table.batch(rows) for _ in range(_FRESH_BATCHES)]
        self._release_bytes = release_bytes
        self._pushed = 0
        self.seconds: list[float] = []
        self._steps = (1.0 + loops, float(pages * staged.page_rows), float(rows))

    @property
    def steps(self) -> list[float]:
        """The counts of each step in a loop: calls, chunks, table rows, stream rows."""
        calls, table_rows, rows = self._steps
        # what is read besides codes, which are read once in a loop
        chunks = self._join.ctx.counters.blocks_read / max(1, self._pushed) - 1
        return [calls, chunks, table_rows, rows]

    def go_on(self, seconds: float, least: int) -> None:
        """Loop for so long, `least` times or more; the first, with cold data, does not count."""
        self._join.table.mapped.most_bytes = self._release_bytes
        self._push()
        end = time.perf_counter() + seconds
        while least > 0 or time.perf_counter() < end:
            self.seconds.append(seconds_of(self._push))
            least -= 1

    def _push(self) -> None:
        batch = self._batches[self._pushed % _FRESH_BATCHES]
        self._pushed += 1
        for _ in self._join.push(STREAM, batch):
            pass


class Steps(SemiStreamJoin):
    """What rows go through, apart from each other. Takes rows in and keeps none."""

    name: ClassVar[str] = "steps"

    def __init__(self, table: TrialTable) -> None:
        super().__init__(table.spec, Context(Budget(None), table.store), table.staged)
        self._trial = table
        rows = max(1, min(_STEP_ROWS, _RESULT_BYTES // table.row_bytes))
        self._sizes = max(1, rows // _FEW), rows

    def seconds_per_row(self) -> dict[str, float]:
        """Of each step, what a row more takes; by the names of the factors."""
        return {
            "receive": self._slope(self._received),
            "lookup": self._slope(self._looked_up),
            "expire": self._slope(self._expired),
            "output": self._slope(self._put_out),
        }

    def _slope(self, step: Callable[[int], Callable[[], object]]) -> float:
        few, many = (_median_seconds(step(rows)) for rows in self._sizes)
        return max((many - few) / max(1, self._sizes[1] - self._sizes[0]), 1e-12)

    def _received(self, rows: int) -> Callable[[], object]:
        batch = self._trial.batch(rows)
        return lambda: list(self.push(STREAM, batch))

    def _looked_up(self, rows: int) -> Callable[[], object]:
        codes = self._trial.codes[:_SEARCHED_ROWS]
        sought = codes[self._places(len(codes), rows)]

        def look() -> None:
            low = np.searchsorted(codes, sought, side="left")
            high = np.searchsorted(codes, sought, side="right")
            np.flatnonzero(high > low)

        return look

    def _expired(self, rows: int) -> Callable[[], object]:
        batch, matched = self._trial.batch(rows), np.ones(rows, dtype=np.bool_)
        return lambda: list(self._leave(batch, matched))

    def _put_out(self, rows: int) -> Callable[[], object]:
        """Results of rows that lie in one chunk."""
        batch, chosen = self._trial.batch(rows), np.arange(rows)
        chunk_rows = min(self.table.rows, self.table.page_rows * CHUNK_PAGES)
        low = self._places(chunk_rows, rows)
        return lambda: list(self._settle(batch, chosen, low, low + 1, self.table))

    def _places(self, among: int, rows: int) -> Rows:
        return np.sort(np.random.default_rng(0).integers(0, among, rows))

    def pending(self) -> int:
        return 0

    def snapshot(self) -> Snapshot:
        return Snapshot(self._meta(), np.zeros(0, dtype=BLOCK))

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _work(self) -> Iterator[pa.RecordBatch]:
        return iter(())


def _median_seconds(step: Callable[[], object]) -> float:
    """Of some repetitions; the first, cold, does not count."""
    return median([seconds_of(step) for _ in range(1 + _REPETITIONS)][1:])


def seconds_of(step: Callable[[], object]) -> float:
    """Processor seconds of this thread."""
    start = time.thread_time()
    step()
    return max(time.thread_time() - start, 1e-12)


def _schema(row_bytes: int) -> pa.Schema:
    fields: list[tuple[str, Any]] = [(_KEY, pa.int64())]
    if row_bytes > _KEY_BYTES:
        fields.append(("rest", pa.binary(row_bytes - _KEY_BYTES)))
    return pa.schema(fields)


def _rows(keys: Codes, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with these keys and the rest of their bytes in one more column."""
    columns = [pa.array(keys, pa.int64())]
    if len(schema) > 1:
        columns.append(filler(schema.field(1).type.byte_width, len(keys)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
