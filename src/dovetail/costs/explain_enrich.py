"""Explanations of `enrich`: words and predicted numbers.

The numbers, and what is assumed for them, are those of `predictions`. They may be asked for another
storage than that of this machine (`PlannedEnrich.profile`). The plan itself is then still the one
for this machine, since that is where `enrich` would run.
"""

from dataclasses import replace

from dovetail.costs.choice import choose
from dovetail.costs.explain import DROPPED_AS_LATE, keys_of
from dovetail.costs.explanation import Explanation
from dovetail.costs.predictions import (
    ALIKE,
    STEP_SECONDS,
    PlannedEnrich,
    Prediction,
    duration,
    predict,
    rounded,
    stream_width,
)
from dovetail.costs.widths import columns_of
from dovetail.kernel.memory import format_bytes
from dovetail.semistream.base import WORKING_SHARE
from dovetail.semistream.overload import Shedding

_WHY = {
    "seek": "reads the pages that hold a waiting row, in order, behind a cache of hot values",
    "seek-uncached": "reads the pages that hold a waiting row, in order; no cache",
    "ssbj": "scans the table in a circle, behind a cache of the values that pay for their room",
    "ameshjoin": "scans the table in a circle, with batches and reads of the best sizes",
    "meshjoin": "scans the table in a circle, with batches and reads of fixed sizes",
    "inl": "reads the leaf of each row, about 8 KB, unless it is in a pool of leaves",
}

_KEPT = {
    "keep": "keep: those that came first",
    "sample": "sample: any, by chance",
    "topw": "topw: those with the most results",
    "cluster": "cluster: by chance, the more results the more likely",
}


def explain_enrich(plan: PlannedEnrich) -> Explanation:
    """Say what an enrichment will do, and why."""
    predictions = predict(plan.foreseen)
    sections = [
        ("enrich", _inputs(plan)),
        ("keys", keys_of(plan.spec.codec)),
        ("algorithm", _algorithm(plan, predictions)),
        ("predictions", [*_assumptions(plan), *_rows(plan, predictions)]),
        ("partitions", [plan.partition_words(), "rows are split by a hash of the key"]),
        ("memory", _memory(plan)),
        *((("waits", _waits(plan)),) if plan.latency is not None else ()),
        *((("shedding", _shedding(plan.shedding)),) if plan.shedding is not None else ()),
        ("state", _state(plan)),
        ("output", [columns_of(plan.spec.layout.schema)]),
    ]
    told = [one.on_spark for one in predictions]
    mine = next((one for one in told if one.algorithm == plan.algorithm and not one.problem), None)
    wait = None if mine is None else mine.wait_seconds
    return plan.explained(sections, _algorithm(plan, predictions), told, wait)


def _inputs(plan: PlannedEnrich) -> list[str]:
    spec, table, width = plan.spec, plan.table, stream_width(plan)
    pairs = zip(spec.stream_keys, spec.table_keys, strict=True)
    matches = " and ".join(f"stream.{a} = table.{b}" for a, b in pairs)
    kind = "a stream" if plan.streaming else "a batch input"
    total = format_bytes(int(table.rows * table.row_bytes))
    return [
        f"{kind} and a table, {spec.how}, where {matches}",
        f"stream: {columns_of(spec.stream)}",
        f"  about {width.nbytes:.0f} bytes a row, {width.source}",
        f"table: {columns_of(spec.table)}",
        f"  about {table.rows:,} rows of {table.row_bytes:.0f} bytes, {total}: {table.source}",
    ]


def _algorithm(plan: PlannedEnrich, predictions: list[Prediction]) -> list[str]:
    lines = [f"{plan.algorithm}, {plan.why or 'as asked'}", _WHY[plan.algorithm]]
    rates = {one.algorithm: one.rate for one in predictions}
    mine = rates.pop(plan.algorithm, 0.0)
    rival = max(rates, key=lambda name: rates[name])
    if plan.profile is not None:
        found = choose(replace(plan.foreseen, asked_algorithm="auto"))
        lines.append(f"with storage={plan.profile.name!r} auto would be {found.algorithm}:")
        lines.append(f"  {found.why}")
    elif mine and rates[rival] > ALIKE * mine:
        # as far as is known now, with this skew; what a state directory has it keeps
        lines.append(
            f"{rival} is predicted to be {rates[rival] / mine:.1f} times as fast here: in a new "
            f"state directory, algorithm={rival!r} asks for it"
        )
    return lines


def _assumptions(plan: PlannedEnrich) -> list[str]:
    storage = plan.foreseen.machine.storage
    asked = ", as asked, and not where this is" if plan.profile is not None else ""
    where = (
        f"storage: {storage.name}{asked}; {storage.seek_seconds * 1000:.2g} ms until a read begins "
        f"and {format_bytes(int(storage.bytes_per_second))} a second"
    )
    how = (
        f"of the join alone, without Spark's own work; for {plan.skew}, one match for a row, "
        f"{plan.machine.cores} cores"
    )
    long = (
        "in the long run, when caches have learned which values come: until then, and in steps of "
        "a few thousand rows, a row costs several times as much, and more of the table is read"
    )
    waits = f"but waits have {duration(STEP_SECONDS)} in them that a step of Spark takes besides"
    return [how, long, waits, where + (f" ({storage.note})" if storage.note else "")]


def _rows(plan: PlannedEnrich, predictions: list[Prediction]) -> list[str]:
    names = ("algorithm", "memory", "rows a second", "longest wait", "read for a row")
    lines = [f"{names[0]:<16}{names[1]:>12}{names[2]:>16}{names[3]:>16}{names[4]:>16}"]
    for one in (told.on_spark for told in predictions):
        mark = " *" if one.algorithm == plan.algorithm else ""
        name = f"{one.algorithm}{mark}"
        if one.problem:
            lines.append(f"{name:<16}  {one.problem}")
            continue
        lines.append(
            f"{name:<16}{format_bytes(int(one.memory_bytes)):>12}{rounded(one.rate):>16}"
            f"{duration(one.wait_seconds):>16}{format_bytes(int(one.bytes_per_row)):>16}"
        )
    return lines


def _memory(plan: PlannedEnrich) -> list[str]:
    if plan.memory_bytes is None:
        return ["unbounded"]
    size = plan.table.rows * plan.table.row_bytes
    part = f", {100 * plan.memory_bytes / max(1, size):.1f} % of the table"
    if plan.memory_bytes >= size:
        part = ", as much as the table takes or more"
    share = plan.memory_bytes // plan.partitions
    return [
        *plan.budget_lines(part),
        f"  {format_bytes(int(share * WORKING_SHARE)):>9}  working memory",
        "the rest holds the cache, the rows that wait, and the input batch",
        *(["rows may wait for a later micro-batch", DROPPED_AS_LATE] if plan.streaming else []),
    ]


def _waits(plan: PlannedEnrich) -> list[str]:
    assert plan.latency is not None
    how = "rows are settled in the step that takes them in"
    if plan.pages:
        how = (
            f"a step scans {plan.pages:,} pages of each partition or more; from then on as many as "
            "it takes, by how often steps come"
        )
    return [f"a row is to be settled within {duration(plan.latency)}", how]


def _shedding(shedding: Shedding) -> list[str]:
    lines = [
        "while rows come faster than they are served, each step keeps as many as it can serve:",
        _KEPT[shedding.strategy],
    ]
    gone = "the others are counted, and gone: shed_to= keeps them"
    lines.append(gone if shedding.to is None else f"the others go to {shedding.to}, as Parquet")
    return lines


def _state(plan: PlannedEnrich) -> list[str]:
    if plan.state is None:
        return ["a temporary directory, for the staged table: a batch join keeps nothing else"]
    return [str(plan.state), plan.state_note]
