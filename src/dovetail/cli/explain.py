"""`dovetail explain`: what a job would do, without doing it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from dovetail.api import explain, explain_enrich
from dovetail.cli import jobs
from dovetail.cli.jobfile import EnrichJob, Job, JoinJob, read_job
from dovetail.cli.session import spark_session
from dovetail.cli.views import announce, make_console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.costs.explain import Explanation

NAME = "explain"
EXAMPLES = """
[bold]Examples[/bold]

  [cyan]dovetail explain examples/job.toml[/cyan]

  [cyan]dovetail explain examples/enrich.toml[/cyan]     algorithms compared

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
        if isinstance(job, JoinJob):
            explanation = _join(spark, job, sample)
        else:
            with announce(console, "Measuring this machine"):
                explanation = _enrich(spark, job, sample)
    for line in str(explanation).splitlines():
        console.print(Text(line, "" if line.startswith(" ") else "bold"))


def _join(session: "SparkSession", job: JoinJob, sample: int | None) -> "Explanation":
    left, right = jobs.open_inputs(session, job)
    with jobs.blame(job, "join"):
        return explain(
            left,
            right,
            samples=None if sample is None else jobs.sample(session, job, sample),
            **vars(job.join),
        )


def _enrich(session: "SparkSession", job: EnrichJob, sample: int | None) -> "Explanation":
    stream = jobs.open_stream(session, job)
    with jobs.blame(job, "enrich"):
        return explain_enrich(
            stream,
            job.table,
            samples=None if sample is None else jobs.sample(session, job, sample),
            **vars(job.enrich),
        )
