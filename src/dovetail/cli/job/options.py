"""The table of a job file that says how to join: `[join]`, `[join_all]` or `[enrich]`."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.cli.sections import (
    Section,
    are_texts,
    exists,
    is_int,
    is_number,
    is_url,
)
from dovetail.kernel.memory import parse_bytes
from dovetail.kernel.spans import parse_span
from dovetail.multiway import ALGORITHMS as MULTIWAY_ALGORITHMS
from dovetail.semistream import ALGORITHMS as ENRICH_ALGORITHMS
from dovetail.semistream import HOWS
from dovetail.semistream.shedding import SHEDDERS
from dovetail.specs import UNBOUNDED, EnrichOptions, JoinAllOptions, JoinOptions, On, OnAll, Within
from dovetail.twoway import ALGORITHMS

_CONDITIONS = (
    'a name that inputs share ("id"), or a list of names and pairs ([["a.id", "b.id"], '
    '["b.at", "c.at", "5 minutes"]]; a third item makes a band)'
)


def join_options(file: Path, values: Any, mode: str, checkpoint: str | None) -> JoinOptions:
    known = ("on", "within", "memory", "state", "algorithm", "partitions", "slice_ms")
    section = Section(file, "join", values, known)
    state = section.location("state")
    if state is None and mode == "stream":
        state = f"{checkpoint}/dovetail/join"  # as dovetail.join itself would have it
    return JoinOptions(
        on=_on(section),
        within=_within(section),
        memory=_memory(section),
        state=state if mode == "stream" else None,
        algorithm=section.choice("algorithm", ("auto", *ALGORITHMS)) or "auto",
        partitions=section.whole("partitions"),
        slice_ms=section.whole("slice_ms") or 250,
    )


def join_all_options(
    file: Path, values: Any, mode: str, checkpoint: str | None
) -> tuple[bool, JoinAllOptions]:
    """Whether the files that are there are the history to go by, and the options."""
    known = ("on", "within", "memory", "state", "algorithm", "partitions", "slice_ms", "sizes")
    section = Section(file, "join_all", values, (*known, "history"))
    state = section.location("state")
    if state is None and mode == "stream":
        state = f"{checkpoint}/dovetail/join_all"  # as dovetail.join_all itself would have it
    return section.flag("history"), JoinAllOptions(
        on=_on_all(section),
        within=_within(section),
        memory=_memory(section),
        state=state if mode == "stream" else None,
        algorithm=section.choice("algorithm", ("auto", *MULTIWAY_ALGORITHMS)) or "auto",
        partitions=section.whole("partitions"),
        slice_ms=section.whole("slice_ms") or 250,
        sizes=_sizes(section),
    )


def enrich_options(
    file: Path, values: Any, mode: str, checkpoint: str | None
) -> tuple[str, bool, EnrichOptions]:
    """The table, whether the stream's files that are there are its history, and the options."""
    known = ("table", "on", "how", "memory", "state", "algorithm", "columns", "ordered", "refresh")
    overload = ("shed", "shed_to", "latency")
    more = ("partitions", "slice_ms", "history")
    section = Section(file, "enrich", values, (*known, *overload, *more))
    state = section.location("state")
    if state is None and mode == "stream":
        state = f"{checkpoint}/dovetail/enrich"  # as dovetail.enrich itself would have it
    options = EnrichOptions(
        on=_on(section),
        how=section.choice("how", HOWS) or "inner",
        memory=_memory(section),
        state=state,
        algorithm=section.choice("algorithm", ("auto", *ENRICH_ALGORITHMS)) or "auto",
        columns=section.texts("columns") or None,
        ordered=section.flag("ordered"),
        refresh=_refresh(section, mode),
        partitions=section.whole("partitions"),
        slice_ms=section.whole("slice_ms") or 250,
        shed=_shed(section, mode),
        shed_to=section.location("shed_to"),
        latency=_latency(section, mode),
    )
    return _table(section), section.flag("history"), options


def _shed(section: Section, mode: str) -> str | None:
    shed = section.choice("shed", tuple(SHEDDERS))
    if shed is None and "shed_to" in section:
        section.refuse("shed_to", "needs shed: without it no row is left out")
    if shed is not None and mode == "batch":
        section.refuse("shed", 'makes no sense with mode = "batch": nothing outruns it')
    return shed


def _latency(section: Section, mode: str) -> dt.timedelta | None:
    if section.text("latency") is None:
        return None
    if mode == "batch":
        section.refuse("latency", 'makes no sense with mode = "batch": no row waits for others')
    return parse_span(section.span("latency", '"5 seconds"'))


def _table(section: Section) -> str:
    """The path of a table if there is such a path, or it looks like one; else a name."""
    text = section.needed_text("table", '"data/customers"')
    path = section.location("table")
    assert path is not None
    if is_url(text) or Path(path).exists():
        return path
    if "/" in text and not exists(path):
        section.refuse("table", f"names {path}, which does not exist")
    return path if "/" in text else text


def _refresh(section: Section, mode: str) -> dt.timedelta | None:
    text = section.text("refresh")
    if text is None:
        return None
    if mode == "batch":
        section.refuse("refresh", 'makes no sense with mode = "batch": the table is read once')
    return parse_span(section.span("refresh", '"5 minutes"'))


def _on(section: Section) -> On:
    kind = 'a name ("id"), names (["a", "b"]) or pairs ([["left_id", "right_id"]])'
    value = section.get("on", kind, _are_keys)
    if value is None:
        section.refuse("on", f"is missing; write {kind}")
    if isinstance(value, str):
        return value
    return [item if isinstance(item, str) else (item[0], item[1]) for item in value]


def _within(section: Section) -> Within:
    kind = 'a number, or for times a span such as "5 minutes"'
    value = section.get("within", kind, lambda v: is_number(v) or isinstance(v, str))
    if not isinstance(value, str):
        return value  # type: ignore[no-any-return]  # a number or None, as checked
    try:
        return parse_span(value)
    except ValueError as error:
        section.refuse("within", f"has to be {kind}: {error}")


def _memory(section: Section) -> str | int | None:
    value = section.get(
        "memory", 'a size such as "64MB"', lambda v: is_int(v) or isinstance(v, str)
    )
    try:
        if value not in (None, UNBOUNDED):
            parse_bytes(value)
    except ValueError as error:
        section.refuse("memory", f"is {error}")
    return value  # type: ignore[no-any-return]  # an int, a str or None, as checked


def _are_keys(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, str) or (are_texts(item) and len(item) == 2) for item in value)
    )


def _on_all(section: Section) -> OnAll:
    value = section.get("on", _CONDITIONS, _are_conditions)
    if value is None:
        section.refuse("on", f"is missing; write {_CONDITIONS}")
    if isinstance(value, str):
        return value
    return [item if isinstance(item, str) else _pair(section, item) for item in value]


def _sizes(section: Section) -> Mapping[str, float] | None:
    kind = "a table of numbers, { orders = 1000, payments = 900 }"
    found = section.get(
        "sizes", kind, lambda v: isinstance(v, dict) and all(map(is_number, v.values()))
    )
    return None if found is None else dict(found)


def _pair(section: Section, item: list[Any]) -> tuple[Any, ...]:
    if len(item) < 3 or not isinstance(item[2], str):
        return tuple(item)
    try:
        return (*item[:2], parse_span(item[2]))
    except ValueError as error:
        section.refuse("on", f"has a band that is no number and no span of time: {error}")


def _are_conditions(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, list) and bool(value) and all(map(_is_condition, value))


def _is_condition(item: Any) -> bool:
    if isinstance(item, str):
        return bool(item.strip())
    fits = isinstance(item, list) and len(item) in (2, 3) and are_texts(item[:2])
    return fits and (len(item) == 2 or is_number(item[2]) or isinstance(item[2], str))
