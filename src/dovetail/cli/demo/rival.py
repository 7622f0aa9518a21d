"""Spark's own stream-stream join of the same files, run beside Dovetail's to see its memory.

An inner join without a watermark, as Dovetail's is, in Spark's default state store, which is on the
heap. What it holds is what Spark itself reports of its state (`memoryUsedBytes`) after each of its
micro-batches, and is compared with Dovetail when that has taken in as many files.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dovetail.cli.demo.data import KEY, Streams
from dovetail.cli.demo.scene import Scene

FILES_AT_ONCE = 4  #: of each side; fewer micro-batches than Dovetail's leave that more of the cores
MOST_BYTES = 400 << 20  #: of state; then it is stopped, before it fills the heap that both share
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Moment:
    """What Spark's own join held after so many files of each side."""

    files: int
    held_bytes: int


@dataclass
class Rival:
    """Spark's own join while it runs, and what has been seen of it."""

    query: Any
    files: int  #: of each side, in all
    moments: list[Moment] = field(default_factory=list)
    given_up: bool = False  #: whether it was stopped because it held too much
    _looked: float = 0.0

    def look(self) -> None:
        """See what it holds now, unless that has just been seen."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S or self.given_up:
            return
        self._looked = now
        self._note()
        if self.moments and self.moments[-1].held_bytes > MOST_BYTES:
            self.given_up = True
            self.query.stop()

    def _note(self) -> None:
        report = self.query.lastProgress
        if report is None or not report["stateOperators"]:
            return
        files = min((report["batchId"] + 1) * FILES_AT_ONCE, self.files)
        if not self.moments or files > self.moments[-1].files:
            held = sum(operator["memoryUsedBytes"] for operator in report["stateOperators"])
            self.moments.append(Moment(files, held))

    def at(self, files: int) -> Moment | None:
        """The last moment at which it had taken in no more files of each side than these."""
        return next((each for each in reversed(self.moments) if each.files <= files), None)

    def finish(self) -> None:
        """Let it take in the rest, unless it was stopped."""
        while self.query.isActive and not self.given_up:
            self.look()
            time.sleep(_LOOK_EVERY_S / 5)
        if not self.given_up:
            self.query.awaitTermination()
            self._note()


@contextmanager
def spark_join(scene: Scene, streams: Streams) -> Iterator[Rival]:
    """Start Spark's own join of the streams, its results thrown away; it is stopped in the end."""
    checkpoint = "checkpoint-spark"
    left, right = (scene.open_stream(each.directory, FILES_AT_ONCE) for each in streams.both)
    query = scene.start(left.join(right, KEY), checkpoint, None)
    try:
        yield Rival(query, streams.left.files)
    finally:
        query.stop()
        shutil.rmtree(scene.directory / checkpoint, ignore_errors=True)
