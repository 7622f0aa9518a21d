"""The choice of `auto`: which algorithm wins where, what rules one out, and how it is kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from dovetail.costs.choice import CANDIDATES, Choice, Recorded, choose
from dovetail.costs.explain_enrich import explain_enrich
from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.predictions import (
    ALIKE,
    Machine,
    PlannedEnrich,
    TableSize,
    partitions_at_once,
    predict,
)
from dovetail.costs.skew import UNIFORM, Skew
from dovetail.costs.storage import DISK_7200, OBJECT_STORE, Storage
from dovetail.semistream import SemiStreamSpec
from dovetail.semistream.table.reading import page_bytes_for

STREAM = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
TABLE = pa.schema([("id", pa.int64()), ("name", pa.string())])
FACTORS = MeshFactors(2e-10, 4e-8, 2e-8, 5e-10, 8e-8, lookup=8e-8, call=1e-4, chunk=5e-5)
HERE = Storage("this machine", 2e-5, 1.5e9)
STORAGES = {one.name: one for one in (HERE, DISK_7200, OBJECT_STORE)}


def planned(
    storage: str, rows: int, memory: int | None, *, row_bytes: int = 100, **more: object
) -> PlannedEnrich:
    share = 1 << 40 if memory is None else memory // 2
    page_bytes = page_bytes_for(share)
    table = TableSize(rows, float(row_bytes), max(1, page_bytes // row_bytes), "as staged")
    plan = PlannedEnrich(
        spec=SemiStreamSpec(STREAM, TABLE, ("id",), ("id",)),
        algorithm="seek",
        asked_algorithm="auto",
        memory_bytes=memory,
        partitions=2,
        asked_partitions=None,
        streaming=True,
        table=table,
        machine=Machine(FACTORS, STORAGES[storage], cores=2),
    )
    return replace(plan, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("storage", "rows", "memory", "expected"),
    [
        # nothing waits for a read here: what counts is how little is done for a row
        ("this machine", 1_000_000, 4_000_000, "seek"),
        ("this machine", 300_000_000, 64_000_000, "seek"),
        ("this machine", 1_000_000, 600_000, "seek"),
        # little memory: a row leaves Seek's window when its page has been read, not after a scan
        ("7200 rpm disk", 300_000_000, 4_000_000, "seek"),
        ("object store", 10_000_000, 4_000_000, "seek"),
        # a scan with enough memory has no cache and no settled rows beside those that wait
        ("object store", 300_000_000, 256_000_000, "ameshjoin"),
        # memory for many rows a page: Seek reads in order too, and skips
        ("7200 rpm disk", 10_000_000, 128_000_000, "seek"),
        ("object store", 300_000_000, 1_000_000_000, "seek"),
        # the whole table in memory
        ("7200 rpm disk", 10_000, 4_000_000, "seek"),
        ("object store", 1_000_000, None, "seek"),
    ],
)
def test_choose_when_storage_and_memory_vary_then_takes_the_fastest(
    storage: str, rows: int, memory: int | None, expected: str
) -> None:
    plan = planned(storage, rows, memory)
    found = choose(plan)
    rates = {one.algorithm: one.rate for one in predict(plan)}
    assert found.algorithm == expected, rates
    assert rates[expected] * ALIKE >= max(rates[name] for name in CANDIDATES), rates
    assert found.predicted.rate == rates[expected]


def test_choose_when_keys_are_skewed_and_seeks_dear_then_the_scan_with_a_cache_wins() -> None:
    plan = planned("object store", 300_000_000, 128_000_000, skew=Skew(1.1))
    assert choose(plan).algorithm == "ssbj", predict(plan)


def test_choose_when_rates_are_close_then_takes_seek() -> None:
    plan = planned("7200 rpm disk", 300_000_000, 64_000_000)
    rates = {one.algorithm: one.rate for one in predict(plan)}
    assert rates["seek"] < max(rates.values()) < ALIKE * rates["seek"], "no near-tie to decide"
    assert choose(plan).algorithm == "seek"
    assert "as fast as ameshjoin" in choose(plan).why


def test_choose_when_the_condition_is_a_band_then_takes_one_that_can() -> None:
    plan = planned("this machine", 1_000_000, 4_000_000)
    found = choose(replace(plan, spec=replace(plan.spec, within=3)))
    assert found.algorithm == "ameshjoin"
    assert found.why == "the fastest that can do it; seek: joins on equal keys only"


def test_choose_when_the_fastest_is_too_late_then_takes_one_that_keeps_the_bound() -> None:
    plan = planned("object store", 300_000_000, 256_000_000)
    assert choose(plan).algorithm == "ameshjoin"
    assert choose(plan).predicted.wait_seconds > 5
    assert choose(replace(plan, latency=5.0)).algorithm == "seek"


def test_choose_when_memory_is_too_small_for_any_then_is_seek_and_says_so() -> None:
    found = choose(planned("this machine", 1_000_000, 100))
    assert found.algorithm == "seek"
    assert found.why == "none can do it here; seek: the budget is too small"


def test_choose_when_ordered_then_counts_on_no_cache() -> None:
    plan = planned("this machine", 1_000_000, 4_000_000, skew=Skew(1.5))
    ordered = replace(plan, spec=replace(plan.spec, ordered=True))
    cached, uncached = ({one.algorithm: one for one in predict(p)} for p in (plan, ordered))
    for name in ("seek", "ssbj"):
        assert uncached[name].rate < cached[name].rate / 1.2, name
    assert uncached["ameshjoin"] == cached["ameshjoin"]


def test_choose_when_one_was_asked_for_then_it_is_that_one() -> None:
    plan = planned("this machine", 1_000_000, 4_000_000)
    asked = replace(plan, algorithm="inl", asked_algorithm="inl")
    assert choose(asked).algorithm == "inl"
    assert choose(asked).why == "as asked"
    small = replace(planned("this machine", 1_000_000, 100), asked_algorithm="seek")
    assert Recorded.of(small).of_a_partition() is None


def test_explain_when_the_choice_is_handed_over_then_shows_it_and_why() -> None:
    plan = planned("object store", 300_000_000, 256_000_000)
    found = choose(plan)
    shown = explain_enrich(replace(plan, algorithm=found.algorithm, why=found.why))
    first, *_ = dict(shown.sections)["algorithm"]
    assert first.startswith("ameshjoin, predicted to be ")
    assert first.endswith("times as fast as seek")


def test_recorded_when_written_as_json_and_read_then_is_the_same() -> None:
    skew = Skew(0.8, 20_000, 0.4)
    kept = Recorded.of(planned("object store", 1_000_000, 600_000, skew=skew))
    assert kept.skew == skew
    facts = json.loads(json.dumps(kept.facts()))
    assert Recorded.read(facts) == kept
    del facts["skew"]  # as it was before it was kept
    assert Recorded.read(facts) == replace(kept, skew=UNIFORM)
    assert kept.at_once == 2
    told = kept.of_a_partition()
    assert told is not None
    assert told["rate"] == kept.choice.predicted.rate / 2
    with pytest.raises((KeyError, TypeError)):
        Recorded.read({"choice": {}})
    assert isinstance(kept.choice, Choice)


def test_predict_when_every_step_is_drained_then_scans_lose_a_scan_and_seek_nothing() -> None:
    plan = planned("this machine", 1_000_000, 4_000_000)
    steady = {one.algorithm: one for one in predict(plan)}
    for seconds in (1e-3, 1e9):
        drained = {one.algorithm: one for one in predict(replace(plan, drain_seconds=seconds))}
        for name in ("seek", "inl"):
            assert drained[name] == steady[name]
        for name in ("meshjoin", "ameshjoin", "ssbj"):
            rows = plan.batch_rows * partitions_at_once(plan)
            longer = rows / drained[name].rate - rows / steady[name].rate
            assert longer == pytest.approx(min(seconds, steady[name].wait_seconds), rel=1e-6)
