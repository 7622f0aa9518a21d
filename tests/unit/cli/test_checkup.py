"""`dovetail doctor` shows every check, and fails when one does."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dovetail.cli import checkup
from dovetail.cli.app import app
from dovetail.cli.doctor import Check

RUNNER = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"})
FINE = Check("Python", True, "3.12.1 at [/opt]/python", "")
BAD = Check("Java", False, "there is none", "Install Java 17.")


def test_doctor_when_all_is_well_then_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "run_checks", lambda _: [FINE])
    result = RUNNER.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "3.12.1 at [/opt]/python" in result.output  # not taken for markup
    assert "Everything is in order." in result.output


def test_doctor_when_a_check_fails_then_names_the_remedy_and_exits_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkup, "run_checks", lambda _: [FINE, BAD])
    result = RUNNER.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "Java: Install Java 17." in result.output
    assert "in order" not in result.output
