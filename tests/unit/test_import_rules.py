"""Imports point downwards only, and pyspark stays behind `dovetail.spark`.

The rules are read from the source with `ast`, so that an import inside a function or behind a
condition counts too. A new folder or top-level module has to be given its place in `LAYERS`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = "dovetail"  # the package's own __init__, which holds the public names
BENCH = "dovetail_bench"  # a package, and a layer, of its own
SUPPORT = "support"  # of the tests: likewise
SOURCES = {
    ROOT: REPOSITORY / "src",
    BENCH: REPOSITORY / "benchmarks" / "src",
    SUPPORT: REPOSITORY / "tests",
}

# Layer -> the layers that it may import besides itself; lowest first.
FOUNDATION = {"errors", "kernel"}
ALGORITHMS = {"twoway", "multiway", "semistream"}
ENGINE_FREE = FOUNDATION | ALGORITHMS | {"costs", "multisite", "specs"}
LIBRARY = ENGINE_FREE | {"spark", "plan", "api", "sites", ROOT}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "kernel": {"errors"},
    "twoway": FOUNDATION,
    "multiway": FOUNDATION,
    "semistream": FOUNDATION,
    "costs": FOUNDATION | ALGORITHMS,
    "multisite": FOUNDATION | ALGORITHMS | {"costs"},
    "specs": FOUNDATION | ALGORITHMS | {"costs", "multisite"},
    "spark": ENGINE_FREE,
    "plan": ENGINE_FREE | {"spark"},
    "api": ENGINE_FREE | {"spark", "plan"},
    "sites": ENGINE_FREE | {"spark"},
    ROOT: ENGINE_FREE | {"spark", "plan", "api", "sites"},
    "cli": LIBRARY,
    BENCH: LIBRARY,
    SUPPORT: ENGINE_FREE,
}

# Layers that may use these third-party packages and no others. Those not named are free, but for
# Spark.
ARROW = {"numpy", "pyarrow"}
THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    **dict.fromkeys(ENGINE_FREE - {"errors"}, ARROW),
    "specs": ARROW | {"sqlglot"},
}

SPARK = {"pyspark", "py4j"}
# Inside functions only, so that `dovetail --help` does not wait for Spark to load.
SPARK_WHEN_CALLED = {"cli", BENCH}
# Under `if TYPE_CHECKING`, which imports nothing: the public signatures name Spark's DataFrame.
SPARK_IN_ANNOTATIONS = {"plan", "api", "sites", ROOT, "cli", BENCH}


@dataclass(frozen=True)
class Import:
    """One imported module, `from` imports with the imported name at the end."""

    line: int
    target: str
    in_function: bool
    for_types: bool


def imports_of(source: str, module: str, *, is_package: bool = False) -> Iterator[Import]:
    package = module if is_package else module.rpartition(".")[0]

    def targets(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                if level:
                    above = package.split(".")[: len(package.split(".")) - level + 1]
                    base = ".".join([*above, *([base] if base else [])])
                yield from (f"{base}.{name.name}" for name in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name

    def walk(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        for target in targets(node):
            yield Import(node.lineno, target, in_function, for_types)  # type: ignore[attr-defined]
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from walk(child, in_function, for_types=True)
            for child in node.orelse:
                yield from walk(child, in_function, for_types)
            return
        in_function = in_function or isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        )
        for child in ast.iter_child_nodes(node):
            yield from walk(child, in_function, for_types)

    return walk(ast.parse(source), in_function=False, for_types=False)


def layer_of(module: str) -> str:
    """The folder or file below `dovetail` that this is part of, or ROOT for a public name.

    Another package is a layer as a whole.
    """
    top, _, inner = module.partition(".")
    if top != ROOT:
        return top
    first = inner.partition(".")[0]
    place = SOURCES[ROOT] / ROOT / first
    is_module = first in LAYERS or place.is_dir() or place.with_suffix(".py").exists()
    return first if first and is_module else ROOT


def complaint(layer: str, found: Import) -> str | None:
    """Why this layer may not have this import, or None if it may."""
    top = found.target.split(".")[0]
    if top in SOURCES:
        wanted = layer_of(found.target)
        if wanted == layer or wanted in LAYERS[layer]:
            return None
        return f"{layer} may not know of {wanted}"
    if top in sys.stdlib_module_names:
        return None
    if top in SPARK:
        if (
            layer == "spark"
            or (found.in_function and layer in SPARK_WHEN_CALLED)
            or (found.for_types and layer in SPARK_IN_ANNOTATIONS)
        ):
            return None
        return f"only dovetail.spark imports Spark (cli and {BENCH} may, inside functions)"
    if layer in THIRD_PARTY and top not in THIRD_PARTY[layer]:
        return (
            f"{layer} uses only {', '.join(sorted(THIRD_PARTY[layer])) or 'the standard library'}"
        )
    return None


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    layer = layer_of(module)
    if layer not in LAYERS:
        return [f"{module}: give {layer!r} a place in LAYERS"]
    return [
        f"{module}:{found.line}: imports {found.target}: {why}"
        for found in imports_of(source, module, is_package=is_package)
        if (why := complaint(layer, found))
    ]


@pytest.mark.parametrize("package", SOURCES)
def test_imports_when_all_modules_are_read_then_all_point_downwards(package: str) -> None:
    source = SOURCES[package]
    paths = sorted((source / package).rglob("*.py"))
    assert paths, f"no modules of {package} found below {source}"
    found: list[str] = []
    for path in paths:
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found += violations(path.read_text(encoding="utf-8"), module, is_package=is_package)
    assert found == [], "\n".join(found)


def test_layers_when_read_from_the_bottom_then_each_knows_only_lower_ones() -> None:
    below: set[str] = set()
    for layer, known in LAYERS.items():
        assert known <= below, f"{layer} knows of {sorted(known - below)}, which stand above it"
        below.add(layer)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dovetail.errors", "import numpy"),
        ("dovetail.errors", "from dovetail.kernel import keys"),
        ("dovetail.kernel.keys", "import pandas as pd"),
        ("dovetail.kernel.keys", "from pyspark.sql import Row"),
        ("dovetail.kernel.keys", "def late():\n    import pyspark"),
        ("dovetail.kernel.keys", "if TYPE_CHECKING:\n    from pyspark.sql import Row"),
        ("dovetail.kernel.keys", "import importlib\nimportlib.import_module('pyspark.sql')"),
        ("dovetail.kernel.keys", "try:\n    import numba\nexcept ImportError:\n    numba = None"),
        ("dovetail.kernel.keys", "from dovetail import twoway"),
        ("dovetail.kernel.keys", "from dovetail import join"),
        ("dovetail.kernel.keys", "import dovetail"),
        ("dovetail.kernel.keys", "from dovetail.specs import JoinSpec"),
        ("dovetail.kernel.keys", "from ..twoway import xjoin"),
        ("dovetail.twoway.xjoin.operator", "from dovetail.semistream.scan import meshjoin"),
        ("dovetail.multiway.miner.operator", "import dovetail.costs.model"),
        ("dovetail.costs.model", "from dovetail.spark.runtime import step"),
        ("dovetail.specs", "from dovetail import api"),
        ("dovetail.kernel.predicates", "from sqlglot import exp"),
        ("dovetail.specs", "from pyspark.sql import DataFrame"),
        ("dovetail.spark.runtime", "from support.oracle import nested_loop"),
        ("dovetail.spark.runtime", "from dovetail.api import join"),
        ("support.oracle", "def late():\n    import pyspark"),
        ("dovetail.api", "from pyspark.sql import DataFrame"),
        ("dovetail.api", "def late():\n    from pyspark.sql import functions"),
        ("dovetail_bench.two_way", "import pyspark"),
        ("dovetail_bench.two_way", "from dovetail.cli.app import main"),
        ("dovetail_bench.two_way", "from support.oracle import nested_loop"),
        ("dovetail.cli.app", "from pyspark.sql import SparkSession"),
        ("dovetail.cli.app", "def late():\n    from dovetail_bench.cli import app"),
        ("dovetail.cli.app", "class Command:\n    import py4j"),
        ("dovetail.sites", "from pyspark.sql import DataFrame"),
        ("dovetail.sites", "from dovetail.api import join"),
        ("dovetail.multisite.site", "def late():\n    from dovetail import sites"),
        ("dovetail.multisite.site", "def late():\n    from dovetail.spark.sources import clock"),
    ],
)
def test_checker_when_a_rule_is_broken_then_names_module_and_line(module: str, source: str) -> None:
    (found,) = violations(source, module)
    assert found.startswith(f"{module}:")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dovetail.errors", "from __future__ import annotations\nimport dataclasses"),
        ("dovetail.kernel.runs", "import numpy as np\nimport pyarrow.compute as pc"),
        ("dovetail.kernel.runs", "from dovetail import errors\nfrom dovetail.kernel import keys"),
        ("dovetail.kernel.runs", "from . import keys\nfrom ..errors import StateCorruptError"),
        ("dovetail.twoway.xjoin.operator", "from dovetail.kernel.runs import SortedRuns"),
        ("dovetail.costs.model", "from dovetail.twoway.xjoin import operator"),
        ("dovetail.specs.conditions", "from sqlglot import exp"),
        ("dovetail.spark.runtime", "import pyspark\nfrom dovetail.specs import JoinSpec"),
        ("dovetail.api", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
        ("dovetail.api", "from dovetail.spark import runtime"),
        ("dovetail_bench.two_way", "def run():\n    from pyspark.sql import SparkSession"),
        ("dovetail.cli.app", "import typer\nimport dovetail\nfrom dovetail import join"),
        ("dovetail.sites", "from dovetail.multisite.query import Query"),
        ("dovetail.sites", "def late():\n    from dovetail.spark.sources import site_publish"),
    ],
)
def test_checker_when_rules_are_kept_then_is_silent(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_checker_when_a_package_imports_relatively_then_resolves_from_itself() -> None:
    assert violations("from .join import join", "dovetail.twoway", is_package=True) == []
    (found,) = violations("from ..spark import runtime", "dovetail.twoway", is_package=True)
    assert "imports dovetail.spark.runtime" in found


def test_checker_when_a_folder_has_no_layer_then_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ROOT / "extras").mkdir(parents=True)
    monkeypatch.setitem(SOURCES, ROOT, tmp_path)
    (found,) = violations("", "dovetail.extras.thing")
    assert "'extras'" in found
