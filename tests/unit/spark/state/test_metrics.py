"""The records of steps, and `dovetail.progress` where there is nothing to read."""

import json
from pathlib import Path

import pytest

import dovetail
from dovetail.errors import StateMissingError
from dovetail.spark.state import prepare
from dovetail.spark.state.metrics import FILE, append_record


def test_records_when_file_grows_too_large_then_is_turned_over(tmp_path: Path) -> None:
    for number in range(3):
        append_record(tmp_path, {"number": number, "filler": "x" * 700_000})
    kept = [json.loads(line)["number"] for line in (tmp_path / FILE).read_text().splitlines()]
    old = (tmp_path / f"{FILE}.1").read_text().splitlines()
    assert kept == [2]
    assert [json.loads(line)["number"] for line in old] == [0, 1]


def test_record_when_it_cannot_be_written_then_is_dropped(tmp_path: Path) -> None:
    append_record(tmp_path / "nowhere", {"number": 1})


def test_progress_when_query_has_not_begun_then_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        StateMissingError, match=r"is not a Dovetail state directory.*identity\.json"
    ):
        dovetail.progress(tmp_path)
    prepare(tmp_path, 2)
    with pytest.raises(StateMissingError, match="has not run yet: its state is prepared"):
        dovetail.progress(tmp_path)
    (tmp_path / "p00001" / f"v{3:012d}").touch()
    with pytest.raises(StateMissingError, match=r"it has no identity\.json"):
        dovetail.progress(tmp_path)
