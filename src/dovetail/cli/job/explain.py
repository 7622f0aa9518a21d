"""`dovetail explain`: explains what a job would do, without running it."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from dovetail import plan
from dovetail.cli.job import execution
from dovetail.cli.job.file import EnrichJob, Job, JoinAllJob, JoinJob, read_job
from dovetail.cli.session import spark_session
from dovetail.cli.views import announce, make_console
from dovetail.costs.storage import PROFILES, THIS_MACHINE, profile
from dovetail.errors import ArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.costs.explanation import Explanation

NAME = "explain"
JOIN_SAMPLE_ROWS = 20_000  #: if nothing else is asked for, and both inputs are files
EXAMPLES = """
[bold]Examples[/bold]

  [cyan]dovetail explain job.toml[/cyan]                 see dovetail run --help

  [cyan]dovetail explain enrich.toml[/cyan]              a table: algorithms compared

  [cyan]dovetail explain enrich.toml --storage "object store"[/cyan]   on other storage

  [cyan]dovetail explain job.toml --sample 100000[/cyan]   estimate more closely
"""


def command(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file.")],
    sample: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="ROWS",
            help="Sample about this many rows of each input; 0 reads none. Of a join of files "
            f"{JOIN_SAMPLE_ROWS:,} unless told: they tell how many results come early. Of an "
            "enrichment, they tell how wide rows and how skewed keys are; unless told, only keys "
            "are sampled, of a batch or with history. Of several inputs, all keys are counted. "
            "File sources only.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Predict an enrichment for a table that lies on this storage: "
            f"{', '.join(repr(name) for name in (THIS_MACHINE, *PROFILES))}. Default: "
            f"{THIS_MACHINE!r}, measured.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Explain a job: algorithm, memory, what to expect, state, output. Starts no query.

    Spark is started on this machine, to learn the columns of the inputs and to sample files.
    """
    if storage is not None:
        profile(storage)  # before Spark is started for it
    job = read_job(job_file)
    if storage is not None and not isinstance(job, EnrichJob):
        raise ArgumentError(
            "--storage is for jobs that look a stream up in a table, with [stream] and [enrich]; "
            f"{job_file} has none. Leave it out"
        )
    print_explanation(make_console(), job, sample, None, storage or THIS_MACHINE)


def print_explanation(
    console: Console, job: Job, sample: int | None, log: Path | None, storage: str = THIS_MACHINE
) -> None:
    """Resolve a job on Spark and print its plan."""
    with spark_session(console, job.spark.app_name, job.spark.master, job.spark.conf, log) as spark:
        if isinstance(job, JoinJob):
            explanation = _join(console, spark, job, sample)
        elif isinstance(job, JoinAllJob):
            explanation = _join_all(console, spark, job, sample)
        else:
            with announce(console, "Measuring this machine"):
                explanation = _enrich(spark, job, sample, storage)
    for line in str(explanation).splitlines():
        console.print(Text(line, "" if line.startswith(" ") else "bold"))


def _join(
    console: Console, session: "SparkSession", job: JoinJob, sample: int | None
) -> "Explanation":
    left, right = execution.open_inputs(session, job)
    rows, history = sample, None
    if rows is None:
        rows = JOIN_SAMPLE_ROWS if execution.are_files(job) else 0
    if rows:
        history = execution.open_as_batch(session, job)
    sampling = announce(console, "Sampling the inputs") if rows else nullcontext()
    with execution.blame(job, "join"), sampling:
        planned = plan.join(left, right, **vars(job.join))
        return planned.explain(history, sample_rows=rows)


def _join_all(
    console: Console, session: "SparkSession", job: JoinAllJob, sample: int | None
) -> "Explanation":
    inputs = execution.open_all(session, job)
    count = sample != 0 and execution.are_files(job)
    files = execution.open_all(session, job, as_batch=True) if count or job.history else None
    history = files if job.history else None
    counting = announce(console, "Counting the inputs") if count else nullcontext()
    with execution.blame(job, "join_all"), counting:
        planned = plan.join_all(inputs, history=history, **vars(job.join_all))
        return planned.explain(files, count=count)


def _enrich(
    session: "SparkSession", job: EnrichJob, sample: int | None, storage: str
) -> "Explanation":
    from dovetail.spark.jobs.plans import SAMPLED_ROWS

    stream = execution.open_stream(session, job)
    files = execution.stream_as_batch(session, job) if sample or job.history else None
    with execution.blame(job, "enrich"):
        planned = plan.enrich(
            stream, job.table, history=files if job.history else None, **vars(job.enrich)
        )
        return planned.explain(
            None if job.history else files,
            samples=execution.sample(session, job, sample) if sample else None,
            sample_rows=SAMPLED_ROWS if sample is None else sample,
            storage=storage,
        )
