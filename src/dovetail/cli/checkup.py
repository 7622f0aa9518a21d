"""`dovetail doctor`: shows what the checks of `doctor` found."""

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from dovetail.cli.doctor import Check, run_checks
from dovetail.cli.examples import examples
from dovetail.cli.views import make_console

NAME = "doctor"
EXAMPLES = examples(
    "dovetail doctor",
    ("dovetail doctor --state /mnt/ckpt/join", "may the state live there?"),
)


def command(
    state: Annotated[
        Path | None,
        typer.Option(help="The state directory to be used. It need not exist.", show_default=False),
    ] = None,
) -> None:
    """Check that Java, Spark, Python, disk and network are fit; exit code 1 if one is not."""
    console = make_console()
    with console.status("Looking around …"):
        checks = run_checks(state)
    console.print(_table(checks))
    failed = [check for check in checks if not check.ok]
    for check in failed:
        console.print(f"[bold red]{check.name}[/bold red]: ", end="")
        console.print(check.remedy, markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)
    console.print("Everything is in order.")


def _table(checks: list[Check]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        mark = "[green]ok[/green]" if check.ok else "[bold red]no[/bold red]"
        table.add_row(mark, check.name, Text(check.detail))
    return table
