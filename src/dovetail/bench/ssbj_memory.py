"""`ssbj-memory`: MESHJOIN's memory over SSBJ's at the same rate (Fig. 4a and b)."""

from pathlib import Path
from tempfile import TemporaryDirectory

from dovetail.bench.measure import Runs
from dovetail.bench.progress import Reporter
from dovetail.bench.registry import Config
from dovetail.bench.result import Result, goals
from dovetail.bench.ssbj_paper import theory
from dovetail.bench.ssbj_setup import (
    RATES,
    UNIQUE,
    Place,
    Setting,
    measure_all,
    medians,
    memory_ratios,
    scale,
)


def run_memory(config: Config, reporter: Reporter) -> Result:
    """Fig. 4a and b."""
    rates = [Setting(f"rate={rate // 1000}k", rate=rate) for rate in RATES]
    sizes = [Setting(f"size={size:g}", size=size, rate=RATES[1]) for size in (2.0, 4.0)]
    unique = [Setting(f"unique,rate={rate // 1000}k", UNIQUE, rate=rate) for rate in RATES[1::2]]
    groups = {"rate": rates, "size": sizes, "unique": unique}
    with TemporaryDirectory(prefix="dovetail-bench-") as root:
        place = Place(config, Path(root))
        runs, settings = Runs(), []
        for group, some in groups.items():
            if config.wants(group):
                found = measure_all(place, some, reporter, group)
                runs.done.update(found.done)
                runs.failures += found.failures
                settings += some
    ratios = memory_ratios(runs, settings)
    facts = {
        **scale(config),
        "rates": "stream rows a virtual second; in a scan of the paper's table of 20 million rows "
        "from such a disk, its 51,242 rows a second are 4 to 8 % of the table",
        "memory": "window, cache, notes, switching buffer (means over a round of three scans), and "
        "the codes of the pages at hand",
        "the paper": "about 7 times at every rate; from 7 to 5 times as the table grows fourfold",
        "why not 7": theory(config.rows),
        "goals": goals(ratios, {"about 7 times": (7.0, tuple(ratios))}),
        "rows of the window, of the table's": medians(runs, settings, "window_rows_of_table"),
        "contenders": runs.facts(),
    }
    return Result("ssbj-memory", ratios, facts, tuple(runs.failures))
