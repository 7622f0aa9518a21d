"""`dovetail top` reads a state directory, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dovetail.cli import top
from dovetail.cli.app import app
from dovetail.spark.state import prepare
from dovetail.spark.state.metrics import progress

MakeState = Callable[..., Path]
RUNNER = CliRunner(env={"COLUMNS": "120", "LINES": "40", "NO_COLOR": "1"})


def drawn(state: Path, height: int = 40) -> str:
    console = Console(width=120, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(top.frame(progress(state), height, time.time()))
    return capture.get()


def test_top_when_asked_once_then_prints_one_frame(make_state: MakeState) -> None:
    make_state()
    state = make_state("deferred", "cleanup")
    result = RUNNER.invoke(app, ["top", str(state), "--once"])
    assert result.exit_code == 0
    for said in (
        "dovetail xjoin",
        "on order_id = ordered, day",
        "batch 1",
        "budget 1000.0 KB",
        "4,000 + 2,002",
        "2,468 rows",
        "70.0 % as rows came in, 20.0 % in silences, 10.0 % at the end",
        "150.0 KB",
    ):
        assert said in result.output, said
    assert "\x1b" not in result.output
    (row,) = [line.split() for line in result.output.splitlines() if line.startswith("    1 ")]
    assert row[:4] == ["1", "cleanup", "1", "1,234"]


def test_top_when_a_stream_is_enriched_then_shows_one_input(make_state: MakeState) -> None:
    shown = drawn(make_state(job="enrich"))
    assert shown.startswith("dovetail seek on order_id = ordered, day")
    assert " + " not in shown
    assert "75.0 % as rows came in, 25.0 % after that" in shown


def test_top_when_rows_were_left_out_then_counts_them(make_state: MakeState) -> None:
    shown = drawn(make_state(job="enrich", shed=500))
    assert "1,000" in shown
    assert "33.3 % of what came" in shown
    assert "a row waited 0.75 s at most" in shown
    assert "left out" not in drawn(make_state(job="enrich"))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job file whose state is below its checkpoint, in `ckpt`."""
    (tmp_path / "in").mkdir()
    text = "[{0}]\nformat = 'parquet'\npath = 'in'\n"
    parts = [text.format("left"), text.format("right"), "[join]\non = 'id'\n"]
    parts += ["[sink]\nformat = 'noop'\ncheckpoint = 'ckpt'\n"]
    file = tmp_path / "job.toml"
    file.write_text("\n".join(parts))
    (tmp_path / "ckpt" / "offsets").mkdir(parents=True)
    return file


@pytest.mark.parametrize("where", ["job.toml", "ckpt", "ckpt/dovetail/join"])
def test_top_when_given_a_job_file_or_a_checkpoint_then_finds_the_state(
    where: str, job: Path, make_state: MakeState
) -> None:
    state = job.parent / "ckpt" / "dovetail" / "join"
    state.parent.mkdir()
    make_state().rename(state)
    result = RUNNER.invoke(app, ["top", str(job.parent / where), "--once"])
    assert result.exit_code == 0, result.output
    assert str(state) in result.output.replace("\n", "")


def test_top_when_a_checkpoint_does_not_tell_the_state_then_says_what_to_name(job: Path) -> None:
    checkpoint = job.parent / "ckpt"
    result = RUNNER.invoke(app, ["top", str(checkpoint)])
    assert result.exit_code == 2
    assert "is a query's checkpoint, and no state is below it: name the " in result.stderr
    for name in ("one", "two"):
        prepare(checkpoint / "dovetail" / name, 1)
    result = RUNNER.invoke(app, ["top", str(checkpoint)])
    assert result.exit_code == 2
    assert f"name one of {checkpoint / 'dovetail' / 'one'}, " in result.stderr


def test_top_when_the_job_is_not_one_with_state_then_says_so(job: Path) -> None:
    result = RUNNER.invoke(app, ["top", str(job.parent / "other.toml"), "--once"])
    assert "there is no job file" in result.stderr
    job.write_text('mode = "batch"\n' + job.read_text().replace("checkpoint = 'ckpt'", ""))
    result = RUNNER.invoke(app, ["top", str(job), "--once"])
    assert result.exit_code == 2
    assert "describes a batch job, which keeps no state" in result.stderr


def test_top_when_the_query_has_not_begun_then_says_so(tmp_path: Path) -> None:
    prepare(tmp_path / "state", 1)
    result = RUNNER.invoke(app, ["top", str(tmp_path / "state"), "--once"])
    assert result.exit_code == 2
    assert "has not run yet: its state is prepared" in result.stderr


def test_rate_when_rows_went_to_several_partitions_then_leaves_out_copies(
    make_state: MakeState,
) -> None:
    records = list(progress(make_state()).records())
    full = top.rate(records, now=1.0).rows_in
    for record in records:
        record["copies"] = [0, 1001 - 500]
    assert top.rate(records, now=1.0).rows_in == pytest.approx(full * 500 / 1001)


def test_top_when_there_is_no_state_and_one_look_was_asked_for_then_fails(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["top", str(tmp_path / "none"), "--once"])
    assert result.exit_code == 2
    assert "is not a Dovetail state directory" in result.stderr


def test_top_when_there_is_no_state_yet_then_waits_for_it(
    make_state: MakeState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            make_state()
        if len(naps) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", nap)
    result = RUNNER.invoke(app, ["top", str(tmp_path / "state"), "--interval", "0.5"])
    assert result.exit_code == 0
    assert naps == [0.5] * 4
    first, second = result.output.splitlines()
    assert first.startswith("Waiting for a join's state at ")
    assert "batch 0, arriving: 2,000 + 2,002 rows in" in second


def test_frame_when_the_join_is_unbounded_then_has_sizes_without_bars(
    make_state: MakeState,
) -> None:
    text = drawn(make_state(budget=None))
    assert "no budget" in text
    assert "400.0 KB" in text
    assert "░" not in text


def test_frame_when_the_terminal_is_low_then_shows_some_partitions_and_counts_the_rest(
    make_state: MakeState,
) -> None:
    text = drawn(make_state(partitions=30), height=20)
    assert "and 23 more" in text
    assert len(text.splitlines()) <= 20


def test_rate_when_steps_were_recorded_then_averages_over_them(make_state: MakeState) -> None:
    make_state()
    state = make_state()
    records = list(progress(state).records())
    for number, record in enumerate(records):
        record["time"] = 100.0 + number // 2  # two partitions side by side, a second apart
    speed = top.rate(records, now=111.0)
    assert speed.age_s == 10
    assert speed.rows_in == pytest.approx(4 * 1001 / 1.5)
    assert speed.rows_out == pytest.approx(4 * 300 / 1.5)
    assert speed.history_in == [2 * 1001 / 0.5] * 2


def test_rate_when_nothing_was_recorded_then_is_zero() -> None:
    assert top.rate([], now=1.0) == top.Rate(0.0, 0.0, None, (), ())
