"""Explanations of `join_all`, beside the cascade of two-way joins that it replaces."""

from dataclasses import dataclass

import pyarrow as pa

from dovetail.costs.cascade import Cost, Counted, best_cascade, cost_of_all, results_of
from dovetail.costs.explain import DROPPED_AS_LATE
from dovetail.costs.explanation import Explanation, Planned, about, input_lines
from dovetail.costs.shares import Grid
from dovetail.costs.widths import RowWidth, columns_of, row_width
from dovetail.kernel.memory import format_bytes
from dovetail.multiway import MultiWaySpec
from dovetail.multiway.holding import WORKING_SHARE
from dovetail.multiway.rows import Encoder

_PUT_OFF = ("what does not fit goes to disk and is joined later", DROPPED_AS_LATE)
_ABOUT_EQUAL = 1.2  # within which a prediction does not decide
_WHAT_IT_DOES = {
    "miner": "keeps the values in memory that join most, of any attribute; the rest goes to disk",
    "miner-paper": "miner as published: no zone maps, and cleanup without reducing blocks first",
    "mjoin": "evicts the largest hash bucket of all inputs, or at random where there is none",
}


@dataclass(frozen=True, kw_only=True)
class PlannedJoinAll(Planned):
    """A join of several inputs as it would run, and how its settings came about."""

    spec: MultiWaySpec
    grid: Grid
    most_partitions: int
    chosen_by: str  #: what the shares were
    samples: tuple[pa.Table | None, ...] = ()
    counted: Counted | None = None
    why_not_counted: str = "the inputs were not counted"


def explain_join_all(plan: PlannedJoinAll) -> Explanation:
    """Say what a join of several inputs will do, and why."""
    samples = plan.samples or (None,) * len(plan.spec)
    widths = [row_width(*pair) for pair in zip(plan.spec.schemas, samples, strict=True)]
    ways, costs = _ways(plan, [width.nbytes for width in widths])
    sections = [
        ("join", _inputs(plan, widths)),
        ("algorithm", _algorithm(plan)),
        ("partitions", _partitions(plan)),
        ("memory", _memory(plan, widths)),
        ("one operator or a cascade of two-way joins", ways),
        ("state", plan.state_lines()),
        ("output", [columns_of(plan.spec.output)]),
    ]
    return plan.explained(sections, _algorithm(plan), costs)


def _inputs(plan: PlannedJoinAll, widths: list[RowWidth]) -> list[str]:
    spec = plan.spec
    kind = "streams" if plan.streaming else "batch inputs"
    lines = [f"{len(spec)} {kind}, inner, where"]
    for edge in spec.edges:
        one, two = (spec.names[end] for end in edge.ends)
        pairs = [(f"{one}.{a}", f"{two}.{b}") for a, b in zip(*edge.columns, strict=True)]
        if edge.within is None:
            lines.append("  " + " and ".join(f"{a} = {b}" for a, b in pairs))
        else:
            unit = spec.schemas[edge.ends[0]].field(edge.columns[0][0]).type
            lines.append(f"  |{pairs[0][0]} - {pairs[0][1]}| <= {edge.within} (in units of {unit})")
    return [*lines, *input_lines(spec.names, spec.schemas, widths)]


def _algorithm(plan: PlannedJoinAll) -> list[str]:
    why = "as asked" if plan.asked_algorithm != "auto" else "which auto is for several inputs"
    return [f"{plan.algorithm}, {why}", _WHAT_IT_DOES[plan.algorithm]]


def _partitions(plan: PlannedJoinAll) -> list[str]:
    lines = [plan.partition_words(f" of at most {plan.most_partitions}")]
    for dimension, share in zip(plan.grid.dimensions, plan.grid.shares, strict=True):
        columns = " = ".join(
            " and ".join(f"{name}.{column}" for column in columns)
            for name, columns in zip(plan.spec.names, dimension.columns, strict=True)
            if columns
        )
        how = f"hash of {columns}"
        if dimension.reach is not None:
            how = f"ranges of {columns.replace(' = ', ', ')}, which bands link"
        if not dimension.divisible:
            how += "; such values cannot be cut into ranges"
        lines.append(f"  {share} by the {how}")
    if len(plan.grid.dimensions) == 1:
        return lines
    goes = ", ".join(
        f"of {name} to {plan.grid.copies(i):.3g}" for i, name in enumerate(plan.spec.names)
    )
    return [
        *lines,
        f"how many partitions a row goes to: one {goes}; each result comes about in one of them",
        plan.chosen_by,
    ]


def _memory(plan: PlannedJoinAll, widths: list[RowWidth]) -> list[str]:
    if plan.memory_bytes is None:
        return ["unbounded: all rows stay in memory, and nothing is spilled"]
    share = plan.memory_bytes // plan.partitions
    working = int(share * WORKING_SHARE)
    *why, budget = plan.budget_lines()
    return [
        *why,
        f"{budget}:",
        f"  {format_bytes(working):>9}  working memory: slices, combinations, output",
        f"  {format_bytes(share - working):>9}  rows, indexes, the input batch, blocks read back",
        *(_PUT_OFF if plan.streaming else ()),
        *plan.batch_lines(widths, share - working),
    ]


def _ways(plan: PlannedJoinAll, each: list[float]) -> tuple[list[str], list[Cost]]:
    """The one operator beside the best cascade, if rows were counted; and what both cost."""
    counted = plan.counted
    if counted is None:
        return [f"no estimate: {plan.why_not_counted}"], []
    one = cost_of_all(plan.spec, plan.grid, counted.rows, each)
    cascade = best_cascade(plan.spec, counted, each)
    names = [plan.spec.names[number] for number in cascade.order]
    index = [Encoder(plan.spec, i).index_bytes_per_row for i in range(len(plan.spec))]
    fullest = sum(
        count * (width + extra)
        for count, width, extra in zip(counted.heaviest, each, index, strict=True)
    )
    between = sum(cascade.intermediate)
    rows = ", ".join(
        f"{name} {count:,.0f}" for name, count in zip(plan.spec.names, counted.rows, strict=True)
    )
    results = results_of(plan.spec, counted, range(len(plan.spec)))
    basis = (
        f"counted: {rows} rows with a key; about {about(results)} results, if matches of one "
        "input do not depend on those of another"
    )
    fullest_one = f"{sum(counted.heaviest):,.0f} rows, {_bytes(fullest)}, in the fullest partition"
    lines = [
        basis,
        f"one operator: {_taken(one)}; {fullest_one}",
        f"cascade, {' then '.join(names)}: {_taken(cascade.cost, between)}",
        _verdict(one.state_bytes, cascade.cost.state_bytes),
    ]
    return lines, [one, cascade.cost]


def _taken(cost: Cost, between: float = 0.0) -> str:
    shuffled, kept = _bytes(cost.shuffled_bytes), _bytes(cost.state_bytes)
    of_them = f", {about(between)} of them intermediate results" if between else ""
    return f"{about(cost.rows)} rows travel{of_them} ({shuffled}), and {kept} are kept"


def _verdict(one: float, cascade: float) -> str:
    if one * _ABOUT_EQUAL < cascade:
        return (
            f"the one operator keeps {cascade / one:.2g} times less, because it has no "
            "intermediate results"
        )
    if cascade * _ABOUT_EQUAL < one:
        return (
            f"a cascade of dovetail.join would keep {one / cascade:.2g} times less: its "
            "intermediate results are smaller than the copies of rows and the indexes here. "
            "join_all does not build one; write it as joins of joins, or lower partitions"
        )
    return "both keep about the same; the one operator commits one state instead of several"


def _bytes(number: float) -> str:
    return format_bytes(round(number))
