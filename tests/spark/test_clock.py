"""The clock ticks while work is pending, and only then."""

from typing import Any

import numpy as np
import pytest

from support.depth import only_full

pytestmark = pytest.mark.spark


def quiet_for(query: Any, seconds: float) -> int:
    """How many more micro-batches ran in a while."""
    before = query.lastProgress["batchId"]
    query.awaitTermination(seconds)
    assert query.exception() is None
    return query.lastProgress["batchId"] - before


@pytest.mark.parametrize("trigger", [{}, *only_full({"processingTime": "200 milliseconds"})])
def test_stream_when_silent_then_works_off_what_is_pending_and_comes_to_rest(
    bench: Any, trigger: dict[str, str]
) -> None:
    seed = 5
    rng = np.random.default_rng(seed)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 150, 1500), files=1)
    with bench.running(bench.join(memory="200KB", slice_ms=20), **trigger) as query:
        for more in (True, False):  # comes to rest again after more rows
            query.processAllAvailable()
            progress = bench.progress()
            assert progress.pending_rows == 0
            assert progress.spilled_bytes > 0
            assert progress.rows_out.get("cleanup", 0) > 0
            assert quiet_for(query, 2.5) == 0, "micro-batches ran although nothing was pending"
            bench.check(f"silent stream, {trigger}, seed {seed}")
            if more:
                for side in ("left", "right"):
                    bench.keyed(side, rng.integers(0, 150, 400), files=1)
        ticks = [record for record in progress.records() if not any(record["rows_in"])]
        assert ticks, "no step worked while the stream was silent"


def test_ticks_when_slices_are_short_then_are_several_and_wake_only_who_has_work(
    bench: Any,
) -> None:
    """One partition has all the rows; ticks leave the other one alone."""
    for side in ("left", "right"):
        bench.keyed(side, np.full(260, 3), text=400, files=1)
    bench.run(bench.join(memory="200KB", slice_ms=1))
    records = list(bench.progress().records())
    ticks = [record for record in records if not any(record["rows_in"])]
    assert len(ticks) > 1, records
    assert {record["partition"] for record in ticks} == {records[0]["partition"]}
    assert ticks[-1]["pending"] == 0
    bench.check("one busy partition")
