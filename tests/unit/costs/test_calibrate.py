"""Calibration: factors for a model. How fast the machine is, no test asks."""

from pathlib import Path

import numpy as np
import pytest

from dovetail.costs import calibrate as calibration
from dovetail.costs.calibrate import Sizes, calibrate, sizes_for
from dovetail.costs.meshjoin import MeshFactors, MeshModel, Workload, best_rate
from dovetail.costs.storage import DISK_7200
from dovetail.costs.trials import Scan, Steps, trial_table
from dovetail.errors import ArgumentError
from dovetail.semistream.table.reading import RELEASE_BYTES

SMALL = Sizes(stream_row_bytes=24, table_row_bytes=40, table_rows=3_000)


@pytest.fixture(scope="module")
def measured() -> MeshFactors:
    return calibrate(SMALL)


def test_calibrate_when_done_then_every_factor_is_above_zero(measured: MeshFactors) -> None:
    assert all(value > 0 for value in vars(measured).values())


def test_calibrate_when_done_then_a_model_can_be_tuned_with_it(measured: MeshFactors) -> None:
    work = Workload(table_rows=10_000, table_row_bytes=40, page_bytes=4096, stream_row_bytes=24)
    assert best_rate(MeshModel(work, measured, DISK_7200), 10**6).rate > 0


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(1, 1, 1, 1),
        Sizes(stream_row_bytes=100_000, table_rows=3),
        Sizes(table_row_bytes=1_000_000),
    ],
)
def test_calibrate_when_sizes_are_unusual_then_still_measures(sizes: Sizes) -> None:
    assert all(value > 0 for value in vars(calibrate(sizes)).values())


def test_calibrate_when_seconds_are_made_of_the_steps_then_finds_what_each_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a clock that only counts steps: calls, chunks, table rows and stream rows."""
    seconds = np.array([1e-4, 5e-5, 2e-9, 4e-7])

    def pretend(scans: list[Scan]) -> None:
        for scan in scans:
            scan.go_on(0.0, least=1)
            scan.seconds[:] = [float(np.dot(scan.steps, seconds))]

    parts = {"receive": 4e-8, "lookup": 6e-8, "output": 8e-8, "expire": 2e-8}
    monkeypatch.setattr(calibration, "_measure", pretend)
    monkeypatch.setattr(Steps, "seconds_per_row", lambda _: dict(parts))
    found = calibrate(Sizes(16, 32, table_rows=10_000))
    assert [found.call, found.chunk, found.probe] == pytest.approx(seconds[:3], rel=1e-3)
    assert {name: getattr(found, name) for name in parts} == pytest.approx(parts)
    assert found.add == pytest.approx(2e-7, rel=1e-3)  # what is left of a row's
    for name in parts:
        parts[name] *= 10  # above all that a row takes
    found = calibrate(Sizes(16, 32, table_rows=10_000))
    assert found.per_stream_row + found.output == pytest.approx(4e-7, rel=1e-3)
    assert found.receive / found.output == pytest.approx(1 / 2)


def test_scan_when_it_goes_on_then_every_packet_meets_the_table_once(tmp_path: Path) -> None:
    """The packets that calibration puts there are what they would be in the middle of a join."""
    with trial_table(tmp_path, 16, 32, 2_048) as table:
        scan = Scan(table, 8, 4, RELEASE_BYTES)
        join = scan._join
        join.check()
        waiting = join.pending()
        scan.go_on(0.0, least=19)
        join.check()
        assert (join.pending(), len(join.packets)) == (waiting, 7)
        calls, chunks, table_rows, rows = scan.steps
        assert (calls, table_rows, rows) == (9, 2_048 / 8, 32)
        assert 0 < chunks <= 8 * 3
        results = sum(join.ctx.counters.rows_out.values())
        assert results == pytest.approx(20 * 32, rel=0.15)  # one for each row that leaves


@pytest.mark.parametrize("name", list(vars(Sizes())))
def test_sizes_when_zero_then_raises(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        Sizes(**{name: 0})


def test_sizes_when_joins_are_alike_then_they_share_a_measurement() -> None:
    assert sizes_for(20, 120, 1 << 20) == sizes_for(15, 140, 60 << 20) == Sizes(16, 128)
    assert sizes_for(1, 1e9, None) == Sizes(8, 1 << 14, release_bytes=16 << 20)
    assert sizes_for(20, 120, 1 << 40).release_bytes == 16 << 20
