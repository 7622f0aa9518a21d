"""The right answer of a windowed join over several streams, by a loop over Python values.

The definition itself (see `dovetail.multisite.windows`), evaluated in one place: for every row as
head, the rows of each other stream that come before it and are in that stream's window, and of
these all combinations that fulfil every equality. Shares no code with the sites.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dovetail.multisite.query import Query, Stream
from dovetail.multisite.windows import CountWindow

Row = dict[str, Any]
Answer = dict[int, Counter[tuple[Any, ...]]]  #: by interval, rows in the order of the streams


def window_join(query: Query, streams: Mapping[str, pa.RecordBatch], intervals: int) -> Answer:
    """What is to be emitted for each interval. Streams are in the order of their times."""
    rows = {stream.name: _rows(stream, streams[stream.name]) for stream in query.streams}
    answer: Answer = {interval: Counter() for interval in range(1, intervals + 1)}
    for rank, stream in enumerate(query.streams):
        for row in rows[stream.name]:
            time = row[stream.time_column]
            interval = time // query.tau + 1
            if not 1 <= interval <= intervals:
                continue
            others = {
                other.name: _before(other, rows[other.name], time, other_rank < rank)
                for other_rank, other in enumerate(query.streams)
                if other is not stream
            }
            for found in _extend(query, [(stream.name, row)], others):
                answer[interval][found] += 1
    return answer


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows of a table as they are counted in an answer."""
    columns = [column.to_pylist() for column in table.columns]
    return Counter(tuple(map(_value, row)) for row in zip(*columns, strict=True))


def _rows(stream: Stream, batch: pa.RecordBatch) -> list[Row]:
    names = [f"{stream.name}.{name}" for name in batch.schema.names]
    return [dict(zip(names, row.values(), strict=True)) for row in batch.to_pylist()]


def _value(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and value != value else value


def _before(stream: Stream, rows: list[Row], time: int, ties: bool) -> list[Row]:
    """The rows in the stream's window when a head row comes at this time."""
    name = stream.time_column
    before = [row for row in rows if row[name] < time or (ties and row[name] == time)]
    if isinstance(stream.window, CountWindow):
        return before[-stream.window.rows :]
    return [row for row in before if row[name] >= time - stream.window.size]


def _extend(
    query: Query, chosen: list[tuple[str, Row]], others: dict[str, list[Row]]
) -> list[tuple[Any, ...]]:
    """All ways to complete a combination."""
    if not others:
        flat = {column: value for _, row in chosen for column, value in row.items()}
        return [tuple(_value(flat[column]) for column in query.result_columns)]
    flat = {column: value for _, row in chosen for column, value in row.items()}
    # a stream that an equality ties to what is chosen, so that the loop stays short
    name = next(
        (n for n in others for pair in query.on if _tied(pair, n, flat)),
        next(iter(others)),
    )
    ties = [(mine, flat[other]) for pair in query.on for mine, other in _pairs(pair, name, flat)]
    rest = {other: rows for other, rows in others.items() if other != name}
    found = []
    for row in others[name]:
        if all(_equal(row[mine], value) for mine, value in ties):
            found += _extend(query, [*chosen, (name, row)], rest)
    return found


def _tied(pair: tuple[str, str], name: str, flat: Row) -> bool:
    return bool(_pairs(pair, name, flat))


def _pairs(pair: tuple[str, str], name: str, flat: Row) -> list[tuple[str, str]]:
    return [
        (mine, other)
        for mine, other in (pair, pair[::-1])
        if mine.split(".")[0] == name and other in flat
    ]


def _equal(left: Any, right: Any) -> bool:
    """As in Spark SQL: a null equals nothing, NaN equals NaN."""
    return left is not None and right is not None and _value(left) == _value(right)
