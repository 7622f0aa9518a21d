"""The command `dovetail demo`: its options, the place it works in, and its Spark session."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dovetail.cli.demo import enrich, join
from dovetail.cli.demo.data import Settings, Streams, make_shop, make_streams
from dovetail.cli.demo.life import make_life
from dovetail.cli.demo.scene import Scene
from dovetail.cli.examples import examples
from dovetail.cli.session import spark_session
from dovetail.cli.views import announce, make_console
from dovetail.errors import ArgumentError
from dovetail.kernel.memory import format_bytes, parse_bytes
from dovetail.semistream.base import MIN_BUDGET_BYTES as LEAST_ENRICH_BYTES
from dovetail.twoway.base import MIN_BUDGET_BYTES

NAME = "demo"
EXAMPLES = examples(
    ("dovetail demo", "200,000 orders and their payments"),
    ("dovetail demo --uniform", "the worst case for a small memory"),
    ("dovetail demo enrich", "orders and their customers"),
    ("dovetail demo --rows 1000000", "more rows; takes minutes"),
    ("dovetail demo --memory 8MB", "a budget of your own"),
    ("dovetail demo --keep /tmp/demo", "keep data, results and state"),
)
_BATCH_SHARE = 1 / 8  # of a partition's budget: what one input batch may take at most
_LARGEST_BATCH = 10_000
_SMALL_INDEX_BYTES = 8 << 10  # what the pages of a tiny table need


class What(StrEnum):
    """The jobs that can be shown."""

    JOIN = "join"  #: two streams
    ENRICH = "enrich"  #: a stream and a table


_ROWS = {What.JOIN: 200_000, What.ENRICH: 60_000}  # either takes less than a minute


def command(
    what: Annotated[
        What, typer.Argument(help="Two streams joined, or a stream enriched from a table.")
    ] = What.JOIN,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Orders; with --uniform, rows on each side; for enrich, of the stream.",
            show_default="200000; 60000 for enrich",
        ),
    ] = None,
    budget_share: Annotated[
        float,
        typer.Option(min=0.0, help="The budget, as a share of the input's or the table's size."),
    ] = 0.05,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The budget as a size, 8MB say.", show_default=False),
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Hash partitions of the join.")] = 2,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep everything in this new or empty directory.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other data for another number.")] = 1,
    uniform: Annotated[
        bool,
        typer.Option("--uniform", help="The worst case: rows that match come at any time."),
    ] = False,
) -> None:
    """Join made-up data on local Spark inside a small budget, and check the result.

    Two streams are as in life: payments follow their orders by minutes, and some orders are paid
    by hundreds. Beside it runs Spark's own join, to show what that holds in memory.

    Exit codes: 0 the result is right, 1 it is not, 2 a mistake that the message explains, 130
    stopped by Ctrl-C, 143 stopped by SIGTERM.
    """
    if uniform and what is What.ENRICH:
        raise ArgumentError("--uniform: there is no worst case of enrich; leave one of them out")
    console = make_console()
    asked = Asked(rows or _ROWS[what], budget_share, memory, partitions, seed, uniform)
    with _workplace(keep) as directory:
        show = _show_enrich if what is What.ENRICH else _show_join
        same = show(console, directory, asked)
        if keep is not None:
            kept = f"Kept in {directory}; try: dovetail top {directory / 'state'} --once"
            console.print(kept, markup=False, soft_wrap=True)
    if not same:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Asked:
    """What the user wants to see."""

    rows: int
    budget_share: float
    memory: str | None
    partitions: int
    seed: int
    uniform: bool


def _show_join(console: Console, directory: Path, asked: Asked) -> bool:
    """Whether the result of the join is right."""
    make, run = (_uniform, join.run) if asked.uniform else (_life, join.run_beside_spark)
    streams, what = make(console, directory, asked)
    row_bytes = streams.nbytes / max(1, streams.rows)
    least = MIN_BUDGET_BYTES * asked.partitions
    settings = _settings(console, what, streams.nbytes, row_bytes, least, asked)
    with _scene(console, directory, settings) as scene:
        run(scene, streams, settings)
        return join.check(scene, streams)


def _life(console: Console, directory: Path, asked: Asked) -> tuple[Streams, str]:
    with announce(console, f"Making {asked.rows:,} orders and their payments"):
        streams = make_life(directory / "in", asked.rows, asked.seed)
    return streams, (
        f"{streams.right.rows:,} orders, each followed by its payments, {streams.left.rows:,} in "
        f"all; {format_bytes(streams.nbytes)} in memory together"
    )


def _uniform(console: Console, directory: Path, asked: Asked) -> tuple[Streams, str]:
    """Streams in which a row has no reason to come near those that it joins."""
    with announce(console, f"Making two streams of {asked.rows:,} rows"):
        streams = make_streams(directory / "in", asked.rows, asked.seed)
    return streams, (
        f"Two streams of {asked.rows:,} rows, {format_bytes(streams.nbytes)} in memory together"
    )


def _show_enrich(console: Console, directory: Path, asked: Asked) -> bool:
    """Whether the result of the enrichment is right."""
    with announce(console, f"Making {asked.rows:,} orders and their customers"):
        shop = make_shop(directory / "in", asked.rows, asked.seed)
    what = (
        f"A stream of {shop.rows:,} orders, and a table of {shop.customers:,} customers, "
        f"{format_bytes(shop.table_bytes)} in memory"
    )
    # the index of the table's pages comes on top: below 1 % of it
    least = (LEAST_ENRICH_BYTES + _SMALL_INDEX_BYTES) * asked.partitions + shop.table_bytes // 100
    settings = _settings(console, what, shop.table_bytes, shop.order_bytes, least, asked)
    with _scene(console, directory, settings) as scene:
        enrich.run(scene, shop, settings)
        return enrich.check(scene, shop)


@contextmanager
def _scene(console: Console, directory: Path, settings: Settings) -> Iterator[Scene]:
    conf = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(settings.batch_rows),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # a short program: compiling it to the utmost would take a third of the work
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    }
    with spark_session(console, "dovetail-demo", "local[2]", conf) as spark:
        yield Scene(console, spark, directory)


def _settings(
    console: Console, what: str, size: int, row_bytes: float, least: int, asked: Asked
) -> Settings:
    """The budget, `least` or more, and input batches small enough for it."""
    if asked.memory is not None:
        try:
            budget = parse_bytes(asked.memory)
        except ValueError as error:
            raise ArgumentError(f"--memory: {error}") from None
    else:
        budget = max(int(size * asked.budget_share), least)
    room = int(budget / asked.partitions * _BATCH_SHARE)
    batch = max(1, min(_LARGEST_BATCH, room // max(1, int(row_bytes))))
    raised = " (the least that runs)" if asked.memory is None and budget == least else ""
    share = f"{100 * budget / max(1, size):.0f} % of that{raised}"
    console.print(f"{what}. Budget: {format_bytes(budget)}, {share}.")
    return Settings(asked.partitions, budget, batch)


@contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    """A directory for everything: a temporary one, or the one that is to be kept."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="dovetail-demo-") as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ArgumentError(
            f"--keep {keep}: there is something there already; name a new directory"
        )
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()
