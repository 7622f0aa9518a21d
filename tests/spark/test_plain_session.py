"""A user's script in a session of its own, in a virtual environment that is not activated.

`PYSPARK_PYTHON` is not set and the first `python3` on the PATH cannot import anything of ours, so
that whatever still starts its workers with Spark's default fails.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

START = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import dovetail

root = Path(sys.argv[1])
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config(
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager",
    )
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

def stream(name):
    return spark.readStream.schema(f"id LONG, {name} LONG").parquet(str(root / name))

def run(result, name):
    writer = result.writeStream.option("checkpointLocation", str(root / "ckpt" / name))
    out = str(root / "out" / name)
    writer.trigger(availableNow=True).start(out, format="parquet").awaitTermination()
    print(name, spark.read.parquet(out).count())
"""

JOBS = """
for name in ("left", "right"):
    spark.range(100).selectExpr("id", f"id * 2 AS {name}").write.parquet(str(root / name))
left, right = stream("left"), stream("right")
run(dovetail.join(left, right, on="id", state=root / "join"), "join")
a, b = spark.range(100), spark.range(50, 150)
print("join_all", dovetail.join_all({"a": a, "b": b}, on="id").count())
print("enrich", dovetail.enrich(a, b, on="id", algorithm="seek").count())
"""

BATCH = """
dovetail.join(spark.range(9), spark.range(9), on="id").count()
"""

SITES = """
dovetail.sites.register(spark)
reader = spark.readStream.format("dovetail_site").option("query", "q").option("timeout", "0.1")
try:
    reader.option("address", "grpc+tcp://127.0.0.1:1").load()
except Exception as error:
    print("SiteUnavailableError" in str(error), "SiteAccessError" in str(error))
"""


def run_script(
    script: str, tmp_path: Path, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script with this Python, named by its path; `python3` is another one, which fails."""
    path = tmp_path / "script.py"
    path.write_text(START + script)
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'another python3' >&2\nexit 1\n")
    other.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if "PYSPARK" not in name}
    inherited["PATH"] = f"{other.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    if (java := os.environ.get("JAVA_HOME")) is not None:
        inherited["JAVA_HOME"] = java
    return subprocess.run(
        [sys.executable, str(path), str(tmp_path / "data")],
        env={**inherited, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_joins_when_the_environment_is_not_activated_then_run_on_the_script_s_python(
    tmp_path: Path,
) -> None:
    done = run_script(JOBS + SITES, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    counts, site = done.stdout.splitlines()[:3], done.stdout.splitlines()[3:]
    assert counts == ["join 100", "join_all 50", "enrich 50"]
    assert "True" in "".join(site), "the site source did not run on our Python"


def test_join_when_a_python_without_dovetail_was_chosen_then_the_error_says_so(
    tmp_path: Path,
) -> None:
    chosen = tmp_path / "bin" / "python3"
    done = run_script(BATCH, tmp_path, PYSPARK_PYTHON=str(chosen))
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "EnvironmentProblemError" in last
    assert f"Spark starts its workers with {chosen}" in last
    assert "Set PYSPARK_PYTHON=" in last
