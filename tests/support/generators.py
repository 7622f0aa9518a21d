"""Relations to join: every key type, any skew, nulls, NaN, and payloads wide enough to spill.

A key is drawn in two steps. A distribution draws ranks, small integers; a rank then stands for one
value of each key type, the same on both sides of a join. Low ranks stand for the values that break
things: extremes, empty and very long strings, values that differ in length or in their last byte
only. So a small domain is full of them, and a large one adds plain values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.twoway.base import TwoWaySpec

Distribution = Literal["uniform", "zipf", "single", "sequential"]
Payload = Literal["none", "text", "mixed"]

KEY_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "decimal9": pa.decimal128(9, 2),
    "decimal18": pa.decimal128(18, 3),
    "decimal38": pa.decimal128(38, 10),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
}
#: The types that have a distance, and so can be the key of a band join.
BAND_TYPES = (
    "int8", "int16", "int32", "int64", "float32", "float64", "decimal9", "decimal18", "date",
    "timestamp", "timestamp_ntz", "time", "duration",
)  # fmt: skip

_DAY_US = 86_400_000_000
_PREFIX = "shared prefix of a key that is longer than what is hashed of it; " * 9  # 585 bytes


@dataclass(frozen=True)
class Shape:
    """What one relation looks like."""

    rows: int
    keys: tuple[str, ...]  #: names from `KEY_TYPES`; several make a composite key
    distribution: Distribution = "uniform"
    domain: int = 100  #: ranks are below this
    null_share: float = 0.0  #: of each key column
    nan_share: float = 0.0  #: of each floating key column
    payload: Payload = "text"
    payload_bytes: int = 16  #: mean length of the text payload


def make_relation(rng: np.random.Generator, shape: Shape, side: int) -> pa.RecordBatch:
    """A relation: key columns `k0`, `k1`, ..., row numbers in `<side>_id`, and the payload."""
    ranks = draw_ranks(rng, shape.rows, shape.distribution, shape.domain)
    columns: dict[str, pa.Array] = {}
    for position, name in enumerate(shape.keys):
        # the parts of a composite key repeat in different rhythms, so that single parts coincide
        part = ranks if len(shape.keys) == 1 else (ranks // 3**position) % (3 + 7 * position)
        columns[f"k{position}"] = _spoil(rng, key_column(KEY_TYPES[name], part), shape)
    name = SIDE_NAMES[side]
    columns[f"{name}_id"] = pa.array(np.arange(shape.rows))
    if shape.payload != "none":
        columns[f"{name}_text"] = _text(rng, shape.rows, shape.payload_bytes)
    if shape.payload == "mixed":
        columns |= _nested(rng, shape.rows, name)
    return pa.RecordBatch.from_pydict(columns)


def make_relations(
    rng: np.random.Generator, left: Shape, right: Shape
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The two relations of one join."""
    return make_relation(rng, left, 0), make_relation(rng, right, 1)


def join_spec(
    relations: tuple[pa.RecordBatch, pa.RecordBatch], within: int | float | None = None
) -> TwoWaySpec:
    """The join of two generated relations on all their key columns."""
    left, right = relations
    keys = tuple(name for name in left.schema.names if name[0] == "k" and name[1:].isdigit())
    return TwoWaySpec(left.schema, right.schema, keys, keys, within)


def draw_ranks(
    rng: np.random.Generator, rows: int, distribution: Distribution, domain: int
) -> NDArray[np.int64]:
    """Row by row, which of the values of the domain it has."""
    if distribution == "uniform":
        return rng.integers(0, domain, rows)
    if distribution == "zipf":
        return (rng.zipf(1.3, rows) - 1) % domain
    if distribution == "single":
        return np.full(rows, domain - 1)
    return np.arange(rows) % domain


def key_column(type_: pa.DataType, ranks: NDArray[np.int64]) -> pa.Array:
    """A column of the values that these ranks stand for."""
    distinct, positions = np.unique(ranks, return_inverse=True)
    value = _value_of(type_)
    values = pa.array([value(int(rank)) for rank in distinct], _storage(type_))
    return values.cast(type_).take(pa.array(positions))


def random_nans(rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    """NaNs of either sign and any payload: they are all the same key."""
    bits = np.uint64(0x7FF8 << 48) | rng.integers(0, 1 << 51, rows, dtype=np.uint64)
    bits |= rng.integers(0, 2, rows, dtype=np.uint64) << np.uint64(63)
    return bits.view(np.float64)


# -- values by rank -------------------------------------------------------------------------


def _storage(type_: pa.DataType) -> pa.DataType:
    """What `_value_of` gives for a type: temporal values are built from their integers."""
    if pa.types.is_date32(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(type_) else type_


def _value_of(type_: pa.DataType) -> Callable[[int], Any]:
    t = pa.types
    if t.is_boolean(type_):
        return lambda rank: bool(rank % 2)
    if t.is_integer(type_):
        return lambda rank: _integer(rank, type_.bit_width)
    if t.is_floating(type_):
        single = bool(t.is_float32(type_))
        return lambda rank: _float(rank, single)
    if t.is_decimal(type_):
        return lambda rank: _decimal(rank, type_.precision, type_.scale)
    if t.is_string(type_):
        return _string
    if t.is_binary(type_):
        return _binary
    if t.is_date32(type_):
        return lambda rank: _pick(rank, (0, -719_162, 2_932_896), 19_000)
    if t.is_time(type_):
        return lambda rank: _pick(rank, (0, _DAY_US - 1), 3_600_000_000) % _DAY_US
    return lambda rank: _pick(
        rank, (0, -1, -62_135_596_800_000_000, 253_402_300_799_999_999), 10**9
    )


def _pick(rank: int, special: Sequence[int], offset: int) -> int:
    return special[rank] if rank < len(special) else offset + rank


def _integer(rank: int, bits: int) -> int:
    half = 1 << (bits - 1)
    special = (0, -1, half - 1, -half, half - 2, 1 - half)
    value = special[rank] if rank < len(special) else rank
    return (value + half) % (2 * half) - half


def _float(rank: int, single: bool) -> float:
    info = np.finfo(np.float32 if single else np.float64)
    special = (
        0.0, -0.0, float("inf"), -float("inf"), float(info.max), float(info.smallest_subnormal),
        -float(info.smallest_subnormal), 1.0, 1.0 + float(info.eps),
    )  # fmt: skip
    return special[rank] if rank < len(special) else (rank - 50) * 0.37


def _decimal(rank: int, precision: int, scale: int) -> Decimal:
    largest = 10**precision - 1
    # steps of 2**64 leave the low word alone, which a hash of one word would not tell apart
    step = 1 << 64 if precision > 20 else 1
    special = (0, largest, -largest, -1)
    unscaled = special[rank] if rank < len(special) else (rank - 20) * step
    return Decimal((0 if unscaled >= 0 else 1, tuple(map(int, str(abs(unscaled)))), -scale))


def _string(rank: int) -> str:
    return (
        "",
        f"k{rank}",
        f"schlüssel-{rank}-🗝-ключ",
        _PREFIX + str(rank),
        f"{rank:08d}",  # exactly one word
        "x" * rank,  # differs in length only
        f"{rank:07d}k\0",  # a byte that padding could imitate
        f"{rank}" + _PREFIX,
    )[rank % 8 or min(rank, 1)]


def _binary(rank: int) -> bytes:
    return b"\0" * rank if rank < 12 else _string(rank).encode()


# -- payload and spoilt keys ----------------------------------------------------------------


def _spoil(rng: np.random.Generator, column: pa.Array, shape: Shape) -> pa.Array:
    """Put the asked share of NaN and null into a key column."""
    rows = len(column)
    if shape.nan_share and pa.types.is_floating(column.type):
        nans = pa.array(random_nans(rng, rows).astype(column.type.to_pandas_dtype()))
        mask = pa.array(rng.random(rows) < shape.nan_share)
        column = pc.if_else(mask, nans, column)
    if shape.null_share:
        mask = pa.array(rng.random(rows) < shape.null_share)
        column = pc.if_else(mask, pa.scalar(None, column.type), column)
    return column


def _text(rng: np.random.Generator, rows: int, mean_bytes: int) -> pa.Array:
    lengths = rng.integers(mean_bytes // 2, mean_bytes + mean_bytes // 2 + 1, rows)
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    letters = rng.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
    )


def _nested(rng: np.random.Generator, rows: int, name: str) -> dict[str, pa.Array]:
    """Nullable, nested and bit-packed columns: payload may be of any type."""
    numbers = rng.integers(-5, 5, rows)
    sizes = np.concatenate([[0], np.cumsum(rng.integers(0, 3, rows))]).astype(np.int32)
    items = pa.array(np.arange(int(sizes[-1]), dtype=np.int16))
    number = pa.array(numbers.astype(np.float64), mask=numbers == 0)
    return {
        f"{name}_number": number,
        f"{name}_flag": pa.array(numbers > 0),
        f"{name}_list": pa.ListArray.from_arrays(pa.array(sizes), items),
        f"{name}_struct": pa.StructArray.from_arrays([number, pa.array(numbers)], ["a", "b"]),
    }
