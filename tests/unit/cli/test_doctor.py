"""The doctor finds what is wrong with a machine, says so, and leaves no trace."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dovetail.cli import doctor

REPOSITORY = Path(__file__).resolve().parents[3]
MAKE_FAKE = Callable[[str], Path]


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MAKE_FAKE:
    """Put a `java` that runs the given shell script on an otherwise empty PATH."""

    def install(script: str) -> Path:
        java = tmp_path / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        monkeypatch.setenv("PATH", str(java.parent))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        return java

    return install


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


# --- Java ---------------------------------------------------------------------------------------


def test_java_problem_when_path_has_no_java_then_names_every_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    problem = doctor.java_problem()
    assert problem is not None
    assert "no java on PATH" in problem
    for remedy in ("17 or newer", "apt install", "brew install", "conda install", "JAVA_HOME"):
        assert remedy in problem
    assert "\n" not in problem


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_391", "16-ea"])
def test_java_problem_when_java_is_old_then_names_its_version(
    version: str, fake_java: MAKE_FAKE
) -> None:
    java = fake_java(says(version))
    problem = doctor.java_problem()
    assert problem is not None
    major = {"11.0.22": 11, "1.8.0_391": 8, "16-ea": 16}[version]
    assert f"{java} is version {major}." in problem


@pytest.mark.parametrize("version", ["17.0.15", "17", "21-ea", "25.0.1"])
def test_java_problem_when_java_is_new_enough_then_is_none(
    version: str, fake_java: MAKE_FAKE
) -> None:
    fake_java(says(version))
    assert doctor.java_problem() is None


def test_java_problem_when_options_are_echoed_first_then_still_finds_the_version(
    fake_java: MAKE_FAKE,
) -> None:
    fake_java(f"echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion=3' >&2; {says('17.0.15')}")
    assert doctor.java_problem() is None


def test_java_problem_when_java_home_is_bad_then_does_not_fall_back_to_path(
    fake_java: MAKE_FAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(says("17.0.15"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    problem = doctor.java_problem()
    assert problem is not None
    assert f"JAVA_HOME is {tmp_path / 'gone'}" in problem


def test_java_problem_when_java_home_is_good_then_path_is_not_looked_at(
    fake_java: MAKE_FAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = fake_java(says("17.0.15"))
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.java_problem() is None


def test_java_problem_when_java_is_a_stub_then_repeats_what_it_says(fake_java: MAKE_FAKE) -> None:
    fake_java("echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    problem = doctor.java_problem()
    assert problem is not None
    assert "Unable to locate a Java Runtime." in problem


def test_java_problem_when_java_is_no_program_then_says_that_it_does_not_run(
    fake_java: MAKE_FAKE,
) -> None:
    fake_java("").write_bytes(b"\x7fELF but not really")
    problem = doctor.java_problem()
    assert problem is not None
    assert "does not run" in problem


def test_java_problem_when_java_hangs_then_gives_up(
    fake_java: MAKE_FAKE, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java("while :; do :; done")
    monkeypatch.setattr(doctor, "COMMAND_TIMEOUT_S", 0.2)
    problem = doctor.java_problem()
    assert problem is not None
    assert "timed out" in problem


def test_doctor_when_run_as_a_file_without_java_then_fails_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", doctor.__file__],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("setup: Spark needs Java 17 or newer")
    assert done.stderr.count("\n") == 1


# --- Python and libraries -----------------------------------------------------------------------


def test_check_python_when_too_old_then_names_the_least_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        doctor, "sys", SimpleNamespace(version_info=(3, 10, 13), executable="/usr/bin/python3")
    )
    check = doctor.check_python()
    assert not check.ok
    assert "3.10.13 at /usr/bin/python3" in check.detail
    assert "3.11" in check.remedy


def test_libraries_when_compared_with_pyproject_then_agree() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, doctor.OLDEST_PYTHON))}"
    for name, (first, beyond) in doctor.LIBRARIES.items():
        wanted = f"{name}>={'.'.join(map(str, first))},<{'.'.join(map(str, beyond))}"
        assert wanted in project["dependencies"]


@pytest.mark.parametrize(
    ("version", "ok"),
    [("4.2.1", False), ("4.3.0", True), ("4.3.0.dev1", True), ("4.10", True), ("5.0.0", False)],
)
def test_check_library_when_version_varies_then_only_the_range_passes(
    version: str, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version)
    check = doctor.check_library("pyspark")
    assert (check.ok, check.detail) == (ok, version)
    assert ("pip install 'pyspark>=4.3,<5'" in check.remedy) is not ok


def test_check_library_when_absent_then_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> str:
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", absent)
    check = doctor.check_library("pyarrow")
    assert (check.ok, check.detail) == (False, "not installed")
    assert "pip install 'pyarrow>=" in check.remedy


def test_check_worker_python_when_it_is_this_one_then_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert doctor.check_worker_python().ok


@pytest.mark.parametrize(
    "answer", ["2.7 without nothing", "{here} without pyarrow", "{here} without dovetail", ""]
)
def test_check_worker_python_when_the_chosen_one_does_not_fit_then_names_this_one(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3"
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    other.write_text(f"#!/bin/sh\necho '{answer.format(here=here)}'\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    check = doctor.check_worker_python()
    assert not check.ok
    assert answer.format(here=here) in check.detail
    assert sys.executable in check.remedy


def test_check_worker_python_when_none_is_chosen_then_it_is_this_one_whatever_python3_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor.check_worker_python()
    assert check.ok
    assert sys.executable in check.detail
    assert "not set" in check.detail


def test_check_worker_python_when_it_lacks_what_is_needed_then_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"  # this Python without its packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    check = doctor.check_worker_python()
    assert not check.ok
    assert "without dovetail pyarrow pyspark" in check.detail


def test_check_worker_python_when_it_is_missing_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "gone"))
    check = doctor.check_worker_python()
    assert not check.ok
    assert "does not run" in check.detail


# --- disk ---------------------------------------------------------------------------------------


def test_state_checks_when_directory_is_yet_to_be_made_then_pass_and_leave_nothing(
    tmp_path: Path,
) -> None:
    state = tmp_path / "ckpt" / "orders"
    checks = [
        doctor.check_state_writable(state),
        doctor.check_state_atomic(state),
    ]
    assert [check for check in checks if not check.ok] == []
    assert list(tmp_path.iterdir()) == []


def test_state_checks_when_path_is_below_a_file_then_fail_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    state = tmp_path / "file" / "state"
    for check in (doctor.check_state_writable(state), doctor.check_state_atomic(state)):
        assert not check.ok
        assert str(state) in check.detail
        assert check.remedy
    assert (tmp_path / "file").read_text() == "in the way"


def test_state_checks_when_path_is_a_dangling_link_then_fail(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.symlink_to(tmp_path / "gone")
    assert not doctor.check_state_writable(state).ok


def test_check_state_atomic_when_hard_links_are_refused_then_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    check = doctor.check_state_atomic(tmp_path)
    assert not check.ok
    assert "hard links are refused (Operation not permitted)" in check.detail
    assert list(tmp_path.iterdir()) == []


def test_check_state_atomic_when_links_replace_what_is_there_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(self: Path, target: Path) -> None:
        self.write_bytes(target.read_bytes())

    monkeypatch.setattr(Path, "hardlink_to", copy)
    check = doctor.check_state_atomic(tmp_path)
    assert not check.ok
    assert "replaces a name that is taken" in check.detail


def test_check_state_atomic_when_rename_fails_then_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise FileExistsError("File exists")

    monkeypatch.setattr(os, "replace", refuse)
    check = doctor.check_state_atomic(tmp_path)
    assert not check.ok
    assert "rename over an existing file fails" in check.detail


def test_check_disk_space_when_disk_is_nearly_full_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 29))
    check = doctor.check_disk_space(tmp_path / "state")
    assert not check.ok
    assert check.detail == f"0.5 GB at {tmp_path}"
    assert "1024 MB" in check.remedy


# --- network ------------------------------------------------------------------------------------


def test_check_loopback_when_binding_is_forbidden_then_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(address: tuple[str, int]) -> socket.socket:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(socket, "create_server", refuse)
    check = doctor.check_loopback()
    assert not check.ok
    assert "Operation not permitted" in check.detail


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name not known"), UnicodeError("too long")])
def test_check_hostname_when_it_does_not_resolve_then_offers_both_remedies(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(host: str) -> str:
        raise error

    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "brook")
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    check = doctor.check_hostname()
    assert not check.ok
    assert "127.0.0.1 brook" in check.remedy
    assert "SPARK_LOCAL_IP" in check.remedy


def test_check_hostname_when_spark_is_told_its_address_then_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert doctor.check_hostname().ok


# --- all together -------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [None, "state"])
def test_run_checks_when_run_then_each_name_is_unique_and_remedies_go_with_failures(
    relative: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checks = doctor.run_checks(None if relative is None else Path(relative))
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert {"Python", "Java", "pyspark", "pyarrow", "numpy", "State directory"} <= set(names)
    for check in checks:
        assert check.detail
        assert (check.remedy == "") is check.ok, check
        # One line each, so that a table of them stays a table.
        assert not re.search(r"[\n\r]", check.detail + check.remedy), check
    assert list(tmp_path.iterdir()) == []
