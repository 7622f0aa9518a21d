"""A state directory as a running join would leave it, made without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.costs.choice import Choice, Recorded
from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.predictions import Machine, Prediction
from dovetail.costs.storage import DISK_7200
from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.protocol import Snapshot
from dovetail.spark.endings import Silence
from dovetail.spark.state import FORMAT, IDENTITY, Manifest, PartitionState, Sealed, Totals, prepare
from dovetail.spark.state.chosen import CHOSEN
from dovetail.spark.state.metrics import append_record

KB = 1024
SHARE = 500 * KB
RECORDED = Recorded(
    Choice("seek", "no other can do it here", Prediction("seek", 9e5, 5_000, 0.5, 900, 800)),
    Machine(MeshFactors(0, 0, 0, 0, 0), DISK_7200, cores=2),
    at_once=2,
)
MakeState = Callable[..., Path]


@pytest.fixture
def make_state(tmp_path: Path) -> MakeState:
    """Each call adds a version to every partition: `phase`, and what its deferred work produced."""
    root = tmp_path / "state"
    versions: list[int] = []

    def add(
        phase: str = "arriving",
        produced: str = "arriving",
        partitions: int = 2,
        budget: int | None = SHARE,
        job: str = "join",
        shed: int = 0,
        copies: Sequence[int] = (),
    ) -> Path:
        version = len(versions)
        versions.append(version)
        prepare(root, partitions)
        identity = {
            "format": FORMAT,
            "query": "q",
            "job": "join",
            "algorithm": "xjoin",
            "partitions": partitions,
            "on": [["order_id", "day"], ["ordered", "day"]],
            "within": None,
        }
        if job == "enrich":
            del identity["within"]
            identity |= {"job": job, "algorithm": "seek", "how": "left"}
            (root / CHOSEN).write_text(json.dumps(RECORDED.facts()))
        (root / IDENTITY).write_text(json.dumps(identity))
        for number in range(partitions):
            state = PartitionState(root, number)
            _add_version(state, version, phase, produced, budget, job, shed, copies)
        return root

    return add


def _add_version(
    state: PartitionState, version: int, phase: str, produced: str, budget: int | None, job: str,
    shed: int, copies: Sequence[int],
) -> None:  # fmt: skip
    peaks = {"working": 187 * KB + 512, "rows": 200 * KB, "input": 20 * KB, "catalogue": 5 * KB}
    if job == "enrich":
        peaks = {"working": 125 * KB, "cache": 180 * KB, "window": 200 * KB, "input": 20 * KB}
    totals = Totals(
        rows_in=(1000 * (version + 1), 1001),
        copies=tuple(copies),
        rows_out={"arriving": 700, "reactive": 200, "cleanup": 100},
        flushed_rows=1500,
        flushed_bytes=75 * KB,
        memory_peak={**peaks, "total": 400 * KB},
    )
    if job == "enrich":
        totals = replace(
            totals,
            rows_in=(1000 * (version + 1), 0),
            rows_out={"arriving": 750, "deferred": 250},
            flushed_rows=0,
            flushed_bytes=0,
            bytes_read=1000 * KB,
            rows_cached=400 * (version + 1),
            join_seconds=0.5 * (version + 1),
            rows_shed=shed,
            longest_wait_s=0.75 if shed else 0.0,
        )
    manifest = Manifest(
        version=version,
        partition=state.partition,
        query="q",
        attempt=f"b{version}-x",
        parent=version - 1,
        pending=0 if phase == "idle" else 1234,
        outbox=Sealed("x"),
        snapshot=Snapshot({}, np.empty(0, dtype=BLOCK)),
        files=(),
        phase=phase,
        silence=Silence(),
        totals=totals,
        budget_bytes=None if budget is None else budget * 2,
    )
    state.commit(manifest)
    append_record(
        state.directory,
        {
            "batch": version,
            "partition": state.partition,
            "phase": phase,
            "rows_in": [500, 501] if produced == "arriving" else [0, 0],
            "rows_out": {produced: 300},
            "memory": {**peaks, "total": 390 * KB},
            "memory_peak": 400 * KB,
            "budget": budget,
            "flushed_bytes": 0,
            "bytes_read": 0,
            "pending": manifest.pending,
            "seconds": 0.5,
            "cached": False,
        },
    )
