"""`mesh-shedding`: how much of the join's result each shedding strategy keeps under overload.

Fig. 11 of Polyzotis et al., "Meshing Streaming Updates with Persistent Data in an Active Data
Warehouse". A relation with Zipfian keys meets streams that are `rho` times as fast as the join can
take them. The yardstick is the offline optimum (`offline_shed`), which knows the whole
stream. A ratio is TOPW's results over the optimum's, so 1 is the most that it can be. Nothing is
timed here.

At the default size relation, domain and streams are as large as the paper's: 3.5 million rows and
keys, `rho * 20,000` rows a stream. Smaller sizes shrink all of them alike. The paper does not tell
`w`, the rows that the join takes at once; here it is 40, so that the optimum can be computed.

Nor does it tell how its relations were made, and much hangs on that:

Group `zipf`: the relation's keys are drawn at random, so that a third of the stream's rows or more
have no match and cost nothing to shed. Stream keys have skew 0.5, as in the paper, the same keys
being frequent in both.
Group `uniform`: the same relations, but stream keys that know nothing of the relation's.
Group `full`: every key occurs as often as is to be expected, and at least once, so that shedding a
row always costs something. Stream keys as in `zipf`.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.semistream.shedding import SHEDDERS, Frequencies, rows_to_keep
from dovetail_bench.measure import WrongResultError
from dovetail_bench.mesh.offline_shed import optimal_losses
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, goal, significant
from dovetail_bench.runner import Points, over_points

NAME = "mesh-shedding"
OPTIMUM = "optimum"
STREAM_SKEWS = {"zipf": 0.5, "uniform": 0.0, "full": 0.5}  #: z_S by group
RELATION_SKEWS = (0.1, 0.5, 1.0)  #: z_R
OVERLOADS = (1.1, 1.25, 1.5, 1.75, 2.0)  #: rho
W = 40  # rho * W is a whole number for every rho
RELATION_ROWS_PER_ROW = 175  # 3.5 million to 20,000
CLAIMED_SHARE = 0.8  # the paper's, of the whole result, kept by TOPW at z_R = 0.5 and rho = 2

Kept = dict[str, list[int]]  #: by strategy, the results kept of each stream


@dataclass(frozen=True)
class Setting:
    """One point of the figure."""

    group: str
    skew: float
    overload: float

    @property
    def c_loop(self) -> int:
        """Rows that arrive while the join is busy with `W`."""
        return round(self.overload * W)

    def __str__(self) -> str:
        where = "" if self.group == "zipf" else f"{self.group},"
        return f"{where}z={self.skew:g},rho={self.overload:g}"


@dataclass(frozen=True)
class Found:
    """What was kept at one setting, and the whole results it was kept of."""

    kept: Kept
    whole: list[int]
    matched: float  #: the share of the streams' rows that have a match

    def ratio(self) -> Spread:
        pairs = zip(self.kept["topw"], self.kept[OPTIMUM], strict=True)
        return Spread.of(ours / best for ours, best in pairs)

    def share(self, name: str) -> float:
        pairs = zip(self.kept[name], self.whole, strict=True)
        return fmean(kept / whole for kept, whole in pairs)

    def shares(self) -> dict[str, float | None]:
        shares = {name: significant(self.share(name)) for name in self.kept}
        return {**shares, "rows with a match": significant(self.matched)}


def run(config: Config, reporter: Reporter) -> Result:
    """All groups, or the one that is asked for."""
    every = [
        Setting(group, skew, overload)
        for group in STREAM_SKEWS
        for skew in RELATION_SKEWS
        for overload in OVERLOADS
    ]
    made = Made(config)
    # all streams of a setting are looked at together, so that is done once
    points = Points(every, group=lambda setting: setting.group, times=lambda _: 1)
    done = over_points(
        points, lambda setting, _: _measure(setting, made, config), config, reporter, tell=_in_words
    )
    found = {setting: one for setting, some in done.at.items() for one in some}
    ratios = {f"{OPTIMUM}/{setting}": one.ratio() for setting, one in found.items()}
    shares = {str(setting): one.shares() for setting, one in found.items()}
    return done.result(NAME, ratios, {**_scale(config), "goals": _claims(found), "shares": shares})


class Made:
    """Relations and distributions of streams, of which the last one is kept."""

    def __init__(self, config: Config) -> None:
        self.relation = lru_cache(1)(partial(_relation, config=config))
        self.upper = lru_cache(1)(partial(upper_ends, RELATION_ROWS_PER_ROW * config.rows))


def make_relation(rows: int, skew: float, rng: np.random.Generator) -> Frequencies:
    """Of that many rows, with keys drawn from a Zipfian distribution over a domain as large."""
    counts = rng.multinomial(rows, _chances(rows, skew))
    return Frequencies(np.arange(rows), counts)


def make_full_relation(rows: int, skew: float) -> Frequencies:
    """The same without chance: each key as often as expected, rounded, and at least once.

    That makes it somewhat more than `rows` rows.
    """
    counts = np.maximum(np.rint(rows * _chances(rows, skew)), 1).astype(np.int64)
    return Frequencies(np.arange(rows), counts)


def upper_ends(domain: int, skew: float) -> NDArray[np.float64]:
    """A Zipfian distribution over `[0, domain)`, summed up; 0 is the most frequent key."""
    return np.cumsum(_chances(domain, skew))


def make_stream(rows: int, upper: NDArray[np.float64], rng: np.random.Generator) -> Codes:
    """Keys drawn from a distribution of `upper_ends`."""
    return np.searchsorted(upper[:-1], rng.random(rows), side="right")


def results_kept(
    strategy: str, codes: Codes, c_loop: int, relation: Frequencies, rng: np.random.Generator
) -> int:
    """The results of the rows kept when `W` of every `c_loop` rows are."""
    counts = relation.of(codes)
    kept = 0
    for start in range(0, len(codes), c_loop):
        rows = rows_to_keep(strategy, codes[start : start + c_loop], W, relation, rng)
        kept += int(counts[start + rows].sum())
    return kept


def _chances(domain: int, skew: float) -> NDArray[np.float64]:
    weights = np.arange(1, domain + 1, dtype=np.float64) ** -skew
    return np.asarray(weights / weights.sum())


def _relation(group: str, skew: float, config: Config) -> Frequencies:
    rows = RELATION_ROWS_PER_ROW * config.rows
    if group == "full":
        return make_full_relation(rows, skew)
    return make_relation(rows, skew, np.random.default_rng(config.seed))


def _measure(setting: Setting, made: Made, config: Config) -> Found:
    """All strategies on the same streams, one for each repetition."""
    relation = made.relation(setting.group, setting.skew)
    upper = made.upper(STREAM_SKEWS[setting.group])
    rows = setting.c_loop * max(1, config.rows // W)
    kept: Kept = {name: [] for name in SHEDDERS}
    counts = []
    for repetition in range(1, config.repetitions_of(setting.group) + 1):
        rng = np.random.default_rng([config.seed, repetition])
        codes = make_stream(rows, upper, rng)
        counts.append(relation.of(codes))
        for name in SHEDDERS:
            kept[name].append(results_kept(name, codes, setting.c_loop, relation, rng))
    streams = np.stack(counts)
    whole = streams.sum(axis=1)
    # the join's first request at c_loop, as for the strategies: both hand over equally often
    losses = optimal_losses(streams, W, setting.c_loop, first_request=setting.c_loop)
    best = (whole - losses).tolist()
    found = Found({**kept, OPTIMUM: best}, whole.tolist(), float((streams > 0).mean()))
    _check(setting, found)
    return found


def _check(setting: Setting, found: Found) -> None:
    """No strategy can be better than the optimum."""
    for name, results in found.kept.items():
        for ours, best in zip(results, found.kept[OPTIMUM], strict=True):
            if ours > best:
                raise WrongResultError(
                    f"{setting}: {name} kept {ours:,} results, but {best:,} are the most there are"
                )


def _in_words(found: Found) -> str:
    return ", ".join(f"{name} {found.share(name):.1%}" for name in found.kept)


def _scale(config: Config) -> dict[str, Any]:
    rows = RELATION_ROWS_PER_ROW * config.rows
    return {
        "relation_rows": rows,
        "domain": rows,
        "stream_rows": f"rho * {W * max(1, config.rows // W)}",
        "stream_skews": STREAM_SKEWS,
        "w": W,
        "the shares": "of the whole result, means over the streams; last, of the streams' rows",
        "of the paper's size": significant(rows / 3_500_000),
    }


def _claims(found: dict[Setting, Found]) -> dict[str, Any]:
    """What the paper says of its own run, beside ours with either way to make the relation."""
    claims = {}
    for group in ("zipf", "full"):
        setting = Setting(group, 0.5, 2.0)
        if setting in found:
            share = found[setting].share("topw")
            claims[f"share kept by topw, {setting}"] = goal(CLAIMED_SHARE, share)
    return claims


BENCHMARKS = (
    Benchmark(
        NAME,
        "the share of a join's results that shedding keeps, beside the offline optimum",
        rows=20_000,
        rows_mean="rows of a stream that the join can take; rho times as many arrive",
        groups=tuple(STREAM_SKEWS),
        function=run,
    ),
)
