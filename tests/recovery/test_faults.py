"""Tasks that die at every point of the commit protocol, in a real query with a Parquet sink.

Two ways to go on: Spark tries the task again, or the query fails and is started again.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from support.depth import FULL
from support.fault_points import POINTS, SHED_POINTS

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

SEED = 1_001
OTHERS = ("diner", "diner-within-1", "hmj", "rpj", "pmj", "pmj-within-1", "dphj")
EMITTING = ("after-link", "mid-emit")
# a query that rests leaves little to collect, so that point comes last
LASTING = ("mid-claim", *EMITTING, "mid-collect")
JOIN = {"job": "join", "memory": "180KB"}
ENRICH = {"job": "enrich", "memory": "600KB"}
# How many times Spark tries a task, the points to die at, and the query. A query that is started
# again takes longer, so it only gets the points that leave something behind.
WAYS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "task is tried again": ("local[2,4]", POINTS, JOIN),
    "query is started again": ("local[2,1]", LASTING, JOIN),
    # each has a query of its own, and one after the other dies at the next point
    "task of another algorithm is tried again": (
        "local[2,4]",
        POINTS,
        {**JOIN, "algorithm": ",".join(OTHERS), "memory": "70KB", "partitions": "1"},
    ),
    # dear, and `test_protocol` has it at every point
    "task of join_all is tried again": (
        "local[2,4]",
        LASTING,
        {**JOIN, "algorithm": "miner", "memory": "220KB"},
    ),
    "task of enrich is tried again": ("local[2,4]", POINTS, ENRICH),
    # by turns, as above; they are done after too few versions for any to be collected
    "task of another enrich is tried again": (
        "local[2,4]",
        tuple(point for point in LASTING if point != "mid-collect"),
        {**ENRICH, "algorithm": "ssbj,inl"},
    ),
    "query of enrich is started again": (
        "local[2,1]",
        (*EMITTING, *SHED_POINTS),
        {**ENRICH, "algorithm": "meshjoin", "shed": "topw"},
    ),
}
# one process goes through all points of a way, so the tests of this file run in one worker
if not FULL:  # each point once
    EACH_ONCE = {"task is tried again": POINTS, "query of enrich is started again": SHED_POINTS}
    WAYS = {way: (WAYS[way][0], points, WAYS[way][2]) for way, points in EACH_ONCE.items()}
CASES = [(way, point) for way, (_, points, _) in WAYS.items() for point in points]


@pytest.fixture(scope="module")
def faulty(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For a way to go on: one process that goes through its points, new rows for each."""
    known: dict[str, tuple[Path, Any]] = {}

    def run(way: str) -> tuple[Path, Any]:
        if way not in known:
            known[way] = run_faults(way, tools, tmp_path_factory.mktemp("faults"))
        return known[way]

    return run


def run_faults(way: str, tools: Any, root: Path) -> tuple[Path, Any]:
    master, points, query = WAYS[way]
    job = tools.job_at(root)
    rng = np.random.default_rng(SEED)
    streams = tools.sides if query["job"] == "join" else ("left",)
    for point in points:
        home, _, number = home_of(way, point)
        for side in streams:
            rows = tools.make_rows(side, rng, 420, 250, number * 1000)
            job.write(f"{home}/pool/{side}", rows, 1)
    if query["job"] == "enrich":
        for home in sorted({home_of(way, point)[0] for point in points}):
            job.write(f"{home}/right", tools.make_rows("right", rng, 900, 250, 0), 2)
    armed = root / "armed"
    armed.mkdir()
    environment = {"DOVETAIL_FAULT": str(armed)}
    settings = {"master": master, "points": ",".join(points), **query}
    process = job.start("faults", environment, **settings)
    try:
        code = process.wait(timeout=500)
    finally:
        tools.kill_group(process)
    assert code == 0, job.log_tail()
    return root, json.loads((root / "report.json").read_text())


def home_of(way: str, point: str) -> tuple[str, str, int]:
    """The folder and the algorithm of the query that dies at a point, and how often it has died."""
    _, points, query = WAYS[way]
    names = query.get("algorithm", "auto").split(",")
    number = points.index(point)
    name = names[number % len(names)]
    return (name if len(names) > 1 else "."), name, number // len(names)


def rows_until(root: Path, side: str, number: int) -> pa.Table:
    names = [root / side / f"{n:04d}.parquet" for n in range(number + 1)]
    return pa.concat_tables([pq.read_table(name) for name in names])


def without_shed(root: Path, left: pa.Table, about: str) -> pa.Table:
    """The rows that are not among those left out; of which each has to be one of them, once."""
    shed = pa.concat_tables([pq.read_table(path) for path in (root / "shed").glob("*.parquet")])
    numbers = [n for n in shed["left_id"].to_pylist() if n in set(left["left_id"].to_pylist())]
    assert len(set(numbers)) == len(numbers), f"{about}: a row was left out twice"
    parts = 2  # each rounds for itself
    assert abs(len(numbers) - len(left) / 3) <= parts, f"{about}: {len(numbers)} left out"
    return left.filter(pc.invert(pc.is_in(left["left_id"], pa.array(numbers))))


@pytest.mark.parametrize(("way", "point"), CASES)
def test_output_when_a_task_dies_at_a_point_then_equals_the_oracle(
    faulty: Any, tools: Any, way: str, point: str
) -> None:
    root, report = faulty(way)
    about = f"died at {point}, {way}, seed {SEED}"
    told = report[point]
    assert told["fired"], f"{about}: the task did not die"
    restarted = way.startswith("query")
    assert len(told["failures"]) == (1 if restarted else 0), f"{about}: {told['failures']}"
    query = WAYS[way][2]
    spills = query["job"] == "join" and point != "mid-claim"
    assert told["spilled"] > 0 or not spills, f"{about}: nothing was spilled"
    home, algorithm, number = home_of(way, point)
    assert told["shares"] == tools.shares_of(algorithm), about
    left = rows_until(root / home, "left", number)
    right = rows_until(root / home, "right", number if query["job"] == "join" else 1)
    if "shed" in query:
        left = without_shed(root, left, about)
    found = tools.multiset(pq.read_table(root / "results" / f"{point}.parquet"))
    wanted = tools.multiset(tools.expected_join(left, right, algorithm))
    tools.assert_same(found, wanted, f"{algorithm} {about}")
