"""The right answer, computed without any of the code under test.

Three oracles that share nothing: a nested loop over Python values (here), DuckDB (here, for cases
too large for the loop), and the same operator without a budget (`conformance`). Semantics are
Spark SQL's: a null matches nothing, NaN equals NaN, -0.0 equals 0.0. In a band join the predicate
`|left - right| <= within` is evaluated in the key's own type, so that NaN and the distance between
equal infinities, which is NaN, are within nothing.

Both return the matching pairs of row numbers as an array of shape `(pairs, 2)`, in order.
"""

from decimal import Context as DecimalContext
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.twoway.base import TwoWaySpec

Pairs = NDArray[np.int64]

_NAN = "NaN"  # stands for every NaN: unlike the float it equals itself, and no number equals it
_WIDE = DecimalContext(prec=80)  # the default precision would round differences of decimal(38)


def nested_loop(spec: TwoWaySpec, left: pa.RecordBatch, right: pa.RecordBatch) -> Pairs:
    """Every row of the left side with every row of the right side."""
    lefts = _keys(left, spec.left_keys)
    rights = _keys(right, spec.right_keys)
    if spec.within is None:
        found = [(i, j) for i, a in lefts for j, b in rights if a == b]
    else:
        type_ = left.schema.field(spec.left_keys[0]).type
        found = [
            (i, j) for i, (a,) in lefts for j, (b,) in rights if _within(a, b, spec.within, type_)
        ]
    return sorted_pairs(np.array(found, dtype=np.int64).reshape(-1, 2))


def duckdb_pairs(spec: TwoWaySpec, left: pa.RecordBatch, right: pa.RecordBatch) -> Pairs:
    """The same from DuckDB, for relations of up to a few million rows."""
    import duckdb

    sides = []
    for batch, keys in ((left, spec.left_keys), (right, spec.right_keys)):
        columns = {f"k{i}": batch.column(name) for i, name in enumerate(keys)}
        sides.append(pa.table({"row": np.arange(batch.num_rows), **columns}))
    if spec.within is None:
        condition = " and ".join(f"l.k{i} = r.k{i}" for i in range(len(spec.left_keys)))
    else:
        type_ = left.schema.field(spec.left_keys[0]).type
        sides = [side.set_column(1, "k0", _as_number(side["k0"])) for side in sides]
        condition = _duckdb_band(type_, spec.within)
    with duckdb.connect() as connection:
        connection.register("l", sides[0])
        connection.register("r", sides[1])
        query = f"select l.row, r.row from l join r on {condition}"
        found = connection.execute(query).fetchnumpy()
    rows = [np.asarray(column, dtype=np.int64) for column in found.values()]
    return sorted_pairs(np.stack(rows, axis=1))


def sorted_pairs(pairs: Pairs) -> Pairs:
    """Pairs in the order of their left row, then their right row; duplicates stay."""
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _keys(batch: pa.RecordBatch, names: tuple[str, ...]) -> list[tuple[int, tuple[Any, ...]]]:
    """Row numbers with their key, less the rows with a null in it."""
    columns = [_as_number(batch.column(name)).to_pylist() for name in names]
    rows = enumerate(zip(*columns, strict=True))
    return [(row, tuple(map(_canonical, key))) for row, key in rows if None not in key]


def _canonical(value: Any) -> Any:
    return _NAN if isinstance(value, float) and value != value else value


def _as_number(column: pa.Array) -> pa.Array:
    """Temporal values as the integers they are, which have no limits of calendar."""
    if not pa.types.is_temporal(column.type):
        return column
    return column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())


def _within(a: Any, b: Any, within: int | float, type_: pa.DataType) -> bool:
    if _NAN in (a, b):
        return False
    if pa.types.is_decimal(type_):
        return abs(_WIDE.subtract(a, b)) <= Decimal(within).scaleb(-type_.scale, _WIDE)
    if pa.types.is_float32(type_):
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(float(np.abs(np.float32(a) - np.float32(b))) <= within)
    return bool(abs(a - b) <= within)


def _duckdb_band(type_: pa.DataType, within: int | float) -> str:
    if pa.types.is_floating(type_):
        # DuckDB orders NaN above every number, so that NaN <= infinity is false there as well
        return f"abs(l.k0 - r.k0) <= '{float(within)!r}'::double"
    if pa.types.is_decimal(type_):
        width = Decimal(within).scaleb(-type_.scale, _WIDE)
        cast = f"decimal(38, {type_.scale})"
        return f"abs(l.k0::{cast} - r.k0::{cast}) <= {width:f}::{cast}"
    return f"abs(l.k0::hugeint - r.k0::hugeint) <= {int(within)}::hugeint"
