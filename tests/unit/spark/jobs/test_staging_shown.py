"""What a terminal shows while a table is staged."""

import time
from pathlib import Path

import pytest

from dovetail.spark.jobs import staging_shown


def test_staging_when_it_takes_long_on_a_terminal_then_shows_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").write_bytes(b"x" * 2048)
    with staging_shown.shown(tmp_path):
        time.sleep(0.05)
    assert capsys.readouterr().err == "", "not a terminal"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(staging_shown, "PATIENCE_SECONDS", 0.01)
    with staging_shown.shown(tmp_path):
        time.sleep(0.2)
    assert "Staging the table: 2.0 KB written" in capsys.readouterr().err
