"""Drives joins of a stream with a staged table, for tests: stage, push, poll, retune, restore.

A case is made of a seed: the same seed takes the same steps.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Status
from dovetail.semistream import (
    ALGORITHMS,
    KEYS_SCHEMA,
    SemiStreamJoin,
    SemiStreamSpec,
    StagedTable,
    TableWriter,
)
from dovetail.semistream.inl.pool import Pool
from dovetail.semistream.scan.meshjoin import AMeshJoin
from dovetail.semistream.spec import STREAM, TABLE


def stage(
    spec: SemiStreamSpec, table: pa.RecordBatch, directory: Path, page_bytes: int, pieces: int = 3
) -> StagedTable:
    """Sort a table by code and write it as the staging job would, in a few appends."""
    codes, valid = spec.encode(TABLE, table)
    if valid is not None:
        codes, table = codes[valid], table.filter(pa.array(valid))
    order = np.argsort(codes, kind="stable")
    writer = TableWriter(directory, spec.table, page_bytes)
    for part in np.array_split(order, pieces):
        writer.append(codes[part], table.take(pa.array(part)))
    writer.finish()
    return StagedTable(directory, spec.table)


@dataclass
class Drive:
    """What happened while a stream was joined."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    peak_bytes: int = 0
    restores: int = 0


class Driver:
    """Runs one operator, restoring it from a snapshot whenever it is told to."""

    def __init__(
        self, spec: SemiStreamSpec, algorithm: str, table_directory: Path, state: Path,
        budget_bytes: int | None, **options: Any,
    ) -> None:  # fmt: skip
        """`options` are the algorithm's own, such as `w` and `b`."""
        self.spec = spec
        self.options = options
        self.algorithm = algorithm
        self.table_directory = table_directory
        self.state = state
        self.budget_bytes = budget_bytes
        self.drive = Drive()
        self._generation = 0
        self._files: tuple[str, ...] = ()
        self.operator = self._open(None)

    def push(self, batch: pa.RecordBatch) -> None:
        self.drive.batches += self.operator.push(STREAM, batch)
        self._look()

    def poll(self, fuel: int) -> None:
        self.drive.batches += self.operator.poll(fuel)
        self._look()

    def finish(self) -> None:
        self.operator.finish(STREAM)
        while self.operator.status() is not Status.DONE:
            self.poll(1 << 12)
        assert self.operator.pending() == 0

    def restore(self) -> None:
        """Leave the operator behind and go on from its snapshot."""
        snapshot = self.operator.snapshot()
        store = self.operator.ctx.store
        store.sync()
        self._files = tuple(store.files)
        self.close()
        self.drive.restores += 1
        self.operator = self._open(snapshot)
        self._look()

    def close(self) -> None:
        self.operator.ctx.store.close()
        self.operator.table.close()

    def _open(self, snapshot) -> SemiStreamJoin:  # type: ignore[no-untyped-def]
        self._generation += 1
        schemas = (*self.spec.schemas, KEYS_SCHEMA)
        store = BlockStore(self.state, schemas, f"g{self._generation}", self._files)
        table = StagedTable(self.table_directory, self.spec.table)
        context = Context(Budget(self.budget_bytes), store)
        kind = ALGORITHMS[self.algorithm]
        return kind(self.spec, context, table, snapshot, **self.options)

    def _look(self) -> None:
        self.operator.check()
        self.drive.peak_bytes = max(self.drive.peak_bytes, self.operator.ctx.budget.peak_bytes)


Result = tuple[int, int | None]  #: the numbers of a stream row and of its table row, if any


class Bench(Driver):
    """An operator driven by hand. Stream rows are numbered as they come, table rows as given."""

    STREAM = pa.schema([("k", pa.int64()), ("left_id", pa.int64())])
    TABLE = pa.schema([("k", pa.int64()), ("right_id", pa.int64())])

    def __init__(
        self, directory: Path, algorithm: str, table: Sequence[int], *, page_rows: int = 4,
        budget_bytes: int | None = None, options: dict[str, Any] | None = None, **spec: Any,
    ) -> None:  # fmt: skip
        joined = SemiStreamSpec(self.STREAM, self.TABLE, ("k",), ("k",), **spec)
        self.keys: list[int | None] = []
        self.table_keys = list(table)
        columns = [pa.array(table, pa.int64()), pa.array(np.arange(len(table)))]
        rows = pa.record_batch(columns, schema=self.TABLE)
        row_bytes = rows.nbytes // max(1, len(table))
        stage(joined, rows, directory / "table", page_rows * row_bytes, 1).close()
        (directory / "state").mkdir()
        super().__init__(
            joined, algorithm, directory / "table", directory / "state", budget_bytes,
            **(options or {}),
        )  # fmt: skip

    def feed(self, keys: Sequence[int | None]) -> list[Result]:
        """Push rows with these keys; what came out at once."""
        numbers = np.arange(len(self.keys), len(self.keys) + len(keys))
        self.keys += keys
        done = len(self.drive.batches)
        columns = [pa.array(keys, pa.int64()), pa.array(numbers)]
        self.push(pa.record_batch(columns, schema=self.STREAM))
        return self.results(done)

    def work(self, fuel: int = 1) -> list[Result]:
        """One piece of deferred work, or more; what came out."""
        done = len(self.drive.batches)
        self.poll(fuel)
        return self.results(done)

    def results(self, since: int = 0) -> list[Result]:
        found: list[Result] = []
        for batch in self.drive.batches[since:]:
            left = batch["left_id"].to_pylist()
            named = "right_id" in batch.schema.names
            right = batch["right_id"].to_pylist() if named else [None] * len(left)
            found += zip(left, right, strict=True)
        return found

    def expected(self) -> Counter[Result]:
        """What an equality join of all that was fed gives."""
        places: dict[int, list[int]] = {}
        for number, key in enumerate(self.table_keys):
            places.setdefault(key, []).append(number)
        found: Counter[Result] = Counter()
        for row, sought in enumerate(self.keys):
            matches = places.get(sought, []) if sought is not None else []
            if self.spec.how in ("inner", "left"):
                found.update((row, place) for place in matches)
            if self.spec.how in ("left", "anti") and not matches:
                found[row, None] += 1
            if self.spec.how == "semi" and matches:
                found[row, None] += 1
        return found

    def assert_exactly_once(self) -> None:
        """Finish, and compare."""
        self.finish()
        assert Counter(self.results()) == self.expected()


def drive(
    spec: SemiStreamSpec, algorithm: str, stream: pa.RecordBatch, table: pa.RecordBatch,
    *, seed: int, budget_bytes: int | None, page_bytes: int = 2_000, restore_share: float = 0.2,
    most_rows: int | None = None,
) -> Drive:  # fmt: skip
    """Join a stream with a table in random batches, with polls, retuning and restores between.

    A batch has up to `most_rows`, or a third of all. Every other operator keeps its own settings.
    """
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="dovetail-test-") as name:
        root = Path(name)
        stage(spec, table, root / "table", page_bytes, int(rng.integers(1, 4))).close()
        (root / "state").mkdir()
        driver = Driver(spec, algorithm, root / "table", root / "state", budget_bytes)
        try:
            at, most = 0, max(2, most_rows or stream.num_rows // 3)
            tuned = isinstance(driver.operator, AMeshJoin) and rng.random() < 0.5
            while at < stream.num_rows:
                size = int(rng.integers(1, most))
                driver.push(stream.slice(at, size))
                at += size
                if rng.random() < 0.4:
                    driver.poll(int(rng.integers(1, 2_000)))
                if tuned and rng.random() < 0.5:
                    assert isinstance(driver.operator, AMeshJoin)
                    driver.operator.tune(int(rng.integers(1, 200)), int(rng.integers(1, 6)))
                if rng.random() < restore_share:
                    driver.restore()
            driver.finish()
        finally:
            driver.close()
        return driver.drive


__all__ = ["Bench", "Drive", "Driver", "Result", "drive", "stage"]


def by_age(pool: Pool) -> list[int]:
    """The leaves in a pool, the one that goes first in front."""
    found: list[int] = pool._entries["leaf"][np.argsort(pool._entries["stamp"])].tolist()
    return found
