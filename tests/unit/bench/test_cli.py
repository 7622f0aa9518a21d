"""The commands, end to end, on a benchmark that needs no Spark and a fraction of a second."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail_bench import registry
from dovetail_bench.cli import app
from dovetail_bench.progress import Reporter, Silent
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result

KERNEL = ["run", "spark-two-way", "--only", "kernel", "--rows", "3000", "--repetitions", "2"]
runner = CliRunner()


def broken(config: Config, reporter: Reporter) -> Result:
    raise RuntimeError("no disk\n  File somewhere\nno luck")


BROKEN = Benchmark("broken", "fails", 1, "rows", ("spark", "kernel"), broken)


def test_list_when_called_then_names_every_benchmark() -> None:
    found = runner.invoke(app, ["list"])
    assert found.exit_code == 0
    assert "spark-two-way" in found.stdout
    assert "cost-growth" in found.stdout


@pytest.mark.parametrize("command", [[], ["list"], ["run"], ["report"]])
def test_help_when_asked_for_then_has_examples(command: list[str]) -> None:
    found = runner.invoke(app, [*command, "--help"])
    assert found.exit_code == 0
    assert "Example" in found.stdout
    assert "dovetail bench" in found.stdout


def test_run_when_json_is_asked_for_then_stdout_is_one_object(tmp_path: Path) -> None:
    # in a process of its own: what counts is what comes out of its standard output
    ran = subprocess.run(
        [sys.executable, "-m", "dovetail_bench", *KERNEL, "--json", "--out", str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["name"] == "spark-two-way"
    assert found["ok"] is True
    assert set(found["ratios"]) == {
        "duckdb/kernel", "polars/kernel", "duckdb/kernel-one-thread",
    }  # fmt: skip
    assert all(ratio["n"] == 2 and ratio["min"] > 0 for ratio in found["ratios"].values())
    assert found["facts"]["kernel"]["contenders"]["shj"]["seconds"]["whole"]["n"] == 2
    assert found["machine"]["cores"] >= 1
    assert found["command"] == f"dovetail bench {' '.join(sorted_command())}"
    assert json.loads((tmp_path / "spark-two-way.json").read_text()) == found
    assert "repetition 2/2" in ran.stderr


def sorted_command() -> list[str]:
    return [
        "run", "spark-two-way", "--rows", "3000", "--repetitions", "2", "--seed", "1",
        "--only", "kernel",
    ]  # fmt: skip


def test_run_when_one_group_is_asked_for_then_saves_nothing_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = runner.invoke(app, ["run", "cost-growth", *KERNEL[2:], "--repetitions", "kernel=1"])
    assert found.exit_code == 0, found.output
    assert list(tmp_path.iterdir()) == []


def test_cost_growth_when_the_kernel_is_run_then_has_quarters_and_a_fit() -> None:
    benchmark = registry.find("cost-growth")
    config = benchmark.configure(250_000, ("2",), only="kernel")
    found = registry.run(benchmark, config, Silent())
    assert found.ok, found.failures
    assert {label: spread.n for label, spread in found.ratios.items()} == {
        "first-quarter/kernel 16MB": 2,
        "first-quarter/kernel unbounded": 2,
    }
    facts = found.facts["kernel"]["budgets"]["kernel unbounded"]
    assert facts["fit"]["arrivals"] == 2 * 25
    assert len(facts["ms_by_position"]) == 20
    assert facts["slowest_ms"] >= max(facts["ms_by_position"])


def test_run_when_the_benchmark_fails_then_the_result_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "benchmarks", lambda: {"broken": BROKEN})
    found = runner.invoke(app, ["run", "broken", "--json", "--out", str(tmp_path)])
    assert found.exit_code == 1
    result = json.loads(found.stdout)
    assert result["ok"] is False
    assert result["failures"][0]["error"] == "RuntimeError: no disk no luck"
    assert (tmp_path / "broken.json").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "nothing"], "there is no benchmark 'nothing'; there are spark-two-way"),
        ([*KERNEL[:2], "--only", "disk"], "no group 'disk'; its groups are spark, kernel"),
        ([*KERNEL[:2], "--repetitions", "many"], "repetitions 'many' is neither"),
        ([*KERNEL[:2], "--repetitions", "0"], "repetitions '0' is neither"),
        ([*KERNEL[:2], "--repetitions", "disk=3"], "no group 'disk'"),
        ([*KERNEL[:2], "--rows", "0"], "rows must be at least 1"),
        (["report", "/nowhere/at/all"], "there are no results in /nowhere/at/all"),
    ],
)
def test_command_when_arguments_are_wrong_then_is_one_clear_line(
    arguments: list[str], complaint: str
) -> None:
    found = runner.invoke(app, arguments)
    assert found.exit_code == 2
    assert found.stderr.startswith("error: ")
    assert complaint in found.stderr
    assert found.stdout == ""


def test_configure_when_groups_differ_then_each_has_its_own_repetitions() -> None:
    config = BROKEN.configure(None, ("3", "kernel=9"))
    assert (config.repetitions_of("spark"), config.repetitions_of("kernel")) == (3, 9)
    assert config.wants("spark")
    assert not BROKEN.configure(only="kernel").wants("spark")
    assert BROKEN.command(config).endswith("--repetitions 3 --repetitions kernel=9 --seed 1")


def test_benchmarks_when_listed_then_names_are_their_own() -> None:
    found = [b for module in registry.MODULES for b in registry.import_module(module).BENCHMARKS]
    assert len({benchmark.name for benchmark in found}) == len(found) >= 2
