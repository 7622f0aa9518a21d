"""The benchmark of joins with a staged table, at a tiny size."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail_bench import registry
from dovetail_bench.enrich import kernel as enrich_kernel
from dovetail_bench.enrich.contenders import (
    KEY,
    PIECES,
    DuckDb,
    Joiner,
    Operator,
    Sqlite,
    load_duckdb,
)
from dovetail_bench.enrich.kernel import OPERATORS, RIVALS, Size, make_table, stage
from dovetail_bench.enrich.load import LEAST_BUDGET_BYTES, Stream
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result

ROWS = 3_000


def run() -> Result:
    benchmark = registry.find("enrich-kernel")
    return registry.run(benchmark, benchmark.configure(ROWS, ("2",)), Silent())


def test_run_when_tiny_then_has_every_ratio_and_the_facts_of_every_contender(
    assert_sound: Callable[[Result], None],
) -> None:
    pytest.importorskip("duckdb")
    result = run()
    assert_sound(result)
    settings = {f"{rival}/{Size(ROWS)}" for rival in RIVALS}
    assert set(result.ratios) == settings | {f"duckdb/{name}" for name in OPERATORS}
    assert all(ratio.n == 2 for ratio in result.ratios.values())
    contenders = result.facts["contenders"]
    assert set(contenders) == {*OPERATORS, *RIVALS}
    assert {"meshjoin", "ameshjoin", "ssbj"} <= set(contenders)
    assert all(facts["rows_per_s"] > 0 for facts in contenders.values())
    assert 0 < contenders["seek"]["cache_hit_share"] <= 1
    assert "cache_hit_share" not in contenders["seek-uncached"]
    assert contenders["seek-uncached"]["bytes_read"] > 0
    for name in OPERATORS:
        assert 0 < contenders[name]["peak_budget_bytes"] <= result.facts["budget_bytes"]
    assert set(result.facts["staging_seconds"]) == {"ours", *RIVALS}
    assert all(result.facts["file_bytes"].values())


def test_run_when_a_contender_loses_rows_then_says_so_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sqlite, "join", lambda self, batch: [batch.slice(1)])
    result = run()
    assert not result.ok
    assert any(f.contender == "sqlite" and "rows" in f.error for f in result.failures)
    assert result.ratios[f"sqlite/{Size(ROWS)}"].n == 0
    assert "seek" in result.facts["contenders"]


def test_contenders_when_they_join_a_batch_then_all_find_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    size = Size(ROWS)
    table = make_table(size.rows, seed=3)
    assert sorted(table.column(KEY).to_pylist()) == list(range(ROWS))
    stage(table, tmp_path / "staged")
    batch = Stream(size.rows, size.batch_rows, 3).batch(0)
    joiners: dict[str, Joiner] = {
        name: Operator(name, tmp_path / "staged", tmp_path / name, size.budget_bytes)
        for name in OPERATORS
    }
    load_duckdb([table], tmp_path / "duckdb")
    joiners["duckdb"] = DuckDb(tmp_path / "duckdb", size.budget_bytes)
    joiners["sqlite"] = Sqlite(table, tmp_path / "sqlite", size.budget_bytes)
    at = np.argsort(np.asarray(table.column(KEY)))[np.asarray(batch.column(KEY))]
    wanted = pa.Table.from_batches([table.take(pa.array(at))]).drop_columns([KEY])
    for name, joiner in joiners.items():
        found = pa.Table.from_batches(joiner.join(batch)).sort_by("id")
        assert found.select(["k", "id", "value"]).equals(pa.Table.from_batches([batch])), name
        assert found.select(wanted.column_names).combine_chunks().equals(wanted), name
        joiner.close()


def test_size_when_small_then_batches_and_budget_shrink_but_not_to_nothing() -> None:
    whole = Size(enrich_kernel.ROWS)
    assert (whole.batch_rows, whole.budget_bytes, str(whole)) == (100_000, 64_000_000, "3.5M-64MB")
    assert Size(1).batch_rows == PIECES
    assert Size(1).budget_bytes == LEAST_BUDGET_BYTES
