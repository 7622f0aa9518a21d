"""The whole driver, JVM and workers, is killed with SIGKILL at random moments and started again."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.errors import StateError

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

SEED = 20_261
KILLS = 20
FILES = 40


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


@pytest.mark.timeout(1200)
def test_output_when_driver_is_killed_again_and_again_then_equals_the_oracle(
    job: Any, tools: Any
) -> None:
    rng = np.random.default_rng(SEED)
    archive = job.root / "classes.jsa"
    state = job.root / "state"
    written = 0

    def add_files(count: int) -> None:
        nonlocal written
        for side in tools.sides:
            rows = tools.make_rows(side, rng, 70 * count, 300, written)
            job.write(side, rows, count)
        written += 70 * count

    # The first driver lives. It leaves its loaded classes behind, and the others start faster.
    add_files(3)
    quiet = "-Xshare:auto -Xlog:disable -Xlog:all=off"
    first = job.start("once", java=f"{quiet} -XX:ArchiveClassesAtExit={archive}")
    assert first.wait(timeout=300) == 0, job.log_tail()
    limit = time.monotonic() + 30
    while not archive.exists() and time.monotonic() < limit:
        time.sleep(0.1)

    add_files(FILES)
    settings = {"java": f"{quiet} -XX:SharedArchiveFile={archive}", "slice_ms": 20}
    killer = Killer(rng, state)
    lives = kills = 0
    while kills < KILLS:
        lives += 1
        process = job.start("once", memory="150KB", **settings)
        if killer.wait(process):
            tools.kill_group(process)
            kills += 1
        else:
            assert process.returncode == 0, f"seed {SEED}, life {lives}: {job.log_tail()}"
            add_files(FILES // 4)  # it was faster than we were
    (job.root / "result.parquet").unlink(missing_ok=True)
    last = job.start("once", memory="150KB", **settings)
    about = f"seed {SEED}, {kills} kills after (versions, seconds) {killer.moments}"
    assert last.wait(timeout=400) == 0, f"{about}: {job.log_tail()}"
    progress = dovetail.progress(state)
    assert progress.spilled_bytes > 0
    assert progress.pending_rows == 0
    job.check(about)
