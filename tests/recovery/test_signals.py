"""`dovetail run` is stopped by a signal: one line, the exit code for it, and nothing is lost.

Ctrl-C reaches the command alone: Spark's processes are told not to mind it. SIGTERM comes as the
system's service manager sends it, to every process at once, so that Spark is gone before it can
be asked to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.depth import only_full

pytestmark = [pytest.mark.spark, pytest.mark.recovery]

JOB = """
[spark]
master = "local[1]"

[left]
format = "parquet"
path = "left"

[right]
format = "parquet"
path = "right"

[join]
on = "id"
partitions = 1

[sink]
format = "noop"
checkpoint = "ckpt"
"""
LIMIT_S = 180


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        pq.write_table(
            pa.table({"id": range(500), side: range(500)}), tmp_path / side / "a.parquet"
        )
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    return file


class Command:
    """`dovetail run` in a process group of its own, without a terminal."""

    def __init__(self, job: Path) -> None:
        self.state = job.parent / "ckpt" / "dovetail" / "join"
        self.out, self.err = job.parent / "stdout", job.parent / "stderr"
        options = "--driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYSPARK_SUBMIT_ARGS": options}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.cli", "run", str(job)],
                stdout=out, stderr=err, env=environment, start_new_session=True,
            )  # fmt: skip

    def wait_until(self, come: Callable[[Command], bool]) -> None:
        limit = time.monotonic() + LIMIT_S
        while not come(self):
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < limit, self.out.read_text()
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> int:
        if number is signal.SIGTERM:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


def starting(command: Command) -> bool:
    return "Starting Spark" in command.out.read_text()


def planning(command: Command) -> bool:
    return "Planning the join" in command.out.read_text()


def planned(command: Command) -> bool:
    return "State is kept in" in command.out.read_text()


def running(command: Command) -> bool:
    return any(command.state.glob("p*/v*"))


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (starting, signal.SIGINT),
        (planning, signal.SIGTERM),
        (running, signal.SIGTERM),
        *only_full((starting, signal.SIGTERM), (planned, signal.SIGINT), (running, signal.SIGINT)),
    ],
)
def test_run_when_a_signal_comes_then_ends_in_one_line_with_its_exit_code(
    moment: Callable[[Command], bool], number: signal.Signals, job: Path
) -> None:
    command = Command(job)
    try:
        command.wait_until(moment)
        code = command.end(number)
    finally:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
    said = command.err.read_text()
    about = f"exit code {code}\n{command.out.read_text()}\n{said}"
    assert code == 128 + number, about
    first = " before the first micro-batch of this run ended"
    again = "Run it again to go on from here."
    if moment in (starting, planning):
        assert said == "Stopped.\n", about
    elif moment is running:
        assert said == f"Stopped. {again}\n", about
    else:  # the first micro-batch may have been quick
        assert said in ("Stopped.\n", f"Stopped{first}. {again}\n", f"Stopped. {again}\n"), about
    assert "No rows came in" not in command.out.read_text()
