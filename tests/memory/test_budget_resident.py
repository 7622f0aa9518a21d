"""The whole process, as the operating system sees it, keeps to the budget.

A child process joins an input of many times the budget, never having more of it at hand than one
batch; or it looks a stream up in a staged table of that size. Its resident size, anonymous and
mapped pages together, must not grow by more than the budget and the stated fixed overhead. The peak
is the kernel's own (`VmHWM`, reset after the warm-up) where it can be had, and sampled by a thread
besides.

Run by hand with: python tests/memory/test_budget_resident.py '{"budget": 8000000}'
"""

import contextlib
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import FIXED_OVERHEAD_BYTES, Budget, use_frugal_allocator
from dovetail.kernel.protocol import Context, Snapshot, Status
from dovetail.multiway import make as make_chain
from dovetail.multiway import multiway_spec
from dovetail.semistream import KEYS_SCHEMA, SemiStreamSpec, StagedTable, TableWriter
from dovetail.semistream import make as make_lookup
from dovetail.twoway import TwoWaySpec, make
from support.depth import only_full
from support.processes import finding_support

MB = 10**6

STRING_BYTES = 16
SCHEMAS = tuple(
    pa.schema([("k", pa.int64()), (f"{name}_n", pa.int64()), (f"{name}_x", pa.float64()),
               (f"{name}_s", pa.string())])
    for name in ("left", "right", "third")
)  # fmt: skip
SPEC = TwoWaySpec(*SCHEMAS[:2], ("k",), ("k",))
BAND = 1
BAND_SPEC = TwoWaySpec(*SCHEMAS[:2], ("k",), ("k",), BAND)
ROW_BYTES = 8 + 8 + 8 + 4 + STRING_BYTES
NARROW, WIDE = "a chain of three, narrow rows", "a chain of three, wide rows"
#: how many columns the rows of a chain have, and how long their strings are
CHAINS = {NARROW: (2, 0), WIDE: (4, 160)}
STRIDE = 2_654_435_761
LOOKUP = SemiStreamSpec(
    SCHEMAS[0], pa.schema([("k", pa.int64()), ("text", pa.string())]), ("k",), ("k",), "left"
)
LOOKUP_BUDGET = 32 * MB
TEXT_BYTES = 180
TABLE_ROW_BYTES = 8 + 8 + 4 + TEXT_BYTES  # the code among them


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("algorithm", "megabytes", "times", "keys"),
    [
        ("xjoin", 8, 20, "spread"),
        *only_full(
            ("xjoin", 32, 20, "spread"),
            ("xjoin", 128, 20, "spread"),
            ("xjoin", 32, 20, "one on the left"),
            ("xjoin", 128, 5, "one on the left"),
            ("diner", 32, 20, "spread"),
            ("miner", 16, 20, WIDE),
        ),
        ("diner", 8, 20, "spread"),
        ("diner", 32, 5, "one on the left"),
        ("diner", 8, 10, "a band"),
        ("hmj", 8, 20, "spread"),
        ("rpj", 8, 20, "spread"),
        ("pmj", 8, 20, "spread"),
        ("pmj", 8, 5, "a band"),
        ("dphj", 8, 20, "spread"),
        ("miner", 16, 3, NARROW),
    ],
)
def test_resident_size_when_input_is_many_times_the_budget_then_keeps_to_it(
    algorithm: str, megabytes: int, times: int, keys: str, record_property: Any
) -> None:
    budget = megabytes * MB
    measured = measure({"budget": budget, "times": times, "keys": keys, "algorithm": algorithm})
    record_property("measured", measured)
    print(json.dumps(measured))
    assert measured["input_bytes"] >= times * budget
    assert measured["flushed_bytes"] > 0.8 * times * budget
    assert measured["rows_out"] == measured["rows_expected"]
    assert measured["growth"] <= budget + FIXED_OVERHEAD_BYTES, measured


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("algorithm", ["seek", "ssbj", "meshjoin", "ameshjoin", "inl"])
def test_resident_size_when_table_is_many_times_the_budget_then_keeps_to_it(
    algorithm: str, staged: Path, record_property: Any
) -> None:
    settings = {"budget": LOOKUP_BUDGET, "algorithm": algorithm, "table": str(staged)}
    if algorithm == "inl":  # which takes its time
        settings["rows"] = 300_000
    measured = measure(settings)
    record_property("measured", measured)
    print(json.dumps(measured))
    size = sum(path.stat().st_size for path in staged.iterdir())
    assert size >= 20 * LOOKUP_BUDGET
    assert measured["bytes_read"] > LOOKUP_BUDGET
    assert measured["rows_out"] == measured["rows"]
    assert measured["rows_matched"] == measured["matches_expected"]
    assert measured["growth"] <= LOOKUP_BUDGET + FIXED_OVERHEAD_BYTES, measured


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged") / "v000001" / "p00000"
    stage_keys(folder, 20 * LOOKUP_BUDGET // TABLE_ROW_BYTES + 1)
    return folder


def stage_keys(folder: Path, keys: int) -> None:
    """A table with a row for each even number below twice `keys`."""
    values = 2 * np.arange(keys)
    codes, _ = LOOKUP.codec.encode([pa.array(values)])
    order = np.argsort(codes)
    writer = TableWriter(folder, LOOKUP.table)
    step = 20_000
    offsets = np.arange(0, (step + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
    letters = np.random.default_rng(1).integers(97, 123, step * TEXT_BYTES, dtype=np.uint8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
    for start in range(0, keys, step):
        part = order[start : start + step]
        text = pa.Array.from_buffers(pa.string(), len(part), buffers)
        rows = pa.record_batch([pa.array(values[part]), text], schema=LOOKUP.table)
        writer.append(codes[part], rows)
    writer.finish()


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """What the child process measured."""
    command = [sys.executable, "-X", "faulthandler", __file__, json.dumps(settings)]
    done = subprocess.run(
        command, env=finding_support(), capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- in the child process -------------------------------------------------------------------


class Resident:
    """The resident size of this process, now and at its peak."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def now(self) -> int:
        size = _status("VmRSS")
        self.peak = max(self.peak, size)
        return size

    def __enter__(self) -> "Resident":
        # from here on VmHWM is the peak; not every container allows it
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.peak = self.now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        before = self.peak
        high = _status("VmHWM")
        # without the reset VmHWM could be from before the baseline, and say nothing
        self.peak = high if before <= high < 2 * before else before

    def _sample(self) -> None:
        while not self._stop.wait(0.01):
            self.now()


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


class Source:
    """Rows made as they are asked for, with a known number of matches.

    Both sides go through the residues of a prime in an order of their own, so that partners come
    far apart in time. Only multiples of eight keep their value on the right side: an eighth of its
    rows find a partner, and each of them one. Or all of the left side has one key, and no row of
    the right side has it: memory fills up with a single partition that cannot be split. In a band
    join, the neighbours of such a value are its partners as well. In a chain of three, the left row
    with a number has the third row with that key for its partner, if there is one.
    """

    def __init__(
        self, rows: int, one_key: bool, band: int = 0, string_bytes: int = STRING_BYTES
    ) -> None:
        self.rows = rows
        self._one_key = one_key
        self._band = band
        self._string_bytes = string_bytes
        self._prime = _prime_above(rows)
        self._rng = np.random.default_rng(0)
        self._numbers = np.zeros(0)
        self._letters = np.zeros(0, dtype=np.uint8)

    def batch(self, side: int, start: int, rows: int) -> pa.RecordBatch:
        rows = min(rows, self.rows - start)
        if len(self._numbers) < rows:
            # the payload is made once: making it anew for every batch would take most of the time
            self._numbers = self._rng.random(rows)
            letters = rows * self._string_bytes
            self._letters = self._rng.integers(97, 123, letters, dtype=np.uint8)
        offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(self._string_bytes)
        text = pa.Array.from_buffers(
            pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(self._letters)]
        )
        numbers = np.arange(start, start + rows)
        columns = [self._keys(side, start, rows), numbers, self._numbers[:rows], text]
        return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMAS[side])

    def expected(self, inputs: int = 2) -> int:
        """How many rows match: the left row of a residue follows from its inverse."""
        if self._one_key:
            return 0
        inverse = pow(STRIDE, -1, self._prime)
        matches = 0
        for start in range(0, self.rows, 1_000_000):
            keys = self._keys(1, start, min(1_000_000, self.rows - start))
            for distance in range(-self._band, self._band + 1):
                near = keys[keys >= 0] + distance
                near = near[(near >= 0) & (near < self._prime)]
                left = near * inverse % self._prime
                left = left[left < self.rows]
                if inputs > 2:
                    third = (left - 2 * self.rows // 3) * inverse % self._prime
                    left = left[third < self.rows]
                matches += len(left)
        return matches

    def _keys(self, side: int, start: int, rows: int) -> np.ndarray:
        number = np.arange(start, start + rows, dtype=np.int64)
        key = (number * STRIDE + side * self.rows // 3) % self._prime
        if side == 0:
            return np.full(rows, -1) if self._one_key else key
        return np.where(key % 8 == 0, key, -2 - key) if side == 1 else key


def source_of(rows: int, keys: str) -> Source:
    _, string_bytes = CHAINS.get(keys, (0, STRING_BYTES))
    return Source(rows, keys == "one on the left", BAND if keys == "a band" else 0, string_bytes)


def chain_of(columns: int) -> Any:
    """The spec of a chain of three inputs, with so many of their columns."""
    names = ("left", "right", "third")
    return multiway_spec(
        {
            name: pa.schema([schema.field(number) for number in range(columns)])
            for name, schema in zip(names, SCHEMAS, strict=True)
        },
        [("left.k", "right.k"), ("left.left_n", "third.k")],
    )


def _prime_above(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


class Join:
    """The operator under test; saved and restored as a task would."""

    def __init__(
        self,
        directory: Path,
        budget: int,
        schemas: tuple[pa.Schema, ...],
        new: Callable[[Context, Snapshot | None], Any],
    ) -> None:
        self.directory = directory
        self.budget = budget
        self.schemas = schemas
        self.new = new
        self.lives = 0
        self.flushed_bytes = 0
        self.rows_out = 0
        self.nulls_out = 0
        self.operator = self._make(None, ())

    def _make(self, snapshot: Snapshot | None, files: tuple[str, ...]) -> Any:
        self.lives += 1
        store = BlockStore(self.directory, self.schemas, f"life{self.lives}", files)
        return self.new(Context(Budget(self.budget), store), snapshot)

    def take(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            self.rows_out += batch.num_rows
            self.nulls_out += batch.column(batch.num_columns - 1).null_count

    def save(self, *, restore: bool) -> None:
        snapshot = self.operator.snapshot()
        store = self.operator.ctx.store
        store.sync()
        if restore:
            self.flushed_bytes += self.operator.ctx.counters.flushed_bytes
            store.close()
            files = tuple(store.files)
            del self.operator, store  # the memory of one must go before the next one takes its own
            self.operator = self._make(snapshot, files)
        else:
            self.lives += 1
            store.begin(f"life{self.lives}", self.operator.ctx.counters)


def drive(budget: int, input_bytes: int, algorithm: str, keys: str) -> dict[str, Any]:
    """Push, poll, save now and then, finish, clean up."""
    spec: Any = BAND_SPEC if keys == "a band" else SPEC
    row_bytes, new = ROW_BYTES, make
    if keys in CHAINS:
        columns, string_bytes = CHAINS[keys]
        spec, new = chain_of(columns), make_chain
        row_bytes = 8 * columns if columns < 4 else ROW_BYTES - STRING_BYTES + string_bytes
    sides = range(len(spec.schemas))
    source = source_of(-(-input_bytes // row_bytes // len(sides)), keys)
    batch_rows = max(500, min(budget // 20 // row_bytes, 100_000))
    with tempfile.TemporaryDirectory() as directory:
        join = Join(
            Path(directory),
            budget,
            spec.schemas,
            lambda context, snapshot: new(algorithm, spec, context, snapshot),
        )
        started = time.perf_counter()
        for number, start in enumerate(range(0, source.rows, batch_rows)):
            for side in sides:
                batch = source.batch(side, start, batch_rows).select(spec.schemas[side].names)
                join.take(join.operator.push(side, batch))
            if number % 40 == 20:
                join.take(join.operator.poll(50_000))
            if number % 100 == 50:
                join.save(restore=number % 200 == 50)
        pushed = time.perf_counter()
        for side in sides:
            join.operator.finish(side)
        polls = 0
        while join.operator.status() is not Status.DONE:
            join.take(join.operator.poll(1_000_000))
            polls += 1
            if polls == 5:
                join.save(restore=True)
                for side in sides:
                    join.operator.finish(side)
        join.flushed_bytes += join.operator.ctx.counters.flushed_bytes
        join.operator.ctx.store.close()
        cleaned = time.perf_counter()
    return {
        "rows": len(sides) * source.rows,
        "input_bytes": len(sides) * source.rows * row_bytes,
        "rows_out": join.rows_out,
        "flushed_bytes": join.flushed_bytes,
        "push_seconds": round(pushed - started, 1),
        "cleanup_seconds": round(cleaned - pushed, 1),
    }


def look_up(budget: int, table: Path, rows: int, algorithm: str) -> dict[str, Any]:
    """A stream of keys, half of them few and frequent; half of the others are not in the table."""
    rng = np.random.default_rng(3)
    source = Source(rows, one_key=False)
    keys = 2 * StagedTable(table, LOOKUP.table).rows
    batch_rows = max(500, min(budget // 20 // ROW_BYTES, 100_000))
    expected = bytes_read = 0

    def new(context: Context, snapshot: Snapshot | None) -> Any:
        opened = StagedTable(table, LOOKUP.table)
        return make_lookup(algorithm, LOOKUP, context, opened, snapshot)

    with tempfile.TemporaryDirectory() as directory:
        join = Join(Path(directory), budget, (*LOOKUP.schemas, KEYS_SCHEMA), new)
        started = time.perf_counter()
        for number, start in enumerate(range(0, rows, batch_rows)):
            batch = source.batch(0, start, batch_rows)
            drawn = rng.integers(0, keys, batch.num_rows)
            frequent = rng.zipf(1.2, batch.num_rows) % keys
            drawn = np.where(rng.random(batch.num_rows) < 0.5, frequent, drawn)
            expected += int((drawn % 2 == 0).sum())
            join.take(join.operator.push(0, batch.set_column(0, "k", pa.array(drawn))))
            if number % 3 == 2:
                join.take(join.operator.poll(50_000))
            if number % 10 == 5:
                bytes_read += join.operator.ctx.counters.bytes_read
                join.operator.ctx.counters.bytes_read = 0
                join.save(restore=number % 20 == 5)
        join.operator.finish(0)
        while join.operator.status() is not Status.DONE:
            join.take(join.operator.poll(1_000_000))
        bytes_read += join.operator.ctx.counters.bytes_read
        join.operator.ctx.store.close()
    return {
        "rows": rows,
        "rows_out": join.rows_out,
        "rows_matched": join.rows_out - join.nulls_out,
        "matches_expected": expected,
        "bytes_read": bytes_read,
        "seconds": round(time.perf_counter() - started, 1),
    }


def child_of_lookup(settings: dict[str, Any]) -> dict[str, Any]:
    budget, algorithm = int(settings["budget"]), settings["algorithm"]
    use_frugal_allocator()
    with tempfile.TemporaryDirectory() as directory:
        small = Path(directory) / "v000001" / "p00000"
        stage_keys(small, 40_000)
        look_up(4 << 20, small, 40_000, algorithm)
    gc.collect()
    resident = Resident()
    baseline = resident.now()
    with resident:
        rows = int(settings.get("rows", 2_000_000))
        measured = look_up(budget, Path(settings["table"]), rows, algorithm)
    return measured | {"growth": resident.peak - baseline, "budget": budget}


def child(settings: dict[str, Any]) -> dict[str, Any]:
    if "table" in settings:
        return child_of_lookup(settings)
    budget = int(settings["budget"])
    times = int(settings.get("times", 20))
    keys = settings.get("keys", "spread")
    if settings.get("allocator") != "default":  # to see what difference it makes, by hand
        use_frugal_allocator()
    algorithm = settings.get("algorithm", "xjoin")
    # loads code, and lets pools reach their working size
    drive(1 << 20, 8 * MB, algorithm, keys)
    gc.collect()
    resident = Resident()
    baseline = resident.now()
    with resident:
        measured = drive(budget, times * budget, algorithm, keys)
    inputs = 3 if keys in CHAINS else 2
    rows = measured["rows"] // inputs
    return measured | {
        "budget": budget,
        "pool": pa.default_memory_pool().backend_name,
        "growth": resident.peak - baseline,
        "over_budget": resident.peak - baseline - budget,
        "allowed_over": FIXED_OVERHEAD_BYTES,
        "rows_expected": source_of(rows, keys).expected(inputs),
    }


if __name__ == "__main__":
    print(json.dumps(child(json.loads(sys.argv[1]))))
