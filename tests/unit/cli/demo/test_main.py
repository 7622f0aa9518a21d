"""What the demo refuses, before it makes anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app


def test_demo_when_the_directory_to_keep_is_taken_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert "there is something there already" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("what", ["join", "enrich"])
def test_demo_when_the_memory_is_no_size_then_says_so(what: str) -> None:
    result = CliRunner().invoke(app, ["demo", what, "--memory", "lots", "--rows", "10"])
    assert result.exit_code == 2
    assert "--memory: not a size: 'lots'" in result.stderr


def test_demo_when_there_is_no_worst_case_then_says_so() -> None:
    result = CliRunner().invoke(app, ["demo", "enrich", "--uniform"])
    assert result.exit_code == 2
    assert "--uniform" in result.stderr
