"""What `pip install` brings: wheel and sdist built, and the wheel alone in an empty environment.

Builds need hatchling and the environment its packages, from pip's cache or from PyPI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest

import dovetail

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
#: what other packages than Dovetail's dependencies bring: nothing of Dovetail may need it
OPTIONAL = (
    "deltalake", "dovetail_bench", "duckdb", "hypothesis", "matplotlib", "polars", "psutil",
    "pyiceberg", "pytest", "sqlalchemy", "support",
)  # fmt: skip

IMPORT_ALL = """
import importlib, importlib.util, json, pkgutil, sys, dovetail
names = [module.name for module in pkgutil.walk_packages(dovetail.__path__, "dovetail.")]
names.remove("dovetail.cli.__main__")  # a program: it runs when it is imported
failures = {}
for name in names:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failures[name] = repr(error)
there = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
print(json.dumps([dovetail.__file__, names, failures, there]))
"""
OPEN_TABLES = """
from dovetail.errors import DovetailError
from dovetail.spark.sources.delta import DeltaSnapshot
from dovetail.spark.sources.iceberg import from_metadata
for read in (DeltaSnapshot, from_metadata):
    try:
        read("nowhere")
    except DovetailError as error:
        print(error)
"""


def called(*command: str | Path, cwd: Path, code: int = 0, **environment: str) -> str:
    """What a program prints that knows nothing of this checkout or of this Python."""
    hidden = ("PYTHON", "PYSPARK", "VIRTUAL_ENV", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**kept, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@dataclass(frozen=True)
class Distribution:
    """A wheel and the sdist that it was built from."""

    wheel: Path
    sdist: Path

    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def in_sdist(self) -> set[str]:
        """Paths below the one folder that is in it."""
        with tarfile.open(self.sdist) as archive:
            return {name.partition("/")[2] for name in archive.getnames()}

    def read(self, name: str) -> str:
        """A file of the wheel's dist-info."""
        with zipfile.ZipFile(self.wheel) as archive:
            (path,) = (path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
            return archive.read(path).decode()


def build(project: Path, folder: Path) -> Distribution:
    """The sdist of a project, and from what is in that, not from the checkout, the wheel."""
    called(sys.executable, "-m", "build", project, "--outdir", folder, cwd=folder.parent)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Distribution(wheel, sdist)


@pytest.fixture(scope="module")
def dovetail_built(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return build(REPOSITORY, tmp_path_factory.mktemp("dovetail"))


@pytest.fixture(scope="module")
def bench_built(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return build(REPOSITORY / "benchmarks", tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def programs(dovetail_built: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel, what it depends on, and no more."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    constraints = REPOSITORY / "constraints.txt"
    called(
        *pip, "--python", folder / "bin" / "python", "install", "--quiet", "-c", constraints,
        dovetail_built.wheel, cwd=folder,
    )  # fmt: skip
    return folder / "bin"


def modules_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}


def test_wheel_when_built_then_has_the_library_and_nothing_else(
    dovetail_built: Distribution,
) -> None:
    found = {name for name in dovetail_built.in_wheel() if ".dist-info/" not in name}
    assert found == modules_below(REPOSITORY / "src") | {"dovetail/py.typed"}
    parts = {part for name in found for part in Path(name).with_suffix("").parts}
    assert parts.isdisjoint({"bench", "dovetail_bench", "testing", "support", "tests"})
    about = Parser().parsestr(dovetail_built.read("METADATA"))
    assert set(about.get_all("Provides-Extra", [])) == {"delta", "dev", "iceberg"}
    assert dovetail_built.read("entry_points.txt").split() == [
        "[console_scripts]", "dovetail", "=", "dovetail.cli.app:main",
    ]  # fmt: skip


def test_sdist_when_built_then_has_all_that_is_needed_to_build_and_to_test(
    dovetail_built: Distribution,
) -> None:
    found = dovetail_built.in_sdist()
    assert found >= {
        "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile",
        "constraints.txt", ".ci/run", "benchmarks/pyproject.toml", "benchmarks/README.md",
        "examples/job.toml", "docs/architecture.md",
    }  # fmt: skip
    for folder in ("src", "benchmarks/src", "tests"):
        wanted = {f"{folder}/{name}" for name in modules_below(REPOSITORY / folder)}
        assert found >= wanted, wanted - found


def test_import_when_nothing_optional_is_installed_then_every_module_can_be(
    programs: Path, dovetail_built: Distribution, tmp_path: Path
) -> None:
    said = called(programs / "python", "-c", IMPORT_ALL, *OPTIONAL, cwd=tmp_path)
    where, names, failures, there = json.loads(said)
    assert Path(where).is_relative_to(programs.parent)
    assert there == []
    assert failures == {}
    files = {name for name in dovetail_built.in_wheel() if name.endswith(".py")}
    assert len(names) == len(files) - 2  # all but the package itself and the program
    said = called(programs / "python", "-m", "dovetail.cli", "--version", cwd=tmp_path)
    assert said == f"dovetail {dovetail.__version__}\n"


def test_table_when_the_package_for_it_is_missing_then_says_how_to_install_it(
    programs: Path, tmp_path: Path
) -> None:
    delta, iceberg = called(programs / "python", "-c", OPEN_TABLES, cwd=tmp_path).splitlines()
    assert delta.endswith('pip install "dovetail[delta]"')
    assert iceberg.endswith('pip install "dovetail[iceberg]"')


def test_demo_when_only_the_wheel_is_installed_then_joins_and_checks(
    programs: Path, tmp_path: Path
) -> None:
    said = called(programs / "dovetail", "demo", "--rows", "5000", cwd=tmp_path)
    assert "checked against Spark's batch join" in said
    assert "identical" in said
    assert list(tmp_path.iterdir()) == []


def test_bench_when_its_package_is_added_then_is_there_and_before_says_how_to_add_it(
    programs: Path, bench_built: Distribution, tmp_path: Path
) -> None:
    command = [programs / "dovetail", "bench", "list"]
    assert "pip install ./benchmarks" in called(*command, cwd=tmp_path, code=2)
    # beside the environment, which stays as it is; listing needs none of what the rivals are
    with zipfile.ZipFile(bench_built.wheel) as archive:
        archive.extractall(tmp_path / "added")
    assert "spark-two-way" in called(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path / "added"))
    found = {name for name in bench_built.in_wheel() if ".dist-info/" not in name}
    source = REPOSITORY / "benchmarks" / "src"
    assert found == modules_below(source) | {"dovetail_bench/py.typed"}
    assert bench_built.in_sdist() >= {"pyproject.toml", "README.md"}
