"""The command turns errors into one message, documents itself, and starts fast."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException
from typer.testing import CliRunner

import dovetail
from dovetail.cli import app as application
from dovetail.cli import top
from dovetail.cli.app import app
from dovetail.cli.failures import failure
from dovetail.cli.job.file import read_job
from dovetail.errors import MemoryBudgetError, StateMissingError

COMMANDS = ["demo", "run", "explain", "top", "doctor", "site"]
STREAM_FAILED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted
due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/dovetail/twoway/base.py", line 180, in _refuse
    raise MemoryBudgetError(
dovetail.errors.MemoryBudgetError: rows of 3.6 KB do not fit: raise memory=

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(...)
SQLSTATE: XXKST"""


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.parametrize("command", ["run", "demo"])
def test_help_when_asked_of_what_runs_a_query_then_tells_the_exit_codes(
    command: str, runner: CliRunner
) -> None:
    said = " ".join(runner.invoke(app, [command, "--help"]).output.split())
    for code in ("0 the", "2 a mistake", "130 stopped by Ctrl-C", "143 stopped by SIGTERM"):
        assert code in said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_when_asked_of_a_command_then_shows_examples(command: str, runner: CliRunner) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert f"dovetail {command}" in result.output


def test_help_when_asked_of_the_command_then_lists_every_subcommand(runner: CliRunner) -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for word in [*COMMANDS, "bench", "Examples", "--debug", "--version"]:
        assert word in result.output


def test_version_when_asked_then_says_the_package_version(runner: CliRunner) -> None:
    assert runner.invoke(app, ["--version"]).output == f"dovetail {dovetail.__version__}\n"


def test_error_when_dovetail_raises_one_then_is_one_message_and_exit_code_2(
    runner: CliRunner,
) -> None:
    result = runner.invoke(app, ["top", "/nowhere/at/all", "--once"])
    assert result.exit_code == 2
    assert result.stderr.startswith("dovetail: /nowhere/at/all is not a Dovetail state directory")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("tape", "storage='tape' is no storage profile; there are 'this machine', "),
        ("object store", "--storage is for jobs that look a stream up in a table"),
    ],
)
def test_explain_when_the_storage_makes_no_sense_then_says_so_before_spark_starts(
    storage: str, said: str, runner: CliRunner, tmp_path: Path
) -> None:
    job = Path(__file__).resolve().parents[3] / "examples" / "job.toml"
    file = Path(shutil.copy(job, tmp_path))
    for name in ("orders", "shipments"):
        (tmp_path / "data" / name).mkdir(parents=True)
    result = runner.invoke(app, ["explain", str(file), "--storage", storage])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"dovetail: {said}")


@pytest.mark.parametrize("by_variable", [True, False])
def test_error_when_debug_is_on_then_has_the_traceback_too(
    by_variable: bool, runner: CliRunner
) -> None:
    arguments = ["top", "/nowhere/at/all", "--once"]
    if by_variable:
        result = runner.invoke(app, arguments, env={"DOVETAIL_DEBUG": "1"})
    else:
        result = runner.invoke(app, ["--debug", *arguments])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "StateMissingError" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("dovetail: ")


def test_error_when_it_is_a_bug_then_is_not_hidden(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(top, "read_progress", broken)
    result = runner.invoke(app, ["top", "somewhere", "--once"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_failure_when_a_task_failed_with_a_dovetail_error_then_is_that_message() -> None:
    message = failure(StreamingQueryException(STREAM_FAILED))
    assert message == "rows of 3.6 KB do not fit: raise memory="


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StateMissingError("gone"), "gone"),
        (MemoryBudgetError("small"), "small"),
        (
            AnalysisException("\n[PATH_NOT_FOUND] Path does not exist: x.\n== SQL ==\n ..."),
            "Spark says: [PATH_NOT_FOUND] Path does not exist: x.",
        ),
        (
            Py4JNetworkError(
                "An error occurred\n: java.lang.IllegalStateException: stopped\n at x"
            ),
            "Spark says: stopped",
        ),
        (PermissionError(13, "Permission denied", "/x"), "the operating system refuses: "),
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's Java process is gone: "),
        (Py4JError("An error occurred while calling o7.isActive"), "Spark's Java process is gone"),
        (Py4JError("calling o7.x. Trace:\npy4j.Py4JException: no x"), "Spark says: calling o7.x."),
        (ConnectionRefusedError(111, "Connection refused"), "Spark's Java process is gone: "),
    ],
    ids=["state", "memory", "analysis", "java", "system", "gone", "call", "method", "connection"],
)
def test_failure_when_a_user_can_act_then_says_what_was_wrong(
    error: Exception, message: str
) -> None:
    assert (failure(error) or "").startswith(message)


def test_failure_when_the_error_asks_a_jvm_that_is_gone_then_says_what_is_known() -> None:
    class Asking(StreamingQueryException):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    Asking.__module__ = StreamingQueryException.__module__
    error = Asking("m")
    error._desc = STREAM_FAILED
    assert failure(error) == "rows of 3.6 KB do not fit: raise memory="
    error._desc = None
    assert failure(error) == "Spark says: Asking"


@pytest.mark.parametrize("error", [KeyError("x"), BrokenPipeError()])
def test_failure_when_nothing_can_be_said_then_is_none(error: Exception) -> None:
    assert failure(error) is None


def test_bench_when_its_package_is_installed_then_is_a_command_of_dovetail(
    runner: CliRunner,
) -> None:
    assert "bench" in runner.invoke(app, ["--help"]).output
    result = runner.invoke(app, ["bench", "list"])
    assert result.exit_code == 0, result.output
    assert "spark-two-way" in result.output


@pytest.mark.parametrize("words", [(), ("run", "spark-two-way", "--rows", "9"), ("list",)])
def test_bench_when_its_package_is_missing_then_says_how_to_install_it(
    words: tuple[str, ...], runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application.importlib.metadata, "entry_points", lambda group: ())
    result = runner.invoke(app, ["bench", *words])
    assert result.exit_code == 2
    assert "dovetail-bench" in result.stderr
    assert "pip install ./benchmarks" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "bench" not in runner.invoke(app, ["--help"]).output


def test_bench_when_it_cannot_be_loaded_then_says_what_is_missing(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dovetail_bench.cli", None)
    result = runner.invoke(app, ["bench", "list"])
    assert result.exit_code == 2
    assert "dovetail_bench.cli" in result.stderr
    assert "Install dovetail-bench anew" in result.stderr
    assert "cannot be loaded" in runner.invoke(app, ["--help"]).output


def test_command_when_a_package_adds_one_of_a_name_that_dovetail_has_then_dovetail_s_counts(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = [EntryPoint(name, "nowhere:app", "dovetail.commands") for name in ("site", "top")]
    monkeypatch.setattr(application.importlib.metadata, "entry_points", lambda group: added)
    for name in ("site", "top"):
        assert runner.invoke(app, [name, "--help"]).exit_code == 0
    assert runner.invoke(app, ["--help"]).output.count("cannot be loaded") == 0


def test_import_when_only_the_command_is_loaded_then_spark_is_not() -> None:
    code = (
        "import sys; import dovetail.cli.app\n"
        "slow = 'pyspark', 'py4j', 'pandas', 'dovetail_bench'\n"
        "print([name for name in slow if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_main_when_called_then_leaves_the_user_s_choice_of_python_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(sys, "argv", ["dovetail", "--version"])
    with pytest.raises(SystemExit) as ended:
        application.main()
    assert not ended.value.code
    assert "PYSPARK_PYTHON" not in os.environ  # what doctor looks at


OF_SITES = ("plan", "run", "serve", "status", "stop")


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), *(["site", name] for name in OF_SITES)]
)
def test_help_when_asked_then_names_no_file_that_an_installed_package_lacks(
    command: list[str], runner: CliRunner
) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "examples/" not in result.output


def test_help_of_run_when_its_job_file_is_copied_then_it_is_one(
    runner: CliRunner, tmp_path: Path
) -> None:
    told = runner.invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    lines = [line for line in map(str.strip, told.splitlines()) if re.match(r"\w+ = {.*}$", line)]
    assert len(lines) == 4
    for name in ("orders", "payments"):
        (tmp_path / "data" / name).mkdir(parents=True)
    file = tmp_path / "job.toml"
    file.write_text("\n".join(lines))
    job = read_job(file)
    assert job.kind == "join"
    assert job.options["memory"] == "64MB"
