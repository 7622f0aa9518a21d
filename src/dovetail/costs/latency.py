"""Latency bounds: whether they can be kept, and the pages that a step must scan for them.

A scan settles a row after a whole turn, so the bound decides how many pages a step reads: the
settings of MESHJOIN with the highest rate among those that keep it (`meshjoin.best_rate`). The disk
phase of SSBJ is MESHJOIN's, and rows that it finds cached do not wait. The other algorithms settle
rows within the step that takes them in, so for them the bound is a question of one step only.

The least wait is that of one row a batch. What Spark itself takes for a micro-batch comes on top of
it, and is known only once it runs; so a bound that is refused here cannot be kept, and one that is
not refused is kept as far as the machine can.
"""

import numpy as np

from dovetail.costs import meshjoin, seek
from dovetail.costs.meshjoin import MeshModel
from dovetail.costs.predictions import PlannedEnrich, Share, duration
from dovetail.errors import ArgumentError, MemoryBudgetError

SCANS = ("meshjoin", "ameshjoin", "ssbj")


def pages_within(plan: PlannedEnrich, seconds: float) -> int:
    """The pages that a step of a partition scans so that no row waits longer; 0 without a scan.

    Raises `ArgumentError`, with the best figure there is, if the bound cannot be kept.
    """
    share = Share(plan)
    turns = share.turns
    if plan.algorithm not in SCANS:
        _check(plan, seconds, turns * _least_seek_wait(share))
        return 0
    _check(plan, seconds, turns * least_wait(share.mesh, share.room))
    return meshjoin.best_rate(share.mesh, share.room, seconds / turns).pages


def least_wait(model: MeshModel, memory_bytes: float) -> float:
    """The shortest wait that any settings inside a budget lead to."""
    pages = model.workload.page_choices()
    one = np.ones_like(pages)
    waits = model.wait_seconds(one, pages)[model.memory_bytes(one, pages) <= memory_bytes]
    if not len(waits):
        # says what would do
        meshjoin.best_rate(model, memory_bytes)
        raise MemoryBudgetError("the budget is too small for one row a batch; raise memory=")
    return float(waits.min())


def _least_seek_wait(share: Share) -> float:
    """One row, no cache: two reads, of the codes of a page and of the row."""
    model = seek.SeekModel(
        table=seek.SeekTable(share.rows, share.fetched, share.plan.table.page_rows),
        stream=share.stream,
        stream_row_bytes=share.stream_bytes,
        factors=share.plan.machine.factors,
        storage=share.storage,
    )
    return model.plan(1, 0).wait_seconds


def _check(plan: PlannedEnrich, seconds: float, least: float) -> None:
    if seconds < least:
        raise ArgumentError(
            f"latency={seconds:g} seconds cannot be kept: with algorithm={plan.algorithm!r} a row "
            f"waits {least:.3g} s ({duration(least)}) or longer here, Spark's own time left out. "
            "Ask for more, take another algorithm ('seek' settles rows at once), more partitions "
            "and cores, or faster storage."
        )
