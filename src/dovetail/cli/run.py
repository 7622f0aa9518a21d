"""`dovetail run`: the join or the enrichment that a job file describes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dovetail.cli.explain import print_explanation
from dovetail.cli.jobfile import EnrichJob, Job, JoinAllJob, read_job
from dovetail.cli.jobs import plan, start, state_of, write
from dovetail.cli.session import spark_session
from dovetail.cli.views import announce, enrich_summary, make_console, summary
from dovetail.cli.watch import Watched, look, watch
from dovetail.kernel.protocol import SIDE_NAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "run"
EXAMPLES = """
[bold]Examples[/bold]

  [cyan]dovetail run examples/job.toml[/cyan]         two streams joined

  [cyan]dovetail run examples/enrich.toml[/cyan]      a stream joined with a table

  [cyan]dovetail run examples/join_all.toml[/cyan]    several streams joined at once

  [cyan]dovetail run job.toml --dry-run[/cyan]           check it, start nothing

  [cyan]dovetail run job.toml --available-now[/cyan]     take what is there, and end
"""


def command(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file.")],
    available_now: Annotated[
        bool,
        typer.Option(
            "--available-now",
            "--once",
            help="Take in what is there now, finish all deferred work, and end: whatever "
            "\\[trigger] says.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job and print its plan; start nothing.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(help="Keep Spark's own messages in this file.", show_default=False),
    ] = None,
) -> None:
    """Run the job that a file describes: sources, join or enrichment, sink, trigger.

    Ctrl-C stops the query; started again, it goes on where it was.
    """
    job = read_job(job_file)
    # a console sink has standard output to itself, and a display that redraws would smear it
    to_console = job.sink.format == "console"
    console = make_console(stderr=to_console, plain=to_console)
    if dry_run:
        print_explanation(console, job, None, log)
        console.print("Dry run: nothing was started.")
        return
    with spark_session(console, job.spark.app_name, job.spark.master, job.spark.conf, log) as spark:
        doing = "Staging the table" if isinstance(job, EnrichJob) else "Planning the join"
        with announce(console, doing):
            joined = plan(spark, job)
        if job.streaming:
            _stream(console, job, joined, available_now)
        else:
            _batch(console, job, joined)


def _stream(console: Console, job: Job, joined: "DataFrame", available_now: bool) -> None:
    state = state_of(job)
    resumed = look(state) is not None
    started = time.monotonic()
    query = start(job, joined, available_now=available_now)
    ended = watch(console, Watched(query, state))
    progress = look(state)
    if progress is None or not progress.partitions:
        console.print("No rows came in.")
        return
    seconds = time.monotonic() - started
    if isinstance(job, EnrichJob):
        console.print(enrich_summary(progress, seconds))
    else:
        names = tuple(job.inputs) if isinstance(job, JoinAllJob) else SIDE_NAMES
        console.print(summary(progress, seconds, names, ended=ended))
    if resumed:
        console.print("All but the time counts from the first start of this query.")
    if not ended:
        console.print("Stopped. Run it again to go on from here.")


def _batch(console: Console, job: Job, joined: "DataFrame") -> None:
    started = time.monotonic()
    with announce(console, "Joining"):
        write(job, joined)
    console.print(f"Done in {time.monotonic() - started:.1f} s.")
