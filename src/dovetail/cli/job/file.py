"""Job files in TOML: parsed and checked before anything is started.

Every complaint is a `JobFileError` that names the file, the key and what may stand there. Paths
are relative to the file, so that a job means the same wherever it is started from. What depends
on the inputs' columns is left to the join itself.

A file describes one job: `[left]`, `[right]` and `[join]`; an `[inputs.NAME]` for each of several
inputs, and `[join_all]`; or `[stream]` and `[enrich]`.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.cli.job.options import enrich_options, join_all_options, join_options
from dovetail.cli.sections import Section, exists
from dovetail.errors import JobFileError
from dovetail.specs import EnrichOptions, JoinAllOptions, JoinOptions

MODES = ("stream", "batch")
FILE_FORMATS = ("parquet", "orc", "csv", "json", "text")  #: that live at a path
_NEED_SCHEMA = ("csv", "json")  # the others say themselves what they hold
SINK_MODES = {"stream": ("append", "update"), "batch": ("error", "append", "overwrite", "ignore")}
TRIGGERS = ("available_now", "processing_time", "once")
# the sources of each kind of job
_INPUTS = {"enrich": ("stream",), "join_all": ("inputs",), "join": ("left", "right")}


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
    """The parts that every job file has."""

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
    history: bool  #: whether the algorithm is chosen by a sample of the stream's files
    enrich: EnrichOptions


@dataclass(frozen=True)
class JoinAllJob(_Frame):
    """A file with `[join_all]`, checked."""

    inputs: Mapping[str, Source]
    history: bool  #: whether rows are split by a sample of the inputs' files
    join_all: JoinAllOptions


Job = JoinJob | JoinAllJob | EnrichJob


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
    if kind == "join_all":
        history, all_options = join_all_options(file, content["join_all"], mode, sink.checkpoint)
        inputs_by_name = _inputs(file, content["inputs"], mode)
        if history:
            besides = "and say with sizes how long streams are"
            _check_are_files(file, "join_all", inputs_by_name.values(), besides)
        return JoinAllJob(
            **vars(frame), inputs=inputs_by_name, history=history, join_all=all_options
        )
    sources = [_source(file, name, content[name], mode) for name in _INPUTS[kind]]
    if kind == "join":
        left, right = sources
        return JoinJob(
            **vars(frame),
            left=left,
            right=right,
            join=join_options(file, content["join"], mode, sink.checkpoint),
        )
    table, history, options = enrich_options(file, content["enrich"], mode, sink.checkpoint)
    if history:
        _check_are_files(file, "enrich", sources, "and keys count as uniform")
    return EnrichJob(**vars(frame), stream=sources[0], table=table, history=history, enrich=options)


def _kind_of_job(file: Path, top: Section) -> str:
    """The kind of job; a complaint unless all of its tables are there, and none of another."""
    asked = [kind for kind in reversed(_INPUTS) if kind in top]
    if len(asked) > 1:
        top.refuse(asked[1], f"cannot stand beside {asked[0]}: a file describes one job")
    begun = [kind for kind, names in _INPUTS.items() if any(name in top for name in names)]
    kind = next(iter([*asked, *begun, "join"]))
    inputs = _INPUTS[kind]
    for name in (name for names in _INPUTS.values() for name in names):
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
    return inner.needed_text("column", '"time"'), inner.span("delay", '"10 minutes"')


def _inputs(file: Path, values: Any, mode: str) -> dict[str, Source]:
    names = tuple(values) if isinstance(values, dict) else ()
    Section(file, "inputs", values, names)
    return {name: _source(file, f"inputs.{name}", values[name], mode) for name in names}


def _check_are_files(file: Path, kind: str, inputs: Iterable[Source], besides: str) -> None:
    for source in inputs:
        if source.format not in FILE_FORMATS:
            raise JobFileError(
                f"{file}: {kind}.history takes a sample of files, but {source.side}.format is "
                f"{source.format!r}; leave it out, {besides}"
            )


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
        return Trigger(processing_time=section.span("processing_time", '"5 seconds"'))
    return Trigger(available_now=section.flag("available_now"), once=section.flag("once"))
