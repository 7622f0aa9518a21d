"""`dovetail explain`: explains what a job would do, without running it."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dovetail.cli.examples import examples
from dovetail.cli.job import execution
from dovetail.cli.job.file import Job, read_job
from dovetail.cli.session import spark_session
from dovetail.cli.views import announce, make_console
from dovetail.costs.storage import PROFILES, THIS_MACHINE, profile
from dovetail.errors import ArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.costs.explanation import Explanation

NAME = "explain"
JOIN_SAMPLE_ROWS = 20_000  #: if nothing else is asked for, and both inputs are files
EXAMPLES = examples(
    ("dovetail explain job.toml", "see dovetail run --help"),
    ("dovetail explain enrich.toml", "a table: algorithms compared"),
    ('dovetail explain enrich.toml --storage "object store"', "on other storage"),
    ("dovetail explain job.toml --sample 100000", "estimate more closely"),
)


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
    if storage is not None and job.kind != "enrich":
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
        explanation = explained(console, spark, job, sample, storage)
    for line in str(explanation).splitlines():
        console.print(Text(line, "" if line.startswith(" ") else "bold"))


def explained(
    console: Console, session: "SparkSession", job: Job, sample: int | None, storage: str
) -> "Explanation":
    """The explanation of a job, with a sample of its files if it is to have one."""
    planned = execution.plan(session, job)
    files = execution.are_files(job)
    asked: dict[str, Any]
    if job.kind == "join":
        rows = (JOIN_SAMPLE_ROWS if files else 0) if sample is None else sample
        doing, reads, asked = "Sampling the inputs", rows > 0, {"sample_rows": rows}
    elif job.kind == "join_all":
        count = sample != 0 and files
        doing, reads, asked = "Counting the inputs", count, {"count": count}
    else:
        reads = bool(sample) and not job.history  # else the plan has it
        doing, asked = "Measuring this machine", {"storage": storage}
        if sample is not None:
            asked["sample_rows"] = sample
    saying = announce(console, doing) if reads or job.kind == "enrich" else nullcontext()
    with execution.blame(job, job.kind), saying:
        history: Any = None
        if reads:
            past = execution.as_arguments(job, execution.open_as_batch(session, job))
            history = past if job.kind == "join" else past[0]
        if job.kind == "enrich" and sample:
            asked["samples"] = execution.sample(session, job, sample)
        return planned.explain(history, **asked)
