"""Join columns to 64-bit codes.

Vocabulary. A codec is *ordered* when smaller keys have smaller codes, and *exact* when equal
codes mean equal keys. Integers, booleans, floats, dates, times, timestamps, intervals and
decimals of up to 18 digits are both. Strings, binaries, longer decimals and composite keys are
hashed: neither, and every candidate pair is verified on the key columns themselves.

Semantics are Spark SQL's: a null in any key column matches nothing; NaN equals NaN and sorts
above everything; -0.0 equals 0.0.

A band join (`|left - right| <= within`) needs an ordered codec. Its candidates come from a range
of codes; for floats the range is widened by rounding and the predicate is then evaluated on the
values, so that the result is the predicate's and not the rounding's. A NaN is within no distance.
"""

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dovetail.errors import BandKeyError, KeyTypeError
from dovetail.kernel.keytypes import name_of, widened
from dovetail.kernel.spans import parse_span

Codes = NDArray[np.int64]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_INT64 = np.iinfo(np.int64)
_LARGEST = float(np.finfo(np.float64).max)
_HASHED_WORDS = 64  # leading 8-byte words of a string that enter its hash; the rest is verified


def spread(codes: Codes) -> Codes:
    """A bijection of 64-bit codes that makes their leading bits uniform, for partitioning."""
    mixed = codes.view(np.uint64) * _MULTIPLIER
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX
    mixed ^= mixed >> _SHIFT
    return mixed.view(np.int64)


@dataclass(frozen=True)
class KeyCodec:
    """Encodes the key columns of one join; the same for both sides.

    Columns of other types are widened to those that keys are compared as.
    """

    types: tuple[pa.DataType, ...]
    within: int | float | None = None  #: in units of the code (see `band_width`)

    def __post_init__(self) -> None:
        for type_ in self.types:
            if not (_is_ordered(type_) or _is_hashed(type_)):
                raise KeyTypeError(
                    f"cannot join on a column of type {name_of(type_)}: join keys are atomic types "
                    "(numbers, strings, binaries, booleans, dates, times, timestamps, intervals, "
                    "decimals); use a field of it instead"
                )

    @property
    def ordered(self) -> bool:
        return len(self.types) == 1 and _is_ordered(self.types[0])

    @property
    def exact(self) -> bool:
        """Equal codes need no verification."""
        return self.ordered

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        return np.float32 if pa.types.is_float32(self.types[0]) else np.float64

    def encode(self, columns: Sequence[pa.Array]) -> tuple[Codes, NDArray[np.bool_] | None]:
        """Codes of the key columns, and which rows can match at all (None: every row)."""
        columns = self._widened(columns)
        valid = _all_valid(columns)
        if self.ordered:
            codes = _ordered_codes(columns[0])
            if self.within is not None and pa.types.is_floating(self.types[0]):
                finite = ~np.isnan(_values(columns[0]))
                if not finite.all():
                    valid = finite if valid is None else valid & finite
            return codes, valid
        hashes = np.zeros(len(columns[0]), dtype=np.uint64)
        for column in columns:
            hashes *= _MULTIPLIER
            hashes += spread(_any_codes(column)).view(np.uint64)
        return spread(hashes.view(np.int64)), valid

    def candidates(self, codes: Codes) -> tuple[Codes, Codes]:
        """The inclusive range of codes on the other side that may match each of these."""
        if self.within is None:
            return codes, codes
        if pa.types.is_floating(self.types[0]):
            values = _float_from_codes(codes)
            # a difference is rounded to the key's own precision before it is compared
            width = self.within * (1 + 4 * float(np.finfo(self._dtype).eps))
            with np.errstate(over="ignore", invalid="ignore"):
                low = np.nextafter(values - width, -np.inf)
                high = np.nextafter(values + width, np.inf)
            if math.isinf(width):  # an infinite key: inf - inf is NaN, but finite keys are near
                low[:], high[:] = -np.inf, np.inf
            return _float_codes(low), _float_codes(high)
        reach = np.int64(min(int(self.within), _INT64.max))
        low = np.where(codes < _INT64.min + reach, _INT64.min, codes - reach)
        high = np.where(codes > _INT64.max - reach, _INT64.max, codes + reach)
        return low, high

    def verify(
        self, left: Sequence[pa.Array], right: Sequence[pa.Array]
    ) -> NDArray[np.bool_] | None:
        """Which candidate pairs really match; None when all of them do."""
        left, right = self._widened(left), self._widened(right)
        if self.within is not None:
            if not pa.types.is_floating(self.types[0]):
                return None
            with np.errstate(over="ignore", invalid="ignore"):
                a, b = (_values(column).astype(self._dtype) for column in (left[0], right[0]))
                distance = np.abs(a - b).astype(np.float64)
            return np.asarray(distance <= self.within)
        if self.exact:
            return None
        equal: NDArray[np.bool_] | None = None
        for a, b in zip(left, right, strict=True):
            same = _equal(a, b)
            equal = same if equal is None else equal & same
        return equal

    def _widened(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [widened(column, type_) for column, type_ in zip(columns, self.types, strict=True)]


def band_width(within: Any, type_: pa.DataType) -> int | float:
    """`within` in units of the code of a key of this type. A bad one is a `BandKeyError`."""
    if not _is_ordered(type_) or pa.types.is_boolean(type_):
        raise BandKeyError(
            f"a band join (within=) needs a numeric, date or timestamp key, not {name_of(type_)}"
        )
    if isinstance(within, str):
        within = _span(within, type_)
    if isinstance(within, bool) or not isinstance(within, (int, float, Decimal, dt.timedelta)):
        raise BandKeyError(
            f"within= is a number, a timedelta or a text like '5 minutes', not {within!r}"
        )
    zero: Any = dt.timedelta(0) if isinstance(within, dt.timedelta) else 0
    # comparing a Decimal NaN raises
    if (isinstance(within, Decimal) and within.is_nan()) or not within >= zero:
        raise BandKeyError(f"within={within!r} is not a distance: it must be 0 or more")
    micros = _micros_in_unit(type_)
    if isinstance(within, dt.timedelta):
        if micros is None:
            raise BandKeyError(
                f"within={within!r} is a time span, but the key has type {name_of(type_)}"
            )
        return (within // dt.timedelta(microseconds=1)) * 1000 // int(micros * 1000)
    if pa.types.is_floating(type_):
        return float(within) if within <= _LARGEST else math.inf
    if within > _INT64.max:
        return int(_INT64.max)
    scaled = Fraction(str(within))  # exact, where Decimal would round to its context
    if pa.types.is_decimal(type_):
        scaled *= 10**type_.scale
    elif pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time(type_):
        assert micros is not None
        scaled *= 1_000_000 / Fraction(str(micros))  # a bare number means seconds
    return min(int(scaled), int(_INT64.max))


def _span(within: str, type_: pa.DataType) -> dt.timedelta:
    """A distance of times that is written in words."""
    if _micros_in_unit(type_) is None:
        raise BandKeyError(
            f"within={within!r} is a text, but the key has type {name_of(type_)}: its distance is "
            "a number"
        )
    try:
        return parse_span(within)
    except ValueError as error:
        raise BandKeyError(f"within=: {error}; write for example '5 minutes'") from None


def _micros_in_unit(type_: pa.DataType) -> float | None:
    """Microseconds in one unit of a time type's code, or None."""
    if pa.types.is_date32(type_):
        return 86_400_000_000.0
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time(type_):
        return {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}[type_.unit]
    return None


def _is_ordered(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_boolean(type_)
        or t.is_integer(type_)
        or t.is_floating(type_)
        or t.is_date32(type_)
        or t.is_timestamp(type_)
        or t.is_time(type_)
        or t.is_duration(type_)
        or (t.is_decimal128(type_) and type_.precision <= 18)
    )


def _is_hashed(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_string(type_)
        or t.is_large_string(type_)
        or t.is_binary(type_)
        or t.is_large_binary(type_)
        or t.is_fixed_size_binary(type_)
        or t.is_decimal128(type_)
        or t.is_null(type_)
    )


def _all_valid(columns: Sequence[pa.Array]) -> NDArray[np.bool_] | None:
    valid: NDArray[np.bool_] | None = None
    for column in columns:
        if column.null_count:
            mask = np.asarray(pc.is_valid(column))
            valid = mask if valid is None else valid & mask
    return valid


def _any_codes(column: pa.Array) -> Codes:
    if _is_ordered(column.type):
        return _ordered_codes(column)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=np.int64)
    if pa.types.is_decimal(column.type):
        words = _fixed_width(column, np.uint64, 2)
        mixed: Codes = (words[:, 0] * _MULTIPLIER ^ words[:, 1]).view(np.int64)
        return mixed
    return _hash_bytes(column)


def _ordered_codes(column: pa.Array) -> Codes:
    type_ = column.type
    if pa.types.is_floating(type_):
        return _float_codes(_values(column))
    if pa.types.is_decimal(type_):
        return np.ascontiguousarray(_fixed_width(column, np.int64, 2)[:, 0])
    if pa.types.is_boolean(type_):
        column = column.cast(pa.uint8())
    return _values(column).astype(np.int64)


def _values(column: pa.Array) -> NDArray[Any]:
    """The values as numpy, whatever stands in the null slots."""
    type_ = column.type
    if pa.types.is_floating(type_):
        column = column.cast(pa.float64())
        dtype: type = np.float64
    else:
        width = 1 if pa.types.is_boolean(type_) else type_.bit_width
        unsigned = pa.types.is_unsigned_integer(type_)
        dtype = np.dtype(f"{'u' if unsigned else 'i'}{max(width // 8, 1)}").type
    return _buffer_values(column, dtype, column.offset + len(column))[column.offset :]


def _buffer_values(column: pa.Array, dtype: Any, count: int) -> NDArray[Any]:
    """The first values of the buffer after the validity; it may be longer, by any number of bytes.

    An array without rows may have none.
    """
    values: NDArray[Any] = np.frombuffer(column.buffers()[1] or b"", dtype=dtype, count=count)
    return values


def _fixed_width(column: pa.Array, dtype: type, words: int) -> NDArray[Any]:
    end = column.offset + len(column)
    return _buffer_values(column, dtype, end * words).reshape(-1, words)[column.offset :]


def _float_codes(values: NDArray[np.float64]) -> Codes:
    canonical = values + 0.0  # -0.0 becomes 0.0
    canonical[np.isnan(canonical)] = np.nan
    bits = canonical.view(np.int64)
    codes: Codes = bits ^ ((bits >> np.int64(63)) & np.int64(_INT64.max))
    return codes


def _float_from_codes(codes: Codes) -> NDArray[np.float64]:
    bits = codes ^ ((codes >> np.int64(63)) & _INT64.max)
    return bits.view(np.float64)


def _hash_bytes(column: pa.Array) -> Codes:
    """64-bit hashes of strings or binaries: a loop over 8-byte words, never over rows."""
    type_ = column.type
    if pa.types.is_fixed_size_binary(type_):
        column = column.cast(pa.binary())
        type_ = column.type
    wide = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    if not len(column):
        return np.zeros(0, dtype=np.int64)
    end = column.offset + len(column) + 1
    offsets = _buffer_values(column, np.int64 if wide else np.int32, end)
    offsets = offsets[column.offset :].astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = lengths.astype(np.uint64) * _MIX
    if not len(lengths) or not lengths.any():
        return hashes.view(np.int64)
    base = int(starts[0])
    raw = np.frombuffer(column.buffers()[2], dtype=np.uint8)[base : int(offsets[-1])]
    padded = np.zeros(len(raw) + 8, dtype=np.uint8)  # the last word may reach past the end
    padded[: len(raw)] = raw
    words = np.ndarray((len(raw) + 1,), dtype="<u8", buffer=padded.data, strides=(1,))
    starts = starts - base
    rows: NDArray[np.int64] | slice = slice(None)
    for index in range(min(-(-int(lengths.max()) // 8), _HASHED_WORDS)):
        left = lengths - 8 * index
        if index and (left <= 0).any():
            rows = np.flatnonzero(left > 0)
        rest = np.minimum(np.maximum(left[rows], 0), 8).astype(np.uint64)
        word = words[np.minimum(starts[rows] + 8 * index, len(raw))]
        # shift the bytes of the next value out at the top; a shift by 64 is undefined
        cut = (np.uint64(8) - np.maximum(rest, 1)) * np.uint64(8)
        word = np.where(rest == 0, np.uint64(0), word << cut)
        mixed = (hashes[rows] ^ word) * _MULTIPLIER
        hashes[rows] = mixed ^ (mixed >> _SHIFT)
    return hashes.view(np.int64)


def _equal(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    if pa.types.is_floating(left.type):
        a, b = _values(left), _values(right)
        return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
    if pa.types.is_null(left.type):
        return np.zeros(len(left), dtype=np.bool_)
    return np.asarray(pc.fill_null(pc.equal(left, right), False))
