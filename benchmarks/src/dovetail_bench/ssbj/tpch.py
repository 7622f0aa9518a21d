"""`ssbj-tpch`: SSBJ against MESHJOIN on customers and orders of TPC-H (Fig. 5d)."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dovetail.errors import ArgumentError
from dovetail.kernel.probing import Rows
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail_bench.measure import Contender, Measured
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Result, significant
from dovetail_bench.runner import numbered, side_by_side
from dovetail_bench.scratch import scratch
from dovetail_bench.semistream.relation import Listed, Relation, stage
from dovetail_bench.semistream.runs import opened, pages_for
from dovetail_bench.ssbj.setup import (
    LOOPS,
    MESH,
    OURS,
    WAITING_BYTES,
    Setting,
    measured_of,
    medians,
    rate_ratios,
    scale,
    steady,
)

CUSTOMERS = 150_000  # at scale factor 1
CUSTOMER_BYTES, ORDER_BYTES = 223, 138  # of a row, as the paper has them


def tpch_keys(root: Path, customers: int) -> tuple[Rows, Rows]:
    """The keys of both tables, from tpchgen-cli."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    found = str(program) if program.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise ArgumentError(
            "ssbj-tpch needs tpchgen-cli, which is not installed here: pip install tpchgen-cli"
        )
    scale = f"{customers / CUSTOMERS:g}"
    command = [found, "parquet", "-s", scale, "--tables", "customer,orders"]
    command += ["--output-dir", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ArgumentError(f"tpchgen-cli failed: {done.stderr.strip()[-500:]}")
    columns = {"customer": "c_custkey", "orders": "o_custkey"}
    keys = [
        pq.read_table(root / f"{table}.parquet", columns=[column]).column(0).to_numpy()
        for table, column in columns.items()
    ]
    return keys[0], keys[1]


def run_tpch(config: Config, reporter: Reporter) -> Result:
    """Fig. 5d."""
    settings = [Setting(f"memory={share:.0%}", memory=share) for share in (0.01, 0.05, 0.10)]
    with ExitStack() as stack:
        root = stack.enter_context(scratch())
        reporter.begin("making TPC-H's tables")
        customers, orders = tpch_keys(root, config.rows)
        matches = np.bincount(customers)
        relation = stage(matches, root / "staged", ORDER_BYTES, CUSTOMER_BYTES)

        def contenders(setting: Setting) -> list[Contender]:
            memory = int(setting.memory * relation.nbytes)
            return [
                numbered(
                    f"{kind} {setting.name}", _tpch(config, relation, Listed(orders), memory, kind)
                )
                for kind in (MESH, OURS)
            ]

        runs = side_by_side(settings, contenders, config.repetitions, reporter)
    ratios = rate_ratios(runs, settings)
    times = np.bincount(orders, minlength=len(matches))[1:]
    facts = {
        **scale(config),
        "table_rows": relation.rows,
        "of the paper's size": significant(relation.rows / 15_000_000),
        "row_bytes": f"{ORDER_BYTES} an order, {CUSTOMER_BYTES} a customer",
        "waiting_row_bytes": ORDER_BYTES + INDEX_BYTES_PER_ROW + WAITING_BYTES,
        "the paper": "3.4 times at 1 %, 7.4 at 10 %",
        "why not": "TPC-H draws an order's customer uniformly from two thirds of them, so there is "
        f"no skew for a cache to use: the most frequent has {times.max()} of {len(orders)} orders, "
        f"the mean of those with any {times[times > 0].mean():.3g}",
        "orders of a customer with any, in a scan": {
            name: significant(rows * LOOPS / int((times > 0).sum()))
            for name, rows in medians(runs, settings, "rows_per_loop").items()
            if rows is not None
        },
        "customers in the cache": medians(runs, settings, "cached_values"),
    }
    return runs.result("ssbj-tpch", ratios, facts)


def _tpch(
    config: Config, relation: Relation, orders: Listed, memory: int, kind: str
) -> Callable[[int], Measured]:
    def measure(repetition: int) -> Measured:
        pages = pages_for(relation, LOOPS)
        with opened(kind, relation, orders, [config.seed, 4, repetition], b=pages) as run:
            found = steady(run, lambda one: one.filling(memory, LOOPS), kind)
        return measured_of(found, relation, LOOPS)

    return measure
