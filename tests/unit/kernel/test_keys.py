"""Join columns to codes: order, exactness, stability of hashes, and the borders of bands."""

import datetime as dt
import itertools
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.errors import BandKeyError, KeyTypeError
from dovetail.kernel.keys import KeyCodec, band_width, spread
from support.generators import KEY_TYPES, key_column, random_nans

INT64 = np.iinfo(np.int64)
ORDERED = [name for name in KEY_TYPES if name not in ("string", "binary", "decimal38")]
HASHED = ["string", "binary", "decimal38"]
FLOATS = ["float32", "float64"]
SAMPLE = np.arange(300)


def codes_of(column: pa.Array, within: float | None = None) -> np.ndarray:
    codes, _ = KeyCodec((column.type,), within).encode([column])
    return codes


def numbers_of(column: pa.Array) -> list[Any]:
    """Values that Python orders as Spark does: NaN above everything, time as integers."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    return [
        (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)
        for value in column.to_pylist()
    ]


# -- order and exactness --------------------------------------------------------------------


@pytest.mark.parametrize("name", ORDERED)
def test_codes_when_type_is_ordered_then_keep_order_and_equality(name: str) -> None:
    column = key_column(KEY_TYPES[name], SAMPLE)
    if name in FLOATS:
        nans = random_nans(np.random.default_rng(0), 5).astype(column.type.to_pandas_dtype())
        column = pa.concat_arrays([column, pa.array(nans)])
    codec = KeyCodec((column.type,))
    assert codec.ordered
    assert codec.exact
    codes, values = codes_of(column).tolist(), numbers_of(column)
    for (a, x), (b, y) in itertools.product(zip(codes, values, strict=True), repeat=2):
        assert (a < b, a == b) == (x < y, x == y), (x, y)


@pytest.mark.parametrize("name", HASHED)
def test_codes_when_type_is_hashed_then_equal_keys_have_equal_codes(name: str) -> None:
    column = key_column(KEY_TYPES[name], SAMPLE)
    codec = KeyCodec((column.type,))
    assert not codec.ordered
    assert not codec.exact
    codes, values = codes_of(column), column.to_pylist()
    by_value: dict[Any, int] = {}
    for value, code in zip(values, codes.tolist(), strict=True):
        assert by_value.setdefault(value, code) == code
    # only strings that differ beyond the hashed prefix may collide
    collisions = len(by_value) - len(set(by_value.values()))
    assert collisions <= sum(len(value) > 512 for value in values if not isinstance(value, Decimal))


def test_codes_when_strings_differ_in_padding_only_then_differ() -> None:
    texts = [b"\0" * n for n in range(40)] + [b"a" + b"\0" * n for n in range(40)]
    codes = codes_of(pa.array(texts))
    assert len(set(codes.tolist())) == len(texts)


def test_codes_when_decimals_differ_in_high_word_only_then_differ() -> None:
    values = [Decimal(n << 64) for n in range(100)]
    codes = codes_of(pa.array(values, pa.decimal128(38, 0)))
    assert len(set(codes.tolist())) == len(values)


@pytest.mark.parametrize("name", FLOATS)
def test_codes_when_floats_are_any_nan_or_any_zero_then_are_one_code(name: str) -> None:
    type_ = KEY_TYPES[name]
    nans = random_nans(np.random.default_rng(1), 50).astype(type_.to_pandas_dtype())
    assert np.isnan(nans).all()
    assert len(set(codes_of(pa.array(nans)).tolist())) == 1
    zeros = codes_of(pa.array([0.0, -0.0], type_))
    assert zeros[0] == zeros[1]


def test_codes_when_composite_then_depend_on_every_column_and_its_place() -> None:
    one, two = pa.array([1, 1, 2, 2]), pa.array(["a", "b", "a", "b"])
    codec = KeyCodec((one.type, two.type))
    codes, valid = codec.encode([one, two])
    assert valid is None
    assert len(set(codes.tolist())) == 4
    numbers = KeyCodec((pa.int64(), pa.int64()))
    forwards, _ = numbers.encode([pa.array([1]), pa.array([2])])
    backwards, _ = numbers.encode([pa.array([2]), pa.array([1])])
    assert forwards[0] != backwards[0]


@pytest.mark.parametrize(
    "type_",
    [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())],
)
def test_codec_when_type_is_nested_then_names_the_type(type_: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match=r"cannot join on a column of type .*use a field"):
        KeyCodec((type_,))


# -- nulls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEY_TYPES)
def test_encode_when_values_are_null_then_marks_the_rows(name: str) -> None:
    column = pa.concat_arrays(
        [key_column(KEY_TYPES[name], np.arange(5)), pa.nulls(2, KEY_TYPES[name])]
    )
    _, valid = KeyCodec((column.type,)).encode([column])
    assert valid is not None
    assert valid.tolist() == [True] * 5 + [False] * 2
    assert KeyCodec((column.type,)).encode([column.slice(0, 5)])[1] is None


@pytest.mark.parametrize("name", KEY_TYPES)
def test_encode_when_there_are_no_rows_or_only_nulls_then_works(name: str) -> None:
    type_ = KEY_TYPES[name]
    codes, valid = KeyCodec((type_,)).encode([pa.array([], type_)])
    assert (len(codes), valid) == (0, None)
    _, valid = KeyCodec((type_,)).encode([pa.nulls(3, type_)])
    assert valid is not None
    assert not valid.any()


def test_encode_when_one_of_several_keys_is_null_then_marks_the_row() -> None:
    one, two = pa.array([1, None, 3, None]), pa.array(["a", "b", None, None])
    _, valid = KeyCodec((one.type, two.type)).encode([one, two])
    assert valid is not None
    assert valid.tolist() == [True, False, False, False]


# -- stability ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEY_TYPES)
def test_codes_when_array_is_a_slice_then_are_those_of_the_values(name: str) -> None:
    column = key_column(KEY_TYPES[name], SAMPLE)
    whole = codes_of(column)
    for start, length in [(0, 300), (1, 1), (7, 100), (13, 287), (299, 1), (64, 0)]:
        piece = column.slice(start, length)
        assert np.array_equal(codes_of(piece), whole[start : start + length])
        assert np.array_equal(codes_of(piece), codes_of(pa.concat_arrays([piece])))


@pytest.mark.parametrize("name", KEY_TYPES)
def test_codes_when_array_went_through_ipc_then_stay_the_same(name: str) -> None:
    column = key_column(KEY_TYPES[name], SAMPLE).slice(5, 50)
    batch = pa.record_batch({"k": column})
    back = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    assert np.array_equal(codes_of(back.column(0)), codes_of(column))


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("string", [pa.large_string(), pa.binary(), pa.large_binary()]),
        ("binary", [pa.large_binary()]),
        ("int8", [pa.int16(), pa.int32(), pa.int64()]),
        ("timestamp", [pa.timestamp("us"), pa.timestamp("us", tz="Asia/Tokyo")]),
    ],
)
def test_codes_when_type_has_another_layout_then_stay_the_same(
    name: str, others: list[pa.DataType]
) -> None:
    column = key_column(KEY_TYPES[name], SAMPLE)
    for other in others:
        assert np.array_equal(codes_of(column.cast(other)), codes_of(column)), other


def test_codes_when_binary_has_fixed_size_then_are_those_of_plain_binary() -> None:
    values = [f"{n:05d}".encode() for n in range(50)]
    fixed = pa.array(values, pa.binary(5))
    assert np.array_equal(codes_of(fixed.slice(3)), codes_of(pa.array(values[3:])))


def test_codes_when_rows_stand_elsewhere_in_a_batch_then_stay_the_same() -> None:
    rng = np.random.default_rng(2)
    column = key_column(KEY_TYPES["string"], SAMPLE)
    order = rng.permutation(len(SAMPLE))
    assert np.array_equal(codes_of(column.take(pa.array(order))), codes_of(column)[order])


def test_spread_when_codes_are_distinct_then_stay_distinct_and_fill_the_range() -> None:
    codes = np.concatenate([np.arange(-50_000, 50_000), np.arange(1000) << 40, [INT64.min]])
    codes = np.unique(codes)
    mixed = spread(codes)
    assert len(np.unique(mixed)) == len(codes)
    counts = np.bincount((mixed >> 58) + 32, minlength=64)
    assert counts.min() > 0.8 * len(codes) / 64
    assert counts.max() < 1.2 * len(codes) / 64


# -- verification ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", HASHED)
def test_verify_when_candidates_are_hashed_then_keeps_the_equal_ones(name: str) -> None:
    column = key_column(KEY_TYPES[name], SAMPLE)
    shifted = column.take(pa.array((SAMPLE + (SAMPLE % 3 == 0)) % 300))
    mask = KeyCodec((column.type,)).verify([column], [shifted])
    assert mask is not None
    wanted = [a == b for a, b in zip(column.to_pylist(), shifted.to_pylist(), strict=True)]
    assert mask.tolist() == wanted


def test_verify_when_long_strings_collide_then_tells_them_apart() -> None:
    column = pa.array(["p" * 600 + "a", "p" * 600 + "b"])
    codes = codes_of(column)
    assert codes[0] == codes[1], "this test needs a collision"
    mask = KeyCodec((column.type,)).verify(
        [column.take(pa.array([0, 0]))], [column.take(pa.array([0, 1]))]
    )
    assert mask is not None
    assert mask.tolist() == [True, False]


def test_verify_when_composite_then_all_columns_count_and_nan_equals_nan() -> None:
    floats = [math.nan, 0.0, 1.0, math.nan, None]
    left = [pa.array(floats), pa.array([1, 1, 1, 1, 1])]
    right = [pa.array([math.nan, -0.0, 2.0, 0.0, None]), pa.array([1, 1, 1, 1, 1])]
    codec = KeyCodec((pa.float64(), pa.int64()))
    mask = codec.verify(left, right)
    assert mask is not None
    assert mask[:4].tolist() == [True, True, False, False]
    right[1] = pa.array([2, 1, 1, 1, 1])
    again = codec.verify(left, right)
    assert again is not None
    assert again[:2].tolist() == [False, True]


@pytest.mark.parametrize("name", ORDERED)
def test_verify_when_codes_are_exact_then_is_not_needed(name: str) -> None:
    column = key_column(KEY_TYPES[name], SAMPLE)
    assert KeyCodec((column.type,)).verify([column], [column]) is None


# -- bands ----------------------------------------------------------------------------------

EDGES = [0, 1, -1, 2, 7, INT64.max, INT64.min, INT64.max - 1, INT64.min + 1, 1 << 62, -(1 << 62)]
WIDTHS = [0, 1, 5, 1 << 62, INT64.max - 1, INT64.max, 1 << 63, 1 << 65]


@pytest.mark.parametrize("width", WIDTHS)
def test_candidates_when_at_the_ends_of_int64_then_are_the_exact_band(width: int) -> None:
    codes = codes_of(pa.array(EDGES), width)
    low, high = KeyCodec((pa.int64(),), width).candidates(codes)
    for a, first, last in zip(EDGES, low.tolist(), high.tolist(), strict=True):
        for b in EDGES:
            # a distance may need 65 bits, a width has 63: beyond that everything is near enough
            assert (first <= b <= last) == (abs(a - b) <= min(width, INT64.max)), (a, b)


def float_band(a: float, b: float, within: float, type_: pa.DataType) -> tuple[bool, bool]:
    """Whether b is among the candidates for a, and whether the pair is then kept."""
    codec = KeyCodec((type_,), within)
    left, right = pa.array([a], type_), pa.array([b], type_)
    (code_a,), (code_b,) = codec.encode([left])[0], codec.encode([right])[0]
    low, high = codec.candidates(np.array([code_a]))
    mask = codec.verify([left], [right])
    assert mask is not None
    return bool(low[0] <= code_b <= high[0]), bool(mask[0])


def float_predicate(a: float, b: float, within: float, type_: pa.DataType) -> bool:
    kind = type_.to_pandas_dtype()
    with np.errstate(all="ignore"):
        return bool(float(abs(kind(a) - kind(b))) <= within)


@pytest.mark.parametrize("name", FLOATS)
def test_band_when_value_lies_on_the_border_then_follows_the_predicate(name: str) -> None:
    """A few units in the last place around the border, at many magnitudes."""
    type_ = KEY_TYPES[name]
    kind = type_.to_pandas_dtype()
    rng = np.random.default_rng(3)
    for _ in range(400):
        a = kind(rng.normal() * 10.0 ** int(rng.integers(-20, 20)))
        within = float(abs(rng.normal()) * 10.0 ** int(rng.integers(-22, 22)))
        with np.errstate(all="ignore"):
            b = kind(a + kind(within)) if rng.random() < 0.5 else kind(a - kind(within))
            for _ in range(int(rng.integers(0, 4))):
                b = np.nextafter(b, kind(rng.choice([-np.inf, np.inf])))
        for x, y in ((a, b), (b, a)):
            wanted = float_predicate(float(x), float(y), within, type_)
            candidate, kept = float_band(float(x), float(y), within, type_)
            assert kept == wanted, (x, y, within)
            assert candidate or not wanted, f"{x} and {y} within {within} is not a candidate"


@pytest.mark.parametrize("name", FLOATS)
@given(data=st.data())
def test_band_when_floats_are_any_then_follows_the_predicate_both_ways(
    name: str, data: st.DataObject
) -> None:
    type_ = KEY_TYPES[name]
    numbers = st.floats(allow_nan=False, width=type_.bit_width)
    a, b = data.draw(numbers), data.draw(numbers)
    near = float_predicate(a, b, math.inf, type_)
    exact = float(abs(type_.to_pandas_dtype()(a) - type_.to_pandas_dtype()(b))) if near else 1.0
    within = data.draw(st.one_of(st.floats(min_value=0, allow_nan=False), st.just(exact)))
    for x, y in ((a, b), (b, a)):
        wanted = float_predicate(x, y, within, type_)
        candidate, kept = float_band(x, y, within, type_)
        assert kept == wanted
        assert candidate or not wanted, f"{x} and {y} within {within} is not a candidate"


@pytest.mark.parametrize(("a", "b"), [(math.inf, 5.0), (5.0, math.inf), (-math.inf, math.inf)])
def test_band_when_width_is_infinite_then_infinity_is_near_everything_but_itself(
    a: float, b: float
) -> None:
    assert float_band(a, b, math.inf, pa.float64()) == (True, True)
    assert float_band(b, a, math.inf, pa.float64()) == (True, True)
    assert not float_band(a, a, math.inf, pa.float64())[1] or math.isfinite(a)


@pytest.mark.parametrize("name", FLOATS)
def test_band_when_value_is_nan_then_the_row_can_match_nothing(name: str) -> None:
    column = pa.array([1.0, math.nan, None, 2.0], KEY_TYPES[name])
    _, valid = KeyCodec((column.type,), 1.0).encode([column])
    assert valid is not None
    assert valid.tolist() == [True, False, False, True]


def test_candidates_when_not_a_band_then_low_is_high() -> None:
    codes = np.array([3, 1])
    low, high = KeyCodec((pa.int64(),)).candidates(codes)
    assert low is high


# -- band widths ----------------------------------------------------------------------------

HOUR = dt.timedelta(hours=1)


@pytest.mark.parametrize(
    ("within", "type_", "expected"),
    [
        (5, pa.int64(), 5),
        (5.9, pa.int32(), 5),
        (Decimal("5.9"), pa.int32(), 5),
        (0, pa.int8(), 0),
        (math.inf, pa.int64(), INT64.max),
        (10**30, pa.int64(), INT64.max),
        (Decimal("Infinity"), pa.int64(), INT64.max),
        (0.25, pa.float64(), 0.25),
        (Decimal("0.25"), pa.float32(), 0.25),
        (math.inf, pa.float64(), math.inf),
        (10**400, pa.float64(), math.inf),
        (0.05, pa.decimal128(10, 2), 5),
        (Decimal("0.059"), pa.decimal128(10, 2), 5),
        (Decimal("0." + "9" * 40), pa.decimal128(10, 2), 99),
        (1, pa.decimal128(18, 6), 10**6),
        (3, pa.date32(), 3),
        (36 * HOUR, pa.date32(), 1),
        (HOUR, pa.date32(), 0),
        (1.5, pa.timestamp("us"), 1_500_000),
        (1.5, pa.timestamp("ms"), 1_500),
        (1.5, pa.timestamp("s"), 1),
        (1.5, pa.timestamp("ns", tz="UTC"), 1_500_000_000),
        (HOUR, pa.timestamp("us", tz="UTC"), 3_600_000_000),
        (HOUR, pa.timestamp("s"), 3_600),
        (dt.timedelta(microseconds=3), pa.timestamp("ns"), 3_000),
        (dt.timedelta(microseconds=999), pa.timestamp("ms"), 0),
        (HOUR, pa.duration("us"), 3_600_000_000),
        (2, pa.time64("us"), 2_000_000),
    ],
)
def test_band_width_when_given_then_is_in_units_of_the_code(
    within: Any, type_: pa.DataType, expected: float
) -> None:
    width = band_width(within, type_)
    assert width == expected
    assert isinstance(width, float) == pa.types.is_floating(type_)


@pytest.mark.parametrize(
    ("within", "type_", "said"),
    [
        (1, pa.string(), "numeric, date or timestamp"),
        (1, pa.binary(), "numeric, date or timestamp"),
        (1, pa.bool_(), "not bool"),
        (1, pa.decimal128(38, 2), "numeric, date or timestamp"),
        ("1", pa.int64(), "is a text, but the key"),
        (True, pa.int64(), "a number, a timedelta or a text"),
        (None, pa.int64(), "a number, a timedelta or a text"),
        (-1, pa.int64(), "0 or more"),
        (-0.5, pa.float64(), "0 or more"),
        (-HOUR, pa.timestamp("us"), "0 or more"),
        (math.nan, pa.float64(), "0 or more"),
        (Decimal("NaN"), pa.int64(), "0 or more"),
        (HOUR, pa.int64(), "a time span, but the key has type bigint"),
        (HOUR, pa.float64(), "a time span"),
        ("5", pa.int64(), "within='5' is a text, but the key has type bigint"),
        ("5 lightyears", pa.timestamp("us"), "'lightyears' is not a unit of time"),
        ("-5 seconds", pa.date32(), "not a span of time: '-5 seconds'; write for example"),
    ],
)
def test_band_width_when_wrong_then_says_what_is_wrong(
    within: Any, type_: pa.DataType, said: str
) -> None:
    with pytest.raises(BandKeyError, match=said):
        band_width(within, type_)


@given(st.integers(0, 2**64), st.integers(INT64.min, INT64.max), st.integers(INT64.min, INT64.max))
@example(0, INT64.min, INT64.max)
@example(INT64.max, 0, INT64.min)
def test_candidates_when_integers_are_any_then_are_the_exact_band(
    width: int, a: int, b: int
) -> None:
    within = band_width(width, pa.int64())
    low, high = KeyCodec((pa.int64(),), within).candidates(np.array([a]))
    assert (low[0] <= b <= high[0]) == (abs(a - b) <= min(width, INT64.max))
