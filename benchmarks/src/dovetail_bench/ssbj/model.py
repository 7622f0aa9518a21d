"""`ssbj-model`: the cost models of SSBJ and MESHJOIN against their wall time (Fig. 6c and d)."""

from statistics import fmean, median
from typing import Any

import numpy as np

from dovetail.costs.storage import DISK_7200
from dovetail_bench.measure import Runs
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Result, Spread, goal, significant
from dovetail_bench.scratch import scratch
from dovetail_bench.semistream.runs import FACTORS
from dovetail_bench.ssbj.setup import (
    HERE,
    MESH,
    OURS,
    RATES,
    UNIQUE,
    Place,
    Setting,
    measure_all,
    model_of,
    scale,
)

FITTED_RATES = (25_000, 200_000)


def run_model(config: Config, reporter: Reporter) -> Result:
    """Fig. 6c and d: seconds of a loop at rates, predicted and measured."""
    settings = [
        Setting(f"skew={skew:g},rate={rate // 1000}k", UNIQUE, skew=skew, rate=rate)
        for skew in (0.0, 1.0)
        for rate in RATES
    ]
    with scratch() as root:
        place = Place(config, root)
        runs = measure_all(place, settings, reporter, "model")
        shares = {one: expected_share(place, one) for one in settings}
    ratios, told = _told(runs, settings, shares)
    errors = [float(one["error_percent"] or 0.0) for one in told.values()]
    return runs.result("ssbj-model", ratios, _facts(config, told, errors))


def _told(
    runs: Runs, settings: list[Setting], shares: dict[Setting, float]
) -> tuple[dict[str, Spread], dict[str, dict[str, float | None]]]:
    """At the rates that nothing was fitted to: the ratios, and the numbers behind them."""
    ratios, told = {}, {}
    for kind in (MESH, OURS):
        factors = _fitted(runs, kind, [one for one in settings if one.rate in FITTED_RATES])
        for setting in settings:
            done = list(runs.done.get(f"{kind} {setting.name}", {}).values())
            if setting.rate in FITTED_RATES or not done or factors is None:
                continue
            share = shares[setting] if kind == OURS else 1.0
            rows = fmean(one.facts["rows_per_loop"] for one in done)
            predicted = float(np.dot(_features(rows, share), factors))
            measured = [one.seconds[HERE] for one in done]
            pairs = [(predicted, one) for one in measured]
            ratios[f"model/{kind},{setting.name}"] = Spread.of(min(p) / max(p) for p in pairs)
            waited = fmean(1 - one.facts["settled_by_cache"] for one in done)
            middle = median(measured)
            told[f"{kind} {setting.name}"] = {
                "measured_ms": significant(1e3 * middle),
                "predicted_ms": significant(1e3 * predicted),
                "error_percent": significant(100 * abs(predicted / middle - 1)),
                "share that waits": significant(waited),
                "share that waits, predicted": significant(share),
            }
    return ratios, told


def _facts(
    config: Config, told: dict[str, dict[str, float | None]], errors: list[float]
) -> dict[str, Any]:
    reached = median(errors) if errors else None
    return {
        **scale(config),
        "time": "a loop's seconds are wall time of this machine, everything in its page cache; the "
        "rows that arrive in a loop follow from its virtual seconds on a disk",
        "ratios": "the smaller over the larger of predicted and measured seconds; 1 is exact",
        "the model": "of the seconds: linear in 1, rows that wait and rows that the cache settles, "
        f"fitted to the rates {FITTED_RATES} and predicting the others. Of the rows that wait: the "
        "cache inequality over the stream's probabilities, with nothing fitted",
        "the paper": "calculated costs closely resemble measured ones",
        "goals": {"median error below 15 %": goal(15.0, reached, at_most=True)},
        "loops": told,
    }


def expected_share(place: Place, setting: Setting) -> float:
    """Of the rows that arrive, those that wait, by the cost model."""
    relation = place.relation(setting)
    model = model_of(relation, place.law(setting), 1.0)
    pages = model.workload.table_pages / setting.loops
    seconds = DISK_7200.read_seconds(1, pages * model.workload.page_bytes)
    seconds += relation.rows / setting.loops * FACTORS.probe
    idle = 1 - setting.rate * (FACTORS.per_stream_row + FACTORS.output)
    window_rows = setting.loops * setting.rate * seconds / max(idle, 0.01)
    waits = ~model.is_cached(window_rows)
    return float(model.stream.probability[waits].sum())


def _features(rows: float, share: float) -> list[float]:
    return [1.0, rows * share, rows * (1 - share)]


def _fitted(runs: Runs, kind: str, settings: list[Setting]) -> Any:
    """The factors with the least squares of relative errors; None if nothing was measured."""
    features, seconds = [], []
    for setting in settings:
        for one in runs.done.get(f"{kind} {setting.name}", {}).values():
            share = 1 - one.facts["settled_by_cache"]
            features.append(_features(one.facts["rows_per_loop"], share))
            seconds.append(one.seconds[HERE])
    if not seconds:
        return None
    scaled = np.array(features) / np.array(seconds)[:, None]
    return np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)[0]
