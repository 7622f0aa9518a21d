"""What a benchmark is, which there are, and how one is run.

A module of benchmarks has a tuple `BENCHMARKS`; it imports Spark, DuckDB and the like only inside
functions, so that listing the benchmarks needs none of them.
"""

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from dovetail.errors import ArgumentError
from dovetail_bench.machine import machine
from dovetail_bench.progress import Reporter
from dovetail_bench.result import Failure, Result

MODULES = (
    "dovetail_bench.spark.two_way",
    "dovetail_bench.spark.cost_growth",
    "dovetail_bench.mesh.shedding",
    "dovetail_bench.enrich.kernel",
    "dovetail_bench.enrich.growth",
    "dovetail_bench.mesh.figures",
    "dovetail_bench.mesh.load",
    "dovetail_bench.ssbj",
    "dovetail_bench.spark.enrich",
    "dovetail_bench.spark.diner",
    "dovetail_bench.spark.multi_way",
    "dovetail_bench.diner.synthetic",
    "dovetail_bench.diner.real",
    "dovetail_bench.diner.timed",
    "dovetail_bench.diner.bounds",
    "dovetail_bench.miner.figures",
    "dovetail_bench.semi",
    "dovetail_bench.semi.spark",
)
DEFAULT_REPETITIONS = 5
DEFAULT_SEED = 1


@dataclass(frozen=True)
class Config:
    """How a benchmark is to be run."""

    rows: int  #: the benchmark's own measure of size, see its summary
    repetitions: int = DEFAULT_REPETITIONS
    group_repetitions: Mapping[str, int] = field(default_factory=dict)  #: where they differ
    seed: int = DEFAULT_SEED
    only: str | None = None  #: one group; None is all of them

    def wants(self, group: str) -> bool:
        return self.only in (None, group)

    def repetitions_of(self, group: str) -> int:
        return self.group_repetitions.get(group, self.repetitions)


@dataclass(frozen=True)
class Benchmark:
    """A named comparison."""

    name: str
    summary: str  #: one line
    rows: int  #: the size at which its numbers are published
    rows_mean: str  #: what `rows` counts
    groups: tuple[str, ...]  #: parts that can be run by themselves
    function: Callable[[Config, Reporter], Result]

    def configure(
        self,
        rows: int | None = None,
        repetitions: tuple[str, ...] = (),
        seed: int = DEFAULT_SEED,
        only: str | None = None,
    ) -> Config:
        """A checked config; `repetitions` are texts like `5` or `kernel=9`."""
        if only is not None:
            self._check_group(only)
        if rows is not None and rows < 1:
            raise ArgumentError(f"rows must be at least 1, not {rows}")
        general = DEFAULT_REPETITIONS
        by_group: dict[str, int] = {}
        for text in repetitions:
            group, separator, number = text.rpartition("=")
            if not number.isdecimal() or int(number) < 1:
                raise ArgumentError(
                    f"repetitions {text!r} is neither a number like 5 nor a group's like kernel=9"
                )
            if separator:
                self._check_group(group)
                by_group[group] = int(number)
            else:
                general = int(number)
        return Config(self.rows if rows is None else rows, general, by_group, seed, only)

    def command(self, config: Config) -> str:
        """The command that runs this again in the same way."""
        parts = ["dovetail", "bench", "run", self.name, "--rows", str(config.rows)]
        parts += ["--repetitions", str(config.repetitions)]
        for group, number in config.group_repetitions.items():
            parts += ["--repetitions", f"{group}={number}"]
        parts += ["--seed", str(config.seed)]
        if config.only is not None:
            parts += ["--only", config.only]
        return shlex.join(parts)

    def _check_group(self, group: str) -> None:
        if group not in self.groups:
            raise ArgumentError(
                f"{self.name} has no group {group!r}; its groups are {', '.join(self.groups)}"
            )


def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name."""
    found = [entry for module in MODULES for entry in import_module(module).BENCHMARKS]
    return {benchmark.name: benchmark for benchmark in found}


def find(name: str) -> Benchmark:
    known = benchmarks()
    if name not in known:
        raise ArgumentError(f"there is no benchmark {name!r}; there are {', '.join(known)}")
    return known[name]


def run(benchmark: Benchmark, config: Config, reporter: Reporter) -> Result:
    """Run a benchmark. Whatever goes wrong in it, there is a result that says so."""
    try:
        result = benchmark.function(config, reporter)
    except Exception as error:  # noqa: BLE001  a benchmark that failed is shown as failed
        failure = Failure(benchmark.name, None, describe(error))
        result = Result(benchmark.name, failures=(failure,))
    return dataclasses.replace(
        result, machine=machine(), command=benchmark.command(config), seed=config.seed
    )


def describe(error: BaseException) -> str:
    """An error in a few lines.

    Spark puts stack traces and the whole query into its messages; what matters is how they end.
    """
    message = str(error).partition("=== Streaming Query ===")[0]
    lines = [line for line in message.splitlines() if line and not line[0].isspace()]
    told = [line for line in lines if not line.endswith("Traceback (most recent call last):")]
    return f"{type(error).__name__}: {' '.join(told or lines)}"[:1500]
