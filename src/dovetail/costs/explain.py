"""Explanations of `join`: made from the spec and the budget before anything runs.

The numbers are those the operators work with: the split of the budget is `twoway.base`'s, and the
width of a row that of `widths`. What to expect of results and of Cleanup comes from a sample of
keys (`replay`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dovetail.costs.expected import Expected, expected_lines
from dovetail.costs.explanation import Explanation, Planned, input_lines
from dovetail.costs.widths import RowWidth, columns_of, row_width
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.memory import format_bytes
from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.twoway import ALGORITHMS, TwoWaySpec
from dovetail.twoway.base import WORKING_SHARE

#: of results that were put off
DROPPED_AS_LATE = (
    "their results come when windows behind a watermark may have closed, and would be dropped "
    "there as late: group by windows before the join, or aggregate what the sink has written"
)


@dataclass(frozen=True, kw_only=True)
class PlannedJoin(Planned):
    """A join as it would run, and how its settings came about."""

    spec: TwoWaySpec
    where: Sequence[str] = ()  #: what becomes of `where=`, in words
    samples: tuple[pa.Table, pa.Table] | None = None
    expected: Expected | None = None  #: by a sample of the keys
    why_not_expected: str = "no sample of the inputs was taken"


def explain_join(plan: PlannedJoin) -> Explanation:
    """Say what a join will do, and why."""
    samples: Sequence[pa.Table | None] = plan.samples or (None, None)
    widths = [row_width(*pair) for pair in zip(plan.spec.schemas, samples, strict=True)]
    sections = [
        ("join", _inputs(plan, widths)),
        *([("where", list(plan.where))] if plan.where else []),
        ("keys", keys_of(plan.spec.codec)),
        ("algorithm", _algorithm(plan)),
        ("partitions", _partitions(plan)),
        ("memory", _memory(plan, widths)),
        ("when memory is full", _spilling(plan)),
        ("when the inputs end or fall silent", _ending(plan)),
        ("expected, by a sample", _expected(plan)),
        ("state", plan.state_lines()),
        ("output", [columns_of(plan.spec.layout.schema)]),
    ]
    found = () if plan.expected is None else (plan.expected,)
    return plan.explained(sections, _algorithm(plan), found)


def _expected(plan: PlannedJoin) -> list[str]:
    lines = expected_lines(plan.expected, plan.why_not_expected)
    if plan.expected is not None and plan.spec.residual is not None:
        lines.append("results are pairs whose keys match; where= lets only some of them through")
    return lines


def _inputs(plan: PlannedJoin, widths: list[RowWidth]) -> list[str]:
    spec = plan.spec
    pairs = zip(spec.left_keys, spec.right_keys, strict=True)
    if spec.within is None:
        matches = " and ".join(f"left.{a} = right.{b}" for a, b in pairs)
    else:
        a, b = next(pairs)
        unit = spec.left.field(a).type
        matches = f"|left.{a} - right.{b}| <= {spec.within} (in units of {unit})"
    kind = "two streams" if plan.streaming else "two batch inputs"
    columns = input_lines(SIDE_NAMES, spec.schemas, widths)
    return [f"{kind}, inner, where {matches}", *columns]


def keys_of(codec: KeyCodec) -> list[str]:
    """The words for how keys are compared."""
    types = ", ".join(str(type_) for type_ in codec.types)
    if codec.exact:
        return [
            f"{types}: coded in 64 bits, ordered and exact",
            "equal codes are equal keys, so that no candidate pair has to be verified",
        ]
    return [
        f"{types}: hashed to 64 bits",
        "every candidate pair is verified on the key columns themselves",
    ]


_WHAT_IT_DOES = {
    "shj": "keeps every row in memory: fast, and an error when the budget is used up",
    "xjoin": "an equality join of any size: what does not fit in memory goes to disk",
    "diner": "keeps the range of values in memory that joins most; equality and band, of any size",
    "diner-paper": "diner as published: no zone maps, and cleanup as a nested loop",
    "hmj": "flushes pairs of partitions, and joins them by merging sorted blocks",
    "rpj": "flushes the partitions least likely to be met, by how often values have come",
    "pmj": "sorts what fits in memory, joins it, and merges the sorted runs; equality and band",
    "dphj": "gives whole partitions up to disk, and joins those when the inputs have ended",
}
#: What goes to disk first when memory is full; the others stop.
_WHAT_GOES = {
    "xjoin": "the hash bucket with the most rows, of either side,",
    "diner": "the lowest, the highest or the least joined values of the side that holds more",
    "diner-paper": "the lowest, the highest or the least joined values of the side that holds more",
    "hmj": "a hash bucket of both sides, so that the sides stay balanced,",
    "rpj": "the rows of the hash buckets least likely to be met",
    "pmj": "everything, as a sorted run of each side,",
    "dphj": "the largest hash bucket, of both sides and for good,",
}
#: What blocks on disk meet while the inputs are silent.
_WHEN_SILENT = {
    "xjoin": "the rows in memory",
    "rpj": "the rows in memory",
    "diner": "blocks on disk, of which some have come since they last met",
    "diner-paper": "blocks on disk, of which some have come since they last met",
    "hmj": "blocks on disk, in merges",
}


def _algorithm(plan: PlannedJoin) -> list[str]:
    why = _WHAT_IT_DOES[plan.algorithm]
    if plan.asked_algorithm != "auto":
        return [f"{plan.algorithm}, as asked", why]
    if plan.spec.within is None:
        return [f"{plan.algorithm}, chosen for its spilling", why]
    able = ", ".join(name for name, kind in ALGORITHMS.items() if kind.joins_bands)
    return [f"{plan.algorithm}, chosen for its spilling; band joins are done by {able}", why]


def _partitions(plan: PlannedJoin) -> list[str]:
    how = "rows are split by a hash of the key"
    if plan.spec.within is not None:
        how = (
            "rows are split by ranges of the key, eight bands wide; a right row near the border of "
            "one goes to both"
        )
    return [plan.partition_words(), how]


def _memory(plan: PlannedJoin, widths: list[RowWidth]) -> list[str]:
    if plan.memory_bytes is None:
        return ["unbounded: all rows stay in memory, and nothing is spilled"]
    share = plan.memory_bytes // plan.partitions
    working = int(share * WORKING_SHARE)
    room = share - working
    free = room - min(plan.batch_bytes(widths), room // 2)
    *why, budget = plan.budget_lines()
    lines = [
        *why,
        f"{budget}:",
        f"  {format_bytes(working):>9}  working memory: sorting, probing, output, blocks read back",
        f"  {format_bytes(room):>9}  rows with their index, the input batch, the list of blocks",
        *plan.batch_lines(widths, room),
    ]
    for side, width in zip(SIDE_NAMES, widths, strict=True):
        rows = int(free / width.held_bytes) * plan.partitions
        lines.append(
            f"beside it, room for about {rows:,} rows of {side} alone, over all partitions "
            f"({width.held_bytes:.0f} bytes each with the index)"
        )
    return lines


def _spilling(plan: PlannedJoin) -> list[str]:
    if plan.memory_bytes is None:
        return ["there is no limit, so it never is"]
    if plan.algorithm in _WHAT_GOES:
        return [
            f"{_WHAT_GOES[plan.algorithm]} goes to disk as sorted blocks;",
            "its rows meet those that come later once the inputs are silent",
        ]
    return ["the join stops with an error that says so; raise memory and start again to go on"]


def _ending(plan: PlannedJoin) -> list[str]:
    if plan.algorithm not in _WHAT_GOES or plan.memory_bytes is None:
        return ["nothing is left to do: every pair left as soon as its second row came"]
    lines = ["cleanup: blocks on disk meet blocks on disk, each pair of rows exactly once"]
    if plan.algorithm in _WHEN_SILENT:
        lines.insert(0, f"reactive: blocks on disk meet {_WHEN_SILENT[plan.algorithm]}")
    if plan.streaming:
        lines.append("in slices of time, so that new rows do not wait; then no micro-batch runs")
        lines.append(DROPPED_AS_LATE)
    return lines
