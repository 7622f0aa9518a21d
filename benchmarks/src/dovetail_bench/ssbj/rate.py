"""`ssbj-rate`: SSBJ's rate over MESHJOIN's with the same memory (Fig. 5a, b, c and f)."""

from collections.abc import Callable

from dovetail_bench.measure import Measured, Runs, interleaved
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Result, Spread, goals, significant
from dovetail_bench.runner import numbered
from dovetail_bench.scratch import scratch
from dovetail_bench.semistream.runs import Run, opened, pages_for
from dovetail_bench.ssbj.paper import GROUP, TIMES, measure_paper
from dovetail_bench.ssbj.setup import (
    MESH,
    OURS,
    UNIQUE,
    Place,
    Setting,
    measure_groups,
    measured_of,
    medians,
    model_of,
    rate_ratios,
    scale,
    steady,
)
from dovetail_bench.ssbj.theory import analytic, theory

MEMORIES = (0.01, 0.02, 0.05, 0.10)  #: of the table
SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
SIZES = (0.2, 0.5)  #: of the table, with the memory of the whole one


def rate_settings() -> dict[str, list[Setting]]:
    """By group. The last of the skews is also the last of the memories, and the whole size."""
    memory = [Setting(f"memory={share:.0%}", memory=share) for share in MEMORIES]
    skew = [Setting(f"skew={skew:g}", skew=skew) for skew in SKEWS]
    size = [Setting(f"size={size:g}", size=size) for size in SIZES]
    unique = [Setting(f"unique,memory={share:.0%}", UNIQUE, memory=share) for share in (0.01, 0.10)]
    unique += [Setting(f"unique,skew={skew:g}", UNIQUE, skew=skew) for skew in (0.0, 0.5)]
    return {"memory": memory, "size": size, "skew": skew, "unique": unique}


def run_rate(config: Config, reporter: Reporter) -> Result:
    """Fig. 5a, b, c and f."""
    groups = rate_settings()
    both = config.wants("memory") and config.wants("skew")
    if both:  # memory=10% and skew=1 are one and the same
        groups["skew"] = groups["skew"][:-1]
    with scratch() as root:
        place = Place(config, root)
        runs, settings = measure_groups(place, groups, reporter)
        ratios = rate_ratios(runs, settings)
        if both:
            ratios[f"{MESH}/skew=1"] = ratios[f"{MESH}/memory=10%"]
        best = {one.name: significant(optimum(place, one)) for one in settings}
        if config.wants("budget"):
            ratios |= _in_budget(place, runs, reporter)
        if config.wants(GROUP):
            ratios |= measure_paper(place, runs, reporter)
    facts = {
        **scale(config),
        "the paper": "7 times at 1 %, 8 at 10 % and skew 1; level at skew 0; 7 at 0.2 of the size",
        "7 to 8 times, by the paper's own equations": theory(config.rows),
        "ratio of rows in a scan, by the paper's bytes and inequality": analytic(
            config.rows, TIMES * config.rows
        ),
        "group paper": f"{TIMES * config.rows:,} table rows; ratios are of the rows of a scan",
        "goals": goals(ratios, {f"{MESH}/skew=1": (7.0, (f"{MESH}/skew=1",))}),
        "ratio of rates with the best cache there can be, by the cost model": best,
        "share of rows settled by the cache (the paper: 39 to 54 %)": medians(
            runs, settings, "settled_by_cache"
        ),
    }
    return runs.result("ssbj-rate", ratios, facts)


def _in_budget(place: Place, runs: Runs, reporter: Reporter) -> dict[str, Spread]:
    """The operators inside a budget of 10 % of the table, at skew 1."""
    setting = Setting("budget")
    budget = max(place.memory_bytes(setting), 600_000)
    repetitions = place.config.repetitions_of("budget")
    kinds = {"meshjoin budget": (MESH, False), "ssbj budget,whole": (OURS, False)}
    kinds["ssbj budget,pieces"] = (OURS, True)
    contenders = [
        numbered(name, _budgeted(place, setting, kind, budget, pieces))
        for name, (kind, pieces) in kinds.items()
    ]
    runs.take(interleaved(contenders, repetitions, reporter))
    fact = "rows_per_virtual_s"
    return {
        f"{MESH}/budget,{how}": runs.rate_ratio("meshjoin budget", f"ssbj budget,{how}", fact)
        for how in ("whole", "pieces")
    }


def _budgeted(
    place: Place, setting: Setting, algorithm: str, budget: int, pieces: bool
) -> Callable[[int], Measured]:
    def measure(repetition: int) -> Measured:
        relation, law = place.relation(setting), place.law(setting)
        pages = pages_for(relation, setting.loops)
        seed = [place.config.seed, 3, repetition]
        with opened(algorithm, relation, law, seed, budget, b=pages) as run:
            rows = _pieces if pieces else Run.as_it_likes
            found = steady(run, rows, algorithm, iterates=not pieces)
        return measured_of(found, relation, setting.loops)

    return measure


def _pieces(run: Run) -> int:
    """A batch smaller than a packet, of which most rows may be cached."""
    return max(1, int(run.operator.w) // 3)  # type: ignore[attr-defined]


def optimum(place: Place, setting: Setting) -> float:
    """What the cost model says the best cache could bring, in our bytes: a ratio of rates."""
    relation = place.relation(setting)
    model = model_of(relation, place.law(setting), switching=None)
    memory = place.memory_bytes(setting)
    pages = float(model.workload.table_pages // setting.loops)
    buffer = pages * model.workload.page_bytes

    def fits(rows: float) -> bool:
        return model.memory_bytes(rows, pages) - buffer - rows * 40 <= memory

    low, high = 1.0, 1000.0 * relation.rows
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    alone = memory / (model.workload.window_row_bytes * model.workload.loops(pages))
    return low / alone
