"""Local Spark sessions for the command line, and the checks of any session a join runs in."""

import functools
import os
import shutil
import subprocess
import sys

from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from dovetail.errors import EnvironmentProblemError

_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def local_session(name: str, cores: int | str = 2, **conf: str) -> SparkSession:
    """A session on this machine, quiet and with the workers on this very Python.

    Workers get their rows through Unix sockets. Through TCP, Spark's default, a step that reads all
    of its rows before it answers waits 40 ms for the last of them: the system holds a last small
    packet back until the one before is acknowledged, and that until there is an answer to go with.

    Checkpoints are written through Hadoop's FileSystem. Its FileContext, Spark's default, starts
    programs (readlink, chmod) for every file in a local directory where Hadoop's native library is
    missing, as it is from PyPI: half of a small micro-batch. Both rename a finished file to its
    place, and locally neither does more to keep two queries off one checkpoint.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINTS)
    )
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise EnvironmentProblemError(
            f"Spark could not start: {error}. Run 'dovetail doctor' to see what is missing."
        ) from error


def active_session() -> SparkSession:
    """The session of this thread, or the process's default one; Spark complains without any."""
    return SparkSession.active()


def check_session(session: SparkSession) -> int:
    """The parallelism of a session that can run a join; says what is wrong with any other."""
    try:
        context = session.sparkContext
    except PySparkAttributeError:
        raise EnvironmentProblemError(
            "this is a Spark Connect session; Dovetail needs a classic one (SparkSession.builder "
            "with .master(...) instead of .remote(...))"
        ) from None
    if (context.master or "").startswith("local"):
        choose_worker_python(context)
        problem = _worker_problem(context.pythonExec)
        if problem:
            raise EnvironmentProblemError(problem)
    return int(context.defaultParallelism)


def choose_worker_python(context: SparkContext) -> None:
    """Let the workers of a local session run on this Python, unless the user chose another.

    Without a choice Spark takes the first `python3` on the PATH, which is another one where a
    virtual environment is used by its path. Functions and data sources take over what is set here
    when they are made, so PYSPARK_PYTHON counts also if it was set after the session was made.
    `spark.pyspark.python` counts as a choice, though Spark itself heeds it only where spark-submit
    starts the program.
    """
    if (context.master or "").startswith("local"):
        context.pythonExec = (
            os.environ.get("PYSPARK_PYTHON")
            or context.getConf().get("spark.pyspark.python")
            or sys.executable
        )


@functools.cache
def _worker_problem(python: str) -> str | None:
    """Why the Python that Spark starts its workers with cannot run a join, or None.

    Without this the mistake shows up as a worker that never connects back.
    """
    found = shutil.which(python)
    if found == sys.executable:
        return None
    advice = (
        f"Set PYSPARK_PYTHON={sys.executable} in the environment "
        "(in Python: os.environ['PYSPARK_PYTHON'] = sys.executable) and ask again."
    )
    if not found:
        return f"Spark starts its workers with {python!r}, which is not there. {advice}"
    run = subprocess.run(
        [found, "-c", "import dovetail, pyarrow, pyspark"], capture_output=True, check=False
    )
    if run.returncode == 0:
        return None
    reason = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return (
        f"Spark starts its workers with {found}, which cannot import what a join needs "
        f"({''.join(reason) or 'it failed'}). {advice}"
    )
