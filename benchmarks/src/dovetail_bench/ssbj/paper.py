"""The group `paper` of `ssbj-rate` and `ssbj-memory`: memory as SSBJ's paper counts it.

A waiting row is 24 bytes, a cached table row 120, and nothing else counts (see `theory`). Skew
1 brings more in a larger table, so the table has ten times the rows of the other groups'.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from dovetail.kernel.keys import Codes
from dovetail.semistream.scan.meshjoin import MeshJoin
from dovetail.semistream.scan.ssbj import Ssbj
from dovetail_bench.measure import Measured, Runs, interleaved
from dovetail_bench.progress import Reporter
from dovetail_bench.result import Spread, significant
from dovetail_bench.runner import numbered
from dovetail_bench.semistream.relation import STREAM_ROW_BYTES, TABLE_ROW_BYTES, Relation
from dovetail_bench.semistream.runs import Run, opened, pages_for
from dovetail_bench.ssbj.setup import (
    MESH,
    OURS,
    RATES,
    Choose,
    Place,
    Setting,
    at_rate,
    measured_of,
    steady,
)
from dovetail_bench.ssbj.theory import MEMORIES, ROW_BYTES, balance

GROUP = "paper"
TIMES = 10  #: the rows of the other groups' table
WINDOWS = (1, 7)  #: stream rows of a scan, in table rows
MEMORY_BYTES = "memory_bytes_by_equation_1"
ROWS_IN_SCAN = "rows_in_a_scan"


class PaperSsbj(Ssbj):
    """By the paper's bytes: entries and notes are free, and a count is taken as it is."""

    key_bytes: ClassVar[int] = 0
    noise: ClassVar[float] = 0.0

    @property
    def _stream_cost(self) -> float:
        return STREAM_ROW_BYTES

    def _is_watched(self, keys: Codes) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        return np.ones(len(keys), dtype=np.bool_)


def measure_paper(place: Place, runs: Runs, reporter: Reporter) -> dict[str, Spread]:
    """Both joins, as many rows as fill the memory as the paper counts it."""
    ratios = {}
    for memory in MEMORIES:
        setting = Setting(f"paper,memory={memory:.0%}", size=TIMES, memory=memory)
        done = _measure_both(place, setting, _filling_of(setting), reporter)
        runs.take(done)
        ratios[f"{MESH}/{setting.name}"] = done.rate_ratio(
            f"{MESH} {setting.name}", f"{OURS} {setting.name}", "rows_per_loop"
        )
    return ratios


def measure_paper_memory(
    place: Place, runs: Runs, reporter: Reporter
) -> tuple[dict[str, Spread], dict[str, float | None]]:
    """Both joins at the same rates, and with the same rows in a scan: the memory that takes.

    Beside it, what the inequality gives for the rows of a scan that came to SSBJ.
    """
    ratios, expected = {}, {}
    for setting, choice in _memory_settings():
        done = _measure_both(place, setting, choice, reporter)
        runs.take(done)
        mesh, ours = f"{MESH} {setting.name}", f"{OURS} {setting.name}"
        ratios[f"{MESH}/{setting.name}"] = done.rate_ratio(ours, mesh, MEMORY_BYTES)
        came, theirs = (done.median(name, ROWS_IN_SCAN) for name in (ours, mesh))
        expected[f"{MESH}/{setting.name}"] = (
            significant(theirs * ROW_BYTES / balance(place.relation(setting).rows, came).nbytes)
            if came and theirs
            else None
        )
    return ratios, expected


def _memory_settings() -> list[tuple[Setting, Callable[[Relation], Choose]]]:
    """The rates of the other groups, and scans of so many rows."""
    settings: list[tuple[Setting, Callable[[Relation], Choose]]] = []
    for rate in RATES:
        setting = Setting(f"paper,rate={rate // 1000}k", size=TIMES, rate=rate)
        settings.append((setting, _arriving(setting)))
    for window in WINDOWS:
        setting = Setting(f"paper,window={window}R", size=TIMES)
        settings.append((setting, _given(window, setting.loops)))
    return settings


def _arriving(setting: Setting) -> Callable[[Relation], Choose]:
    return lambda relation: at_rate(setting.rate, relation, setting.loops)


def _given(window: float, loops: int) -> Callable[[Relation], Choose]:
    return lambda relation: lambda _: max(1, round(window * relation.rows / loops))


def _filling_of(setting: Setting) -> Callable[[Relation], Choose]:
    return lambda relation: (
        lambda run: _filling(run, int(setting.memory * relation.nbytes), setting.loops)
    )


def _measure_both(
    place: Place, setting: Setting, choice: Callable[[Relation], Choose], reporter: Reporter
) -> Runs:
    contenders = [
        numbered(f"{kind} {setting.name}", _measured(place, setting, choice, kind))
        for kind in (MESH, OURS)
    ]
    return interleaved(contenders, place.config.repetitions_of(GROUP), reporter)


def _measured(
    place: Place, setting: Setting, choice: Callable[[Relation], Choose], algorithm: str
) -> Callable[[int], Measured]:
    def measure(repetition: int) -> Measured:
        relation, law = place.relation(setting), place.law(setting)
        seed = [place.config.seed, 5, repetition]
        kind = PaperSsbj if algorithm == OURS else MeshJoin
        with opened(kind, relation, law, seed, b=pages_for(relation, setting.loops)) as run:
            found = steady(run, choice(relation), algorithm)
        measured = measured_of(found, relation, setting.loops)
        facts = dict(measured.facts)
        facts[ROWS_IN_SCAN] = facts["rows_per_loop"] * setting.loops
        waiting = facts["window_rows_of_table"] * relation.rows
        facts[MEMORY_BYTES] = ROW_BYTES * waiting + TABLE_ROW_BYTES * found.cached_rows
        return Measured(measured.seconds, facts)

    return measure


def _filling(run: Run, memory: int, loops: int) -> int:
    """As many rows as fill the memory by (1)."""
    room = memory - TABLE_ROW_BYTES * run.cached_rows
    steady_rows = room / (loops * ROW_BYTES)
    free = room / ROW_BYTES - run.operator.pending() + steady_rows  # a packet leaves, too
    return run.until_waiting(max(1, int(min(steady_rows, free))))
