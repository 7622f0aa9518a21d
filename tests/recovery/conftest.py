"""Data and oracles for the recovery tests, none of which share a Spark session with each other."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

FOLDER = Path(__file__).parent
SIDES = ("left", "right")


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


def expected_join(left: pa.Table, right: pa.Table) -> pa.Table:
    """The oracle: Arrow's own join."""
    joined = left.join(right, "k", join_type="inner")
    return joined.select(["k", "left_id", "left_text", "right_id", "right_text"])


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
            pq.write_table(
                table.slice(start, stop - start), folder / f"{known + number:04d}.parquet"
            )

    def start(self, mode: str, env: dict[str, str] | None = None, **settings: Any) -> Any:
        """Start the runner in a process group of its own; its output goes to `log`."""
        arguments = [f"{name}={value}" for name, value in settings.items()]
        with (self.root / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(FOLDER / "runner.py"), mode, str(self.root), *arguments],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log_tail(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-4000:]

    def expected(self) -> Counter[str]:
        left, right = (read_folder(self.root / side) for side in SIDES)
        return multiset(expected_join(left, right))

    def check(self, about: str) -> None:
        """What the runner read back from the sink equals the oracle."""
        found = multiset(pq.read_table(self.root / "result.parquet"))
        assert_same(found, self.expected(), about)


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
    assert_same = staticmethod(assert_same)
    kill_group = staticmethod(kill_group)
    job_at = staticmethod(Job)
    sides = SIDES
    folder = FOLDER


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools
