"""The shedding benchmark at a tiny size."""

from pathlib import Path

import numpy as np
import pytest

from dovetail.semistream.shedding import SHEDDERS, Frequencies
from dovetail_bench import registry
from dovetail_bench.mesh import shedding as mesh_shedding
from dovetail_bench.mesh.shedding import (
    OVERLOADS,
    RELATION_SKEWS,
    Setting,
    W,
    make_full_relation,
    make_relation,
    make_stream,
    results_kept,
    upper_ends,
)
from dovetail_bench.progress import Silent
from dovetail_bench.report import write_report
from dovetail_bench.result import Result

STRATEGIES = {*SHEDDERS, "optimum"}


def run(only: str | None = None, rows: int = 200) -> Result:
    benchmark = registry.find("mesh-shedding")
    config = benchmark.configure(rows=rows, repetitions=("2",), only=only)
    return registry.run(benchmark, config, Silent())


def test_run_when_tiny_then_has_every_setting_and_no_share_above_the_optimum(
    tmp_path: Path,
) -> None:
    result = run()
    assert result.ok, result.failures
    assert len(result.ratios) == 3 * len(RELATION_SKEWS) * len(OVERLOADS)
    assert {"optimum/z=0.5,rho=2", "optimum/uniform,z=1,rho=1.1"} <= set(result.ratios)
    for label, ratio in result.ratios.items():
        assert ratio.n == 2, label
        assert ratio.min is not None, label
        assert 0.5 < ratio.min <= 1, label
        assert ratio.max is not None, label
        assert ratio.max <= 1, label
    for setting, shares in result.facts["shares"].items():
        assert set(shares) == STRATEGIES | {"rows with a match"}
        assert all(shares["topw"] >= shares[name] for name in ("keep", "sample", "cluster")), (
            setting
        )
        assert 0 < shares["topw"] <= shares["optimum"] <= 1, setting
    assert len(result.facts["goals"]) == 2
    written = write_report([Result.from_json(result.to_json(), "here")], tmp_path)
    assert all(path.stat().st_size for path in written)


def test_run_when_one_group_is_asked_for_then_has_only_that() -> None:
    result = run("full", rows=80)
    assert result.ok, result.failures
    assert len(result.ratios) == len(RELATION_SKEWS) * len(OVERLOADS)
    shares = result.facts["shares"].values()
    assert all(one["rows with a match"] == 1 for one in shares)


def test_run_when_a_strategy_beats_the_optimum_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*arguments: object) -> int:
        return 1 << 40

    monkeypatch.setattr(mesh_shedding, "results_kept", too_much)
    result = run("full", rows=40)
    assert not result.ok
    assert "the most there are" in result.failures[0].error


def test_results_kept_when_keys_are_unique_then_is_w_in_every_interval() -> None:
    rng = np.random.default_rng(1)
    codes = np.arange(10 * 2 * W)
    found = results_kept(
        "keep", codes, 2 * W, Frequencies(*np.unique(codes, return_counts=True)), rng
    )
    assert found == 10 * W


def test_relations_when_skewed_then_frequencies_follow_the_law() -> None:
    keys = np.arange(10_000)
    drawn = make_relation(10_000, 1.0, np.random.default_rng(2)).of(keys)
    full = make_full_relation(10_000, 1.0).of(keys)
    assert drawn.sum() == 10_000
    assert full.min() == 1
    harmonic = (1 / np.arange(1, 10_001)).sum()
    assert full[0] == round(10_000 / harmonic)
    assert drawn[0] == pytest.approx(10_000 / harmonic, rel=0.15)
    assert drawn[:10].sum() == pytest.approx(full[:10].sum(), rel=0.1)


@pytest.mark.parametrize(("skew", "share"), [(0.0, 0.25), (0.5, 0.5)])
def test_stream_when_drawn_then_has_the_skew(skew: float, share: float) -> None:
    codes = make_stream(20_000, upper_ends(10_000, skew), np.random.default_rng(3))
    assert codes.min() >= 0
    assert codes.max() < 10_000
    assert np.mean(codes < 2_500) == pytest.approx(share, abs=0.02)


def test_intervals_when_rho_is_any_of_the_settings_then_are_whole_rows() -> None:
    for overload in OVERLOADS:
        assert Setting("zipf", 0.5, overload).c_loop == pytest.approx(overload * W)
