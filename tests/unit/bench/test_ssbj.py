"""The benchmarks of SSBJ at a tiny size, and what they measure with."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dovetail.costs.storage import Storage
from dovetail.semistream.scan.meshjoin import MeshJoin
from dovetail_bench import registry
from dovetail_bench.measure import Measured, Runs, WrongResultError
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result, significant
from dovetail_bench.semistream import runs as semistream_runs
from dovetail_bench.semistream.relation import (
    Feed,
    Law,
    Listed,
    Relation,
    each_once,
    stage,
    with_repetition,
)
from dovetail_bench.semistream.runs import FACTORS, Tally, opened, pages_for
from dovetail_bench.ssbj import paper as ssbj_paper
from dovetail_bench.ssbj import rate as ssbj_rate
from dovetail_bench.ssbj import setup as ssbj_setup
from dovetail_bench.ssbj import tuning as ssbj_tuning

ROWS = 2_400
LOOPS = 12


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few scans: these tests are not about the numbers."""
    monkeypatch.setattr(ssbj_setup, "WARM_UP_SCANS", 3)
    monkeypatch.setattr(ssbj_setup, "MEASURED_SCANS", 1)
    monkeypatch.setattr(ssbj_tuning, "LOOPS_TRIED", (12, 24))
    monkeypatch.setattr(ssbj_paper, "TIMES", 2)
    monkeypatch.setattr(ssbj_paper, "WINDOWS", (2,))


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Relation:
    return stage(each_once(ROWS), tmp_path_factory.mktemp("ssbj") / "table")


def run(name: str, only: str | None = None, rows: int = ROWS) -> Result:
    benchmark = registry.find(name)
    config = benchmark.configure(rows=rows, repetitions=("1",), only=only)
    return registry.run(benchmark, config, Silent())


@pytest.mark.parametrize(
    ("name", "only", "labels"),
    [
        ("ssbj-rate", "memory", {"meshjoin/memory=1%", "meshjoin/memory=10%"}),
        ("ssbj-rate", "size", {"meshjoin/size=0.2"}),
        ("ssbj-rate", "skew", {"meshjoin/skew=0", "meshjoin/skew=0.5", "meshjoin/skew=1"}),
        ("ssbj-rate", "unique", {"meshjoin/unique,skew=0"}),
        ("ssbj-rate", "budget", {"meshjoin/budget,whole", "meshjoin/budget,pieces"}),
        ("ssbj-rate", "paper", {"meshjoin/paper,memory=1%", "meshjoin/paper,memory=10%"}),
        ("ssbj-memory", "rate", {"meshjoin/rate=25k", "meshjoin/rate=200k"}),
        ("ssbj-memory", "size", {"meshjoin/size=4"}),
        ("ssbj-memory", "unique", {"meshjoin/unique,rate=200k"}),
        ("ssbj-memory", "paper", {"meshjoin/paper,rate=25k", "meshjoin/paper,window=2R"}),
        ("ssbj-factor", None, {"factor/sf=0.25", "factor/sf=4"}),
        ("ssbj-buffer", None, {"buffer/loops=12"}),
        ("ssbj-model", None, {"model/meshjoin,skew=0,rate=50k", "model/ssbj,skew=1,rate=100k"}),
    ],
)
def test_run_when_tiny_then_has_its_labels(
    name: str, only: str | None, labels: set[str], assert_sound: Callable[[Result], None]
) -> None:
    result = run(name, only)
    assert_sound(result)
    assert labels <= set(result.ratios)
    assert "time" in result.facts


def test_rate_when_all_groups_run_then_skew_1_is_the_point_that_memory_has_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssbj_rate, "MEMORIES", (0.10,))
    monkeypatch.setattr(ssbj_rate, "SKEWS", (0.0, 1.0))
    monkeypatch.setattr(ssbj_rate, "SIZES", ())
    result = run("ssbj-rate")
    assert result.ok, result.failures
    assert result.ratios["meshjoin/skew=1"] == result.ratios["meshjoin/memory=10%"]


def test_run_when_results_are_missing_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*arguments: object) -> Iterator[object]:
        return iter(())

    monkeypatch.setattr(MeshJoin, "_join", nothing)
    result = run("ssbj-memory", "unique")
    assert not result.ok
    assert any("result rows" in failure.error for failure in result.failures)
    assert result.ratios["meshjoin/unique,rate=50k"].n == 0


def test_tpch_when_there_is_no_generator_then_fails_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dovetail_bench.ssbj.tpch.sys.executable", "/nowhere/python")
    monkeypatch.setattr("dovetail_bench.ssbj.tpch.shutil.which", lambda name: None)
    result = run("ssbj-tpch", rows=1_500)
    assert not result.ok
    assert "pip install tpchgen-cli" in result.failures[0].error


def test_tpch_when_there_is_a_generator_then_has_its_labels() -> None:
    if not Path(sys.executable).with_name("tpchgen-cli").exists():
        pytest.skip("tpchgen-cli is not installed")
    result = run("ssbj-tpch", rows=1_500)
    assert result.ok, result.failures
    assert set(result.ratios) == {f"meshjoin/memory={share}%" for share in (1, 5, 10)}


def test_paper_memory_when_a_scan_has_given_rows_then_is_near_what_the_inequality_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssbj_setup, "WARM_UP_SCANS", 9)
    monkeypatch.setattr(ssbj_setup, "MEASURED_SCANS", 3)
    monkeypatch.setattr(ssbj_paper, "RATES", ())
    result = run("ssbj-memory", "paper")
    assert result.ok, result.failures
    found = result.facts["contenders"]
    mesh, ours = (found[f"{name} paper,window=2R"] for name in ("meshjoin", "ssbj"))
    rows = 2 * 2 * ROWS
    assert mesh["rows_in_a_scan"] == ours["rows_in_a_scan"] == rows
    assert mesh["memory_bytes_by_equation_1"] == significant(24.0 * rows)
    waiting = ours["window_rows_of_table"] * 2 * ROWS
    assert ours["cached_rows"] > 0
    assert ours["memory_bytes_by_equation_1"] == pytest.approx(
        24 * waiting + 120 * ours["cached_rows"], rel=1e-3
    )
    expected = result.facts["group paper, by the inequality for the rows that came"]
    median = result.ratios["meshjoin/paper,window=2R"].median
    assert median == pytest.approx(expected["meshjoin/paper,window=2R"], rel=0.25)


def test_best_factor_when_rates_are_measured_then_is_that_of_the_highest() -> None:
    runs = Runs()
    for factor, rate in ((0.5, 3.0), (1.0, 2.0), (2.0, 1.0)):
        runs.done[f"ssbj sf={factor:g}"] = {1: Measured({}, {"rows_per_virtual_s": rate})}
    assert ssbj_tuning.best_factor(runs, (0.5, 1.0, 2.0, 4.0)) == "sf=0.5"
    assert ssbj_tuning.best_factor(Runs(), (1.0,)) is None


def test_break_even_when_the_factor_grows_then_takes_more_rows() -> None:
    counts = [ssbj_tuning.break_even(factor) for factor in (0.25, 1.0, 4.0)]
    assert counts == sorted(set(counts))


# -- what it measures with ----------------------------------------------------------------------


def test_tally_when_turned_into_seconds_then_has_seeks_bytes_and_steps(relation: Relation) -> None:
    tally = Tally(iterations=1, rows=10, cached=4, results=8, scanned=100, seeks=2)
    storage = Storage("test", 1.0, 128.0)
    steps = 10 * FACTORS.receive + 8 * FACTORS.output
    steps += 6 * (FACTORS.add + FACTORS.expire) + 104 * FACTORS.probe
    assert tally.seconds(storage, relation) == pytest.approx(2 + 100 + steps)
    looked_up = 10 * (FACTORS.receive + FACTORS.probe) + 8 * FACTORS.output
    assert tally.seconds(storage, relation, scans=False) == pytest.approx(102 + looked_up)


def test_scan_when_it_has_12_iterations_then_reads_every_row_with_12_seeks(
    relation: Relation,
) -> None:
    law = Law(ROWS, 1.0, 1)
    with opened("meshjoin", relation, law, [1], b=pages_for(relation, LOOPS)) as run:
        run.scan(lambda one: 5)
        tally = run.scan(lambda one: 5)
        assert (tally.iterations, tally.rows) == (LOOPS, 5 * LOOPS)
        assert (tally.scanned, tally.seeks) == (ROWS, LOOPS)
        run.drain()


def test_filling_when_steady_then_uses_the_memory_and_no_more(relation: Relation) -> None:
    memory = 100_000
    for algorithm in ("meshjoin", "ssbj"):
        law = Law(ROWS, 0.0, 1)
        with opened(algorithm, relation, law, [1], b=pages_for(relation, LOOPS)) as run:
            run.scan(lambda one: one.filling(memory, LOOPS))
            assert 0.8 * memory < run.held_bytes <= memory
            run.drain()


def test_until_waiting_when_values_are_cached_then_counts_only_rows_that_miss(
    relation: Relation,
) -> None:
    with opened("ssbj", relation, Law(ROWS, 1.0, 1), [1], b=pages_for(relation, LOOPS)) as run:
        for _ in range(6):
            run.scan(lambda one: 300)
        count = run.until_waiting(50)
        assert count > 50
        before = run.tally
        run.push(count)
        done = run.tally - before
        assert done.rows - done.cached == 50
        run.drain()


def test_drain_when_results_are_missing_then_raises(relation: Relation) -> None:
    with opened("meshjoin", relation, Law(ROWS, 0.0, 1), [1]) as run:
        run.push(20)
        run.feed.expected += 1
        with pytest.raises(WrongResultError):
            run.drain()


def test_feed_when_looked_at_then_gives_the_same_rows(relation: Relation) -> None:
    feed = Feed(relation, Listed(np.arange(7)), [1])
    seen = feed.peek(10).copy()
    taken = feed.take(10)
    codes, _ = relation.spec.encode(0, taken)
    assert codes.tolist() == seen.tolist()
    assert feed.expected == 10
    assert taken.nbytes == 10 * semistream_runs.STREAM_ROW_BYTES


def test_with_repetition_when_drawn_then_a_third_of_the_keys_has_no_row() -> None:
    matches = with_repetition(10_000, 1)
    assert matches.sum() == 10_000
    assert np.mean(matches == 0) == pytest.approx(0.37, abs=0.02)


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_law_when_rows_are_drawn_then_they_follow_it(skew: float) -> None:
    law = Law(100, skew, 1)
    counts = np.bincount(law.draw(200_000, np.random.default_rng(1)), minlength=100) / 200_000
    assert law.probability.sum() == pytest.approx(1)
    assert np.abs(counts - law.probability).max() < 0.005
