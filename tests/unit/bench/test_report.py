"""Charts and the table, from results that nobody measured."""

from pathlib import Path

import pytest

from dovetail.errors import ArgumentError
from dovetail_bench.report import read_results, write_report
from dovetail_bench.result import Failure, Result, Spread

GOALS = {
    "rocksdb/5%": {"goal": 2.5, "reached": 3.1, "met": True},
    "slower of two": {"goal": 0.25, "reached": 0.2, "met": False},
}


def fake(**changes: object) -> Result:
    values: dict[str, object] = {
        "name": "made-up",
        "ratios": {
            "rocksdb/5%": Spread(3.1, 2.9, 3.4, 5),
            "duckdb/kernel": Spread(0.2, 0.1, 0.3, 5),
        },
        "facts": {"goals": GOALS},
        "machine": {"cores": 2, "cpu": "a processor", "memory": 8_000_000_000, "pyspark": "4.3.0"},
        "command": "dovetail bench run made-up",
    }
    return Result(**{**values, **changes})  # type: ignore[arg-type]


def saved(directory: Path, result: Result) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{result.name}.json").write_text(result.to_json())
    return directory


def test_report_when_there_are_results_then_draws_each_and_writes_a_table(tmp_path: Path) -> None:
    results = saved(tmp_path / "results", fake())
    saved(results, fake(name="another", facts={}))
    written = write_report(read_results(results), tmp_path)
    assert [path.name for path in written] == ["another.png", "made-up.png", "REPORT.md"]
    for path in written[:-1]:
        assert path.read_bytes().startswith(b"\x89PNG")
    text = written[-1].read_text()
    assert "| `rocksdb/5%` | 3.10 | 2.90 | 3.40 | 5 | 2.5 met |" in text
    assert "| slower of two | 0.20 | | | | 0.25 missed |" in text
    assert "![made-up](figures/made-up.png)" in text
    assert "2 cores of a processor, 8 GB, pyspark 4.3.0" in text


def test_report_when_a_run_failed_then_says_so(tmp_path: Path) -> None:
    ratios = {"inheap/5%": Spread.of([]), "rocksdb/5%": Spread.of([2.0])}
    failed = fake(ratios=ratios, failures=(Failure("inheap", 3, "out of\nmemory"),))
    [_, report] = write_report([failed], tmp_path)
    text = report.read_text()
    assert "**This run failed.**" in text
    assert "| `inheap/5%` | failed | failed | failed | 0 |  |" in text
    assert "- failed: inheap, repetition 3: out of memory" in text


def test_report_when_nothing_could_be_measured_then_is_still_drawn(tmp_path: Path) -> None:
    [figure, _] = write_report([fake(ratios={}, facts={})], tmp_path)
    assert figure.exists()


def test_read_results_when_there_are_none_then_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="dovetail bench run"):
        read_results(tmp_path)


def test_read_results_when_one_is_damaged_then_names_it(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"bad\.json"):
        read_results(tmp_path)
