"""Columns between Spark and a site: which types correspond, and how values are converted.

A site's columns have Arrow types, of which Spark has fewer: a time in another unit, a large string
and a dictionary are each one Spark type. Values go over exactly or not at all. Times without a zone
count as UTC on both ends.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType, TimestampNTZType, TimestampType

from dovetail.errors import ArgumentError, UnknownColumnError
from dovetail.multisite.query import Query, Stream

_TIMES = (TimestampType, TimestampNTZType)


def check_columns(found: StructType, stream: Stream) -> None:
    """Complain about a DataFrame whose columns are not those of the stream, in any order."""
    names, wanted = found.fieldNames(), stream.schema.names
    if missing := [name for name in wanted if name not in names]:
        raise UnknownColumnError(
            f"the DataFrame has no column {', '.join(map(repr, missing))}; stream {stream.name!r} "
            f"has {_listed(stream)}"
        )
    if extra := [name for name in names if name not in wanted] or _twice(names):
        raise ArgumentError(
            f"the DataFrame has {', '.join(map(repr, extra))} too many: select the columns of "
            f"stream {stream.name!r}, {_listed(stream)}"
        )
    for column in stream.schema:
        here, there = found[column.name].dataType, spark_type(column)
        if here != there and not (isinstance(here, _TIMES) and isinstance(there, _TIMES)):
            raise ArgumentError(
                f"column {column.name!r} is {here.simpleString()}, but {column.type} in stream "
                f"{stream.name!r}: cast it, df.withColumn({column.name!r}, "
                f"df[{column.name!r}].cast({there.simpleString()!r}))"
            )


def site_rows(batch: pa.RecordBatch, stream: Stream) -> pa.RecordBatch:
    """Rows of Spark's as the site takes them."""
    columns = [converted(batch.column(f.name), f.type, f.name) for f in stream.schema]
    if columns[stream.schema.names.index(stream.time)].null_count:
        raise ArgumentError(
            f"there are rows without a time ({stream.time} is null): leave them out, "
            f"df.where(df[{stream.time!r}].isNotNull())"
        )
    return pa.RecordBatch.from_arrays(columns, schema=stream.schema)


def result_type(query: Query) -> StructType:
    """A column for each stream, with its columns inside: `r1.dest` is its name in SQL, too."""
    return StructType(
        [
            StructField(
                stream.name,
                StructType([StructField(c.name, spark_type(c)) for c in stream.schema]),
                nullable=False,
            )
            for stream in query.streams
        ]
    )


def result_rows(rows: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """Rows of a query's result as Spark takes them."""
    target = to_arrow_schema(schema, timezone="UTC")
    structs = []
    for stream in target:
        columns = [
            converted(rows.column(f"{stream.name}.{c.name}"), c.type, f"{stream.name}.{c.name}")
            for c in stream.type
        ]
        structs.append(pa.StructArray.from_arrays(columns, fields=list(stream.type)))
    return pa.RecordBatch.from_arrays(structs, schema=target)


def spark_type(column: pa.Field) -> DataType:
    try:
        return from_arrow_type(column.type)
    except PySparkTypeError:
        raise ArgumentError(
            f"column {column.name!r} has type {column.type} at the site, which Spark does not "
            "have: give it a signed, or another, type in the query"
        ) from None


def converted(column: pa.Array, type_: pa.DataType, name: str) -> pa.Array:
    """Cast values to another type; an error if one of them would change."""
    if column.type == type_:
        return column
    try:
        return pc.cast(column, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ArgumentError(
            f"values of column {name!r} are {column.type} and cannot become {type_} exactly: "
            f"{error}"
        ) from error


def _listed(stream: Stream) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in stream.schema)


def _twice(names: list[str]) -> list[str]:
    return [name for n, name in enumerate(names) if name in names[:n]]
