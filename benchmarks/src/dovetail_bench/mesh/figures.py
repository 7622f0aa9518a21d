"""`mesh-*`: MESHJOIN beside index nested loops, and beside its own cost model.

Polyzotis et al., "Meshing Streaming Updates with Persistent Data in an Active Data Warehouse",
section 5. At the default size `mesh-memory` and `mesh-skew` have the paper's table: 3.5 million
rows of 120 bytes, joined with a stream of 20-byte rows.

`mesh-memory` (Fig. 10b): the rate over the memory. Every key is in the table once, the stream's
skew is 0.5. MESHJOIN's window and the page pool of index nested loops have the same bytes.
`mesh-skew` (Fig. 10c): the rate over the skew, with 5 % of the table for memory. Group `stream`
varies the stream's skew, group `relation`, as the paper, the table's; there the stream's is 0.5,
and which keys are frequent in one has nothing to do with the other.

Clocks. `disk`, `object-store`, `ssd` and `ssd-32` are virtual seconds under a storage profile, from
counted reads: see `semistream.runs`. `here` is the wall time of this machine, where all that is
read is in the page cache of the system.

Index nested loops read, and keep in their pool, leaves of 8 KB as those of a database, and have
the index of them besides their memory, as in the paper. They come in two ways. `inl` takes one row
after the other, as the paper's. `inl-batched` takes as many rows as its working memory has room
for, sorts them, and reads a leaf once for all of them; `here` is measured for this one, which is
the faster. `sqlite`, in `mesh-memory` and `here` only, is what others' index lookups take: batches
of the same size, sorted, looked up by the primary key, with as much memory for its page cache.

A scan takes 24 iterations. The paper's, with whole pages in its buffer, takes hundreds at small
memory, and so more seeks; ours keeps codes alone, and inside a budget reads them in pieces that
fit. What the papers' way of counting would lead to is a fact beside the result.

`mesh-model` (Fig. 10a): see `model`, and `pages` for the group `disk`.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.kernel.probing import Rows
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream import StagedTable
from dovetail.semistream.base import WORKING_SHARE
from dovetail.semistream.inl.leaves import rows_of_leaf
from dovetail.semistream.table.reading import CODE_BYTES
from dovetail_bench.enrich.contenders import Sqlite
from dovetail_bench.measure import Contender, Measured, Runs, expect_rows, interleaved
from dovetail_bench.mesh.model import MESH, MODEL_ROWS, PAPER_ROWS, STREAM_SKEW
from dovetail_bench.mesh.notes import (
    INL,
    PAPER_DISK,
    PAPER_INL_RATE,
    PAPER_STORAGE,
    as_the_paper_counts,
    beside_the_disk,
)
from dovetail_bench.mesh.pages import run_model
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, goal, significant
from dovetail_bench.runner import numbered
from dovetail_bench.scratch import scratch
from dovetail_bench.semistream.relation import (
    STREAM_ROW_BYTES,
    TABLE_ROW_BYTES,
    Feed,
    Law,
    Relation,
    each_once,
    make_rows,
    stage,
)
from dovetail_bench.semistream.runs import STORAGES, VIRTUAL, Run, Tally, opened, pages_for

ROWS = PAPER_ROWS
PAGES = 3_360  # of 125 KB at the default size
LOOPS = 24
MEMORIES = (0.001, 0.005, 0.01, 0.05, 0.10)  #: of the table
STREAM_SKEWS = (0.0, 0.5, 1.0)
RELATION_SKEWS = (0.1, 0.5, 1.0)
SKEW_MEMORY = 0.05
BATCHED, SQLITE = "inl-batched", "sqlite"
HERE = "here"
_INL_ROWS = 800  # to fill the pool, and as many again that count
_LEAST_BUDGET = 400_000
_MOST_BATCH = 100_000
_WINDOW_ROW_BYTES = STREAM_ROW_BYTES + INDEX_BYTES_PER_ROW + 5


def _mesh(relation: Relation, law: Law, seed: list[int], memory: int) -> Measured:
    """As many rows as fill the memory; the second scan counts."""
    with opened(MESH, relation, law, seed, b=pages_for(relation, LOOPS)) as run:
        run.scan(lambda one: one.filling(memory, LOOPS))
        tally = run.scan(lambda one: one.filling(memory, LOOPS))
        run.drain()
    return _rates(tally, relation, scans=True)


def _inl(relation: Relation, law: Law, seed: list[int], memory: int) -> Measured:
    """Row by row."""
    with _nested_loops(relation, law, seed, memory) as run:
        _push(run, _INL_ROWS)
        before = run.tally
        _push(run, _INL_ROWS)
        tally = run.tally - before
        run.drain()
    return _rates(tally, relation, scans=False)


def _nested_loops(
    relation: Relation, law: Law, seed: list[int], memory: int
) -> AbstractContextManager[Run]:
    """A pool of so much memory, which is half of the budget, and an index besides."""
    index = index_bytes_of(relation)
    budget = max(2 * memory, _LEAST_BUDGET) + index
    return opened(INL, relation, law, seed, budget, index_bytes=index)


def index_bytes_of(relation: Relation) -> int:
    """What the fences of all leaves take, for index nested loops."""
    table = StagedTable(relation.directory, relation.spec.table)
    leaves = -(-table.rows // rows_of_leaf(table.rows, table.row_bytes, table.page_rows))
    table.close()
    return CODE_BYTES * leaves


def _push(run: Run, rows: int) -> None:
    for _ in range(rows):
        run.push(1)


def _batched(relation: Relation, law: Law, seed: list[int], memory: int) -> Measured:
    """Batches that working memory has room for; the second counts."""
    with _nested_loops(relation, law, seed, memory) as run:
        rows = batch_rows(relation.stream_row_bytes, max(2 * memory, _LEAST_BUDGET))
        run.push(rows)
        before = run.tally
        run.push(rows)
        tally = run.tally - before
        run.drain()
    return _rates(tally, relation, scans=False)


def batch_rows(stream_row_bytes: int, budget_bytes: int) -> int:
    """As many rows as the working memory of index nested loops has room for."""
    row_bytes = stream_row_bytes + 2 * INDEX_BYTES_PER_ROW
    return max(1, min(_MOST_BATCH, int(budget_bytes * WORKING_SHARE / 4 / row_bytes)))


def _rates(tally: Tally, relation: Relation, *, scans: bool) -> Measured:
    seconds = {
        name: tally.seconds(storage, relation, scans=scans) for name, storage in STORAGES.items()
    }
    seconds[HERE] = tally.wall_seconds
    seconds[PAPER_DISK] = tally.seconds(PAPER_STORAGE, relation, scans=scans)
    facts = {f"rows_per_s {name}": tally.rows / max(time, 1e-12) for name, time in seconds.items()}
    facts["seeks_per_row"] = tally.seeks / tally.rows
    facts["bytes_per_row"] = tally.scanned * (relation.table_row_bytes + 8) / tally.rows
    return Measured({HERE: tally.wall_seconds}, facts)


Way = Callable[[Relation, Law, list[int], int], Measured]
WAYS: dict[str, Way] = {MESH: _mesh, INL: _inl, BATCHED: _batched}


def open_sqlite(relation: Relation, path: Path) -> tuple[Sqlite, Way]:
    """SQLite with the table in a file, and how it is measured: the second of two batches counts."""
    keys = np.repeat(np.arange(len(relation.matches)), relation.matches)
    table = make_rows(keys, relation.table_row_bytes)
    sqlite = Sqlite(table, path, _LEAST_BUDGET, relation.spec.stream)

    def way(relation: Relation, law: Law, seed: list[int], memory: int) -> Measured:
        memory = max(memory, _LEAST_BUDGET // 2)
        sqlite.limit(memory)
        feed, rows = Feed(relation, law, seed), batch_rows(relation.stream_row_bytes, 2 * memory)
        sqlite.join(feed.take(rows))
        batch = feed.take(rows)
        started = time.perf_counter()
        found = sqlite.join(batch)
        seconds = time.perf_counter() - started
        expect_rows(sum(one.num_rows for one in found), rows)
        return Measured({HERE: seconds}, {f"rows_per_s {HERE}": rows / seconds})

    return sqlite, way


def measure_all(
    relation: Relation, law: Law, memory: int, setting: str, config: Config, reporter: Reporter,
    group: str, more: Mapping[str, Way] | None = None,
) -> Runs:  # fmt: skip
    """All of them under one setting, each repetition with another stream."""

    def contender(name: str, way: Way) -> Contender:
        return numbered(
            f"{name} {setting}", lambda number: way(relation, law, [config.seed, 2, number], memory)
        )

    contenders = [contender(name, way) for name, way in {**WAYS, **(more or {})}.items()]
    return interleaved(contenders, config.repetitions_of(group), reporter)


def ratios_of(runs: Runs, setting: str) -> dict[str, Spread]:
    """MESHJOIN's rate over that of either kind of index nested loops."""
    ours = f"{MESH} {setting}"
    found = {
        f"{rival}/{clock},{setting}": runs.rate_ratio(
            f"{rival} {setting}", ours, f"rows_per_s {clock}"
        )
        for rival in (INL, BATCHED)
        for clock in STORAGES
    }
    here = runs.rate_ratio(f"{BATCHED} {setting}", ours, f"rows_per_s {HERE}")
    return {**found, f"{INL}/{HERE},{setting}": here}


def run_memory(config: Config, reporter: Reporter) -> Result:
    """Fig. 10b."""
    runs, ratios, counted = Runs(), {}, {}
    with scratch() as root:
        reporter.begin("staging the table")
        relation = stage(each_once(config.rows), root / "table", pages=PAGES)
        law = Law(config.rows, STREAM_SKEW, config.seed)
        sqlite, way = open_sqlite(relation, root / "sqlite")
        for share in MEMORIES:
            setting = f"memory={100 * share:g}%"
            memory = int(share * relation.nbytes)
            done = measure_all(
                relation, law, memory, setting, config, reporter, "memory", {SQLITE: way}
            )
            runs.take(done)
            ratios.update(ratios_of(done, setting))
            beside = done.rate_ratio(
                f"{SQLITE} {setting}", f"{MESH} {setting}", f"rows_per_s {HERE}"
            )
            ratios[f"{SQLITE}/{HERE},{setting}"] = beside
            counted[setting] = as_the_paper_counts(relation.rows, memory)
        sqlite.close()
    reached = [ratios[f"{INL}/disk,memory={100 * share:g}%"].median for share in MEMORIES]
    least = min((one for one in reached if one is not None), default=None)
    facts = {
        **_scale(config),
        "goals": {"10 times on a disk, at every memory": goal(10.0, least)},
        "the paper": f"MESHJOIN 3,500 rows/s and INL {PAPER_INL_RATE} at 0.5 %, 6,000 at 1 %, "
        "26,000 at most; 10 times at every memory",
        **beside_the_disk(runs, ratios, list(counted)),
        "by the cost models, with whole pages in the buffer, disk": counted,
    }
    return runs.result("mesh-memory", ratios, facts)


def run_skew(config: Config, reporter: Reporter) -> Result:
    """Fig. 10c."""
    runs = Runs()
    ratios: dict[str, Spread] = {}

    def add(relation: Relation, law: Law, setting: str, group: str) -> None:
        memory = int(SKEW_MEMORY * relation.nbytes)
        done = measure_all(relation, law, memory, setting, config, reporter, group)
        runs.take(done)
        ratios.update(ratios_of(done, setting))

    with scratch() as root:
        if config.wants("stream"):
            reporter.begin("staging the table")
            relation = stage(each_once(config.rows), root / "unique", pages=PAGES)
            for skew in STREAM_SKEWS:
                law = Law(config.rows, skew, config.seed)
                add(relation, law, f"skew={skew:g}", "stream")
        if config.wants("relation"):
            law = Law(config.rows, STREAM_SKEW, config.seed)
            for skew in RELATION_SKEWS:
                reporter.begin("staging the table")
                matches = skewed(config.rows, skew, config.seed)
                relation = stage(matches, root / f"relation{skew:g}", pages=PAGES)
                add(relation, law, f"relation-skew={skew:g}", "relation")
    facts = {
        **_scale(config),
        "memory": f"{SKEW_MEMORY:.0%} of the table",
        "the paper": "both fall somewhat as the table's skew grows from 0.1 to 1, and MESHJOIN "
        "stays far ahead; both are insensitive to the stream's skew",
    }
    return runs.result("mesh-skew", ratios, facts)


def skewed(rows: int, skew: float, seed: int) -> Rows:
    """How many rows each key has when keys are drawn from a Zipfian law over as large a domain."""
    chances = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    rng = np.random.default_rng([seed, 3])
    counts = rng.multinomial(rows, chances / chances.sum())
    return rng.permutation(counts).astype(np.int64)


def _scale(config: Config) -> dict[str, Any]:
    return {
        "time": VIRTUAL + "; `here` is wall time, with everything in the page cache",
        "profiles": {
            name: f"{one.seek_seconds * 1e3:g} ms, {one.bytes_per_second / 1e6:g} MB/s: {one.note}"
            for name, one in STORAGES.items()
        },
        "table_rows": config.rows,
        "of the paper's size": significant(config.rows / PAPER_ROWS),
        "row_bytes": f"{STREAM_ROW_BYTES} in the stream, {TABLE_ROW_BYTES} in the table",
        "waiting_row_bytes": _WINDOW_ROW_BYTES,
        "scan": f"{LOOPS} iterations; the second scan counts",
        "index nested loops": "leaves of 8 KB; their index, 8 bytes a leaf, is not counted",
    }


BENCHMARKS = (
    Benchmark(
        "mesh-memory",
        "MESHJOIN against index nested loops over memory: virtual disks, and this machine",
        rows=ROWS,
        rows_mean="table rows",
        groups=("memory",),
        function=run_memory,
    ),
    Benchmark(
        "mesh-skew",
        "MESHJOIN against index nested loops over skew: virtual disks, and this machine",
        rows=ROWS,
        rows_mean="table rows",
        groups=("stream", "relation"),
        function=run_skew,
    ),
    Benchmark(
        "mesh-model",
        "MESHJOIN's cost model against its wall time on this machine, and over b on a virtual disk",
        rows=MODEL_ROWS,
        rows_mean="table rows; on the virtual disk 8.75 times as many",
        groups=("model", "disk"),
        function=run_model,
    ),
)
