"""Files of `dovetail site`: one that describes a site, and one that describes a query.

As with job files, every complaint is a `JobFileError` that names the file, the key and what may
stand there, and paths are relative to the file.
"""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from dovetail.cli.sections import Section, are_texts, is_int, is_number, read_toml, saying
from dovetail.cli.site.planpart import PlanPart, read_plan
from dovetail.kernel.memory import parse_bytes
from dovetail.kernel.spans import parse_span
from dovetail.multisite.estimates import StreamStatistics
from dovetail.multisite.implied import implied
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.deployment import CLOCKS, UNITS, Clock, Shape
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.query import Query, Stream
from dovetail.multisite.windows import CountWindow, TimeWindow, Window

PACES = ("heartbeats", "delta")
INPUTS = ("made-up", "file")
_TLS_KEYS = ("ca", "certificate", "key")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*tz=(.+))?\]")
_STREAM_KEYS = ("site", "time", "columns", "window", "window_rows", "input")
_QUERY_KEYS = (
    "name", "tau", "delta", "lateness", "clock", "pace", "unit", "start", "ahead", "on",
    "token_file", "tls", "sites", "streams", "plan", "statistics", "links",
)  # fmt: skip


@dataclass(frozen=True)
class SiteFile:
    """The file of `dovetail site serve`."""

    name: str
    listen: str
    data: Path
    access: Access
    verify_clients: bool
    limits: Limits


@dataclass(frozen=True)
class InputPart:
    """Where the rows of a stream come from, if the query's file says so."""

    kind: str
    rate: float = 0.0  #: rows a second
    keys: Mapping[str, int] = field(default_factory=dict)  #: how many distinct values a column has
    seed: int = 0
    path: str = ""


@dataclass(frozen=True)
class QueryFile:
    """The file of `dovetail site plan` and `dovetail site run`."""

    file: Path
    name: str
    query: Query
    clock: Clock
    unit: str
    heartbeats: bool
    ahead: int
    start: int | None  #: the time of the first interval's beginning
    addresses: Mapping[str, str]
    access_files: tuple[str | None, ...]  #: token, CA, certificate and key
    inputs: Mapping[str, InputPart]
    plan: PlanPart
    statistics: Mapping[str, StreamStatistics]
    shapes: Mapping[tuple[str, str], Shape]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stream.site for stream in self.query.streams))

    @property
    def second(self) -> int:
        """In the unit of the time columns."""
        return 1_000_000_000 // UNITS[self.unit]

    def access(self) -> Access:
        return Access.from_files(*self.access_files)


def read_site(file: Path) -> SiteFile:
    """The site that a file describes."""
    known = ("name", "listen", "data", "token_file", "tls", "limits")
    top = Section(file, "", read_toml(file, "file"), known)
    tls = top.inner("tls", (*_TLS_KEYS, "verify_clients"))
    data = top.location("data")
    if data is None:
        top.refuse("data", 'is missing; write for example data = "state/paris"')
    return SiteFile(
        name=top.needed_text("name", '"paris"'),
        listen=top.needed_text("listen", '"grpc+tls://0.0.0.0:7071"'),
        data=Path(data),
        access=Access.from_files(*_access_files(top, tls)),
        verify_clients=tls.flag("verify_clients"),
        limits=_limits(top),
    )


def _access_files(top: Section, tls: Section) -> tuple[str | None, ...]:
    """Where the token is, and the certificates."""
    if "certificate" in tls or "key" in tls:
        tls.needed_text("certificate", '"paris.pem"')
        tls.needed_text("key", '"paris.key"')
    return top.location("token_file"), *(tls.location(name) for name in _TLS_KEYS)


def _limits(top: Section) -> Limits:
    section = top.inner("limits", [limit.name for limit in fields(Limits)])
    limits: dict[str, Any] = {
        key: section.flag(key) if key == "durable" else _size(section, key) for key in section
    }
    return Limits(**limits)


def read_query(file: Path) -> QueryFile:
    """The query that a file describes."""
    top = Section(file, "", read_toml(file, "file"), _QUERY_KEYS)
    tables = top.tables("streams", _STREAM_KEYS)
    if len(tables) < 2:
        top.refuse("streams", "has to have two tables or more, such as [streams.r1]")
    schemas = {name: _schema(section) for name, section in tables.items()}
    unit = _unit(top, tables, schemas)
    streams = tuple(_stream(tables[name], name, schemas[name], unit) for name in tables)
    query = _query(top, streams, unit)
    shapes = _links(top)
    return QueryFile(
        file=file,
        name=top.text("name") or file.stem,
        query=query,
        clock="wall" if top.choice("clock", CLOCKS) in (None, "wall") else "rows",
        unit=unit,
        heartbeats=top.choice("pace", PACES) != "delta",
        ahead=top.whole("ahead") or 32,
        start=_start(top, unit),
        addresses=_addresses(top),
        access_files=_access_files(top, top.inner("tls", _TLS_KEYS)),
        inputs={name: part for name in tables if (part := _input(tables[name])) is not None},
        plan=read_plan(top, query),
        statistics=_statistics(top, query, unit),
        shapes=shapes,
    )


def _schema(section: Section) -> pa.Schema:
    columns = section.scalars("columns")
    if not columns:
        section.refuse("columns", 'is missing; write { ts = "timestamp[us]", key = "int64" }')
    return pa.schema([(name, _type(section, name, text)) for name, text in columns.items()])


def _type(section: Section, column: str, text: str) -> pa.DataType:
    if found := _TIMESTAMP.fullmatch(text.strip()):
        return pa.timestamp(found[1], found[2])
    try:
        return pa.type_for_alias(text.strip())
    except ValueError:
        section.refuse(
            f"columns.{column}",
            f"is {text!r}, which is no Arrow type; types are int64, float64, string, bool, "
            "timestamp[us], timestamp[us, tz=UTC], date32, ...",
        )


def _unit(top: Section, tables: Mapping[str, Section], schemas: Mapping[str, pa.Schema]) -> str:
    """The unit of all time columns: their type says it, or the key `unit`."""
    given = top.choice("unit", tuple(UNITS))
    units = {}
    for name, section in tables.items():
        time = section.text("time") or "ts"
        if time not in schemas[name].names:
            section.refuse("time", f"names {time!r}, but the columns are {schemas[name].names}")
        type_ = schemas[name].field(time).type
        units[name] = str(type_.unit) if pa.types.is_timestamp(type_) else given or "ms"
    if len(set(units.values())) > 1 or (given and set(units.values()) != {given}):
        top.refuse("unit", f"of the time columns differs: {units}; cast them to one")
    return next(iter(units.values()))


def _stream(section: Section, name: str, schema: pa.Schema, unit: str) -> Stream:
    rows = section.whole("window_rows")
    if ("window" in section) == (rows is not None):
        section.refuse("window", 'or window_rows has to be there: "1 minute", or a number of rows')
    window: Window = CountWindow(rows) if rows else TimeWindow(_span(section, "window", unit))
    with saying(section, "time"):
        return Stream(
            name, schema, window, section.text("time") or "ts", section.text("site") or name
        )


def _query(top: Section, streams: tuple[Stream, ...], unit: str) -> Query:
    pairs = top.get("on", 'a list of pairs, [["r1.dest", "r2.dest"]]', _are_pairs)
    if pairs is None:
        top.refuse("on", 'is missing; write for example on = [["r1.dest", "r2.dest"]]')
    tau, delta = _span(top, "tau", unit), _span(top, "delta", unit, default=0)
    lateness = _span(top, "lateness", unit, default=0)
    with saying(top, "on"):
        return implied(Query(streams, tuple((a, b) for a, b in pairs), tau, delta, lateness))


def _span(section: Section, key: str, unit: str, default: int | None = None) -> int:
    """A span of time in the unit of the time columns."""
    text = section.text(key)
    if text is None:
        if default is None:
            section.refuse(key, f'is missing; write for example {key} = "1 second"')
        return default
    with saying(section, key, 'has to be a span of time such as "1 second"'):
        exact = parse_span(text) / dt.timedelta(microseconds=1) * 1000 / UNITS[unit]
    if exact != round(exact):
        section.refuse(key, f"is {text!r}, which is no whole number of the time's unit ({unit})")
    return round(exact)


def _start(top: Section, unit: str) -> int | None:
    value = top.get(
        "start", "a date and time, or a number", lambda v: is_int(v) or isinstance(v, dt.datetime)
    )
    if not isinstance(value, dt.datetime):
        return None if value is None else int(value)
    value = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (value - epoch) // dt.timedelta(microseconds=1) * 1000 // UNITS[unit]


def _addresses(top: Section) -> dict[str, str]:
    return {
        name: section.needed_text("address", '"grpc+tls://paris.example:7071"')
        for name, section in top.tables("sites", ("address",)).items()
    }


def _input(section: Section) -> InputPart | None:
    if "input" not in section:
        return None
    inner = section.inner("input", ("kind", "rate", "keys", "seed", "path"))
    kind = inner.choice("kind", INPUTS) or "made-up"
    path = inner.location("path")
    if kind == "file":
        if path is None or not Path(path).exists():
            inner.refuse("path", f"names {path}, which does not exist")
        return InputPart(kind, path=path)
    rate = _above_zero(inner, "rate", "rows a second, above 0")
    if rate is None:
        inner.refuse("rate", "is missing: the rows a second to make up")
    keys = _counts(inner, "keys") or {}
    seed = inner.get("seed", "a whole number", is_int) or 0
    return InputPart(kind, rate, keys, seed)


def _statistics(top: Section, query: Query, unit: str) -> dict[str, StreamStatistics]:
    found = {}
    second = 1_000_000_000 / UNITS[unit]
    for name, section in top.tables("statistics", ("rate", "row_bytes", "distinct")).items():
        if name not in query.names:
            top.refuse(f"statistics.{name}", "is of no stream", "Streams", query.names)
        rate, size = (_above_zero(section, key) for key in ("rate", "row_bytes"))
        distinct = _counts(section, "distinct")
        if rate is None or size is None or distinct is None:
            section.refuse("rate", "row_bytes and distinct have to be there, all three")
        keys = {f"{name}.{column}": float(count) for column, count in distinct.items()}
        found[name] = StreamStatistics(rate / second, size, keys)
    return found


def _links(top: Section) -> dict[tuple[str, str], Shape]:
    what = "tables, each [[links]] with from, to, latency, bandwidth"
    tables = top.get("links", what, lambda v: isinstance(v, list)) or []
    shapes = {}
    for index, values in enumerate(tables):
        section = Section(
            top.file, f"links[{index}]", values, ("from", "to", "latency", "bandwidth")
        )
        ends = (section.needed_text("from", '"paris"'), section.needed_text("to", '"rome"'))
        latency = _span(section, "latency", "us", default=0) / 1e6
        bandwidth = _size(section, "bandwidth") if "bandwidth" in section else float("inf")
        shapes[ends] = Shape(latency, float(bandwidth))
    return shapes


def _size(section: Section, key: str) -> int:
    size = parse_bytes(section.size(key))
    if size < 1:
        section.refuse(key, "has to be 1 byte or more")
    return size


def _are_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(are_texts(pair) and len(pair) == 2 for pair in value)


def _above_zero(section: Section, key: str, kind: str = "a number above 0") -> float | None:
    value = section.get(key, kind, lambda v: is_number(v) and v > 0)
    return None if value is None else float(value)


def _counts(section: Section, key: str) -> dict[str, int] | None:
    def are_counts(value: Any) -> bool:
        return isinstance(value, dict) and all(is_int(v) and v >= 1 for v in value.values())

    found = section.get(key, "a table of whole numbers", are_counts)
    return None if found is None else dict(found)
