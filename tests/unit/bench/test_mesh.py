"""The benchmarks of MESHJOIN at a tiny size."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dovetail.bench import mesh, mesh_model, registry
from dovetail.bench.mesh import as_the_paper_counts, skewed
from dovetail.bench.mesh_model import fit, loop_features
from dovetail.bench.progress import Silent
from dovetail.bench.result import Result
from dovetail.semistream.meshjoin import MeshJoin

ROWS = 4_800


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and pages: these tests are not about the numbers."""
    monkeypatch.setattr(mesh, "PAGES", 240)
    monkeypatch.setattr(mesh, "LOOPS", 12)
    monkeypatch.setattr(mesh, "_INL_ROWS", 20)
    monkeypatch.setattr(mesh, "MEMORIES", (0.01, 0.10))
    monkeypatch.setattr(mesh_model, "FITTED_LOOPS", (6, 24))
    monkeypatch.setattr(mesh_model, "PREDICTED_LOOPS", (8, 12))


def run(name: str, only: str | None = None) -> Result:
    benchmark = registry.find(name)
    config = benchmark.configure(rows=ROWS, repetitions=("1",), only=only)
    return registry.run(benchmark, config, Silent())


@pytest.mark.parametrize(
    ("name", "only", "labels"),
    [
        (
            "mesh-memory",
            None,
            {
                "inl/disk,memory=1%",
                "inl/here,memory=1%",
                "inl-batched/ssd-32,memory=10%",
                "sqlite/here,memory=10%",
            },
        ),
        ("mesh-skew", "stream", {"inl/disk,skew=0", "inl/object-store,skew=1"}),
        ("mesh-skew", "relation", {"inl/disk,relation-skew=0.1", "inl/here,relation-skew=1"}),
        ("mesh-model", None, {"model/loops=8", "model/loops=12"}),
    ],
)
def test_run_when_tiny_then_has_its_labels(
    name: str, only: str | None, labels: set[str], assert_sound: Callable[[Result], None]
) -> None:
    result = run(name, only)
    assert_sound(result)
    assert labels <= set(result.ratios)
    assert "time" in result.facts


def test_run_when_results_are_missing_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*arguments: object) -> Iterator[object]:
        return iter(())

    monkeypatch.setattr(MeshJoin, "_join", nothing)
    result = run("mesh-memory")
    assert not result.ok
    assert all(failure.contender.startswith("meshjoin") for failure in result.failures)
    assert result.ratios["inl/disk,memory=1%"].n == 0
    assert not result.facts["goals"]["10 times on a disk, at every memory"]["met"]


def test_model_when_nothing_can_be_measured_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*arguments: object) -> Iterator[object]:
        return iter(())

    monkeypatch.setattr(MeshJoin, "_join", nothing)
    result = run("mesh-model")
    assert not result.ok
    assert result.failures
    assert not result.facts["goals"]["median error below 15 %"]["met"]


def test_fit_when_seconds_are_linear_then_finds_the_factors() -> None:
    rows = [loop_features(loops, w, 1_000) for loops in (5, 10, 20) for w in (10.0, 50.0)]
    features = np.array(rows)
    factors = np.array([3.0, 0.01, 0.2, 0.5])
    assert fit(features, features @ factors) == pytest.approx(factors)


def test_skewed_when_drawn_then_has_that_many_rows_and_a_frequent_key() -> None:
    assert skewed(1_000, 1.0, 1).sum() == 1_000
    assert skewed(1_000, 1.0, 1).max() == pytest.approx(1_000 / 7.5, rel=0.4)
    assert skewed(1_000, 0.0, 1).max() < 10


def test_paper_counts_when_memory_is_half_a_percent_then_mesh_is_10_times_ahead() -> None:
    found = as_the_paper_counts(3_500_000, 2_100_000)
    assert found["ratio"] is not None
    assert found["ratio"] > 10
    assert as_the_paper_counts(3_500_000, 1_000) == {"meshjoin": None, "inl": None}
