"""Calibration: factors for a model, kept in a file. How fast the machine is, no test asks."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from dovetail.costs.calibrate import Calibration, Sizes, calibrate
from dovetail.costs.meshjoin import MeshFactors, MeshModel, Workload, best_rate
from dovetail.costs.storage import DISK_7200
from dovetail.errors import ArgumentError

SMALL = Sizes(stream_row_bytes=24, table_row_bytes=40, batch_rows=64, table_rows=500, page_rows=4)
FACTORS = MeshFactors(expire=1e-8, receive=2e-9, add=1 / 3, probe=0.0, output=5e-8)


@pytest.fixture(scope="module")
def measured() -> Calibration:
    return calibrate(SMALL)


def test_calibrate_when_done_then_every_factor_is_above_zero(measured: Calibration) -> None:
    assert measured.sizes == SMALL
    assert all(value > 0 for value in vars(measured.factors).values())


def test_calibrate_when_done_then_a_model_can_be_tuned_with_it(measured: Calibration) -> None:
    work = Workload(table_rows=10_000, table_row_bytes=40, page_bytes=4096, stream_row_bytes=24)
    assert best_rate(MeshModel(work, measured.factors, DISK_7200), 10**6).rate > 0


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(1, 1, 1, 1, 1),
        Sizes(batch_rows=1000, table_rows=3),
        Sizes(batch_rows=10, table_rows=5_000, page_rows=1),
    ],
)
def test_calibrate_when_sizes_are_unusual_then_still_measures(sizes: Sizes) -> None:
    assert all(value > 0 for value in vars(calibrate(sizes).factors).values())


@pytest.mark.parametrize("name", list(vars(Sizes())))
def test_sizes_when_zero_then_raises(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        Sizes(**{name: 0})


def test_calibration_when_saved_and_loaded_then_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    saved = Calibration(FACTORS, SMALL)
    saved.save(path)
    assert Calibration.load(path) == saved
    Calibration(FACTORS).save(path)
    assert Calibration.load(path) == Calibration(FACTORS, Sizes())


def test_calibration_when_changed_in_place_then_refuses() -> None:
    with pytest.raises(FrozenInstanceError):
        Calibration(FACTORS).factors = FACTORS  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"factors": {}, "sizes": {}}',
        '{"factors": {"expire": -1, "receive": 0, "add": 0, "probe": 0, "output": 0}, "sizes": {}}',
        '{"factors": {"expire": "a", "receive": 0, "add": 0, "probe": 0, "output": 0}, "sizes": 1}',
    ],
)
def test_load_when_the_file_is_something_else_then_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "factors.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"factors\.json is not a calibration"):
        Calibration.load(path)


def test_load_when_the_file_is_missing_then_names_it(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"nothing\.json"):
        Calibration.load(tmp_path / "nothing.json")
