"""`ssbj-memory`: MESHJOIN's memory over SSBJ's at the same rate (Fig. 4a and b)."""

from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Result, Spread, goals
from dovetail_bench.scratch import scratch
from dovetail_bench.ssbj.paper import GROUP, TIMES, measure_paper_memory
from dovetail_bench.ssbj.setup import (
    RATES,
    UNIQUE,
    Place,
    Setting,
    measure_groups,
    medians,
    memory_ratios,
    scale,
)
from dovetail_bench.ssbj.theory import PAPER_RATE, rows_in_a_scan, theory


def run_memory(config: Config, reporter: Reporter) -> Result:
    """Fig. 4a and b."""
    rates = [Setting(f"rate={rate // 1000}k", rate=rate) for rate in RATES]
    sizes = [Setting(f"size={size:g}", size=size, rate=RATES[1]) for size in (2.0, 4.0)]
    unique = [Setting(f"unique,rate={rate // 1000}k", UNIQUE, rate=rate) for rate in RATES[1::2]]
    groups = {"rate": rates, "size": sizes, "unique": unique}
    with scratch() as root:
        place = Place(config, root)
        runs, settings = measure_groups(place, groups, reporter)
        ratios = memory_ratios(runs, settings)
        counted: dict[str, Spread] = {}
        expected: dict[str, float | None] = {}
        if config.wants(GROUP):
            counted, expected = measure_paper_memory(place, runs, reporter)
    least, most = rows_in_a_scan()
    facts = {
        **scale(config),
        "rates": "stream rows a virtual second; while the paper's table of 20 million rows is read "
        f"once from such a disk, or half as fast, its {PAPER_RATE:,} rows a second are {least:.0%} "
        f"to {most:.0%} of the table",
        "memory": "window, cache, notes, switching buffer (means over a round of three scans), and "
        "the codes of the pages at hand",
        "the paper": "about 7 times at every rate; from 7 to 5 times as the table grows fourfold",
        "7 times, by the paper's own equations": theory(config.rows),
        "group paper": f"{TIMES * config.rows:,} table rows; rates as above, or stream rows of a "
        "scan as a multiple of the table's; memory is of waiting and cached rows alone",
        "group paper, by the inequality for the rows that came": expected,
        "goals": goals(
            ratios | counted,
            {
                "about 7 times": (7.0, tuple(ratios)),
                "about 7 times at a rate, as the paper counts": (
                    7.0,
                    tuple(label for label in counted if "rate=" in label),
                ),
            },
        ),
        "rows of the window, of the table's": medians(runs, settings, "window_rows_of_table"),
    }
    return runs.result("ssbj-memory", ratios | counted, facts)
