"""`ssbj-factor` and `ssbj-buffer`: SSBJ with other settings than those chosen (Fig. 6a and b)."""

import numpy as np

from dovetail.costs.meshjoin import MeshModel, Workload
from dovetail.costs.storage import DISK_7200
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream.scan.ssbj import Ssbj
from dovetail_bench.measure import Runs
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Result
from dovetail_bench.scratch import scratch
from dovetail_bench.semistream.relation import STREAM_ROW_BYTES, TABLE_ROW_BYTES, Relation
from dovetail_bench.semistream.runs import FACTORS
from dovetail_bench.ssbj.setup import (
    OURS,
    UNIQUE,
    WAITING_BYTES,
    Place,
    Setting,
    measure_all,
    medians,
    scale,
)

FACTORS_TRIED = (0.25, 0.5, 2.0, 4.0)
LOOPS_TRIED = (12, 16, 24, 40, 60)


def run_factor(config: Config, reporter: Reporter) -> Result:
    """Fig. 6a."""
    names = (1.0, *FACTORS_TRIED)
    settings = [
        Setting(f"sf={one:g}", UNIQUE, memory=0.05, switching=one) for one in names
    ]  # fmt: skip
    with scratch() as root:
        place = Place(config, root)
        runs = measure_all(place, settings, reporter, "factor", ours=True)
    best = f"{OURS} sf=1"
    ratios = {
        f"factor/sf={one:g}": runs.rate_ratio(f"{OURS} sf={one:g}", best, "rows_per_virtual_s")
        for one in FACTORS_TRIED
    }
    facts = {
        **scale(config),
        "memory": "5 % of a table with every key once",
        "ratios": "the rate with switching factor 1 over that with another",
        "the paper": "1 is the best, and others are markedly worse",
        "the best of all": best_factor(runs, names),
        "why others are near": "values near the break-even cost about the same either way",
        "rows in a scan with which a value with one table row pays": {
            f"sf={one:g}": break_even(one) for one in names
        },
        "values in the cache": medians(runs, settings, "cached_values"),
    }
    return runs.result("ssbj-factor", ratios, facts)


def best_factor(runs: Runs, factors: tuple[float, ...]) -> str | None:
    """The factor with the highest median rate."""
    rates = {}
    for factor in factors:
        rate = runs.median(f"{OURS} sf={factor:g}", "rows_per_virtual_s")
        if rate is not None:
            rates[f"sf={factor:g}"] = rate
    return max(rates, key=lambda name: rates[name]) if rates else None


def break_even(factor: float) -> int:
    """The fewest stream rows of a value with one table row that are above it, and above chance."""
    cached = factor * (TABLE_ROW_BYTES + Ssbj.key_bytes)
    waiting = STREAM_ROW_BYTES + INDEX_BYTES_PER_ROW
    counts = np.arange(1, 1_000)
    return int(counts[np.argmax((counts - Ssbj.noise * np.sqrt(counts)) * waiting > cached)])


def run_buffer(config: Config, reporter: Reporter) -> Result:
    """Fig. 6b."""
    with scratch() as root:
        place = Place(config, root)
        settings = []
        for loops in LOOPS_TRIED:
            left = 0.10 - 1 / loops
            if left > 0:
                settings.append(Setting(f"loops={loops}", UNIQUE, memory=left, loops=loops))
        runs = measure_all(place, settings, reporter, "buffer", ours=True)
        relation = place.relation(settings[0])
        chosen = chosen_loops(relation, [one.loops for one in settings], 0.10 * relation.nbytes)
    best = f"{OURS} loops={chosen}"
    ratios = {
        f"buffer/{one.name}": runs.rate_ratio(f"{OURS} {one.name}", best, "rows_per_virtual_s")
        for one in settings
        if one.loops != chosen
    }
    facts = {
        **scale(config),
        "memory": "10 % of the table, of which the buffer's whole pages are 1 / loops",
        "the model chooses": f"{chosen} loops of those tried",
        "ratios": "the rate with the chosen pages over that with others",
        "the paper": "the rate rises with the buffer up to a point and falls beyond it",
    }
    return runs.result("ssbj-buffer", ratios, facts)


def chosen_loops(relation: Relation, loops: list[int], memory: float) -> int:
    """By MESHJOIN's cost model, which the disk phase is."""
    workload = Workload(
        relation.rows, relation.table_row_bytes, max(1, relation.nbytes // 4096),
        relation.stream_row_bytes + INDEX_BYTES_PER_ROW, pointer_bytes=WAITING_BYTES,
    )  # fmt: skip
    model = MeshModel(workload, FACTORS, DISK_7200)

    def rate(count: int) -> float:
        pages = float(-(-workload.table_pages // count))
        rows = (memory - pages * workload.page_bytes) / (count * workload.window_row_bytes)
        return float(model.rate(rows, pages))

    return max(loops, key=rate)
