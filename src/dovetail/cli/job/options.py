"""The table of a job file that says how to join: `[join]`, `[join_all]` or `[enrich]`.

Its keys are arguments of the call of that name, and are handed on to it as such; what is not there
is left to the call. A key is read by a function that takes the table and the key's name.
"""

import datetime as dt
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.cli.sections import Section, are_texts, exists, is_number, is_url, saying
from dovetail.kernel.spans import parse_span
from dovetail.multiway import ALGORITHMS as MULTIWAY_ALGORITHMS
from dovetail.semistream import ALGORITHMS as ENRICH_ALGORITHMS
from dovetail.semistream import HOWS
from dovetail.semistream.shedding import SHEDDERS
from dovetail.specs import UNBOUNDED
from dovetail.twoway import ALGORITHMS

Reader = Callable[[Section, str], Any]

_KEYS = 'a name ("id"), names (["a", "b"]) or pairs ([["left_id", "right_id"]])'
_CONDITIONS = (
    'a name that inputs share ("id"), or a list of names and pairs ([["a.id", "b.id"], '
    '["b.at", "c.at", "5 minutes"]]; a third item makes a band)'
)
_NEEDED = ("table", "on")
#: why they make no sense in a batch
_OF_STREAMS = {
    "refresh": "the table is read once",
    "shed": "nothing outruns it",
    "latency": "no row waits for others",
}


def read_options(top: Section, kind: str, checkpoint: str | None) -> dict[str, Any]:
    """The arguments of the call that `kind` names, besides its inputs; `history` is true or false.

    checkpoint: of the query; None in a batch job.
    """
    readers = _READERS[kind]
    section = top.inner(kind, tuple(readers))
    if checkpoint is None:
        for key, why in _OF_STREAMS.items():
            if key in section:
                section.refuse(key, f'makes no sense with mode = "batch": {why}')
    if "shed_to" in section and "shed" not in section:
        section.refuse("shed_to", "needs shed: without it no row is left out")
    needed = () if "where" in section else _NEEDED
    options = {
        key: read(section, key) for key, read in readers.items() if key in section or key in needed
    }
    if checkpoint is not None:  # as the call itself would have it
        options.setdefault("state", f"{checkpoint}/dovetail/{kind}")
    elif kind != "enrich":  # which has to keep the staged table somewhere
        options.pop("state", None)
    return options


def _table(section: Section, key: str) -> str:
    """The path of a table if there is such a path, or it looks like one; else a name."""
    text = section.needed_text(key, '"data/customers"')
    path = section.location(key)
    assert path is not None
    if is_url(text) or Path(path).exists():
        return path
    if "/" in text and not exists(path):
        section.refuse(key, f"names {path}, which does not exist")
    return path if "/" in text else text


def _conditions(section: Section, key: str, kind: str, longest: int) -> Any:
    """A name, or a list of names and pairs; where three items are allowed, the third is a band."""

    def fits(item: Any) -> bool:
        if isinstance(item, str):
            return bool(item.strip())
        if not isinstance(item, list) or not 2 <= len(item) <= longest:
            return False
        return are_texts(item[:2]) and all(map(_is_distance, item[2:]))

    def are_conditions(value: Any) -> bool:
        items = value if isinstance(value, list) else [value]
        return bool(items) and all(map(fits, items))

    value = section.get(key, kind, are_conditions)
    if value is None:
        section.refuse(key, f"is missing; write {kind}")
    if isinstance(value, str):
        return value
    return [item if isinstance(item, str) else _pair(section, key, item) for item in value]


def _pair(section: Section, key: str, item: list[Any]) -> tuple[Any, ...]:
    if len(item) < 3 or not isinstance(item[2], str):
        return tuple(item)
    with saying(section, key, "has a band that is no number and no span of time"):
        return (*item[:2], parse_span(item[2]))


def _is_distance(value: Any) -> bool:
    return is_number(value) or isinstance(value, str)


def _within(section: Section, key: str) -> float | dt.timedelta:
    kind = 'a number, or for times a span such as "5 minutes"'
    value = section.get(key, kind, _is_distance)
    with saying(section, key, f"has to be {kind}"):
        return parse_span(value) if isinstance(value, str) else value


def _sizes(section: Section, key: str) -> Any:
    kind = "a table of numbers, { orders = 1000, payments = 900 }"
    return section.get(key, kind, lambda v: isinstance(v, dict) and all(map(is_number, v.values())))


def _duration(section: Section, key: str, example: str) -> dt.timedelta:
    return parse_span(section.span(key, example))


_SHARED: dict[str, Reader] = {
    "memory": lambda section, key: section.size(key, UNBOUNDED),
    "state": Section.location,
    "partitions": Section.whole,
    "slice_ms": Section.whole,
}
_READERS: dict[str, dict[str, Reader]] = {
    "join": {
        "on": partial(_conditions, kind=_KEYS, longest=2),
        "where": lambda section, key: section.needed_text(key, '"left.day = right.day"'),
        "within": _within,
        **_SHARED,
        "algorithm": partial(Section.choice, allowed=("auto", *ALGORITHMS)),
    },
    "join_all": {
        "on": partial(_conditions, kind=_CONDITIONS, longest=3),
        "within": _within,
        **_SHARED,
        "algorithm": partial(Section.choice, allowed=("auto", *MULTIWAY_ALGORITHMS)),
        "sizes": _sizes,
        "history": Section.flag,
    },
    "enrich": {
        "table": _table,
        "on": partial(_conditions, kind=_KEYS, longest=2),
        **_SHARED,
        "how": partial(Section.choice, allowed=HOWS),
        "algorithm": partial(Section.choice, allowed=("auto", *ENRICH_ALGORITHMS)),
        "columns": Section.texts,
        "ordered": Section.flag,
        "refresh": partial(_duration, example='"5 minutes"'),
        "shed": partial(Section.choice, allowed=tuple(SHEDDERS)),
        "shed_to": Section.location,
        "latency": partial(_duration, example='"5 seconds"'),
        "history": Section.flag,
    },
}
