"""Job files in TOML: parsed and checked before anything is started.

Every complaint is a `JobFileError` that names the file, the key and what may stand there. Paths
are relative to the file, so that a job means the same wherever it is started from. What depends
on the inputs' columns is left to the join itself.

A file describes one job: `[left]`, `[right]` and `[join]`; an `[inputs.NAME]` for each of several
inputs, and `[join_all]`; or `[stream]` and `[enrich]`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.cli.job.options import read_options
from dovetail.cli.sections import Section, exists, read_toml
from dovetail.errors import JobFileError

MODES = ("stream", "batch")
FILE_FORMATS = ("parquet", "orc", "csv", "json", "text")  #: that live at a path
_NEED_SCHEMA = ("csv", "json")  # the others say themselves what they hold
SINK_MODES = {"stream": ("append", "update"), "batch": ("error", "append", "overwrite", "ignore")}
TRIGGERS = ("available_now", "processing_time", "once")
# the sources of each kind of job
_INPUTS = {"enrich": ("stream",), "join_all": ("inputs",), "join": ("left", "right")}
_ALL_INPUTS = tuple(name for names in _INPUTS.values() for name in names)
_WITHOUT_HISTORY = {
    "enrich": "and keys count as uniform",
    "join_all": "and say with sizes how long streams are",
}


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
class Job:
    """A job file, checked."""

    file: Path
    kind: str  #: the call that it is of: join, join_all or enrich
    streaming: bool
    spark: SparkPart
    inputs: Mapping[str, Source]  #: left and right; or stream; or by their own names
    options: Mapping[str, Any]  #: the other arguments of the call
    history: bool  #: whether the files that are there are what the call is to go by
    sink: Sink
    trigger: Mapping[str, Any]  #: as Spark takes it; empty: a micro-batch follows the last


def read_job(file: Path) -> Job:
    """The job that a file describes. Anything wrong with it is a `JobFileError`."""
    known = ("mode", "spark", *_ALL_INPUTS, *_INPUTS, "sink", "trigger")
    top = Section(file, "", read_toml(file, "job file"), known)
    kind = _kind_of_job(top)
    mode = top.choice("mode", MODES) or "stream"
    sink = _sink(top, mode)
    if mode == "batch" and "trigger" in top:
        top.refuse("trigger", 'makes no sense with mode = "batch": a batch job runs once')
    options = read_options(top, kind, sink.checkpoint)
    named = top.inner("inputs") if kind == "join_all" else top
    names = named if kind == "join_all" else _INPUTS[kind]
    inputs = {name: _source(named, name, mode) for name in names}
    if history := options.pop("history", False):
        _check_are_files(file, kind, inputs.values())
    return Job(
        file,
        kind,
        mode == "stream",
        _spark(top),
        inputs,
        options,
        history,
        sink,
        _trigger(top),
    )


def _kind_of_job(top: Section) -> str:
    """The kind of job; a complaint unless all of its tables are there, and none of another."""
    asked = [kind for kind in reversed(_INPUTS) if kind in top]
    if len(asked) > 1:
        top.refuse(asked[1], f"cannot stand beside {asked[0]}: a file describes one job")
    begun = [kind for kind, names in _INPUTS.items() if any(name in top for name in names)]
    kind = next(iter([*asked, *begun, "join"]))
    inputs = _INPUTS[kind]
    for name in _ALL_INPUTS:
        if name in top and name not in inputs:
            top.refuse(
                name, f"does not go with [{kind}], which has {' and '.join(inputs)} as its input"
            )
    for name in (kind, *inputs, "sink"):
        if name not in top:
            known = ", ".join(("spark", *inputs, kind, "sink", "trigger"))
            others = (
                "For a stream and a table: stream, enrich. For several inputs: inputs, join_all."
            )
            hint = f" {others}" if name == "join" else ""
            raise JobFileError(f"{top.file}: the table [{name}] is missing. Tables: {known}.{hint}")
    return kind


def _spark(top: Section) -> SparkPart:
    section = top.inner("spark", ("master", "app_name", "conf"))
    return SparkPart(
        section.text("master") or "local[*]",
        section.text("app_name") or top.file.stem,
        section.scalars("conf"),
    )


def _source(named: Section, name: str, mode: str) -> Source:
    known = ("format", "path", "schema", "select", "watermark", "options")
    section = named.inner(name, known)
    format_ = section.needed_text("format", '"parquet"')
    path = section.location("path")
    if format_ in FILE_FORMATS and path is None:
        section.refuse("path", f"is missing; a {format_} source has to say where its files are")
    if path is not None and not exists(path):
        section.refuse("path", f"names {path}, which does not exist")
    schema = section.text("schema")
    if schema is None and format_ in _NEED_SCHEMA and mode == "stream":
        section.refuse(
            "schema",
            f"is missing; a {format_} stream has to say its columns, for example "
            'schema = "id BIGINT, amount DOUBLE"',
        )
    return Source(
        side=section.name,
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
    kind = 'a table, { column = "time", delay = "10 minutes" }'
    section.get("watermark", kind, lambda v: isinstance(v, dict))
    inner = section.inner("watermark", ("column", "delay"))
    return inner.needed_text("column", '"time"'), inner.span("delay", '"10 minutes"')


def _check_are_files(file: Path, kind: str, inputs: Iterable[Source]) -> None:
    for source in inputs:
        if source.format not in FILE_FORMATS:
            raise JobFileError(
                f"{file}: {kind}.history takes a sample of files, but {source.side}.format is "
                f"{source.format!r}; leave it out, {_WITHOUT_HISTORY[kind]}"
            )


def _sink(top: Section, mode: str) -> Sink:
    known = ("format", "path", "table", "mode", "checkpoint", "options")
    section = top.inner("sink", known)
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


def _trigger(top: Section) -> dict[str, Any]:
    section = top.inner("trigger", TRIGGERS)
    given = [key for key in TRIGGERS if key in section]
    if len(given) > 1:
        section.refuse(given[1], f"cannot stand beside {given[0]}: choose one of them")
    if "processing_time" in section:
        return {"processingTime": section.span("processing_time", '"5 seconds"')}
    names = {"available_now": "availableNow", "once": "once"}
    return {names[key]: True for key in given if section.flag(key)}
