"""What the benchmarks `ssbj-*` share: settings, staged tables, and a join watched when settled.

What memory is, and how time is counted: see `ssbj` and `semistream.runs`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dovetail.costs.meshjoin import Workload
from dovetail.costs.ssbj import SsbjModel, Stream
from dovetail.costs.storage import DISK_7200, OBJECT_STORE
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream.cache.parts import KEY_BYTES
from dovetail.semistream.scan.ssbj import Ssbj
from dovetail_bench.measure import Contender, Measured, Runs
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Spread, significant
from dovetail_bench.runner import numbered, side_by_side
from dovetail_bench.semistream.relation import Law, Relation, each_once, stage, with_repetition
from dovetail_bench.semistream.runs import FACTORS, VIRTUAL, Run, Tally, opened, pages_for

ROWS = 200_000
LOOPS = 12
WARM_UP_SCANS = 9  # three rounds of incrementing, switching, phase-out
MEASURED_SCANS = 3  # one more
PAPER_ROWS = 100_000_000
RATES = (25_000, 50_000, 100_000, 200_000)
DRAWN, UNIQUE = "drawn", "unique"
MESH, OURS = "meshjoin", "ssbj"
HERE = "loop, wall time here"
WAITING_BYTES = 5  # of a row in a packet, beside the row and its index
Choose = Callable[[Run], int]


@dataclass(frozen=True)
class Setting:
    """One point of a figure."""

    name: str  #: behind the rival's in a label
    data: str = DRAWN
    size: float = 1.0  #: table rows, of those asked for
    skew: float = 1.0
    memory: float = 0.10  #: of the whole table's bytes
    rate: int = 0  #: stream rows a second, where that is given
    loops: int = LOOPS
    switching: float = 1.0


class Place:
    """Staged tables and streams, each made when it is first needed."""

    def __init__(self, config: Config, root: Path) -> None:
        self.config = config
        self._root = root
        self._relations: dict[tuple[str, int], Relation] = {}
        self._laws: dict[tuple[int, float], Law] = {}

    def relation(self, setting: Setting) -> Relation:
        rows = max(100, round(setting.size * self.config.rows))
        if (setting.data, rows) not in self._relations:
            seed = self.config.seed
            matches = each_once(rows) if setting.data == UNIQUE else with_repetition(rows, seed)
            directory = self._root / f"{setting.data}{rows}"
            self._relations[setting.data, rows] = stage(matches, directory)
        return self._relations[setting.data, rows]

    def law(self, setting: Setting) -> Law:
        keys = len(self.relation(setting).matches)
        if (keys, setting.skew) not in self._laws:
            self._laws[keys, setting.skew] = Law(keys, setting.skew, self.config.seed)
        return self._laws[keys, setting.skew]

    def memory_bytes(self, setting: Setting) -> int:
        whole = self.config.rows * self.relation(setting).table_row_bytes
        return int(setting.memory * whole)


@dataclass(frozen=True)
class Steady:
    """A join after its warm-up; bytes are means over the measured iterations."""

    tally: Tally
    held_bytes: float
    window_bytes: float
    cache_bytes: float
    cached_values: int
    cached_without_rows: int  #: of these, how many the table does not have
    cached_rows: float  #: table rows in the cache

    def rate(self, relation: Relation) -> float:
        return self.tally.rows / self.tally.seconds(DISK_7200, relation)


def steady(run: Run, rows: Choose, algorithm: str, *, iterates: bool = True) -> Steady:
    """Let the join settle, then watch it for some scans; only a cache takes many to settle."""
    held: list[tuple[int, int, int, int]] = []

    def watched(one: Run) -> int:
        components = one.operator.ctx.budget.components
        cache = components.get("cache", 0)
        held.append((one.held_bytes, one.window_bytes, cache, one.cached_rows))
        return rows(one)

    for _ in range(WARM_UP_SCANS if algorithm == OURS else 2):
        run.scan(rows, iterates=iterates)
    before = run.tally
    for _ in range(MEASURED_SCANS):
        run.scan(watched, iterates=iterates)
    tally = run.tally - before
    parts = run.operator.cache.parts if isinstance(run.operator, Ssbj) else []
    values = sum(len(part.keys) for part in parts)
    without = sum(int((np.diff(part.starts) == 0).sum()) for part in parts)
    run.drain()
    total, window, cache, rows_cached = (fmean(some) for some in zip(*held, strict=True))
    return Steady(tally, total, window, cache, values, without, rows_cached)


def at_rate(rate: float, relation: Relation, loops: int) -> Choose:
    """The rows that arrive during an iteration: as long as the one before it took."""
    earlier = Tally()
    seconds = DISK_7200.read_seconds(1, relation.nbytes / loops)

    def rows(run: Run) -> int:
        nonlocal earlier, seconds
        if run.tally.iterations > earlier.iterations:
            seconds = (run.tally - earlier).seconds(DISK_7200, relation)
        earlier = run.tally
        return max(1, round(rate * seconds))

    return rows


def contender(place: Place, setting: Setting, algorithm: str) -> Contender:
    """A join under a setting; each repetition is another stream."""

    def measure(repetition: int) -> Measured:
        relation, law = place.relation(setting), place.law(setting)
        seed = [place.config.seed, 2, repetition]
        options: dict[str, Any] = (
            {"switching_factor": setting.switching} if algorithm == OURS else {}
        )
        pages = pages_for(relation, setting.loops)
        rows = _choice(place, setting, relation)
        with opened(algorithm, relation, law, seed, b=pages, **options) as run:
            found = steady(run, rows, algorithm)
        return measured_of(found, relation, setting.loops)

    return numbered(f"{algorithm} {setting.name}", measure)


def _choice(place: Place, setting: Setting, relation: Relation) -> Choose:
    if setting.rate:
        return at_rate(setting.rate, relation, setting.loops)
    memory = place.memory_bytes(setting)
    return lambda run: run.filling(memory, setting.loops)


def measured_of(found: Steady, relation: Relation, loops: int) -> Measured:
    tally = found.tally
    facts = {
        "rows_per_virtual_s": found.rate(relation),
        "rows_per_virtual_s_object_store": tally.rows / tally.seconds(OBJECT_STORE, relation),
        "settled_by_cache": tally.cached / tally.rows,
        "cached_values": float(found.cached_values),
        "cached_values_without_rows": float(found.cached_without_rows),
        "cached_rows": found.cached_rows,
        "window_bytes": found.window_bytes,
        "cache_bytes": found.cache_bytes,
        "notes_and_switching_buffer_bytes": (
            found.held_bytes - found.window_bytes - found.cache_bytes
        ),
        "memory_bytes": found.held_bytes + 8 * relation.rows / loops,
        "window_rows_of_table": (tally.rows - tally.cached) / MEASURED_SCANS / relation.rows,
    }
    facts["rows_per_loop"] = tally.rows / tally.iterations
    seconds = {
        "loop": tally.seconds(DISK_7200, relation) / tally.iterations,
        HERE: tally.wall_seconds / tally.iterations,
    }
    return Measured(seconds, facts)


def measure_all(
    place: Place, settings: list[Setting], reporter: Reporter, group: str, ours: bool = False
) -> Runs:
    """Both joins, or only ours, under every setting, each with several streams."""
    kinds = (OURS,) if ours else (MESH, OURS)
    return side_by_side(
        settings,
        lambda setting: [contender(place, setting, kind) for kind in kinds],
        place.config.repetitions_of(group),
        reporter,
    )


def measure_groups(
    place: Place, groups: dict[str, list[Setting]], reporter: Reporter
) -> tuple[Runs, list[Setting]]:
    """Both joins under the settings of every group that is asked for, and these."""
    runs = Runs()
    wanted = {name: some for name, some in groups.items() if place.config.wants(name)}
    for group, some in wanted.items():
        runs.take(measure_all(place, some, reporter, group))
    return runs, [setting for some in wanted.values() for setting in some]


def rate_ratios(runs: Runs, settings: list[Setting]) -> dict[str, Spread]:
    """SSBJ's rate over MESHJOIN's."""
    fact = "rows_per_virtual_s"
    return {
        f"{MESH}/{one.name}": runs.rate_ratio(f"{MESH} {one.name}", f"{OURS} {one.name}", fact)
        for one in settings
    }


def memory_ratios(runs: Runs, settings: list[Setting]) -> dict[str, Spread]:
    """MESHJOIN's bytes over SSBJ's."""
    fact = "memory_bytes"
    return {
        f"{MESH}/{one.name}": runs.rate_ratio(f"{OURS} {one.name}", f"{MESH} {one.name}", fact)
        for one in settings
    }


def medians(runs: Runs, settings: list[Setting], fact: str) -> dict[str, float | None]:
    return {one.name: significant(runs.median(f"{OURS} {one.name}", fact)) for one in settings}


def scale(config: Config) -> dict[str, Any]:
    return {
        "time": VIRTUAL + f"; the profile is {DISK_7200.name}",
        "table_rows": config.rows,
        "of the paper's size": significant(config.rows / PAPER_ROWS),
        "row_bytes": "20 in the stream, 120 in the table",
        "beside the optimum": "the cost model's cache holds what pays and nothing else is held; "
        "what the operator keeps to find that out, and what does not pay, is among its facts as "
        "notes_and_switching_buffer_bytes and cached_values_without_rows",
        "waiting_row_bytes": 20 + INDEX_BYTES_PER_ROW + WAITING_BYTES,
        "scan": f"{LOOPS} iterations; {WARM_UP_SCANS} scans to warm up, {MEASURED_SCANS} measured",
    }


def model_of(relation: Relation, law: Law, switching: float | None) -> SsbjModel:
    """The cost model with what our rows take up."""
    workload = Workload(
        table_rows=relation.rows,
        table_row_bytes=relation.table_row_bytes + 8,
        page_bytes=max(1, relation.rows * (relation.table_row_bytes + 8) // 4096),
        stream_row_bytes=relation.stream_row_bytes + INDEX_BYTES_PER_ROW,
        pointer_bytes=WAITING_BYTES,
    )
    stream = Stream.of(law.probability, relation.matches)
    cached = relation.table_row_bytes + (KEY_BYTES if switching is None else 0)
    return SsbjModel(
        workload, FACTORS, DISK_7200, stream, switching, KEY_BYTES, cached_row_bytes=cached
    )
