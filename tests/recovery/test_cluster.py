"""A standalone cluster of two workers: executors that are killed, and tasks that run twice."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pyspark
import pytest

import dovetail
from dovetail.errors import StateError
from dovetail.spark.state.staged import staged_version

SEED = 3_003
HOSTS = ("127.0.0.1", "127.0.0.2")  # two names, so that Spark takes them for two machines
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def two_hosts() -> bool:
    """Linux answers on all of 127.0.0.0/8; other systems only on the addresses they were given."""
    try:
        with socket.create_server((HOSTS[1], 0)):
            return True
    except OSError:
        return False


pytestmark = [
    pytest.mark.recovery,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not two_hosts(), reason=f"this machine does not answer on {HOSTS[1]}"),
]


@dataclass
class Cluster:
    """A master and two workers with one core each."""

    url: str
    workers: list["subprocess.Popen[bytes]"]

    def executors(self) -> list[psutil.Process]:
        """The executor JVMs, oldest first."""
        found = []
        for worker in self.workers:
            for child in psutil.Process(worker.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any("CoarseGrainedExecutorBackend" in part for part in child.cmdline()):
                        found.append(child)
        return sorted(found, key=lambda process: process.create_time())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(what: str, happened: Any, log: Path, seconds: float = 90) -> None:
    limit = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < limit, f"{what}: {log.read_text(errors='replace')[-3000:]}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    environment = {
        **os.environ,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }
    log = folder / "log"

    def start(name: str, host: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", host]
        with log.open("ab") as out:
            return subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                env={**environment, "SPARK_LOCAL_IP": host},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    started = [start("master.Master", HOSTS[0], "--port", str(port))]
    try:
        for number, host in enumerate(HOSTS):
            options = ("-c", "1", "-m", "1g", "--work-dir", str(folder / f"work{number}"))
            started.append(start("worker.Worker", host, *options, url))
        wait_for(
            "the workers do not register",
            lambda: log.read_text(errors="replace").count("Successfully registered") >= 2,
            log,
        )
        yield Cluster(url, started[1:])
    finally:
        for process in reversed(started):
            tools.kill_group(process)


def settings_for(cluster: Cluster) -> dict[str, str]:
    return {
        "master": cluster.url,
        "memory": "180KB",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.task.maxFailures": "10",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.efficiency.enabled": "false",
    }


def version(state: Path) -> int:
    try:
        return dovetail.progress(state).version
    except StateError:
        return -1


def kill_executors(
    cluster: Cluster, job: Any, process: Any, root: Path, versions: tuple[int, ...], rng: Any
) -> list[tuple[int, int]]:
    """Kill an executor at each of these versions of the query in `root`."""
    kills = []
    for at_version in versions:
        wait_for(
            f"version {at_version} does not come",
            lambda goal=at_version: (
                process.poll() is not None
                or (version(root / "state") >= goal and len(cluster.executors()) == 2)
            ),
            job.root / "log",
        )
        assert process.poll() is None, f"ended before the kills: {job.log_tail()}"
        time.sleep(float(rng.uniform(0, 0.3)))
        victim = cluster.executors()[int(rng.integers(2))]
        victim.kill()
        kills.append((at_version, victim.pid))
    assert not (root / "result.parquet").exists(), "the query ended before the kills"
    return kills


@pytest.mark.full
def test_output_when_executors_are_killed_and_tasks_run_twice_then_equals_the_oracle(
    cluster: Cluster, job: Any, tools: Any
) -> None:
    """Two queries of one driver, one after the other: executors are killed during the first; in
    the second, the first attempts of tasks are slow, so that Spark starts others beside them. The
    first holds a join by every algorithm, the second one join."""
    rng = np.random.default_rng(SEED)
    killed, slow = (tools.job_at(job.root / name) for name in ("killed", "slow"))
    for side in tools.sides:
        killed.write(side, tools.make_rows(side, rng, 1500, 400, 0), 6)
        slow.write(side, tools.make_rows(side, rng, 900, 300, 0), 3)
    names = tools.algorithms
    process = job.start("cluster", **settings_for(cluster), algorithm=",".join(names))
    kills = kill_executors(cluster, job, process, killed.root, (1, 2, 4), rng)
    assert process.wait(timeout=300) == 0, f"seed {SEED}, killed {kills}: {job.log_tail()}"

    killed.check(f"seed {SEED}, executors killed at {kills}", names)
    attempts = sorted(path.name for path in (slow.root / "attempts").iterdir())
    again = [name for name in attempts if not name.endswith("-0")]
    assert again, f"no task ran twice: {attempts}"
    slow.check(f"seed {SEED}, second attempts {again}", names[:1])


def test_lookups_when_executors_are_killed_and_the_table_changes_then_each_row_meets_one_version(
    cluster: Cluster, job: Any, tools: Any
) -> None:
    """Executors are killed before the change, while the new version is staged, and after it."""
    rng = np.random.default_rng(SEED)
    files, rows = 14, 100
    job.write("left", tools.make_rows("left", rng, files * rows, 400, 0), files)
    old = tools.make_rows("right", rng, 1500, 300, 0)
    new = tools.make_rows("right", rng, 1300, 350, 9000)
    job.write("right", old, 1)
    job.write("next", new, 1)
    settings = {**settings_for(cluster), "job": "enrich", "memory": "600KB"}
    process = job.start("once", **settings, refresh_every="1 second")
    kills = kill_executors(cluster, job, process, job.root, (2,), rng)
    (job.root / "next" / "0000.parquet").replace(job.root / "right" / "0000.parquet")
    kills += kill_executors(cluster, job, process, job.root, (3,), rng)
    state = job.root / "state"
    wait_for(
        "the table is not staged anew",
        lambda: process.poll() is not None or staged_version(state) != "v000001",
        job.root / "log",
    )
    last = version(state) + 1
    kills += kill_executors(cluster, job, process, job.root, (last,), rng)
    assert process.wait(timeout=300) == 0, f"seed {SEED}, killed {kills}: {job.log_tail()}"

    found = pq.read_table(job.root / "result.parquet")
    met = tools.versions_met(tools.read_folder(job.root / "left"), [old, new], found)
    about = f"seed {SEED}, executors killed at {kills}"
    for number, versions in enumerate(met):
        assert versions, f"{about}: row {number} met no version of the table, or more than one"
        # a batch is a file; those before the one that was under way came before the change
        assert 0 in versions or number >= 2 * rows, f"{about}: row {number} met the new version"
    assert [1] in met, f"{about}: no row met the new version"
    assert dovetail.progress(state).pending_rows == 0, about
