"""The benchmark of Seek over the arrival rate, at a tiny size."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dovetail_bench import registry
from dovetail_bench.mesh import load as mesh_load
from dovetail_bench.mesh.load import WAYS, _claims, serve
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result, Spread
from dovetail_bench.semistream.relation import Law, each_once, stage
from dovetail_bench.semistream.runs import STORAGES, opened

ROWS = 4_800


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and pages: these tests are not about the numbers."""
    monkeypatch.setattr(mesh_load, "LOOPS", 12)
    monkeypatch.setattr(mesh_load, "RATES", (1, 2_000))
    monkeypatch.setattr(mesh_load, "_LEAST_ROWS", 20)
    monkeypatch.setattr(mesh_load, "_MOST_ROWS", 500)


def test_run_when_tiny_then_has_its_labels_and_charts(
    assert_sound: Callable[[Result], None],
) -> None:
    benchmark = registry.find("mesh-load")
    config = benchmark.configure(rows=ROWS, repetitions=("2",))
    result = registry.run(benchmark, config, Silent())
    assert_sound(result)
    labels = {"inl/rate=1", "meshjoin/rate=2000", "seek-uncached/rate=1", "inl-wait/rate=2000"}
    assert labels <= set(result.ratios)
    assert result.ratios["meshjoin/rate=1"].median is not None
    assert result.ratios["meshjoin/rate=1"].median > 2, "a lookup waits for no scan"
    aims = result.facts["goals"]
    assert aims["level with an index lookup when quiet"]["reached"] == pytest.approx(
        result.ratios["inl/rate=1"].median, rel=1e-3
    )
    borne = next(value for name, value in result.facts.items() if name.startswith("rows a second"))
    work = result.facts["contenders"]["inl rate=2000"]["seconds"]["work"]["median"]
    assert borne["inl"] == pytest.approx(1 / work, rel=1e-2)
    assert [list(chart["lines"]) for chart in result.facts["charts"]] == [list(WAYS)] * 2


def test_claims_when_seek_is_behind_then_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_load, "RATES", (1, 10, 100))
    ratios = {
        "inl/rate=1": Spread.of([0.99]),
        "better-of-both-wait/rate=10": Spread.of([1.0]),
        "meshjoin/rate=100": Spread.of([0.5]),
    }
    assert [one["met"] for one in _claims(ratios).values()] == [True, False, False]
    ratios["better-of-both-wait/rate=10"] = Spread.of([1.2])
    assert [one["met"] for one in _claims(ratios).values()] == [True, False, True]


@pytest.mark.parametrize("name", list(WAYS))
def test_serve_when_rows_come_far_apart_then_each_waits_for_its_own_work(
    name: str, tmp_path: Path
) -> None:
    relation = stage(each_once(ROWS), tmp_path / "table", pages=240)
    way, law = WAYS[name], Law(ROWS, 0.5, 1)
    arrivals = np.arange(1.0, 11.0) * 1_000
    with opened(name, relation, law, [1], 400_000, **way.options(relation)) as run:
        found = serve(run, way, arrivals, relation)
        assert run.tally.results == 10
        run.drain()
    assert 0 < found.seconds["wait"] <= found.seconds["work"] + 1e-9
    assert found.facts["busy_share"] < 0.01
    if name != "meshjoin":  # which has more than the rows' own pages to read
        seek = STORAGES["disk"].seek_seconds
        assert found.seconds["work"] == pytest.approx(seek * found.facts["seeks_per_row"], rel=0.1)


def test_serve_when_all_rows_come_at_once_then_work_limits_the_wait(tmp_path: Path) -> None:
    relation = stage(each_once(ROWS), tmp_path / "table", pages=240)
    law = Law(ROWS, 0.5, 1)
    found = {}
    for name, way in WAYS.items():
        with opened(name, relation, law, [1], 400_000, **way.options(relation)) as run:
            found[name] = serve(run, way, np.full(400, 1.0), relation)
            run.drain()
        assert found[name].seconds["wait"] <= 400 * found[name].seconds["work"] + 1e-9
    # both read every leaf or page once, in order
    assert found["seek"].seconds["wait"] <= found["inl"].seconds["wait"]
    assert found["inl"].seconds["wait"] < found["meshjoin"].seconds["wait"]


def test_reads_when_the_next_is_within_reach_then_what_lies_between_passes(tmp_path: Path) -> None:
    relation = stage(each_once(ROWS), tmp_path / "table", pages=240)
    with opened("seek", relation, Law(ROWS, 0.5, 1), [1], 400_000) as run:
        table = run.table
        table.reach = 100
        reads = [(0, 20), (20, 40), (140, 160), (261, 280), (0, 20)]
        counts = []
        for begin, end in reads:
            table.ranges(np.array([begin]), np.array([end]))
            counts.append((table.seeks, table.scanned))
    assert counts == [(1, 20), (1, 40), (1, 160), (2, 179), (3, 199)]
