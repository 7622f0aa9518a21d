"""Tasks that die at every point of the commit protocol, in a real query with a Parquet sink.

Two ways to go on: Spark tries the task again, or the query fails and is started again.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.spark.faults import POINTS

pytestmark = pytest.mark.recovery

SEED = 1_001
MASTERS = {"task is tried again": "local[2,4]", "query is started again": "local[2,1]"}


@pytest.fixture(scope="module", params=MASTERS)
def faulty(request: Any, tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One process that goes through all points, a few new rows for each."""
    job = tools.job_at(tmp_path_factory.mktemp("faults"))
    rng = np.random.default_rng(SEED)
    for number, _ in enumerate(POINTS):
        for side in tools.sides:
            job.write(f"pool/{side}", tools.make_rows(side, rng, 420, 250, number * 1000), 1)
    armed = job.root / "armed"
    armed.mkdir()
    environment = {"DOVETAIL_FAULT": str(armed)}
    process = job.start("faults", environment, master=MASTERS[request.param], memory="180KB")
    try:
        code = process.wait(timeout=400)
    finally:
        tools.kill_group(process)
    assert code == 0, job.log_tail()
    return request.param, job.root, json.loads((job.root / "report.json").read_text())


def rows_until(root: Path, side: str, number: int) -> pa.Table:
    names = [root / side / f"{n:04d}.parquet" for n in range(number + 1)]
    return pa.concat_tables([pq.read_table(name) for name in names])


@pytest.mark.parametrize("point", POINTS)
def test_output_when_a_task_dies_at_a_point_then_equals_the_oracle(
    faulty: Any, tools: Any, point: str
) -> None:
    way, root, report = faulty
    about = f"died at {point}, {way}, seed {SEED}"
    told = report[point]
    assert told["fired"], f"{about}: the task did not die"
    restarted = way == "query is started again"
    assert len(told["failures"]) == (1 if restarted else 0), f"{about}: {told['failures']}"
    assert told["spilled"] > 0 or point == POINTS[0], f"{about}: nothing was spilled"
    left, right = (rows_until(root, side, POINTS.index(point)) for side in tools.sides)
    found = tools.multiset(pq.read_table(root / "results" / f"{point}.parquet"))
    tools.assert_same(found, tools.multiset(tools.expected_join(left, right)), about)
