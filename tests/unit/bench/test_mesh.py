"""The benchmarks of MESHJOIN at a tiny size."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dovetail.semistream.scan.meshjoin import MeshJoin
from dovetail_bench import registry
from dovetail_bench.measure import Measured, Runs
from dovetail_bench.mesh import figures as mesh
from dovetail_bench.mesh import model as mesh_model
from dovetail_bench.mesh import pages as mesh_pages
from dovetail_bench.mesh.figures import skewed
from dovetail_bench.mesh.notes import as_the_paper_counts, beside_the_disk
from dovetail_bench.mesh.pages import Point, points_of, predict, shape_of
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result, Spread
from dovetail_bench.semistream.relation import each_once, stage

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
    monkeypatch.setattr(mesh_pages, "PAGES", 480)
    monkeypatch.setattr(mesh_pages, "READ", (8, 16, 20))


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
        ("mesh-model", "model", {"model/loops=8", "model/loops=12"}),
    ],
)
def test_run_when_tiny_then_has_its_labels(
    name: str, only: str | None, labels: set[str], assert_sound: Callable[[Result], None]
) -> None:
    result = run(name, only)
    assert_sound(result)
    assert labels <= set(result.ratios)
    assert "time" in result.facts


def test_model_when_it_runs_on_a_virtual_disk_too_then_has_the_rate_over_b_beside_its_prediction(
    assert_sound: Callable[[Result], None],
) -> None:
    result = run("mesh-model")
    assert_sound(result)
    assert {"model/loops=8", "b/disk-alone,b=20"} <= set(result.ratios)
    assert {"loops=8,memory=0.05", "meshjoin b=16"} <= set(result.facts["contenders"])
    found = result.facts["on a virtual disk"]
    assert found["table_rows"] == ROWS * 3_500_000 // 400_000
    assert found["the rate over b"]["disk-alone"]["highest at"] == "b=8"
    assert found["the rate over b"]["disk-alone"]["falls with every step from there on"]
    # the model has the same steps, and a window that is as full as it can be
    errors = found["median relative errors of the model"]
    assert max(errors.values()) < 0.15, errors


def test_predict_when_reads_follow_on_each_other_then_only_the_window_counts(
    tmp_path: Path,
) -> None:
    relation = stage(each_once(ROWS), tmp_path / "table", pages=480)
    points = points_of(relation)
    assert [one.pages for one in points] == [8, 16, 20]
    alone = [predict(relation, one, "disk-alone") for one in points]
    windows = [one.window_bytes for one in points]
    rates = [rate / alone[0] for rate in alone]
    assert rates == pytest.approx([one / windows[0] for one in windows], rel=0.1)
    apart = [predict(relation, one, "disk") for one in points]
    assert all(with_seeks < rate for with_seeks, rate in zip(apart, alone, strict=True))


def test_shape_when_the_rate_rises_again_then_says_that_it_does_not_fall() -> None:
    points = [Point(b, 1, b, 10) for b in (1, 2, 3)]
    falling = shape_of(dict(zip(points, (8.0, 4.0, 2.0), strict=True)))
    assert falling["of the highest"] == {"b=1": 1.0, "b=2": 0.5, "b=3": 0.25}
    assert falling["falls with every step from there on"]
    risen = shape_of(dict(zip(points, (8.0, 2.0, 4.0), strict=True)))
    assert not risen["falls with every step from there on"]
    assert shape_of({}) == {}


def test_note_when_the_rate_is_measured_then_says_how_it_changes_with_b() -> None:
    measured = {(8, 0.05): (1.0, 300.0), (12, 0.05): (1.0, 100.0)}
    told = mesh_model._over_pages(mesh_model.Models(measured, measured, {}, ROWS))
    assert "a scan of 8 reads rather than 12, the rate is 3 times" in told
    assert "times" not in mesh_model._over_pages(mesh_model.Models({}, {}, {}, ROWS))


def test_notes_when_reads_are_shorter_then_are_worked_out_from_the_ratios() -> None:
    runs = Runs()
    for name, rate in (("meshjoin memory=1%", 30.0), ("inl memory=1%", 6.0)):
        runs.done[name] = {1: Measured({}, {"rows_per_s disk, the paper's reads": rate})}
    ratios = {
        f"inl/{profile},memory=1%": Spread.of([ratio])
        for profile, ratio in (("disk", 40.0), ("ssd", 4.0), ("ssd-32", 0.5))
    }
    told = beside_the_disk(runs, ratios, ["memory=1%"])
    assert told["ratios over inl on a disk with seeks as short as that"] == {"memory=1%": 5.0}
    left = told["what an SSD leaves of the disk's ratios over inl"]
    assert left == {"ssd": {"memory=1%": 0.1}, "ssd-32": {"memory=1%": 0.0125}}
    assert told["where index lookups are ahead"] == {"inl/ssd-32,memory=1%": 0.5}


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


def test_model_when_the_machine_cannot_be_calibrated_then_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(*arguments: object) -> object:
        raise OSError("no room")

    monkeypatch.setattr(mesh_model, "calibrate", nothing)
    result = run("mesh-model")
    assert [failure.contender for failure in result.failures] == ["calibration"]
    assert result.ratios["model/loops=8"].n == 0
    assert not result.facts["goals"]["median error below 15 %"]["met"]
    assert result.facts["median relative errors"]["fitted"] is not None


def test_skewed_when_drawn_then_has_that_many_rows_and_a_frequent_key() -> None:
    assert skewed(1_000, 1.0, 1).sum() == 1_000
    assert skewed(1_000, 1.0, 1).max() == pytest.approx(1_000 / 7.5, rel=0.4)
    assert skewed(1_000, 0.0, 1).max() < 10


def test_paper_counts_when_memory_is_half_a_percent_then_mesh_is_10_times_ahead() -> None:
    found = as_the_paper_counts(3_500_000, 2_100_000)
    assert found["ratio"] is not None
    assert found["ratio"] > 10
    assert as_the_paper_counts(3_500_000, 1_000) == {"meshjoin": None, "inl": None}
