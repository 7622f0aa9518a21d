"""The whole driver, JVM and workers, is killed with SIGKILL at random moments and started again."""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import dovetail
from dovetail.errors import StateError
from support.depth import full_or

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

SEED = 20_261
KILLS = full_or(20, 1)
FILES = full_or(40, 10)


def version(state: Path) -> int:
    """The newest version of any partition; -1 before the first."""
    try:
        return dovetail.progress(state).version
    except StateError:
        return -1


class Killer:
    """Decides when a driver dies: so many versions after its start, and a moment more."""

    def __init__(self, rng: np.random.Generator, state: Path) -> None:
        self.rng = rng
        self.state = state
        self.moments: list[tuple[int, float]] = []

    def wait(self, process: Any) -> bool:
        """Return when it is time to die; False if the process ended by itself."""
        in_start_up = self.rng.random() < 0.1
        versions = 0 if in_start_up else int(self.rng.integers(1, 3))
        delay = float(self.rng.uniform(0, 3.0 if in_start_up else 0.9))
        goal = version(self.state) + versions
        limit = time.monotonic() + 120
        while version(self.state) < goal:
            if process.poll() is not None:
                return False
            assert time.monotonic() < limit, f"no progress beyond version {version(self.state)}"
            time.sleep(0.01)
        self.moments.append((versions, round(delay, 3)))
        until = time.monotonic() + delay
        while time.monotonic() < until:
            if process.poll() is not None:
                return False
            time.sleep(0.01)
        return True


class Hunt:
    """One query, and the drivers that run it one after the other until they are killed."""

    def __init__(
        self, job: Any, tools: Any, streams: tuple[str, ...], settings: dict[str, str]
    ) -> None:
        self.job = job
        self.tools = tools
        self.streams = streams
        self.settings = settings
        self.rng = np.random.default_rng(SEED)
        self.killer = Killer(self.rng, job.root / "state")
        self.written = self.lives = self.kills = 0
        self.java = "-Xshare:auto -Xlog:disable -Xlog:all=off"

    def add_files(self, count: int) -> None:
        for side in self.streams:
            rows = self.tools.make_rows(side, self.rng, 70 * count, 300, self.written)
            self.job.write(side, rows, count)
        self.written += 70 * count

    def first_life(self) -> None:
        """The first driver lives. It leaves its loaded classes behind: others start faster."""
        archive = self.job.root / "classes.jsa"
        java = f"{self.java} -XX:ArchiveClassesAtExit={archive}"
        first = self.job.start("once", **self.settings, java=java)
        assert first.wait(timeout=300) == 0, self.job.log_tail()
        limit = time.monotonic() + 30
        while not archive.exists() and time.monotonic() < limit:
            time.sleep(0.1)
        self.java += f" -XX:SharedArchiveFile={archive}"

    def start(self) -> Any:
        self.lives += 1
        return self.job.start("once", **self.settings, java=self.java, slice_ms=20)

    def kill(self, times: int) -> None:
        goal = self.kills + times
        while self.kills < goal:
            process = self.start()
            if self.killer.wait(process):
                self.tools.kill_group(process)
                self.kills += 1
            else:
                assert process.returncode == 0, f"{self.about}: {self.job.log_tail()}"
                self.add_files(FILES // 4)  # it was faster than we were

    def last_life(self) -> None:
        (self.job.root / "result.parquet").unlink(missing_ok=True)
        assert self.start().wait(timeout=400) == 0, f"{self.about}: {self.job.log_tail()}"
        assert dovetail.progress(self.job.root / "state").pending_rows == 0

    @property
    def about(self) -> str:
        moments = self.killer.moments
        return f"seed {SEED}, life {self.lives}, {self.kills} kills after (versions, s) {moments}"


@pytest.mark.timeout(1800)
def test_output_when_driver_is_killed_again_and_again_then_equals_the_oracle(
    job: Any, tools: Any
) -> None:
    """One query of three joins, so that each of them lives through all the kills. What the other
    algorithms do when they are killed is in `test_protocol`: a driver's life is too dear."""
    names = ("diner", "diner-within-1", "miner")
    hunt = Hunt(job, tools, tools.sides, {"memory": "150KB", "algorithm": ",".join(names)})
    hunt.add_files(3)
    hunt.first_life()
    hunt.add_files(FILES)
    hunt.kill(KILLS)
    hunt.last_life()
    job.check(hunt.about, names)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_lookups_when_driver_is_killed_and_the_table_changes_then_each_row_meets_one_version(
    job: Any, tools: Any
) -> None:
    settings = {"job": "enrich", "memory": "600KB", "algorithm": "meshjoin"}
    hunt = Hunt(job, tools, ("left",), settings)
    old = tools.make_rows("right", hunt.rng, 900, 250, 0)
    job.write("right", old, 2)
    hunt.add_files(2)
    hunt.first_life()
    before = hunt.written
    hunt.add_files(10)
    hunt.kill(full_or(3, 1))
    new = tools.make_rows("right", hunt.rng, 1000, 300, 5000)
    shutil.rmtree(job.root / "right")
    job.write("right", new, 1)
    hunt.settings["refresh"] = "yes"
    after = hunt.written
    hunt.add_files(4)
    hunt.kill(full_or(3, 1))
    hunt.last_life()

    left = tools.read_folder(job.root / "left")
    found = pq.read_table(job.root / "result.parquet")
    for number, versions in enumerate(tools.versions_met(left, [old, new], found)):
        about = f"{hunt.about}: row {number} of {hunt.written} is of versions {versions}"
        assert versions, about
        assert (0 in versions) or number >= before, f"{about}, but came before the change"
        assert (1 in versions) or number < after, f"{about}, but came after the change"
