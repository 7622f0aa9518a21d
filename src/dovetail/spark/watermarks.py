"""Warnings about watermarks around a join, given when the plan is made.

A watermark on an input does not pass through the join, but Spark remembers it in the plan and
refuses another one behind the join when the query starts. And what a join puts off may come when
the windows behind it have closed, where it is dropped as late, without a word.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from dovetail.errors import EventTimeWarning

_DELAY = "spark.watermarkDelayMs"  # in the metadata of a column, also under another name


def warn_of_watermarks(inputs: Mapping[str, DataFrame], *, defers: str | None) -> None:
    """Warn if an input has a watermark.

    defers: how to have a join that puts nothing off, if this one may; None if it does not.
    """
    found = [
        f"{name} has one, of the column {column!r}"
        for name, frame in inputs.items()
        if frame.isStreaming
        for column in sorted(set(watermarked(frame.schema)))
    ]
    if not found:
        return
    text = (
        f"watermarks do not pass through the join ({'; '.join(found)}): its results have none, and "
        "Spark refuses withWatermark behind it when the query starts, while an input has one. Set "
        "it behind the join only."
    )
    if defers is not None:
        text += (
            " There, results that were put off come when their windows may have closed, and are "
            f"dropped as late: {defers}, group by windows before the join, or aggregate what the "
            "sink has written."
        )
    warnings.warn(text, EventTimeWarning, stacklevel=_levels_up())


def _levels_up() -> int:
    """The stack level of the library's caller above `warn_of_watermarks`."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "dovetail":
        frame, levels = frame.f_back, levels + 1
    return levels


def watermarked(type_: DataType, name: str = "") -> Iterator[str]:
    """The columns with a watermark in a schema, at any depth."""
    if isinstance(type_, StructType):
        for field in type_.fields:
            path = f"{name}.{field.name}" if name else field.name
            if _DELAY in (field.metadata or {}):
                yield path
            yield from watermarked(field.dataType, path)
    elif isinstance(type_, ArrayType):
        yield from watermarked(type_.elementType, name)
    elif isinstance(type_, MapType):
        yield from watermarked(type_.keyType, name)
        yield from watermarked(type_.valueType, name)
