"""State on disk and in workers: bounded, and only a cache away from being read again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.spark

SEED = 808


def census(state: Path) -> dict[str, int]:
    """How many files of each kind the fullest partition has."""
    kinds = {"versions": "v*", "outboxes": "*-out.arrows", "segments": "b*.arrows", "tmp": "*.tmp"}
    return {
        kind: max(len(list(folder.glob(pattern))) for folder in state.glob("p*"))
        for kind, pattern in kinds.items()
    }


def test_state_when_thirty_batches_have_run_then_old_files_are_gone(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 500, 3000), files=30)
    bench.run(bench.join())
    progress = bench.progress()
    assert progress.version >= 29
    found = census(bench.state)
    assert found["versions"] <= 2, found
    assert found["outboxes"] == 0, found
    assert found["tmp"] == 0, found
    assert found["segments"] <= 16, found  # runs are merged as they grow, so few are alive
    bench.check(f"thirty batches, seed {SEED}")


def test_worker_cache_when_a_worker_gets_its_partition_again_then_is_used(bench: Any) -> None:
    """Which worker gets which partition is Spark's to say, and they may swap every time."""
    rng = np.random.default_rng(SEED)
    for _ in range(10):
        for side in ("left", "right"):
            bench.keyed(side, rng.integers(0, 200, 1200), files=6)
        bench.run(bench.join(memory="200KB"))
        if any(record["cached"] for record in bench.progress().records()):
            break
    else:
        pytest.fail("no step of ten runs used the cache")
    bench.check(f"with the cache, seed {SEED}")


def test_worker_cache_when_not_used_then_result_is_the_same(bench: Any) -> None:
    """With fewer partitions than cores nothing is kept in the workers."""
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 200, 1200), files=6)
    bench.run(bench.join(memory="100KB", partitions=1))
    records = list(bench.progress().records())
    assert not any(record["cached"] for record in records)
    assert bench.progress().spilled_bytes > 0
    bench.check(f"without the cache, seed {SEED}")
