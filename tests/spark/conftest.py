"""One Spark session for all tests below, and a bench on which a test sets up and runs its join.

The oracle is Spark's own batch join of the very same files. Results are compared as multisets of
rows, values as Arrow gives them, so that NaN equals NaN and -0.0 differs from 0.0.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery, StreamingQueryException

import dovetail
from dovetail.spark.session import local_session
from dovetail.spark.state.metrics import Progress
from support.generators import draw_ranks, key_column, random_nans

CONF = {
    "spark.sql.shuffle.partitions": "2",
    # small batches fit the small budgets that make a join of a few thousand rows spill
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    # tests are many short queries: compiling them well takes longer than running them
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # the default one starts `chmod`, `stat` and `readlink` as processes for every file it writes,
    # which takes as much of the processor as the queries themselves
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("dovetail-tests", 2, **CONF)
    yield session
    session.stop()


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """Set settings of the session for one test: `conf(name, value)`."""
    before: dict[str, str | None] = {}

    def set_(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield set_
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture(scope="session")
def bench_at(spark: SparkSession) -> Callable[[Path], "Bench"]:
    return lambda root: Bench(spark, root)


@pytest.fixture
def bench(bench_at: Callable[[Path], "Bench"], tmp_path: Path) -> Iterator["Bench"]:
    made = bench_at(tmp_path)
    yield made
    for query in made.spark.streams.active:
        query.stop()


def multiset(rows: DataFrame | pa.Table) -> Counter[str]:
    """Rows as a multiset, columns in order."""
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    columns = [column.to_pylist() for column in table.columns]
    return Counter(repr(row) for row in zip(*columns, strict=True))


def assert_same_rows(got: DataFrame | pa.Table, expected: DataFrame | pa.Table, about: str) -> None:
    """Equal as multisets; the message shows what is missing and what is too much."""
    found, wanted = multiset(got), multiset(expected)
    if found != wanted:
        missing, extra = wanted - found, found - wanted
        raise AssertionError(
            f"{about}: {wanted.total()} rows expected, {found.total()} found; "
            f"{missing.total()} missing, for example {list(missing)[:3]}; "
            f"{extra.total()} too many, for example {list(extra)[:3]}"
        )


def keys_of(type_: pa.DataType, rows: int, domain: int, seed: int) -> pa.Array:
    """Keys with a tenth of nulls and, for floats, a tenth of NaNs of any kind."""
    rng = np.random.default_rng(seed)
    column = key_column(type_, draw_ranks(rng, rows, "uniform", domain))
    if pa.types.is_floating(type_):
        nans = pa.array(random_nans(rng, rows).astype(type_.to_pandas_dtype()))
        column = pc.if_else(pa.array(rng.random(rows) < 0.1), nans, column)
    return pc.if_else(pa.array(rng.random(rows) < 0.1), pa.scalar(None, type_), column)


def two_column_rows(side: str, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    rows = 600
    return pa.table(
        {
            "a": keys_of(pa.int32(), rows, 9, seed),
            "b": keys_of(pa.string(), rows, 11, seed + 10),
            f"{side}_x": keys_of(pa.float64(), rows, 15, seed + 20),
            f"{side}_id": rng.permutation(rows),
        }
    )


def nested_rows(side: str, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    rows = 500
    items = [[f"{n}" * 9, None, "x"][: n % 4] for n in range(rows)]
    return pa.table(
        {
            "k": rng.integers(0, 120, rows),
            f"{side}_struct": pa.array(
                [None if n % 7 == 0 else {"n": n, "t": {"s": f"s{n}"}} for n in range(rows)]
            ),
            f"{side}_array": pa.array([None if n % 5 == 0 else items[n] for n in range(rows)]),
            f"{side}_map": pa.array(
                [None if n % 6 == 0 else [("a", n), (f"b{n}", None)] for n in range(rows)],
                pa.map_(pa.string(), pa.int64()),
            ),
            f"{side}_deep": pa.array([[{"at": [n, n + 1]}] for n in range(rows)]),
            f"{side}_when": pa.array(rng.integers(0, 10**15, rows), pa.timestamp("us", tz="UTC")),
        }
    )


@dataclass
class Bench:
    """Inputs as folders of Parquet files, a join of them, and a query that runs it."""

    spark: SparkSession
    root: Path
    schemas: dict[str, pa.Schema] = field(default_factory=dict)

    # -- inputs -----------------------------------------------------------------------------

    keys_of = staticmethod(keys_of)
    two_column_rows = staticmethod(two_column_rows)
    nested_rows = staticmethod(nested_rows)

    def write(self, name: str, rows: pa.Table | pa.RecordBatch, files: int = 2) -> None:
        """Add rows to an input, as this many files."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        self.schemas.setdefault(name, table.schema)
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        known = len(list(folder.glob("*.parquet")))
        for number in range(files):
            start = number * len(table) // files
            stop = (number + 1) * len(table) // files
            path = folder / f"{known + number:04d}.parquet"
            hidden = path.with_name(f".{path.name}")  # a stream must not see half a file
            pq.write_table(table.slice(start, stop - start), hidden, store_schema=False)
            hidden.rename(path)

    def keyed(self, name: str, keys: Any, files: int = 2, text: int = 40, seed: int = 1) -> None:
        """Add rows `k`, `<name>_id`, `<name>_text` to an input."""
        rng = np.random.default_rng([seed, *name.encode()])
        keys = keys if isinstance(keys, pa.Array) else pa.array(keys)
        known = len(self.batch(name).toArrow()) if name in self.schemas else 0
        ids = np.arange(known, known + len(keys))
        letters = rng.integers(97, 123, (len(keys), text), dtype=np.uint8)
        texts = pa.array([row.tobytes().decode() for row in letters], pa.string())
        columns = {"k": keys, f"{name}_id": ids, f"{name}_text": texts}
        self.write(name, pa.table(columns), files)

    def batch(self, name: str) -> DataFrame:
        schema = from_arrow_schema(self.schemas[name])
        return self.spark.read.schema(schema).parquet(str(self.root / name))

    def stream(self, name: str, files_per_trigger: int = 1) -> DataFrame:
        reader = self.spark.readStream.schema(from_arrow_schema(self.schemas[name]))
        reader = reader.option("maxFilesPerTrigger", files_per_trigger)
        return reader.parquet(str(self.root / name))

    # -- the join and its query -------------------------------------------------------------

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def out(self) -> Path:
        return self.root / "out"

    def join(self, files_per_trigger: int = 1, **options: Any) -> DataFrame:
        """The streaming join of `left` and `right`, on `k` unless told otherwise."""
        options = {"on": "k", "state": self.state, "partitions": 2, **options}
        sides = [self.stream(name, files_per_trigger) for name in ("left", "right")]
        return dovetail.join(*sides, **options)

    def enrich(self, table: Any = None, files_per_trigger: int = 1, **options: Any) -> DataFrame:
        """`stream` looked up in `table`, on `k` unless told otherwise."""
        options = {"on": "k", "state": self.state, "partitions": 2, **options}
        table = self.batch("table") if table is None else table
        return dovetail.enrich(self.stream("stream", files_per_trigger), table, **options)

    def start(self, joined: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = joined.writeStream.format("parquet").option("path", str(self.out))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, joined: DataFrame) -> StreamingQuery:
        """Run the query into Parquet until it ends by itself."""
        query = self.start(joined)
        query.awaitTermination()
        return query

    def results(self) -> DataFrame:
        """What is in the Parquet sink, by its own log."""
        return self.spark.read.parquet(str(self.out))

    def expected(self, on: Any = "k") -> DataFrame:
        return self.batch("left").join(self.batch("right"), on)

    def enriched(self, how: str = "inner", on: Any = "k") -> DataFrame:
        return self.batch("stream").join(self.batch("table"), on, how)

    def check(self, about: str, expected: DataFrame | None = None) -> None:
        """The Parquet sink holds what Spark's batch join gives."""
        assert_same_rows(self.results(), self.expected() if expected is None else expected, about)

    def progress(self) -> Progress:
        return dovetail.progress(self.state)

    @contextmanager
    def running(self, joined: DataFrame, **trigger: Any) -> Iterator[StreamingQuery]:
        query = self.start(joined, **(trigger or {"processingTime": "0 seconds"}))
        try:
            yield query
        finally:
            query.stop()

    # -- what goes wrong --------------------------------------------------------------------

    def crash(self, joined: DataFrame) -> int:
        """Let a query die with its first batch of rows committed to the state, but not to Spark.

        Returns the number of the batch. The Parquet sink has not seen it.
        """
        died: list[int] = []

        def dies(batch: DataFrame, number: int) -> None:
            if batch.count():
                died.append(number)
                raise RuntimeError("the sink is away")

        writer = joined.writeStream.foreachBatch(dies)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        with pytest.raises(StreamingQueryException, match="the sink is away"):
            writer.trigger(availableNow=True).start().awaitTermination()
        return died[0]

    def failure(
        self, joined: DataFrame, sink: str = "parquet", checkpoint: Path | None = None
    ) -> str:
        """What a query that has to fail says. The Parquet sink skips batches that it has."""
        writer = joined.writeStream.format(sink).option("path", str(self.out))
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        with pytest.raises(StreamingQueryException) as raised:
            writer.trigger(availableNow=True).start().awaitTermination()
        return str(raised.value)

    @staticmethod
    def says(text: str, *fragments: str) -> None:
        for fragment in fragments:
            assert fragment in text, f"{fragment!r} is not in: {text}"

    @staticmethod
    def contents(folder: Path) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    @staticmethod
    def flip(path: Path, position: float) -> bytes:
        """Damage a few bytes at this share of the file; returns what it held before."""
        before = path.read_bytes()
        at = min(int(len(before) * position), len(before) - 4)
        damaged = bytes(255 - byte for byte in before[at : at + 4])
        path.write_bytes(before[:at] + damaged + before[at + 4 :])
        return before


@pytest.fixture
def same_rows() -> Any:
    return assert_same_rows


@pytest.fixture(scope="session")
def frames(spark: SparkSession) -> Callable[..., DataFrame]:
    """A small batch DataFrame from SQL columns: `frames("1 as k", "'x' as a")`."""
    return lambda *columns: spark.range(1).selectExpr(*columns)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KB; `mount -o remount,size=...` makes it larger."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("a full disk needs a small tmpfs, and mounting one needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a full disk needs a small tmpfs, but {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(autouse=True)
def no_refresher_is_left() -> Iterator[None]:
    """A refresher lives as long as its state and session: too long for the tests that follow."""
    yield
    from dovetail.spark.jobs.refresh import _refreshers

    for over in _refreshers.values():
        over.set()
    _refreshers.clear()
