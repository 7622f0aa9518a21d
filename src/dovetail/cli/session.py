"""Starts Spark for the command: quietly, and with a clear message when it cannot.

Spark's launcher, log and workers write to the standard error that the JVM inherited. Here that is
a file, which is deleted in the end, or kept and named when something went wrong.
"""

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from dovetail.cli.doctor import java_problem
from dovetail.cli.stopping import handlers_kept
from dovetail.cli.views import announce
from dovetail.errors import DovetailError, EnvironmentProblemError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session(
    console: Console, name: str, master: str, conf: Mapping[str, str], log: Path | None = None
) -> Iterator["SparkSession"]:
    """A session that is stopped at the end; `log` is where Spark's messages are kept."""
    problem = java_problem()
    if problem is not None:
        raise EnvironmentProblemError(problem)
    messages = log or _temporary_log()
    try:
        with announce(console, "Starting Spark"), _standard_error_to(messages), handlers_kept():
            session = _start(name, master, conf)
        _hush(session)
        try:
            yield session
        finally:
            # of a JVM that is gone: say why it went instead
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                session.stop()
    except Exception as error:
        # what Dovetail says is clear without Spark's messages, unless it is about Spark itself
        telling = isinstance(error, EnvironmentProblemError) or not isinstance(error, DovetailError)
        if telling and messages.stat().st_size:
            typer.echo(f"Spark's own messages are in {messages}", err=True)
            log = messages
        raise
    finally:
        if log is None:
            messages.unlink(missing_ok=True)


def _hush(session: "SparkSession") -> None:
    """Keep to one line that the JVM is gone: `failure` says so, or a signal was meant to end it."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    # it logs some of it as if it were the program itself
    logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    server = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _temporary_log() -> Path:
    handle, path = tempfile.mkstemp(prefix="dovetail-spark-", suffix=".log")
    os.close(handle)
    return Path(path)


def _start(name: str, master: str, conf: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    from dovetail.spark.session import local_session

    # Spark would start its workers with the first python3 on the PATH, which may be another one
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        return local_session(name, **{"spark.master": master, **conf})
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {"spark.ui.showConsoleProgress": "false", **conf}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise EnvironmentProblemError(
            f"Spark could not start on {master}: {error}. Check that the master runs and can be "
            "reached from here."
        ) from error


@contextlib.contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write their standard error to a file, for good."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as handle:
            os.dup2(handle.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
