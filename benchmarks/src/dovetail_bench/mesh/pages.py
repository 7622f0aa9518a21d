"""`mesh-model`, group `disk`: MESHJOIN's rate over the pages that it reads at a time (Fig. 10a).

In virtual time on the 7200 rpm disk, with whole pages in the buffer, as the paper has them: of 5 %
of the table, what `b` pages leave is for the window. There are two ways to count seeks. `disk` has
one for every read, as if others used the disk in between. `disk-alone` has one for a scan: its
reads follow on each other. At the default size the table has the paper's 3.5 million rows.

Ratios: `b/CLOCK,b=...` is the rate with the pages that the cost model chooses over that with
others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from dovetail.costs.meshjoin import MeshModel, Workload
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream import StagedTable
from dovetail.semistream.scan.packets import BYTES_PER_ROW
from dovetail.semistream.table.reading import CODE_BYTES
from dovetail_bench.measure import Measured, Runs, interleaved
from dovetail_bench.mesh import model as mesh_model
from dovetail_bench.mesh.model import MESH, MODEL_MEMORY, MODEL_ROWS, PAPER_ROWS, STREAM_SKEW
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Result, significant
from dovetail_bench.runner import numbered
from dovetail_bench.scratch import scratch
from dovetail_bench.semistream.relation import STREAM_ROW_BYTES, Law, Relation, each_once, stage
from dovetail_bench.semistream.runs import FACTORS, STORAGES, VIRTUAL, opened

GROUP = "disk"
PAGES = 3_360  # of a table: a multiple of all that are read at a time
READ = (16, 32, 56, 84, 112, 140, 160)  #: b; with 168 pages nothing is left for the window
DISK, ALONE = "disk", "disk-alone"
CLOCKS = (DISK, ALONE)


@dataclass(frozen=True)
class Point:
    """A number of pages, and what is left for the window."""

    pages: int
    loops: int  #: reads of a scan
    buffer_bytes: int
    memory_bytes: int

    @property
    def name(self) -> str:
        return f"b={self.pages}"

    @property
    def window_bytes(self) -> int:
        return self.memory_bytes - self.buffer_bytes


def run_model(config: Config, reporter: Reporter) -> Result:
    """Fig. 10a, on this machine and on a virtual disk."""
    found = []
    if config.wants("model"):
        found.append(mesh_model.run_model(config, reporter))
    if config.wants(GROUP):
        found.append(run_disk(config, reporter))
    ratios = {label: spread for one in found for label, spread in one.ratios.items()}
    facts = {name: fact for one in found for name, fact in one.facts.items()}
    facts["contenders"] = {
        name: fact for one in found for name, fact in one.facts["contenders"].items()
    }
    failures = tuple(failure for one in found for failure in one.failures)
    return Result("mesh-model", ratios, facts, failures)


def run_disk(config: Config, reporter: Reporter) -> Result:
    """The rates over `b`, and those that the cost model predicts."""
    rows = max(PAGES, round(config.rows * PAPER_ROWS / MODEL_ROWS))
    with scratch() as root:
        reporter.begin("staging the table")
        relation = stage(each_once(rows), root / "table", pages=PAGES)
        law = Law(rows, STREAM_SKEW, config.seed)
        points = points_of(relation)
        contenders = [
            numbered(_contender(one), _measured(relation, law, one, config.seed)) for one in points
        ]
        runs = interleaved(contenders, config.repetitions_of(GROUP), reporter)
        predicted = {
            clock: {one: predict(relation, one, clock) for one in points} for clock in CLOCKS
        }
    ratios = {}
    for clock in CLOCKS:
        chosen = max(points, key=lambda one: predicted[clock][one])
        for one in points:
            if one != chosen:
                ratios[f"b/{clock},{one.name}"] = runs.rate_ratio(
                    _contender(one), _contender(chosen), clock
                )
    facts = _facts(relation, points, runs, predicted)
    return runs.result("mesh-model", ratios, facts)


def points_of(relation: Relation) -> list[Point]:
    """Every `b` that leaves something for the window."""
    table = StagedTable(relation.directory, relation.spec.table)
    pages, page_bytes = table.pages, table.page_rows * relation.table_row_bytes
    table.close()
    memory = int(MODEL_MEMORY * relation.nbytes)
    found = [Point(b, -(-pages // b), b * page_bytes, memory) for b in READ]
    return [one for one in found if one.window_bytes > 0]


def _contender(point: Point) -> str:
    return f"{MESH} {point.name}"


def _measured(relation: Relation, law: Law, point: Point, seed: int) -> Callable[[int], Measured]:
    def measure(repetition: int) -> Measured:
        with opened(MESH, relation, law, [seed, 6, repetition], b=point.pages) as run:
            run.scan(lambda one: one.filling(point.window_bytes, point.loops))
            tally = run.scan(lambda one: one.filling(point.window_bytes, point.loops))
            run.drain()
        disk = STORAGES["disk"]
        seconds = {
            DISK: tally.seconds(disk, relation),
            ALONE: replace(tally, seeks=1).seconds(disk, relation),
        }
        facts = {clock: tally.rows / time for clock, time in seconds.items()}
        return Measured(seconds, {**facts, "w": tally.rows / tally.iterations})

    return measure


def predict(relation: Relation, point: Point, clock: str) -> float:
    """Rows a second by equations (1) to (3)."""
    row_bytes = relation.table_row_bytes + CODE_BYTES
    page_rows = point.buffer_bytes // (point.pages * relation.table_row_bytes)
    workload = Workload(
        relation.rows, row_bytes, page_rows * row_bytes, STREAM_ROW_BYTES + INDEX_BYTES_PER_ROW,
        results_per_row=1.0, pointer_bytes=BYTES_PER_ROW,
    )  # fmt: skip
    disk = STORAGES["disk"]
    seek = disk.seek_seconds / (point.loops if clock == ALONE else 1)
    model = MeshModel(workload, FACTORS, replace(disk, seek_seconds=seek))
    rows = point.window_bytes / (point.loops * workload.window_row_bytes)
    return float(model.rate(rows, float(point.pages)))


def _facts(
    relation: Relation, points: list[Point], runs: Runs, predicted: dict[str, dict[Point, float]]
) -> dict[str, Any]:
    measured = {
        clock: {
            one: rate for one in points if (rate := runs.median(_contender(one), clock)) is not None
        }
        for clock in CLOCKS
    }
    shapes = {clock: shape_of(rates) for clock, rates in measured.items()}
    lines = {}
    for clock in CLOCKS:
        for name, rates in ((clock, measured[clock]), (f"{clock}, model", predicted[clock])):
            shares = [100 * one.buffer_bytes / one.memory_bytes for one in rates]
            lines[name] = [shares, list(rates.values())]
    told = {
        "time": VIRTUAL,
        "table_rows": relation.rows,
        "of the paper's size": significant(relation.rows / PAPER_ROWS),
        "memory": f"{MODEL_MEMORY:.0%} of the table: the window, and whole pages",
        "the paper": "the rate is high for small b and falls rapidly as b grows",
        "the rate over b": shapes,
        "the model": "has the steps of the virtual clock: what it can be wrong about is how many "
        "rows fit the window, and how many reads, rows and results there are",
        "median relative errors of the model": {
            clock: _error(measured[clock], predicted[clock]) for clock in CLOCKS
        },
        "points": {
            one.name: {
                "reads of a scan": one.loops,
                "buffer, of the memory": significant(one.buffer_bytes / one.memory_bytes),
                **{
                    f"rows_per_s {clock}, predicted": significant(predicted[clock][one])
                    for clock in CLOCKS
                },
            }
            for one in points
        },
    }
    chart = {
        "title": "MESHJOIN on a 7200 rpm disk, whole pages in the buffer",
        "x": "buffer, % of the memory",
        "y": "rows a virtual second",
        "lines": lines,
        "dashed": [name for name in lines if name.endswith("model")],
    }
    return {"on a virtual disk": told, "charts": [chart]}


def shape_of(rates: dict[Point, float]) -> dict[str, Any]:
    """Where the rate is highest, and what becomes of it as `b` grows from there on."""
    if not rates:
        return {}
    best = max(rates, key=lambda one: rates[one])
    beyond = [rate for one, rate in rates.items() if one.pages >= best.pages]
    return {
        "highest at": best.name,
        "of the highest": {
            one.name: significant(rate / rates[best]) for one, rate in rates.items()
        },
        "falls with every step from there on": all(
            later < earlier for earlier, later in pairwise(beyond)
        ),
    }


def _error(measured: dict[Point, float], predicted: dict[Point, float]) -> float | None:
    errors = [abs(predicted[one] / rate - 1) for one, rate in measured.items()]
    return significant(median(errors)) if errors else None
