"""The cost models' factors as they are on this machine, measured with the operators' own code.

A small table is staged in a temporary folder, and operators do with it what they do in a join:

- receive: a batch is pushed, encoded and sorted, and then not kept;
- lookup: the codes of the batch are searched for in those of the table;
- add: rows that wait are told from those that do not, and sorted runs of them are merged;
- expire: a packet that has met the whole table is left;
- probe: codes are read by a scan, and none of them is waited for;
- output: results are made of rows fetched from one chunk of the table;
- call, chunk: MESHJOIN scans the table in reads of one chunk, then of several. (In the middle of a
  join they cost twice what they cost when nothing else is done in between.)

Why the operators' own code: the papers' steps by themselves, a hash probe say, are a small part of
what a join takes whose packets have few rows. Each packet is a call of its own in every loop, and
so is each chunk of table rows. Factors for rows alone predicted four times the rate that
`mesh-model` measures, and fifty times with budgets of a megabyte.

Times are processor times of this thread, so that other work on the machine does not count: a
partition has a core while it runs. What a read has to wait for is not part of them; see `storage`.
"""

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from dovetail.costs.meshjoin import MeshFactors
from dovetail.errors import ArgumentError
from dovetail.kernel.blocks import BLOCK, BlockStore
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Rows, Run, merge_runs
from dovetail.semistream import SemiStreamJoin, SemiStreamSpec, StagedTable, TableWriter
from dovetail.semistream.meshjoin import MeshJoin
from dovetail.semistream.spec import STREAM, TABLE
from dovetail.semistream.table import CHUNK_PAGES

_REPETITIONS = 7
_PATIENCE_SECONDS = 0.1  # for each factor
_KEY = "key"
_KEY_BYTES = 8
_SCANNED_ROWS = 512  # that come with each read of a scan
_CHUNKS_READ = 8
_LEAST_LOOPS, _MOST_LOOPS = 16, 32
_MERGED_RUNS = 4  # of the waiting rows
_BUDGET_BYTES = 4 << 20  # small, so that mapped rows are given back as they are in a real join


@dataclass(frozen=True)
class Sizes:
    """The shape of the join that is measured for."""

    stream_row_bytes: int = 64
    table_row_bytes: int = 128
    batch_rows: int = 4096
    table_rows: int = 1 << 15
    page_rows: int = 64

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
    """Measure the factors, in about a second or less, with a temporary folder of a few MB."""
    sizes = sizes or Sizes()
    with tempfile.TemporaryDirectory(prefix="dovetail-calibrate-") as name:
        bench = _Bench(sizes, Path(name))
        try:
            return Calibration(bench.factors(), sizes)
        finally:
            bench.close()


def factors_for(stream_row_bytes: float, table_row_bytes: float) -> MeshFactors:
    """The factors for rows of about these widths; measured once in the life of this process.

    Widths are rounded to powers of two, so that tables of similar rows share a measurement.
    """
    return _factors_for(_power_of_two(stream_row_bytes), _power_of_two(table_row_bytes))


@lru_cache(maxsize=64)
def _factors_for(stream_row_bytes: int, table_row_bytes: int) -> MeshFactors:
    return calibrate(Sizes(stream_row_bytes, table_row_bytes)).factors


def _power_of_two(nbytes: float) -> int:
    return int(1 << max(3, min(14, round(math.log2(max(1.0, nbytes))))))


class _Idle(SemiStreamJoin):
    """Takes rows in and keeps none: what every join does before its own work begins."""

    name: ClassVar[str] = "idle"

    def pending(self) -> int:
        return 0

    def snapshot(self) -> Snapshot:
        return Snapshot(self._meta(), np.zeros(0, dtype=BLOCK))

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _work(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def results(self, rows: pa.RecordBatch, positions: Rows) -> None:
        """Make the results of as many rows, each with one table row."""
        chosen = np.arange(len(positions))
        for _ in self._settle(rows, chosen, positions, positions + 1, self.table):
            pass


class _Bench:
    """A staged table, a join with it, and what is measured with them."""

    def __init__(self, sizes: Sizes, directory: Path) -> None:
        self.sizes = sizes
        schemas = (_schema(sizes.stream_row_bytes), _schema(sizes.table_row_bytes))
        spec = SemiStreamSpec(*schemas, (_KEY,), (_KEY,))
        self.rng = np.random.default_rng(0)
        keys = self.rng.integers(0, 1 << 40, sizes.table_rows)
        codes, _ = spec.encode(TABLE, _rows(keys, spec.table))
        order = np.argsort(codes)
        writer = TableWriter(
            directory / "table",
            spec.table,
            sizes.page_rows * max(_KEY_BYTES, sizes.table_row_bytes),
        )
        writer.append(codes[order], _rows(keys[order], spec.table))
        writer.finish()
        self.codes: Codes = codes[order]
        self.batch = _rows(self.rng.choice(keys, sizes.batch_rows), spec.stream)
        sought, _ = spec.encode(STREAM, self.batch)
        self.run = Run(np.sort(sought), np.arange(len(sought)), self.batch)
        self.table = StagedTable(directory / "table", spec.table)
        self.table.verify()  # a long stream checks each page only once
        self.store = BlockStore(directory, spec.schemas, "calibrate")
        self.join = _Idle(spec, Context(Budget(_BUDGET_BYTES), self.store), self.table)

    def close(self) -> None:
        self.store.close()
        self.table.close()

    def factors(self) -> MeshFactors:
        receive, lookup, add = self._receive(), self._lookup(), self._add()
        output = self._output()
        call, chunk = self._call_and_chunk(receive + lookup + output)
        return MeshFactors(
            expire=self._expire(),
            receive=receive,
            add=add,
            probe=self._probe(),
            output=output,
            lookup=lookup,
            call=call,
            chunk=chunk,
        )

    def _receive(self) -> float:
        return _seconds(lambda: list(self.join.push(STREAM, self.batch))) / len(self.run)

    def _lookup(self) -> float:
        sought = self.run.codes

        def look() -> None:
            low = np.searchsorted(self.codes, sought, side="left")
            high = np.searchsorted(self.codes, sought, side="right")
            np.flatnonzero(high > low)

        return _seconds(look) / len(sought)

    def _add(self) -> float:
        waits = np.ones(len(self.run), dtype=np.bool_)
        filtered = _seconds(lambda: self.run.filter(waits))
        runs = [self.run] * _MERGED_RUNS
        return (filtered + _seconds(lambda: merge_runs(runs)) / _MERGED_RUNS) / len(self.run)

    def _expire(self) -> float:
        matched = np.ones(len(self.run), dtype=np.bool_)
        return _seconds(lambda: list(self.join._leave(self.batch, matched))) / len(self.run)

    def _probe(self) -> float:
        return _seconds(lambda: self.table.codes(0, self.table.pages)) / len(self.codes)

    def _output(self) -> float:
        """A result more, of rows that lie in one chunk."""
        chunk_rows = min(self.table.page_rows * CHUNK_PAGES, len(self.codes))
        together = np.sort(self.rng.integers(0, chunk_rows, len(self.run)))
        least = _seconds(lambda: self.join.results(self.batch, together[:1]))
        most = _seconds(lambda: self.join.results(self.batch, together))
        return max((most - least) / len(together), 1e-12)

    def _call_and_chunk(self, row_seconds: float) -> tuple[float, float]:
        """From two scans of the table: in reads of one chunk, and in reads of several.

        In both a loop asks for each chunk as often, but it makes many calls or few.
        """
        chunks = -(-self.table.pages // CHUNK_PAGES)
        one = -(-chunks // _MOST_LOOPS)
        several = min(_CHUNKS_READ * one, chunks)
        many, few = (self._loop(count) - _SCANNED_ROWS * row_seconds for count in (one, several))
        loops = -(-chunks // one), -(-chunks // several)
        call = (many - few) / max(1, loops[0] - loops[1])
        call = min(max(call, 1e-12), max(many, 1e-12) / loops[0])
        return call, max(few / loops[1] - call, 1e-12) / several

    def _loop(self, chunks: int) -> float:
        """Processor seconds of a loop of MESHJOIN that reads so many chunks."""
        context = Context(Budget(None), self.store)
        pages = chunks * CHUNK_PAGES
        join = MeshJoin(self.join.spec, context, self.table, w=_SCANNED_ROWS, b=pages)
        self.table.release_bytes = _BUDGET_BYTES // 16
        batch = self.batch.take(pa.array(np.arange(_SCANNED_ROWS) % len(self.run)))
        loops = -(-self.table.pages // pages)
        for _ in range(loops):  # until as many packets wait as ever will
            list(join.push(STREAM, batch))
        more = max(loops, _LEAST_LOOPS)
        return _seconds_of(lambda: [list(join.push(STREAM, batch)) for _ in range(more)]) / more


def _schema(row_bytes: int) -> pa.Schema:
    fields: list[tuple[str, Any]] = [(_KEY, pa.int64())]
    if row_bytes > _KEY_BYTES:
        fields.append(("rest", pa.binary(row_bytes - _KEY_BYTES)))
    return pa.schema(fields)


def _rows(keys: Codes, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with these keys and the rest of their bytes in one more column."""
    columns = [pa.array(keys, pa.int64())]
    if len(schema) > 1:
        rest = schema.field(1).type
        filler = pa.py_buffer(bytes(rest.byte_width * len(keys)))
        columns.append(pa.Array.from_buffers(rest, len(keys), [None, filler]))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _seconds(step: Callable[[], object]) -> float:
    """The median processor time of some repetitions, of which the first, cold, does not count."""
    seconds: list[float] = []
    begin = time.perf_counter()
    for _ in range(1 + _REPETITIONS):
        seconds.append(_seconds_of(step))
        if time.perf_counter() - begin > _PATIENCE_SECONDS:
            break
    return statistics.median(seconds[1:] or seconds)


def _seconds_of(step: Callable[[], object]) -> float:
    start = time.thread_time()
    step()
    return max(time.thread_time() - start, 1e-12)
