"""`dovetail demo`: two streams joined, and the result checked."""

import time
from typing import TYPE_CHECKING

from rich.table import Table

from dovetail.api import join, progress
from dovetail.cli.demo.data import KEY, Settings, Streams
from dovetail.cli.demo.rival import spark_join
from dovetail.cli.demo.scene import Scene
from dovetail.cli.demo.view import SideBySide, when
from dovetail.cli.views import announce, percent, summary
from dovetail.cli.watch import Watched
from dovetail.kernel.memory import format_bytes

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.spark.state.metrics import Progress

OUT = "out"
_BESIDE = (
    "Beside it, on the same cores and over the same files, runs Spark's own stream-stream join "
    "(no watermark, default state store). Compared is the memory that each reports for its rows."
)


def run(scene: Scene, streams: Streams, settings: Settings) -> None:
    """Join the streams into Parquet files, to the end."""
    query = _start(scene, streams, settings)
    started = time.monotonic()
    scene.watch(Watched(query, scene.directory / "state", _expected(streams)))
    scene.console.print(_summary(scene, streams, time.monotonic() - started))


def run_beside_spark(scene: Scene, streams: Streams, settings: Settings) -> None:
    """The same, while Spark's own join of the same files runs too, for its memory to be seen."""
    console, state = scene.console, scene.directory / "state"
    console.print(_BESIDE, soft_wrap=True)
    query = _start(scene, streams, settings)
    started = time.monotonic()
    with spark_join(scene, streams) as rival:
        view = SideBySide(streams, rival)
        expected = _expected(streams)
        scene.watch(Watched(query, state, expected, view.frame, view.line, rival.look))
        seconds = time.monotonic() - started
        with announce(console, "Letting Spark's own join take in the rest"):
            rival.finish()
    console.print(_summary(scene, streams, seconds))
    done = progress(state)
    console.print(view.outcome(done))
    console.print()
    console.print(outcome(done, view), soft_wrap=True)


def outcome(done: "Progress", view: SideBySide) -> str:
    """In one sentence: when results came, in which memory, and what Spark's own join held."""
    early, later = when(done)
    share, memory = percent(early, early + later), format_bytes(done.memory.get("total", 0))
    said = f"[bold]{share} of the results came while rows arrived, in {memory}.[/bold]"
    rival = view.rival
    if not rival.moments:
        return said
    held = format_bytes(rival.moments[-1].held_bytes)
    if rival.given_up:
        part = percent(rival.moments[-1].files, rival.files)
        return f"{said} Spark's own join held {held} at {part} of the rows, and was stopped."
    return f"{said} Spark's own join held {held} in the end."


def _start(scene: Scene, streams: Streams, settings: Settings) -> "StreamingQuery":
    with announce(scene.console, "Planning the join"):
        left, right = (scene.open_stream(each.directory) for each in streams.both)
        joined = join(
            left,
            right,
            on=KEY,
            memory=settings.budget_bytes,
            state=scene.directory / "state",
            partitions=settings.partitions,
        )
    return scene.start(joined, "checkpoint", OUT)


def _expected(streams: Streams) -> tuple[int, int]:
    left, right = (each.rows - each.null_keys for each in streams.both)
    return left, right


def _summary(scene: Scene, streams: Streams, seconds: float) -> Table:
    names = [each.name for each in streams.both]
    nulls = [each.null_keys for each in streams.both]
    return summary(progress(scene.directory / "state"), seconds, names, nulls)


def check(scene: Scene, streams: Streams) -> bool:
    """Whether the result is that of Spark's batch join of the same files."""
    left, right = (each.directory for each in streams.both)
    return scene.check(left, right, KEY, "inner", OUT, "Spark's batch join")
