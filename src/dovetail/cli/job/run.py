"""`dovetail run`: the join or the enrichment that a job file describes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dovetail.cli.examples import examples
from dovetail.cli.job.execution import result, start, state_of, write
from dovetail.cli.job.explain import print_explanation
from dovetail.cli.job.file import Job, read_job
from dovetail.cli.job.places import results_of
from dovetail.cli.session import spark_session
from dovetail.cli.stopping import Stopped
from dovetail.cli.views import announce, enrich_summary, make_console, summary
from dovetail.cli.watch import Watched, look, watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "run"
_JOB_FILE = """
[bold]A job file[/bold], here with two streams; their folders are named from its own

  left = { format = "parquet", path = "data/orders" }

  right = { format = "parquet", path = "data/payments" }

  join = { on = "order_id", memory = "64MB" }

  sink = { format = "parquet", path = "paid-orders", checkpoint = "ckpt/query" }

With stream = { ... } and enrich = { table = ..., on = ... } a stream is looked up in a table, with
inputs.NAME = { ... } and join_all = { on = ... } several streams are joined at once.
"""
EXAMPLES = (
    examples(
        ("dovetail run job.toml", "run it until Ctrl-C"),
        ("dovetail run job.toml --dry-run", "check it, start nothing"),
        ("dovetail run job.toml --available-now", "take what is there, and end"),
    )
    + _JOB_FILE
)


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

    Exit codes: 0 the query has ended by itself, 2 a mistake that the message explains, 130 stopped
    by Ctrl-C, 143 stopped by SIGTERM; 1 anything else.
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
        if job.kind == "enrich":
            console.print("Staging the table …")  # which shows by itself how far it is
            joined = result(spark, job)
        else:
            with announce(console, "Planning the join"):
                joined = result(spark, job)
        _say(console, f"Results go to {results_of(job)}")
        if job.streaming:
            _say(console, f"State is kept in {state_of(job)}; watch it: dovetail top {job_file}")
            _stream(console, job, joined, available_now)
        else:
            _batch(console, job, joined)


def _stream(console: Console, job: Job, joined: "DataFrame", available_now: bool) -> None:
    """Run the query, and tell what it did; `Stopped` if a signal stopped it."""
    state = state_of(job)
    earlier = look(state)
    before = -1 if earlier is None else earlier.version
    started = time.monotonic()
    query = start(job, joined, available_now=available_now)
    stopped = watch(console, Watched(query, state))
    seconds = time.monotonic() - started
    progress = look(state)
    done = progress is not None and progress.version > before
    if progress is not None and done:
        if job.kind == "enrich":
            console.print(enrich_summary(progress, seconds, before=before))
        else:
            ended, names = stopped is None, tuple(job.inputs)
            console.print(summary(progress, seconds, names, ended=ended, before=before))
        if before >= 0:
            _say(console, "All but the last line counts from the first start of this query.")
        _say(console, f"Results are in {results_of(job)}")
        _say(console, f"State is in {state}")
    elif stopped is None:
        nothing = "No rows came in." if before < 0 else f"Nothing new since batch {before}."
        _say(console, nothing)
    if stopped is not None:
        until = "" if done else " before the first micro-batch of this run ended"
        raise Stopped(stopped, f"Stopped{until}. Run it again to go on from here.")


def _say(console: Console, line: str) -> None:
    """A line that is not broken, so that paths in it can be copied."""
    console.print(line, markup=False, soft_wrap=True)


def _batch(console: Console, job: Job, joined: "DataFrame") -> None:
    started = time.monotonic()
    with announce(console, "Joining"):
        write(job, joined)
    _say(console, f"Done in {time.monotonic() - started:.1f} s: {results_of(job)}")
