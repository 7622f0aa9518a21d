"""Group `band` of `spark-diner`: a band join against Spark's stream-stream join of the same rows.

    left.key = right.key AND left_ts BETWEEN right_ts - INTERVAL x AND right_ts + INTERVAL x

Spark joins two streams only with an equality. Each left row has one right row of its key that
comes at about the same time, and others of its key at other times: about ten rows have a key, and
with one row a second the band of two seconds on either side holds five rows of any key.

Ours is the same query in two ways, since `within` takes one key:

- `band`: the band on the time, and a filter on the key;
- `band-packed`: key and time in one number, whose band is the whole predicate.

Both run unbounded, as Spark's join does; `band-packed-5%` has 5 % of the input.

Rivals are the in-heap store and RocksDB without a watermark, which Spark does not require and our
join does not have. Labels with `-watermark` are for the same rivals with one, which lets Spark
forget rows: it has less to keep, and would lose rows that come later than they may.
"""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.api import join
from dovetail_bench.data import KEY, Relations, make_relations, write_files
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.spark.diner_setup import (
    Part,
    batch_rows,
    batch_setting,
    budget_of,
    side_by_side,
)
from dovetail_bench.spark.runs import IN_HEAP, PARTITIONS, ROCKSDB, Job, SparkBed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Planned = Callable[[DataFrame, DataFrame, "Options"], DataFrame]

FILES = 10
REACH = 2  #: seconds on either side; rows come one a second
ROWS_OF_A_KEY = 10
MEMORY_SHARE = 0.05
STORES = {"rocksdb": ROCKSDB, "inheap": IN_HEAP}
_START = 1_700_000_000  # of the time, in seconds
_SPAN = 1 << 33  # between two keys in a packed number: more than any time
_LATE = "10 seconds"  # a row comes at most two seconds after one that is later
_AT = "at"
Numbers = NDArray[np.int64]


class Options(TypedDict):
    """What both of our plans hand on to `join`."""

    memory: int | str
    state: Path


def band(config: Config, bed: SparkBed, reporter: Reporter) -> Part:
    rng = np.random.default_rng(config.seed)
    relations = make_band_relations(config.rows, rng)
    few = make_band_relations(max(2, config.rows // 5), rng)
    files = write_files(relations, bed.directory / "band", FILES)
    few_files = write_files(few, bed.directory / "band-warm-up", 2)
    budget = budget_of(relations.nbytes, MEMORY_SHARE)
    jobs = _jobs(config.rows, budget)
    runs = side_by_side(bed, jobs, (few_files, files), config.repetitions_of("band"), reporter)
    rivals = [f"{store}{suffix}" for suffix in ("", "-watermark") for store in STORES]
    ratios = {
        f"{rival}/{setting}": runs.ratio([rival], setting, "warm")
        for setting in ("band", "band-packed", "band-packed-5%")
        for rival in rivals
    }
    facts = {
        "rows": f"{config.rows} + {config.rows}",
        "result_rows": relations.pairs,
        "pairs_in_the_band_of_any_key": count_in_band(relations, any_key=True),
        "input_bytes": relations.nbytes,
        "budget_bytes": {"band-packed-5%": budget},
        "batch_rows": batch_rows(config.rows),
        "query": "Parquet files, one a side in each micro-batch; availableNow; noop sink; a "
        "watermark only where the name says so",
        "contenders": runs.facts(),
    }
    return Part(ratios, facts, tuple(runs.failures))


# -- the rows -----------------------------------------------------------------------------------


def make_band_relations(rows: int, rng: np.random.Generator) -> Relations:
    """Two relations in the order of time, the right one with up to `REACH` seconds of jitter."""
    drawn = make_relations(rows, max(1, rows // ROWS_OF_A_KEY), rng)
    seconds = _START + np.arange(rows)
    jitter = rng.integers(-REACH, REACH + 1, rows)
    left = _timed(drawn.left, "left_ts", seconds)
    # the keys of the left rows: each right row belongs to the left row at its place
    right = drawn.right.set_column(0, KEY, drawn.left.column(KEY))
    right = _timed(right, "right_ts", seconds + jitter)
    return Relations(left, right, count_in_band(Relations(left, right, 0)))


def count_in_band(relations: Relations, *, any_key: bool = False) -> int:
    """How many pairs the query has; or how many the band of the time alone has."""
    packed = []
    for table, time in ((relations.left, "left_ts"), (relations.right, "right_ts")):
        seconds = table.column(time).cast(pa.int64()).to_numpy() // 1_000_000
        keys = table.column(KEY).to_numpy()
        packed.append(seconds if any_key else keys * _SPAN + seconds)
    left, right = packed[0], np.sort(packed[1])
    first = np.searchsorted(right, left - REACH, side="left")
    last = np.searchsorted(right, left + REACH, side="right")
    return int((last - first).sum())


def _timed(table: pa.Table, name: str, seconds: Numbers) -> pa.Table:
    times = pa.array(seconds * 1_000_000, pa.timestamp("us", tz="UTC"))
    return table.add_column(1, name, times)


# -- the queries --------------------------------------------------------------------------------


def _jobs(rows: int, budget: int) -> list[Job]:
    """Each of ours between two rivals, so that none always follows one that left much behind."""
    rivals = [
        _spark_job(f"{store}{'-watermark' * late}", settings, late)
        for store, settings in STORES.items()
        for late in (False, True)
    ]
    ours = [
        _ours("band", rows, _filtered),
        _ours("band-packed", rows, _packed),
        _ours("band-packed-5%", rows, _packed, budget),
    ]
    return [rivals[0], ours[0], rivals[1], ours[1], rivals[2], ours[2], rivals[3]]


def _spark_job(name: str, settings: dict[str, str], watermark: bool) -> Job:
    def plan(left: "DataFrame", right: "DataFrame", _: Path) -> "DataFrame":
        from pyspark.sql import functions as F

        if watermark:
            left = left.withWatermark("left_ts", _LATE)
            right = right.withWatermark("right_ts", _LATE)
        condition = (
            f"{KEY} = right_key AND left_ts BETWEEN right_ts - INTERVAL {REACH} SECONDS "
            f"AND right_ts + INTERVAL {REACH} SECONDS"
        )
        right = right.withColumnRenamed(KEY, "right_key")
        return left.join(right, F.expr(condition)).drop("right_key")

    return Job(name, plan, lambda files: files.pairs, settings)


def _ours(
    name: str,
    rows: int,
    planned: "Planned",
    budget_bytes: int | None = None,
) -> Job:
    def plan(left: "DataFrame", right: "DataFrame", directory: Path) -> "DataFrame":
        return planned(
            left, right, {"memory": budget_bytes or "unbounded", "state": directory / "state"}
        )

    return Job(name, plan, lambda files: files.pairs, batch_setting(rows))


def _filtered(left: "DataFrame", right: "DataFrame", options: Options) -> "DataFrame":
    within = dt.timedelta(seconds=REACH)
    right = right.withColumnRenamed(KEY, "right_key")
    on = ("left_ts", "right_ts")
    joined = join(left, right, on=on, within=within, partitions=PARTITIONS, **options)
    return joined.where(f"{KEY} = right_key").drop("right_key")


def _packed(left: "DataFrame", right: "DataFrame", options: Options) -> "DataFrame":
    from pyspark.sql import functions as F

    def packed(time: str) -> str:
        return f"{KEY} * {_SPAN} + unix_seconds({time})"

    left = left.withColumn(_AT, F.expr(packed("left_ts")))
    right = right.withColumn(_AT, F.expr(packed("right_ts"))).drop(KEY)
    joined = join(left, right, on=_AT, within=REACH, partitions=PARTITIONS, **options)
    return joined.drop(f"left_{_AT}", f"right_{_AT}")
