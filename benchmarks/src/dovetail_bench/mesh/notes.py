"""What `mesh-memory` says of its figures: worked out from what was measured, and by cost models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dovetail.costs import inl as inl_costs
from dovetail.costs.inl import InlModel
from dovetail.costs.meshjoin import MeshModel, Workload, best_rate
from dovetail.errors import MemoryBudgetError
from dovetail_bench.measure import Runs
from dovetail_bench.mesh.model import MESH
from dovetail_bench.result import Spread, significant
from dovetail_bench.semistream.relation import STREAM_ROW_BYTES, TABLE_ROW_BYTES
from dovetail_bench.semistream.runs import FACTORS, STORAGES

INL = "inl"
PAPER_INL_RATE = 274  #: rows a second of the paper's index nested loops at 0.5 %
PAPER_DISK = "disk, the paper's reads"
PAPER_STORAGE = replace(STORAGES["disk"], seek_seconds=1 / PAPER_INL_RATE)


def beside_the_disk(
    runs: Runs, ratios: Mapping[str, Spread], settings: Sequence[str]
) -> dict[str, Any]:
    """What is left of the disk's ratios where reads are as long as the paper's, or shorter."""
    seek = STORAGES["disk"].seek_seconds
    nearer = {
        one: runs.rate_ratio(f"{INL} {one}", f"{MESH} {one}", f"rows_per_s {PAPER_DISK}").median
        for one in settings
    }
    left: dict[str, dict[str, float | None]] = {}
    for profile in ("ssd", "ssd-32"):
        found = {one: ratios[f"{INL}/{profile},{one}"].median for one in settings}
        disk = {one: ratios[f"{INL}/disk,{one}"].median for one in settings}
        left[profile] = {
            one: significant(ratio / whole)
            for one, ratio in found.items()
            if ratio is not None and (whole := disk[one]) is not None
        }
    return {
        "its INL": f"{PAPER_INL_RATE} rows/s are {1e3 / PAPER_INL_RATE:.1f} ms a row; a seek of "
        f"this profile, {1e3 * seek:.1f} ms, is an average over a whole disk, and its table lay "
        "together",
        "ratios over inl on a disk with seeks as short as that": {
            one: significant(ratio) for one, ratio in nearer.items()
        },
        "today": "MESHJOIN saves seeks, and is worth less the shorter they are",
        "what an SSD leaves of the disk's ratios over inl": left,
        "where index lookups are ahead": {
            label: significant(spread.median)
            for label, spread in ratios.items()
            if spread.median is not None and spread.median < 1
        },
    }


def as_the_paper_counts(rows: int, memory: int) -> dict[str, float | None]:
    """Rates by the cost models with the papers' bytes: whole pages of 8 KB, 24 a waiting row."""
    workload = Workload(
        table_rows=rows,
        table_row_bytes=TABLE_ROW_BYTES,
        page_bytes=1 << 13,
        stream_row_bytes=STREAM_ROW_BYTES,
        results_per_row=1.0,
        pointer_bytes=4,
    )
    disk = STORAGES["disk"]
    pages = workload.table_pages
    uniform = np.full(pages, 1 / pages)
    try:
        mesh = best_rate(MeshModel(workload, FACTORS, disk), memory).rate
        inl = inl_costs.best_rate(InlModel(workload, FACTORS, disk, uniform), memory).rate
    except MemoryBudgetError:
        return {MESH: None, INL: None}
    found = {MESH: mesh, INL: inl, "ratio": mesh / inl}
    return {name: significant(value) for name, value in found.items()}
