"""The benchmark of growing tables, at a tiny size."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dovetail_bench import registry
from dovetail_bench.enrich import growth as enrich_growth
from dovetail_bench.enrich.contenders import KEY, DuckDb, Operator, load_duckdb
from dovetail_bench.enrich.growth import OPERATORS, RIVALS, SIZES, Place, Scale, Table
from dovetail_bench.enrich.load import Stream
from dovetail_bench.measure import WrongResultError
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result

ROWS = 4_000


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrich_growth, "WARM_UP_BATCHES", 1)
    monkeypatch.setattr(enrich_growth, "WRITE_ROWS", 1_500)  # so that a table has several parts


def run() -> Result:
    benchmark = registry.find("enrich-growth")
    return registry.run(benchmark, benchmark.configure(ROWS, ("2",)), Silent())


def test_run_when_tiny_then_has_every_ratio_and_the_facts_of_every_contender(
    assert_sound: Callable[[Result], None],
) -> None:
    pytest.importorskip("duckdb")
    result = run()
    assert_sound(result)
    for size in SIZES:
        assert {f"duckdb/{size}", f"duckdb-wait50/{size}", f"duckdb-wait95/{size}"} <= set(
            result.ratios
        )
    grown = {label for label in result.ratios if label.startswith("first-size/")}
    assert {
        "first-size/20M",
        "first-size/20M,seek",
        "first-size/10M,seek-uncached",
        "first-size/3.5M,ssbj",
    } <= grown
    assert not any("1M" in label for label in grown)
    assert all(ratio.n == 2 for ratio in result.ratios.values())
    assert result.facts["row_bytes"] == pytest.approx(120, abs=4)
    contenders = result.facts["contenders"]
    assert set(contenders) == {f"{name} {size}" for name in (*OPERATORS, *RIVALS) for size in SIZES}
    for facts in contenders.values():
        assert facts["rows_per_s"] > 0
        clocks = facts["seconds"]
        assert clocks["wait50"]["min"] <= clocks["wait95"]["max"] <= clocks["batch"]["max"]


def test_run_when_a_contender_loses_rows_then_says_so_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.setattr(DuckDb, "join", lambda self, batch: [batch.slice(1)])
    monkeypatch.setattr(DuckDb, "results", lambda self, batch: [batch.slice(1)])
    result = run()
    assert not result.ok
    assert {f.contender for f in result.failures} == {f"{r} {s}" for r in RIVALS for s in SIZES}
    assert result.ratios["duckdb/20M"].n == 0
    assert result.ratios["first-size/20M"].n == 2


def test_contenders_when_they_join_a_batch_then_all_find_the_rows_of_the_table(
    tmp_path: Path,
) -> None:
    pytest.importorskip("duckdb")
    table, scale = Table(ROWS, 3), Scale(ROWS)
    table.stage(tmp_path / "staged")
    load_duckdb(table.parts(), tmp_path / "duckdb")
    whole = pa.Table.from_batches(list(table.parts()))
    assert whole[KEY].to_pylist() == list(range(ROWS))
    batch = Stream(ROWS, 500, 3).batch(0)
    wanted = whole.take(batch.column(KEY)).drop_columns([KEY]).combine_chunks()
    database = DuckDb(tmp_path / "duckdb", scale.budget_bytes)
    operators = [
        Operator(name, tmp_path / "staged", tmp_path / name, scale.budget_bytes)
        for name in OPERATORS
    ]
    ways = [database.join, database.results, *(one.results for one in operators)]
    for way in ways:
        found = pa.Table.from_batches(list(way(batch))).sort_by("id")
        assert found.select(["k", "id", "value"]).equals(pa.Table.from_batches([batch]))
        assert found.select(wanted.column_names).combine_chunks().equals(wanted)
    for joiner in (database, *operators):
        joiner.close()


def test_join_when_results_come_one_after_the_other_then_waits_are_those_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([100.0, 101.0, 102.0, 109.0, 110.0])
    monkeypatch.setattr(enrich_growth.time, "perf_counter", lambda: next(clock))
    stream = Stream(50, 100, 1)
    parts = [(0, 40), (40, 50), (90, 10)]
    place = Place("1M", stream, {"x": lambda batch: [batch.slice(*part) for part in parts]})
    assert place.join("x", 0) == {"batch": 10.0, "wait50": 2.0, "wait95": 9.0}


def test_join_when_a_result_is_missing_then_raises() -> None:
    place = Place("1M", Stream(50, 100, 1), {"x": lambda batch: [batch.slice(1)]})
    with pytest.raises(WrongResultError, match="99 result rows"):
        place.join("x", 0)


def test_scale_when_whole_then_is_what_is_published() -> None:
    whole = Scale(enrich_growth.ROWS)
    assert (whole.batch_rows, whole.budget_bytes) == (100_000, 64_000_000)
    sizes = [whole.table_rows(size) for size in SIZES]
    assert sizes == [1_000_000, 3_500_000, 10_000_000, 20_000_000]
