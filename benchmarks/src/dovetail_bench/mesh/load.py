"""`mesh-load`: Seek beside index lookups and a shared scan, from a quiet stream to an overload.

Under load Seek is to be MESHJOIN, for a quiet stream an index lookup, and in between better than
both; what becomes of that is among the goals. So rows arrive at random moments (Poisson), from one
a second to 100,000, and the join serves them in virtual time: it takes in what has come, works, and
takes in what has come meanwhile. The table, the stream and the counting of reads are those of
`mesh-memory` (see `semistream.runs`), on the 7200 rpm disk; all have the same budget, with what
they keep for themselves.

- `inl` takes as many rows as its working memory has room for, sorts them, and reads their leaves.
- `meshjoin` takes a packet in with each iteration, and scans on as long as rows wait.
- `seek` and `seek-uncached` take in as many rows as wait, or as there is memory for, and then go on
  with their sweep, by as many pages at most as MESHJOIN reads in an iteration.

Pages are as large as `enrich` makes them for this budget.

What lies ahead of the disk's head within reach, 1.9 MB, is let pass rather than sought, for all of
them: that takes less time.

Ratios are of the work for a row, reading and computing: `rival/rate=...`. A join that is never idle
and yet keeps up works as long for a row as it takes rows to come, whichever it is; there the ratio
is 1. Above that it is one of the rates that they can bear. `rival-wait/rate=...` are ratios of the
mean wait, from a row's arrival to its result; in an overload it grows with the length of the
stream, and is one of rates, too. `better-of-both` is `inl` or `meshjoin`, whichever does better.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.semistream.scan.meshjoin import MeshJoin
from dovetail.semistream.seek.operator import Seek
from dovetail.semistream.table.reading import CODE_BYTES, page_bytes_for
from dovetail_bench.measure import Contender, Measured, Runs
from dovetail_bench.mesh.figures import LOOPS, batch_rows
from dovetail_bench.mesh.model import PAPER_ROWS, STREAM_SKEW
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, goals, significant
from dovetail_bench.runner import numbered, side_by_side
from dovetail_bench.scratch import scratch
from dovetail_bench.semistream.relation import (
    STREAM_ROW_BYTES,
    TABLE_ROW_BYTES,
    Floats,
    Law,
    Relation,
    each_once,
    stage,
)
from dovetail_bench.semistream.runs import STORAGES, VIRTUAL, Run, opened, pages_for

NAME = "mesh-load"
GROUP = "load"
RATES = (1, 10, 30, 60, 100, 300, 1_000, 3_000, 10_000, 100_000)  #: stream rows a second
MEMORY = 0.01  #: of the table
OURS, UNCACHED, INL, MESH = "seek", "seek-uncached", "inl", "meshjoin"
BOTH = "better-of-both"
RIVALS = {INL: (INL,), MESH: (MESH,), BOTH: (INL, MESH), UNCACHED: (UNCACHED,)}
_SECONDS = 60  # of arrivals
_LEAST_ROWS, _MOST_ROWS = 100, 100_000
_LEAST_BUDGET = 400_000
_PIECE_ROWS = 2_000  # that Seek is handed at a time, until it begins to read
_FUEL = 1 << 30
_LEVEL = 0.95
WAIT, WORK = "wait", "work"

Step = Callable[[Run, int], int]  #: of the rows that have come, those it takes in


@dataclass(frozen=True)
class Way:
    """How a join is driven."""

    step: Step
    scans: bool = False  #: whether table rows look stream rows up
    options: Callable[[Relation], dict[str, Any]] = lambda _: {}


def _nested_loops(run: Run, rows: int) -> int:
    total = run.operator.ctx.budget.total_bytes
    assert total is not None
    taken = min(rows, batch_rows(STREAM_ROW_BYTES, total))
    run.push(taken, iterates=False)
    return taken


def _mesh(run: Run, rows: int) -> int:
    """A packet, or what there is of one, and an iteration."""
    assert isinstance(run.operator, MeshJoin)
    taken = min(rows, run.operator.w)
    run.push(taken)
    return taken


def _seek(run: Run, rows: int) -> int:
    """Rows until there is no memory for more, or no more of them; then a piece of the sweep."""
    taken, read = 0, run.table.scanned
    while taken < rows and run.table.scanned == read:
        some = min(rows - taken, _PIECE_ROWS)
        run.push(some, iterates=False)
        taken += some
    if run.table.scanned == read and run.operator.pending():
        run.work(1)
    return taken


WAYS = {
    OURS: Way(_seek),
    UNCACHED: Way(_seek),
    INL: Way(_nested_loops),
    MESH: Way(_mesh, scans=True, options=lambda relation: {"b": pages_for(relation, LOOPS)}),
}


def serve(run: Run, way: Way, arrivals: Floats, relation: Relation) -> Measured:
    """Let rows arrive at these moments, and serve them; every row has one result."""
    storage, start = STORAGES["disk"], run.tally
    run.table.reach = int(
        storage.seek_seconds * storage.bytes_per_second / (TABLE_ROW_BYTES + CODE_BYTES)
    )
    now = work = settled_at = 0.0
    taken = 0
    while taken < len(arrivals) or run.operator.pending():
        come = int(np.searchsorted(arrivals, now, side="right"))
        if come == taken and not run.operator.pending():
            now = float(arrivals[come])
            continue
        before = run.tally
        taken += way.step(run, come - taken)
        done = run.tally - before
        seconds = done.seconds(storage, relation, scans=way.scans)
        now, work = now + seconds, work + seconds
        settled_at += done.results * now
    count, tally = len(arrivals), run.tally - start
    clocks = {WAIT: settled_at / count - float(arrivals.mean()), WORK: work / count}
    facts = {"seeks_per_row": tally.seeks / count, "busy_share": work / now}
    facts["bytes_per_row"] = tally.scanned * (TABLE_ROW_BYTES + CODE_BYTES) / count
    return Measured(clocks, facts)


def run_load(config: Config, reporter: Reporter) -> Result:
    """Every way at every rate, on the same rows at the same moments."""
    with scratch() as root:
        reporter.begin("staging the table")
        pages = -(-config.rows * TABLE_ROW_BYTES // page_bytes_for(_budget(config.rows)))
        relation = stage(each_once(config.rows), root / "table", pages=pages)
        law = Law(config.rows, STREAM_SKEW, config.seed)

        def contenders(rate: int) -> list[Contender]:
            measures = {name: _measure(name, relation, law, rate, config.seed) for name in WAYS}
            return [numbered(f"{name} rate={rate}", one) for name, one in measures.items()]

        runs = side_by_side(RATES, contenders, config.repetitions_of(GROUP), reporter)
    ratios = {
        f"{label}{suffix}/rate={rate}": runs.ratio(
            [f"{rival} rate={rate}" for rival in rivals], f"{OURS} rate={rate}", clock
        )
        for suffix, clock in (("", WORK), ("-wait", WAIT))
        for label, rivals in RIVALS.items()
        for rate in RATES
    }
    facts = {
        "time": VIRTUAL,
        "disk": STORAGES["disk"].note,
        "ratios": "a rival's work for a row over seek's; -wait: its mean wait over seek's",
        "table_rows": config.rows,
        "of the paper's size": significant(config.rows / PAPER_ROWS),
        "row_bytes": f"{STREAM_ROW_BYTES} in the stream, {TABLE_ROW_BYTES} in the table",
        "memory": f"{MEMORY:.0%} of the table, a budget for all that a join keeps",
        "stream": f"skew {STREAM_SKEW:g}; {_SECONDS} s of arrivals, but {_LEAST_ROWS} to "
        f"{_MOST_ROWS:,} rows",
        "the claim": "under load Seek is MESHJOIN, when quiet an index lookup, and in between it "
        "should beat both",
        "goals": _claims(ratios),
        "what sets them apart": "a page that Seek reads for a single row is larger than a leaf; "
        "a row leaves Seek's window when its page has been read, MESHJOIN's after a whole scan",
        "rows a second that each bears, by its work for a row at the highest rate": _borne(runs),
        "where a rival is clearly better": _clearly(ratios, lambda ratio: ratio < _LEVEL),
        "where seek is clearly better than both": _clearly(
            {label: one for label, one in ratios.items() if label.startswith(BOTH)},
            lambda ratio: ratio > 1 / _LEVEL,
        ),
        "charts": [
            _chart(runs, WAIT, "mean wait of a row, s"),
            _chart(runs, WORK, "work for a row, s"),
        ],
    }
    return runs.result(NAME, ratios, facts)


def _measure(
    name: str, relation: Relation, law: Law, rate: int, seed: int
) -> Callable[[int], Measured]:
    way = WAYS[name]

    def measure(repetition: int) -> Measured:
        rows = max(_LEAST_ROWS, min(_MOST_ROWS, _SECONDS * rate))
        rng = np.random.default_rng([seed, 4, rate, repetition])
        arrivals = np.cumsum(rng.exponential(1 / rate, rows))
        budget = _budget(relation.rows)
        keys = [seed, 5, repetition]
        with opened(name, relation, law, keys, budget, **way.options(relation)) as run:
            if isinstance(run.operator, Seek):
                run.operator.sweep_pages = pages_for(relation, LOOPS)
            found = serve(run, way, arrivals, relation)
            run.drain()
        return found

    return measure


def _budget(rows: int) -> int:
    return max(_LEAST_BUDGET, int(MEMORY * rows * TABLE_ROW_BYTES))


def _claims(ratios: dict[str, Spread]) -> dict[str, dict[str, Any]]:
    """What became of the claim: in work for a row, and in between, where that is 1, in waits."""
    between = tuple(f"{BOTH}-wait/rate={rate}" for rate in RATES[1:-1])
    return goals(
        ratios,
        {
            "level with an index lookup when quiet": (_LEVEL, (f"{INL}/rate={RATES[0]}",)),
            "level with MESHJOIN under load": (_LEVEL, (f"{MESH}/rate={RATES[-1]}",)),
            "clearly better than both somewhere in between": (1 / _LEVEL, between),
        },
    )


def _borne(runs: Runs) -> dict[str, float | None]:
    found = {}
    for name in WAYS:
        done = runs.done.get(f"{name} rate={RATES[-1]}", {}).values()
        work = Spread.of(one.seconds[WORK] for one in done).median
        found[name] = significant(1 / work) if work else None
    return found


def _clearly(ratios: dict[str, Spread], counts: Callable[[float], bool]) -> dict[str, float | None]:
    """The ratios that are so, of work and of waits."""
    return {
        label: significant(spread.median)
        for label, spread in ratios.items()
        if spread.median is not None and counts(spread.median)
    }


def _chart(runs: Runs, clock: str, title: str) -> dict[str, Any]:
    lines = {}
    for name in WAYS:
        points = [(rate, runs.done.get(f"{name} rate={rate}", {})) for rate in RATES]
        medians = [
            (rate, Spread.of(one.seconds[clock] for one in done.values()).median)
            for rate, done in points
        ]
        known = [(rate, seconds) for rate, seconds in medians if seconds is not None]
        lines[name] = [[rate for rate, _ in known], [seconds for _, seconds in known]]
    return {
        "title": f"{title}, on a 7200 rpm disk with {MEMORY:.0%} memory",
        "x": "stream rows a second",
        "y": "virtual seconds",
        "log": True,
        "lines": lines,
    }


BENCHMARKS = (
    Benchmark(
        NAME,
        "Seek against index nested loops and MESHJOIN, from a quiet stream to an overload",
        rows=PAPER_ROWS,
        rows_mean="table rows",
        groups=(GROUP,),
        function=run_load,
    ),
)
