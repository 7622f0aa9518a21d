"""Bounds for a row's wait: what they ask of a scan, and which of them cannot be kept."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dovetail.costs.explain_enrich import explain_enrich
from dovetail.costs.latency import SCANS, least_wait, pages_within
from dovetail.costs.predictions import PlannedEnrich, Share, TableSize
from dovetail.costs.storage import DISK_7200
from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.semistream.overload import Shedding
from support.plans import planned

PLAN = planned(
    algorithm="meshjoin",
    asked_algorithm="meshjoin",
    table=TableSize(20_000_000, 48.0, 600, "as staged, v000001"),
)


def told_least(plan: PlannedEnrich) -> float:
    """The best figure, from the error for a bound that nobody could keep."""
    with pytest.raises(ArgumentError) as raised:
        pages_within(plan, 1e-9)
    found = re.search(r"waits ([\d.e-]+) s ", str(raised.value))
    assert found, str(raised.value)
    return float(found[1])


def exhaustive_least(plan: PlannedEnrich) -> float:
    """One row a batch, with every number of pages there is."""
    model = Share(plan).mesh
    pages = np.arange(1, model.workload.table_pages + 1, dtype=float)
    fits = model.memory_bytes(np.ones_like(pages), pages) <= Share(plan).room
    return float(model.wait_seconds(np.ones_like(pages), pages)[fits].min())


@pytest.mark.parametrize("algorithm", SCANS)
def test_pages_when_the_bound_can_be_kept_then_a_turn_of_such_steps_ends_in_time(
    algorithm: str,
) -> None:
    plan = replace(PLAN, algorithm=algorithm)
    model = Share(plan).mesh
    for seconds in (0.5, 1.0, 5.0, 60.0):
        pages = pages_within(plan, seconds)
        assert 1 <= pages <= model.workload.table_pages
        assert model.wait_seconds(1.0, float(pages)) <= seconds


def test_error_when_the_bound_is_too_tight_then_names_the_best_figure() -> None:
    assert told_least(PLAN) == pytest.approx(exhaustive_least(PLAN), rel=0.01)
    just = 1.02 * told_least(PLAN)
    assert pages_within(PLAN, just) >= 1
    with pytest.raises(ArgumentError, match="cannot be kept"):
        pages_within(PLAN, 0.97 * told_least(PLAN))


def test_error_when_partitions_take_turns_then_the_best_figure_is_as_much_longer() -> None:
    """Four partitions of twice the table are the same two partitions, one after the other."""
    more = replace(PLAN, partitions=4, memory_bytes=8_000_000)
    more = replace(more, table=replace(PLAN.table, rows=2 * PLAN.table.rows))
    assert told_least(more) == pytest.approx(2 * told_least(PLAN), rel=0.01)


def test_pages_when_rows_are_settled_at_once_then_there_is_no_scan() -> None:
    for algorithm in ("seek", "seek-uncached", "inl"):
        assert pages_within(replace(PLAN, algorithm=algorithm), 1.0) == 0


def test_error_when_storage_is_slower_than_the_bound_then_seek_is_refused_too() -> None:
    plan = replace(PLAN, algorithm="seek")
    slow = replace(plan, machine=replace(plan.machine, storage=DISK_7200))
    assert told_least(slow) > 2 * DISK_7200.seek_seconds
    pages_within(slow, 1.0)


def test_least_wait_when_not_a_row_fits_then_says_how_much_memory_would_do() -> None:
    with pytest.raises(MemoryBudgetError, match="too little"):
        least_wait(Share(PLAN).mesh, 100)


def test_explanation_when_latency_and_shedding_are_asked_for_then_tells_of_both() -> None:
    plan = replace(PLAN, latency=5.0, pages=77, shedding=Shedding("topw"))
    text = str(explain_enrich(plan))
    assert "a row is to be settled within 5 s" in text
    assert "77 pages" in text
    assert "topw: those with the most results" in text
    assert "shed_to= keeps them" in text
    assert max(map(len, text.splitlines())) <= 100
