"""Numbers for a figure's notes, worked out from what was measured."""

from collections.abc import Sequence
from typing import Any

from dovetail_bench.diner.figure import OURS, Measured, advantage
from dovetail_bench.diner.rivals import HISTORY
from dovetail_bench.result import Spread, significant

_DRIFT_RIVALS = ("rpj", "xjoin", "hmj")


def drift_findings(measured: Measured) -> dict[str, Any]:
    """What RPJ's history costs it by partitions, and how much a policy could gain at all."""
    return {
        "diner_over_rpj_history_by_partitions": ahead_by_partitions(measured, HISTORY),
        **room_below_bound(measured, (OURS, *_DRIFT_RIVALS)),
    }


def ahead_by_partitions(measured: Measured, rival: str) -> dict[str, dict[str, float | None]]:
    """DINER's results over a rival's for each number of partitions, by point."""
    known = dict.fromkeys(
        variant
        for runs in measured.values()
        for one in runs
        for variant in one.tried.get(rival, {})
    )
    return {
        variant: {
            point.label: significant(
                Spread.of(
                    advantage(one.found[OURS].results, one.tried[rival][variant])
                    for one in runs
                    if OURS in one.found and variant in one.tried.get(rival, {})
                ).median
            )
            for point, runs in measured.items()
        }
        for variant in known
    }


def room_below_bound(measured: Measured, names: Sequence[str]) -> dict[str, Any]:
    """The least and the greatest share of the bound over the points; what could be gained."""
    shares: dict[str, list[float]] = {}
    for name in names:
        medians = [
            Spread.of(one.share_of_bound(name) for one in runs if name in one.found).median
            for runs in measured.values()
        ]
        known = [share for share in medians if share]
        if known:
            shares[name] = known
    return {
        "shares_of_bound": {
            name: [significant(min(known)), significant(max(known))]
            for name, known in shares.items()
        },
        "most_times_ahead": {name: significant(1 / min(known)) for name, known in shares.items()},
    }
