"""Operators that a worker has kept, and versions that are there already."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dovetail
from dovetail.spark import step
from dovetail.spark.state import prepare

pytestmark = pytest.mark.recovery

SEED = 5


def test_cached_operator_when_another_worker_made_the_next_version_then_is_not_used(
    protocol: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker does batches 0 and 2, another one does batch 1."""
    prepare(tmp_path, 1)
    kept = [None, None]  # by each worker
    for batch, worker in enumerate([0, 1, 0, 0]):
        monkeypatch.setattr(step, "_cached", kept[worker])
        protocol.Partition(tmp_path).run(batch, protocol.rows_of(batch, SEED), 0, keep=True)
        kept[worker] = step._cached
    monkeypatch.setattr(step, "_cached", None)
    records = list(dovetail.progress(tmp_path).records())
    assert [record["cached"] for record in records] == [False, False, False, True]


def test_batch_when_its_version_is_there_then_nothing_is_computed_again(
    protocol: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, 1)
    partition = protocol.Partition(tmp_path)
    outs = [partition.run(batch, protocol.rows_of(batch, SEED), 1) for batch in range(3)]
    assert outs[2]
    computed: list[int] = []
    compute = step.StreamingTask._compute

    def watched(task: Any, batches: Any) -> Any:
        computed.append(task.batch_id)
        return compute(task, batches)

    monkeypatch.setattr(step.StreamingTask, "_compute", watched)
    assert partition.run(2, protocol.rows_of(2, SEED), 7) == outs[2]
    assert computed == []
    partition.run(3, protocol.rows_of(3, SEED), 1)
    assert computed == [3]
