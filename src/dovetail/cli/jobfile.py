"""Job files: what a TOML file asks for, checked before anything is started.

Every complaint is a `JobFileError` that names the file, the key and what may stand there. Paths
are relative to the file, so that a job means the same wherever it is started from. What depends
on the inputs' columns is left to the join itself.

A file describes one of two jobs: `[left]`, `[right]` and `[join]`, or `[stream]` and `[enrich]`.
"""

import datetime as dt
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.cli.sections import Section, are_texts, is_int, is_number, is_url, parse_span
from dovetail.errors import JobFileError
from dovetail.kernel.memory import parse_bytes
from dovetail.semistream import ALGORITHMS as ENRICH_ALGORITHMS
from dovetail.semistream import HOWS
from dovetail.semistream.shedding import SHEDDERS
from dovetail.specs import EnrichOptions, JoinOptions, On, Within
from dovetail.twoway import ALGORITHMS

MODES = ("stream", "batch")
FILE_FORMATS = ("parquet", "orc", "csv", "json", "text")  #: that live at a path
_NEED_SCHEMA = ("csv", "json")  # the others say themselves what they hold
SINK_MODES = {"stream": ("append", "update"), "batch": ("error", "append", "overwrite", "ignore")}
TRIGGERS = ("available_now", "processing_time", "once")
_INPUTS = {"join": ("left", "right"), "enrich": ("stream",)}  # the sources of each kind of job


@dataclass(frozen=True)
class SparkPart:
    """`[spark]`: the session."""

    master: str
    app_name: str
    conf: Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """`[left]`, `[right]` or `[stream]`: where an input comes from."""

    side: str
    format: str
    path: str | None
    schema: str | None
    select: tuple[str, ...]
    watermark: tuple[str, str] | None  #: column and delay
    options: Mapping[str, str]


@dataclass(frozen=True)
class Sink:
    """`[sink]`: where the results go."""

    format: str
    path: str | None
    table: str | None
    mode: str | None
    checkpoint: str | None
    options: Mapping[str, str]


@dataclass(frozen=True)
class Trigger:
    """`[trigger]`: when a micro-batch runs. None of the three: as soon as the last has ended."""

    available_now: bool = False
    processing_time: str | None = None
    once: bool = False


@dataclass(frozen=True)
class _Frame:
    """What every job file has."""

    file: Path
    mode: str
    spark: SparkPart
    sink: Sink
    trigger: Trigger

    @property
    def streaming(self) -> bool:
        return self.mode == "stream"


@dataclass(frozen=True)
class JoinJob(_Frame):
    """A file with `[join]`, checked."""

    left: Source
    right: Source
    join: JoinOptions


@dataclass(frozen=True)
class EnrichJob(_Frame):
    """A file with `[enrich]`, checked."""

    stream: Source
    table: str  #: a path or a name
    enrich: EnrichOptions


Job = JoinJob | EnrichJob


def read_job(file: Path) -> Job:
    """The job that a file describes. Anything wrong with it is a `JobFileError`."""
    content = _load(file)
    inputs = [name for names in _INPUTS.values() for name in names]
    top = Section(file, "", content, ("mode", "spark", *inputs, *_INPUTS, "sink", "trigger"))
    kind = _kind_of_job(file, top)
    mode = top.choice("mode", MODES) or "stream"
    sink = _sink(file, content["sink"], mode)
    if mode == "batch" and "trigger" in top:
        top.refuse("trigger", 'makes no sense with mode = "batch": a batch job runs once')
    frame = _Frame(
        file,
        mode,
        _spark(file, content.get("spark", {})),
        sink,
        _trigger(file, content.get("trigger", {})),
    )
    sources = [_source(file, name, content[name], mode) for name in _INPUTS[kind]]
    if kind == "join":
        left, right = sources
        return JoinJob(
            **vars(frame), left=left, right=right, join=_join(file, content["join"], mode, sink)
        )
    table, options = _enrich(file, content["enrich"], mode, sink)
    return EnrichJob(**vars(frame), stream=sources[0], table=table, enrich=options)


def _kind_of_job(file: Path, top: Section) -> str:
    """`join` or `enrich`; a complaint unless all of its tables are there, and none of the other."""
    if "join" in top and "enrich" in top:
        top.refuse("enrich", "cannot stand beside join: a file describes one of the two")
    kind = "enrich" if "enrich" in top or ("stream" in top and "join" not in top) else "join"
    inputs = _INPUTS[kind]
    for name in _INPUTS["join" if kind == "enrich" else "enrich"]:
        if name in top:
            top.refuse(
                name, f"does not go with [{kind}], which has {' and '.join(inputs)} as its input"
            )
    for name in (kind, *inputs, "sink"):
        if name not in top:
            known = ", ".join(("spark", *inputs, kind, "sink", "trigger"))
            hint = " For a stream and a table: stream, enrich." if name == "join" else ""
            raise JobFileError(f"{file}: the table [{name}] is missing. Tables: {known}.{hint}")
    return kind


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as handle:
            return tomllib.load(handle)
    except FileNotFoundError:
        raise JobFileError(f"there is no job file {file}. Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobFileError(f"{file} is not valid TOML: {error}") from None
    except OSError as error:
        raise JobFileError(f"the job file {file} cannot be read: {error.strerror}") from error


def _spark(file: Path, values: Any) -> SparkPart:
    section = Section(file, "spark", values, ("master", "app_name", "conf"))
    return SparkPart(
        section.text("master") or "local[*]",
        section.text("app_name") or file.stem,
        section.scalars("conf"),
    )


def _source(file: Path, side: str, values: Any, mode: str) -> Source:
    known = ("format", "path", "schema", "select", "watermark", "options")
    section = Section(file, side, values, known)
    format_ = section.needed_text("format", '"parquet"')
    path = section.location("path")
    if format_ in FILE_FORMATS and path is None:
        section.refuse("path", f"is missing; a {format_} source has to say where its files are")
    if path is not None and not _exists(path):
        section.refuse("path", f"names {path}, which does not exist")
    schema = section.text("schema")
    if schema is None and format_ in _NEED_SCHEMA and mode == "stream":
        section.refuse(
            "schema",
            f"is missing; a {format_} stream has to say its columns, for example "
            'schema = "id BIGINT, amount DOUBLE"',
        )
    return Source(
        side=side,
        format=format_,
        path=path,
        schema=schema,
        select=section.texts("select"),
        watermark=_watermark(section),
        options=section.scalars("options"),
    )


def _watermark(section: Section) -> tuple[str, str] | None:
    if "watermark" not in section:
        return None
    values = section.get(
        "watermark",
        'a table, { column = "time", delay = "10 minutes" }',
        lambda v: isinstance(v, dict),
    )
    inner = Section(section.file, f"{section.name}.watermark", values, ("column", "delay"))
    return inner.needed_text("column", '"time"'), _span(inner, "delay", '"10 minutes"')


def _join(file: Path, values: Any, mode: str, sink: Sink) -> JoinOptions:
    known = ("on", "within", "memory", "state", "algorithm", "partitions", "slice_ms")
    section = Section(file, "join", values, known)
    state = section.location("state")
    if state is None and mode == "stream":
        state = f"{sink.checkpoint}/dovetail/join"  # as dovetail.join itself would have it
    return JoinOptions(
        on=_on(section),
        within=_within(section),
        memory=_memory(section),
        state=state if mode == "stream" else None,
        algorithm=section.choice("algorithm", ("auto", *ALGORITHMS)) or "auto",
        partitions=section.whole("partitions"),
        slice_ms=section.whole("slice_ms") or 250,
    )


def _enrich(file: Path, values: Any, mode: str, sink: Sink) -> tuple[str, EnrichOptions]:
    known = ("table", "on", "how", "memory", "state", "algorithm", "columns", "ordered", "refresh")
    overload = ("shed", "shed_to", "latency")
    section = Section(file, "enrich", values, (*known, *overload, "partitions", "slice_ms"))
    state = section.location("state")
    if state is None and mode == "stream":
        state = f"{sink.checkpoint}/dovetail/enrich"  # as dovetail.enrich itself would have it
    return _table(section), EnrichOptions(
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
    return parse_span(_span(section, "latency", '"5 seconds"'))


def _table(section: Section) -> str:
    """The path of a table if there is such a path, or it looks like one; else a name."""
    text = section.needed_text("table", '"data/customers"')
    path = section.location("table")
    assert path is not None
    if is_url(text) or Path(path).exists():
        return path
    if "/" in text and not _exists(path):
        section.refuse("table", f"names {path}, which does not exist")
    return path if "/" in text else text


def _refresh(section: Section, mode: str) -> dt.timedelta | None:
    text = section.text("refresh")
    if text is None:
        return None
    if mode == "batch":
        section.refuse("refresh", 'makes no sense with mode = "batch": the table is read once')
    return parse_span(_span(section, "refresh", '"5 minutes"'))


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
        if value is not None:
            parse_bytes(value)
    except ValueError as error:
        section.refuse("memory", f"is {error}")
    return value  # type: ignore[no-any-return]  # an int, a str or None, as checked


def _sink(file: Path, values: Any, mode: str) -> Sink:
    known = ("format", "path", "table", "mode", "checkpoint", "options")
    section = Section(file, "sink", values, known)
    format_ = section.needed_text("format", '"parquet"')
    sink = Sink(
        format=format_,
        path=section.location("path"),
        table=section.text("table"),
        mode=section.choice("mode", SINK_MODES[mode]),
        checkpoint=section.location("checkpoint"),
        options=section.scalars("options"),
    )
    if format_ in FILE_FORMATS and sink.path is None:
        section.refuse("path", f"is missing; a {format_} sink has to say where its files go")
    if format_ == "table" and sink.table is None:
        section.refuse("table", 'is missing; write for example table = "paid_orders"')
    if format_ != "table" and sink.table is not None:
        section.refuse("table", 'goes with format = "table" only')
    if mode == "stream" and sink.checkpoint is None:
        section.refuse(
            "checkpoint",
            "is missing; a stream needs a directory to remember how far it got, "
            'for example checkpoint = "ckpt/query"',
        )
    if mode == "batch" and sink.checkpoint is not None:
        section.refuse("checkpoint", 'makes no sense with mode = "batch"')
    return sink


def _trigger(file: Path, values: Any) -> Trigger:
    section = Section(file, "trigger", values, TRIGGERS)
    given = [key for key in TRIGGERS if key in section]
    if len(given) > 1:
        section.refuse(given[1], f"cannot stand beside {given[0]}: choose one of them")
    if section.text("processing_time") is not None:
        return Trigger(processing_time=_span(section, "processing_time", '"5 seconds"'))
    return Trigger(available_now=section.flag("available_now"), once=section.flag("once"))


def _span(section: Section, key: str, example: str) -> str:
    """A span of time that Spark takes as a text, checked here."""
    text = section.needed_text(key, example)
    try:
        parse_span(text)
    except ValueError as error:
        section.refuse(key, f"has to be a span of time such as {example}: {error}")
    return text


def _exists(path: str) -> bool:
    """Whether there is anything at a local path; of patterns and other storage Spark will tell."""
    return is_url(path) or any(sign in path for sign in "*?[{") or Path(path).exists()


def _are_keys(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, str) or (are_texts(item) and len(item) == 2) for item in value)
    )
