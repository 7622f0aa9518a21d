"""`dovetail explain`: what a job would do, without doing it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dovetail.api import explain
from dovetail.cli import jobs
from dovetail.cli.jobfile import Job, read_job
from dovetail.cli.session import spark_session
from dovetail.cli.views import make_console

NAME = "explain"
EXAMPLES = """
[bold]Examples[/bold]

  [cyan]dovetail explain examples/job.toml[/cyan]

  [cyan]dovetail explain job.toml --sample 1000[/cyan]   look at real rows
"""


def command(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file.")],
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ROWS",
            help="Read this many rows of each input to learn how wide they are; else the column "
            "types tell. File sources only.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Explain a job: algorithm, partitions, memory, spilling, state, output. Starts nothing.

    Spark is started on this machine, to learn the columns of the inputs; no query is.
    """
    print_explanation(make_console(), read_job(job_file), sample, None)


def print_explanation(console: Console, job: Job, sample: int | None, log: Path | None) -> None:
    """Resolve a job on Spark and print its plan."""
    with spark_session(console, job.spark.app_name, job.spark.master, job.spark.conf, log) as spark:
        left, right = jobs.open_inputs(spark, job)
        options = job.join
        with jobs.blame(job, "join"):
            explanation = explain(
                left,
                right,
                options.on,
                within=options.within,
                memory=options.memory,
                state=options.state,
                algorithm=options.algorithm,
                partitions=options.partitions,
                slice_ms=options.slice_ms,
                samples=None if sample is None else jobs.sample(spark, job, sample),
            )
    for line in str(explanation).splitlines():
        console.print(Text(line, "" if line.startswith(" ") else "bold"))
