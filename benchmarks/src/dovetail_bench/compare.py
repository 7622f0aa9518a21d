"""Two checkouts compared: a benchmark runs in both by turns, and their ratios are set side by side.

A benchmark's ratios are taken against rivals that run beside it. The quotient of the two checkouts'
ratios says what a change did, whatever the machine does meanwhile; above 1, it was for the better.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.errors import ArgumentError

HERE = Path(__file__).resolve().parents[3]
Ratios = dict[str, float]


def ratios_in(checkout: Path, name: str, options: Sequence[str]) -> Ratios:
    """The median ratios of one run of a benchmark in a checkout."""
    apart = checkout / "benchmarks" / "src"  # older ones have their benchmarks in the package
    if not (checkout / "src" / "dovetail").is_dir():
        raise ArgumentError(f"{checkout} is not a checkout: it has no src/dovetail")
    module = "dovetail_bench" if apart.is_dir() else "dovetail.bench"
    paths = os.pathsep.join([str(checkout / "src"), *([str(apart)] if apart.is_dir() else [])])
    command = [sys.executable, "-m", module, "run", name, "--json", "--no-save", *options]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable},
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ArgumentError(f"{' '.join(command)} failed in {checkout}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)["ratios"]
    return {key: float(ratio["median"]) for key, ratio in found.items()}


def quotients(before: Sequence[Ratios], after: Sequence[Ratios]) -> dict[str, list[float]]:
    """What the ratios after are of those before, turn by turn, for all that both have."""
    turns = list(zip(before, after, strict=True))
    keys = [key for key in after[0] if all(key in old and key in new for old, new in turns)]
    return {key: [new[key] / old[key] for old, new in turns] for key in keys}


def compare(
    before: Path, name: str, turns: int, options: Sequence[str], tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Run a benchmark in both checkouts by turns; the one that goes first changes."""
    found: dict[Path, list[Ratios]] = {before: [], HERE: []}
    for turn in range(turns):
        for checkout in (before, HERE) if turn % 2 == 0 else (HERE, before):
            start = time.monotonic()
            found[checkout].append(ratios_in(checkout, name, options))
            which = "after" if checkout == HERE else "before"
            tell(f"{name}: turn {turn + 1}/{turns}, {which}, {time.monotonic() - start:.0f} s")
    return quotients(found[before], found[HERE])
