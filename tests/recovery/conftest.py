"""Data and oracles for the recovery tests, none of which share a Spark session with each other."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dovetail
from dovetail.multiway import ALGORITHMS as MULTIWAY
from support.processes import finding_support

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

FOLDER = Path(__file__).parent
SIDES = ("left", "right")
#: Every join of streams that spills; a number is the width of a band.
ALGORITHMS = (
    "xjoin", "diner", "diner-within-1", "hmj", "rpj", "pmj", "pmj-within-1", "dphj", "miner",
)  # fmt: skip


def make_rows(side: str, rng: np.random.Generator, rows: int, domain: int, first: int) -> pa.Table:
    """Rows `k`, `<side>_id`, `<side>_text`; the ids begin at `first`."""
    letters = rng.integers(97, 123, (rows, 40), dtype=np.uint8)
    return pa.table(
        {
            "k": rng.integers(0, domain, rows),
            f"{side}_id": np.arange(first, first + rows),
            f"{side}_text": [row.tobytes().decode() for row in letters],
        }
    )


def multiset(table: pa.Table) -> Counter[str]:
    columns = [column.to_pylist() for column in table.columns]
    return Counter(repr(row) for row in zip(*columns, strict=True))


def expected_join(left: pa.Table, right: pa.Table, algorithm: str = "") -> pa.Table:
    """The oracle: Arrow's own join; of a band, one for each distance, with the left side's key.

    By an algorithm for several inputs, each left row also meets its copies in the third input:
    none, one or two, by its number.
    """
    if algorithm in MULTIWAY:
        copies = left["left_id"].to_numpy() % 3
        left = left.take(pa.array(np.repeat(np.arange(len(left)), copies)))
    width = int(algorithm.partition("-within-")[2] or 0)
    joined = []
    for distance in range(-width, width + 1):
        moved = right.set_column(0, "k", pc.add(right["k"], distance))
        joined.append(left.join(moved, "k", join_type="inner"))
    names = ["k", "left_id", "left_text", "right_id", "right_text"]
    return pa.concat_tables(joined).select(names)


def shares_of(algorithm: str) -> list[int] | None:
    """Into how many parts a join of several inputs cuts each attribute: both of them in two."""
    return [2, 2] if algorithm in MULTIWAY else None


def versions_met(left: pa.Table, tables: list[pa.Table], found: pa.Table) -> list[list[int]]:
    """For each left row, in the order of their numbers, the versions of a table it may have met."""
    wanted = [_by_row(expected_join(left, table)) for table in tables]
    results = _by_row(found)
    return [
        [n for n, rows in enumerate(wanted) if rows.get(number, []) == results.get(number, [])]
        for number in sorted(left["left_id"].to_pylist())
    ]


def _by_row(joined: pa.Table) -> dict[int, list[Any]]:
    """The results of each row of the left side, sorted."""
    rows: dict[int, list[Any]] = {}
    for row in joined.to_pylist():
        rows.setdefault(row["left_id"], []).append((row["k"], row["right_id"], row["right_text"]))
    return {number: sorted(results) for number, results in rows.items()}


def assert_same(found: Counter[str], wanted: Counter[str], about: str) -> None:
    if found != wanted:
        missing, extra = wanted - found, found - wanted
        raise AssertionError(
            f"{about}: {wanted.total()} rows expected, {found.total()} found; "
            f"{missing.total()} missing, for example {list(missing)[:3]}; "
            f"{extra.total()} too many, for example {list(extra)[:3]}"
        )


def read_folder(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


class Job:
    """A join in a folder: inputs in files, and `runner.py` in processes of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes: list[subprocess.Popen[bytes]] = []

    def write(self, name: str, table: pa.Table, files: int) -> None:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        known = len(list(folder.glob("*.parquet")))
        for number in range(files):
            start, stop = (len(table) * n // files for n in (number, number + 1))
            path = folder / f"{known + number:04d}.parquet"
            pq.write_table(table.slice(start, stop - start), path)
            # Spark reads files by their times, and those that are written at once have the same
            now = path.stat().st_mtime_ns + 10_000_000 * number
            os.utime(path, ns=(now, now))

    def start(self, mode: str, env: dict[str, str] | None = None, **settings: Any) -> Any:
        """Start the runner in a process group of its own; its output goes to `log`."""
        arguments = [f"{name}={value}" for name, value in settings.items()]
        with (self.root / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(FOLDER / "runner.py"), mode, str(self.root), *arguments],
                env={**finding_support(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log_tail(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-4000:]

    def check(
        self, about: str, algorithms: tuple[str, ...] = ("auto",), *, spills: bool = True
    ) -> None:
        """What the runner read back from the sink equals the oracle, for each of the joins."""
        left, right = (read_folder(self.root / side) for side in SIDES)
        table = pq.read_table(self.root / "result.parquet")
        for number, name in enumerate(algorithms):
            found = table
            if len(algorithms) > 1:
                found = table.filter(pc.equal(table["by"], name)).drop_columns(["by"])
            wanted = multiset(expected_join(left, right, name))
            assert_same(multiset(found), wanted, f"{name}: {about}")
            folder = self.root / (f"state-{name}" if number else "state")
            told = dovetail.progress(folder)
            assert told.pending_rows == 0, f"{name}: {about}"
            assert told.spilled_bytes > 0 or not spills, f"{name} spilled nothing: {about}"
            assert told.identity.get("shares") == shares_of(name), f"{name}: {about}"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.processes:
        kill_group(process)


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL a runner and all that it started; workers have groups of their own."""
    import psutil

    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


class Tools:
    """What the tests here share, as one fixture: test files cannot import each other."""

    make_rows = staticmethod(make_rows)
    multiset = staticmethod(multiset)
    expected_join = staticmethod(expected_join)
    shares_of = staticmethod(shares_of)
    versions_met = staticmethod(versions_met)
    read_folder = staticmethod(read_folder)
    assert_same = staticmethod(assert_same)
    kill_group = staticmethod(kill_group)
    job_at = staticmethod(Job)
    sides = SIDES
    algorithms = ALGORITHMS
    folder = FOLDER


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def protocol(tools: Any) -> ModuleType:
    return load(tools.folder / "protocol.py")
