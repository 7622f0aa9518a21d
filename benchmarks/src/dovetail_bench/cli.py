"""`dovetail bench list | run | report | compare`."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dovetail.errors import DovetailError
from dovetail_bench import compare as comparing
from dovetail_bench import registry
from dovetail_bench.progress import Terminal
from dovetail_bench.report import read_results, write_report
from dovetail_bench.result import Result

RESULTS = Path("benchmarks/results")

app = typer.Typer(
    help="Compare Dovetail with its peers, side by side on this machine.\n\n"
    "The result is a ratio with its spread, written so that above 1 is good for Dovetail.\n\n"
    "Examples:\n\n"
    "    dovetail bench list\n\n"
    "    dovetail bench run spark-two-way\n\n"
    "    dovetail bench report",
    no_args_is_help=True,
)


@app.command("list")
def list_() -> None:
    """List the benchmarks.

    Example:

        dovetail bench list
    """
    table = Table("name", "what it compares", "groups", "--rows")
    for benchmark in registry.benchmarks().values():
        size = f"{benchmark.rows:,} {benchmark.rows_mean}"
        table.add_row(benchmark.name, benchmark.summary, ", ".join(benchmark.groups), size)
    Console().print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="One of `dovetail bench list`.")],
    repetitions: Annotated[
        list[str] | None,
        typer.Option(metavar="N|GROUP=N", help="How often each contender runs; 5 by default."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Another size than the one that is published.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the data.")] = registry.DEFAULT_SEED,
    only: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="One group alone; not saved unless --out is given."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else, to stdout.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help=f"Where NAME.json goes.  [default: {RESULTS}]")
    ] = None,
    save: Annotated[bool, typer.Option(help="Keep the result in a file.")] = True,
) -> None:
    """Run one benchmark.

    Ends with status 1 if any run failed or produced a wrong result.

    Examples:

        dovetail bench run spark-two-way

        dovetail bench run spark-two-way --only kernel --repetitions 9

        dovetail bench run spark-two-way --rows 250000 --repetitions 2 --repetitions kernel=9

        dovetail bench run cost-growth --json --no-save > result.json
    """
    with _complaints():
        benchmark = registry.find(name)
        config = benchmark.configure(rows, tuple(repetitions or ()), seed, only)
        with _only_ours_on_stdout(), Terminal(Console(stderr=True)) as terminal:
            result = registry.run(benchmark, config, terminal)
    if save and (only is None or out is not None):
        _save(result, out or RESULTS)
    if as_json:
        typer.echo(result.to_json())
    else:
        _show(result)
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="The directory of the results.")] = RESULTS,
    out: Annotated[
        Path | None,
        typer.Option(help="Where REPORT.md and figures/ go.  [default: the directory above]"),
    ] = None,
) -> None:
    """Draw every saved result: a chart each, and one table of all.

    Examples:

        dovetail bench report

        dovetail bench report /tmp/results --out /tmp/report
    """
    with _complaints():
        written = write_report(read_results(results), out or results.parent)
    for path in written:
        typer.echo(str(path))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A checkout of the commit before.")],
    names: Annotated[list[str], typer.Argument(help="Of `dovetail bench list`.")],
    turns: Annotated[int, typer.Option(min=1, help="How often each checkout runs.")] = 5,
    rows: Annotated[int | None, typer.Option(help="Another size than the published one.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="In each run.")] = 1,
    only: Annotated[str | None, typer.Option(metavar="GROUP", help="One group alone.")] = None,
    least: Annotated[float, typer.Option(help="The lowest median that passes.")] = 0.97,
) -> None:
    """Compare this checkout with one of the commit before, by turns.

    Prints what the ratios are of those before: above 1, the change was for the better. Ends with
    status 1 if a median is lower than --least.

    Example:

        dovetail bench compare ../before spark-two-way spark-enrich --rows 250000
    """
    options = ["--repetitions", str(repetitions), *(["--rows", str(rows)] if rows else [])]
    options += ["--only", only] if only else []
    said, lowest = Console(stderr=True), float("inf")
    table = Table("benchmark", "ratio", "median", "spread")
    with _complaints():
        for name in names:
            found = comparing.compare(before.resolve(), name, turns, options, said.print)
            for key, values in found.items():
                lowest = min(lowest, median(values))
                spread = f"{min(values):.3f}-{max(values):.3f}"
                table.add_row(name, key, f"{median(values):.3f}", spread)
    Console().print(table)
    raise typer.Exit(int(lowest < least))


def _save(result: Result, directory: Path) -> None:
    target = directory / f"{result.name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(result.to_json() + "\n", encoding="utf-8")
    Console(stderr=True).print(f"saved to {target}", highlight=False, markup=False)


def _show(result: Result) -> None:
    table = Table("ratio (above 1 is good)", "median", "min", "max", "n")
    for label, spread in result.ratios.items():
        ends = [spread.median, spread.min, spread.max]
        cells = ["failed" if value is None else f"{value:.2f}" for value in ends]
        table.add_row(label, *cells, str(spread.n))
    console = Console()
    console.print(table)
    for failure in result.failures:
        console.print(f"FAILED: {failure.contender}: {failure.error}", markup=False)


@contextlib.contextmanager
def _complaints() -> Iterator[None]:
    """An error that a user can act on is one line, not a stack trace."""
    try:
        yield
    except DovetailError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@contextlib.contextmanager
def _only_ours_on_stdout() -> Iterator[None]:
    """Send what others write to standard output, the JVM for one, to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
