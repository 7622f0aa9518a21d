"""Local Spark sessions for the command line, examples and tests."""

import os
import sys

from pyspark.sql import SparkSession

from dovetail.errors import EnvironmentProblemError


def local_session(name: str, cores: int | str = 2, **conf: str) -> SparkSession:
    """A session on this machine, quiet and with the workers on this very Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise EnvironmentProblemError(
            f"Spark could not start: {error}. Run 'dovetail doctor' to see what is missing."
        ) from error
