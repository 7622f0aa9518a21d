"""Rows for a query's streams: made up, or from a file, interval by interval."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.cli.site.file import InputPart, QueryFile
from dovetail.errors import JobFileError
from dovetail.multisite.estimates import Statistics, StreamStatistics
from dovetail.multisite.query import Stream, times_of
from dovetail.multisite.statistics import join_columns

_OTHER_VALUES = 1000  # distinct, in a column that nothing is said of


@dataclass(frozen=True)
class Feed:
    """The input of one stream: the rows of each interval, from the first on."""

    first_interval: int
    last_interval: int | None  #: None: it does not end by itself
    rows: Iterator[pa.RecordBatch]


def read_rows(file: QueryFile, name: str, part: InputPart) -> pa.RecordBatch:
    """A file's rows with the columns of the stream, in the order of their times."""
    stream = file.query.stream(name)
    try:
        table = pq.read_table(part.path, columns=stream.schema.names).cast(stream.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise JobFileError(
            f"{file.file}: streams.{name}.input: the file {part.path} cannot be read as "
            f"{stream.schema.names}: {error}"
        ) from error
    rows = table.combine_chunks().to_batches()
    if not rows:
        raise JobFileError(f"{file.file}: streams.{name}.input: {part.path} has no rows")
    order = np.argsort(times_of(rows[0].column(stream.time)), kind="stable")
    return rows[0].take(pa.array(order))


def feed(file: QueryFile, name: str, first: int, intervals: int | None) -> Feed | None:
    """The rows of a stream from interval `first` on, so many intervals or as many as there are."""
    part = file.inputs.get(name)
    if part is None:
        return None
    if part.kind == "file":
        return _from_file(file, name, part, first, intervals)
    last = None if intervals is None else first + intervals - 1
    return Feed(first, last, _made_up(file, file.query.stream(name), part, first, last))


def _from_file(
    file: QueryFile, name: str, part: InputPart, first: int, intervals: int | None
) -> Feed:
    if file.clock != "rows":
        raise JobFileError(
            f"{file.file}: streams.{name}.input: rows of a file have times of their own; write "
            'clock = "rows"'
        )
    rows = read_rows(file, name, part)
    numbers = file.query.interval_of(times_of(rows.column(file.query.stream(name).time)))
    last = int(numbers[-1]) if intervals is None else first + intervals - 1
    ends = np.searchsorted(numbers, np.arange(first, last + 2))
    cut = (rows.slice(a, b - a) for a, b in itertools.pairwise(ends))
    return Feed(first, last, cut)


def _made_up(
    file: QueryFile, stream: Stream, part: InputPart, first: int, last: int | None
) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng([part.seed, file.query.rank(stream.name)])
    tau = file.query.tau
    for interval in itertools.count(first) if last is None else range(first, last + 1):
        count = rng.poisson(part.rate * tau / file.second)
        times = np.sort(rng.integers(0, tau, count)) + file.query.boundary(interval - 1)
        columns = []
        for field in stream.schema:
            if field.name == stream.time:
                columns.append(pa.array(times).cast(field.type))
            else:
                values = rng.integers(0, part.keys.get(field.name, _OTHER_VALUES), count)
                columns.append(_typed(values, field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=stream.schema)


def _typed(values: "np.ndarray[tuple[int], np.dtype[np.int64]]", type_: pa.DataType) -> pa.Array:
    """Whole numbers as values of a type."""
    numbers = pa.array(values)
    if pa.types.is_boolean(type_):
        return pa.array(values % 2 == 1)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return numbers.cast(pa.string()).cast(type_)
    if pa.types.is_date32(type_):
        return numbers.cast(pa.int32()).cast(type_)
    return numbers.cast(type_)


def first_time(file: QueryFile) -> int:
    """The time from which a query is to run whose rows make the time."""
    if file.start is not None:
        return file.start
    times = [
        int(times_of(read_rows(file, name, part).column(file.query.stream(name).time))[0])
        for name, part in file.inputs.items()
        if part.kind == "file"
    ]
    if times:
        return min(times)
    made_up = len(file.inputs) == len(file.query.streams)
    integers = all(
        pa.types.is_integer(stream.schema.field(stream.time).type) for stream in file.query.streams
    )
    if made_up or integers:
        return 0
    raise JobFileError(
        f'{file.file}: start is missing; with clock = "rows", and rows that come from elsewhere, '
        "say from which time on: start = 2026-01-31T12:00:00Z"
    )


def statistics(file: QueryFile) -> Statistics:
    """The statistics of the streams: given, or from their input."""
    given, names = file.statistics, file.query.names
    return Statistics({name: given.get(name) or _from_input(file, name) for name in names})


def _from_input(file: QueryFile, name: str) -> StreamStatistics:
    part = file.inputs.get(name)
    stream = file.query.stream(name)
    if part is None:
        raise JobFileError(
            f"{file.file}: to choose a plan, rates and numbers of keys are needed, and nothing is "
            f"said of {name!r}: add [statistics.{name}] with rate, row_bytes and distinct, or "
            '[plan] with planner = "fixed" and sequences'
        )
    columns = [column.partition(".")[2] for column in join_columns(file.query, name)]
    if part.kind == "file":
        rows = read_rows(file, name, part)
        times = times_of(rows.column(stream.time))
        rate = rows.num_rows / max(1, int(times[-1] - times[0]))
        distinct = {c: float(len(rows.column(c).unique())) for c in columns}
    else:
        rows = next(_made_up(file, stream, part, 1, None))
        rate = part.rate / file.second
        distinct = {c: float(part.keys.get(c, _OTHER_VALUES)) for c in columns}
    size = rows.nbytes / max(1, rows.num_rows)
    return StreamStatistics(rate, size, {f"{name}.{c}": keys for c, keys in distinct.items()})
