"""Runs a join in a process of its own, to be killed or to have its workers killed.

    runner.py once ROOT [setting=value ...]    run the query until it ends, then read the sink
    runner.py faults ROOT [setting=value ...]  a run for every fault point, with new files each time
    runner.py cluster ROOT [setting=value ...] `once` in ROOT/killed, then in ROOT/slow, where the
                                               first attempts of tasks dawdle; there only by the
                                               first algorithm

Inputs are the Parquet files in ROOT/left and ROOT/right; `once` leaves what the sink holds in
ROOT/result.parquet, `faults` in ROOT/results/<point>.parquet. Settings: job (join, or enrich: the
right side is a table), algorithm, refresh (look whether the table has changed, then run),
refresh_every (how often to look while it runs), shed (a strategy; a third of the rows are left out,
and go to ROOT/shed), master, memory, partitions, slice_ms, points, java (options of the JVM), and
any Spark setting with its dots.

An algorithm is a name, or `name-within-width` for a band join; one for several inputs joins copies
of left rows besides, in four partitions, each of two attributes being cut in two. Several
algorithms, with commas in between, make one query of as many joins of the same inputs; a column
`by` tells their rows apart. The first has ROOT/state, the others have ROOT/state-<algorithm>; a
join of two inputs that is the first has the partitions asked for, any other one.
With `faults` each has a query of its own, in ROOT/<algorithm>, and they take turns at the points.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQueryException

import dovetail
from dovetail.multiway import ALGORITHMS as MULTIWAY
from dovetail.semistream.overload import Rates, Shedding
from dovetail.spark.session import local_session
from support.fault_points import POINTS

Batches = Iterator[pa.RecordBatch]
LEAST_KB_OF_THREE = 110  # a partition of a join of three inputs needs about as much
PARTITIONS_OF_THREE = 4  # two for each attribute: a row of an input that has one goes to two

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.memory": "512m",
}


class Runner:
    """The session, and the query that it runs."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.job = settings.pop("job", "join")
        self.algorithms = settings.pop("algorithm", "auto").split(",")
        self.refresh = bool(settings.pop("refresh", ""))
        self.refresh_every = settings.pop("refresh_every", None)
        self.shed = settings.pop("shed", None)
        self.memory = settings.pop("memory", "200KB")
        self.partitions = int(settings.pop("partitions", 2))
        self.slice_ms = int(settings.pop("slice_ms", 250))
        self.points = settings.pop("points", ",".join(POINTS)).split(",")
        master = settings.pop("master", "local[2]")
        java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC " + settings.pop("java", "")
        conf = {**QUICK, "spark.driver.extraJavaOptions": java, **settings}
        if master.startswith("local"):
            self.spark = local_session("recovery", master[6:-1], **conf)
        else:
            builder = SparkSession.builder.master(master).appName("recovery")
            for name, value in {**conf, "spark.ui.enabled": "false"}.items():
                builder = builder.config(name, value)
            self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    def stream(self, root: Path, side: str) -> DataFrame:
        columns = {"k": pa.int64(), f"{side}_id": pa.int64(), f"{side}_text": pa.string()}
        reader = self.spark.readStream.schema(from_arrow_schema(pa.schema(columns)))
        return reader.option("maxFilesPerTrigger", 1).parquet(str(root / side))

    def run(self, root: Path, algorithms: list[str], *, slow: bool = False) -> None:
        if len(algorithms) == 1:
            joined = self.joined(root, algorithms[0])
        else:
            others = [self.joined(root, name, beside=True) for name in algorithms[1:]]
            parts = zip(algorithms, [self.joined(root, algorithms[0]), *others], strict=True)
            joined = reduce(
                DataFrame.union, (part.withColumn("by", F.lit(name)) for name, part in parts)
            )
        if slow:
            (root / "attempts").mkdir(exist_ok=True)
            joined = joined.mapInArrow(dawdle(root / "attempts"), joined.schema)
        writer = joined.writeStream.format("parquet").option("path", str(root / "out"))
        writer = writer.option("checkpointLocation", str(root / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def joined(self, root: Path, algorithm: str, *, beside: bool = False) -> DataFrame:
        """One join of the inputs; one beside others has a single partition, as large as theirs."""
        if algorithm in MULTIWAY:
            return self.joined_by_three(root, algorithm, beside=beside)
        call, right = dovetail.join, self.stream(root, "right")
        name, _, width = algorithm.partition("-within-")
        more: dict[str, Any] = {"within": int(width)} if width else {}
        if self.shed is not None:
            more = {"shed": Shedding(self.shed, rates=Rates(3, 2)), "shed_to": root / "shed"}
        if self.job == "enrich":
            call, right = dovetail.enrich, str(root / "right")
            if self.refresh_every is not None:
                more["refresh"] = self.refresh_every
            if self.refresh:
                dovetail.refresh(root / "state")
        kilobytes = int(self.memory.removesuffix("KB"))
        joined = call(
            self.stream(root, "left"),
            right,
            on="k",
            memory=f"{kilobytes // self.partitions if beside else kilobytes}KB",
            partitions=1 if beside else self.partitions,
            state=root / (f"state-{algorithm}" if beside else "state"),
            slice_ms=self.slice_ms,
            algorithm=name,
            **more,
        )
        if not width:
            return joined
        near = f"if(abs(left_k - right_k) <= {width}, left_k, -1) as k"
        return joined.selectExpr(near, "left_id", "left_text", "right_id", "right_text")

    def joined_by_three(self, root: Path, algorithm: str, *, beside: bool) -> DataFrame:
        """A chain of three: of each left row, the third input has none, one or two copies.

        What is not as it should be in a combination shows in its columns.
        """
        third = self.stream(root, "left").selectExpr(
            "left_id as third_id",
            "upper(left_text) as third_text",
            "explode(array_repeat(left_id, cast(left_id % 3 as int))) as third_n",
        )
        each = max(LEAST_KB_OF_THREE, int(self.memory.removesuffix("KB")) // self.partitions)
        joined = dovetail.join_all(
            {"left": self.stream(root, "left"), "right": self.stream(root, "right"),
             "third": third},
            on=[("left.k", "right.k"), ("left.left_id", "third.third_id")],
            memory=f"{each * PARTITIONS_OF_THREE}KB",
            partitions=PARTITIONS_OF_THREE,
            state=root / (f"state-{algorithm}" if beside else "state"),
            slice_ms=self.slice_ms,
            algorithm=algorithm,
        )  # fmt: skip
        return joined.selectExpr(
            "if(left_k = right_k, left_k, -1) as k",
            "if(left_id = third_id and left_id = third_n, left_id, -1) as left_id",
            "if(upper(left_text) = third_text, left_text, third_text) as left_text",
            "right_id",
            "right_text",
        )

    def read_sink(self, root: Path, path: Path) -> None:
        """What the sink holds by its own log; the file appears whole or not at all."""
        table = self.spark.read.parquet(str(root / "out")).toArrow()
        temporary = path.with_suffix(".tmp")
        pq.write_table(table, temporary)
        temporary.rename(path)

    def faults(self, root: Path) -> None:
        """Arm a point, add files, run until the query ends; begin again if it failed."""
        report = {}
        (root / "results").mkdir()
        for number, point in enumerate(self.points):
            algorithm = self.algorithms[number % len(self.algorithms)]
            home = root if len(self.algorithms) == 1 else root / algorithm
            self.add_files(home, number // len(self.algorithms))
            armed = root / "armed" / point
            armed.touch()
            failures = []
            for _ in range(3):
                try:
                    self.run(home, [algorithm])
                    break
                except StreamingQueryException as error:
                    failures.append(str(error)[:2000])
            armed.unlink(missing_ok=True)
            self.read_sink(home, root / "results" / f"{point}.parquet")
            told = dovetail.progress(home / "state")
            report[point] = {
                "fired": armed.with_suffix(".fired").exists(),
                "failures": failures,
                "spilled": told.spilled_bytes,
                "shares": told.identity.get("shares"),
            }
        (root / "report.json").write_text(json.dumps(report))

    def add_files(self, home: Path, number: int) -> None:
        """The next file of each side comes out of the pool."""
        for side in ("left", "right"):
            folder = home / side
            folder.mkdir(exist_ok=True)
            source = home / "pool" / side / f"{number:04d}.parquet"
            if source.exists():  # a table is there from the start
                source.rename(folder / source.name)


def dawdle(folder: Path) -> Callable[[Batches], Batches]:
    """Pass rows on; the first attempt of a task takes its time, so that Spark starts a second."""

    def step(batches: Batches) -> Batches:
        task = TaskContext.get()
        assert task is not None
        number = task.attemptNumber()
        (folder / f"{task.stageId()}-{task.partitionId()}-{number}").touch()
        for batch in batches:
            yield batch
            if number == 0 and task.partitionId() == 0:
                time.sleep(1.5)

    return step


def main() -> None:
    began = time.time()
    mode, root = sys.argv[1], Path(sys.argv[2])
    runner = Runner(dict(setting.split("=", 1) for setting in sys.argv[3:]))
    print(f"session after {time.time() - began:.1f} s", flush=True)
    if mode == "faults":
        runner.faults(root)
    for folder in {"once": [root], "cluster": [root / "killed", root / "slow"]}.get(mode, []):
        slow = folder.name == "slow"
        runner.run(folder, runner.algorithms[: 1 if slow else None], slow=slow)
        runner.read_sink(folder, folder / "result.parquet")
    print(f"done after {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
