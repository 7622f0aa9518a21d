"""The staged table: what was written comes back, and what was damaged does not."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.keys import Codes
from dovetail.semistream.table.gathering import positions_of, stretches, take_rows
from dovetail.semistream.table.reading import StagedTable
from dovetail.semistream.table.writing import TableWriter
from support.generators import Shape, make_relation

SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64())])
ROW_BYTES = 16
WHEN = datetime(2024, 2, 29, 12, 30, 1, 5)

#: each type that a Spark column can have, with two values
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(1 << 15), 5]),
    "integer": (pa.int32(), [-(1 << 31), 5]),
    "long": (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
    "float": (pa.float32(), [-0.5, float("inf")]),
    "double": (pa.float64(), [0.1, -float("inf")]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-1.5000000000"), Decimal(10**27)]),
    "string": (pa.string(), ["", "schlüssel-🗝"]),
    "large_string": (pa.large_string(), ["x" * 5_000, "y"]),
    "binary": (pa.binary(), [b"", b"\0\xff"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [WHEN.replace(tzinfo=UTC)] * 2),
    "timestamp_ntz": (pa.timestamp("us"), [WHEN, datetime(1, 1, 1)]),
    "time": (pa.time64("us"), [time(0, 0), time(23, 59, 59, 999_999)]),
    "interval": (pa.duration("us"), [timedelta(days=-3), timedelta(microseconds=1)]),
    "void": (pa.null(), [None, None]),
    "array": (pa.list_(pa.string()), [[], ["a", None, "ccc"]]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], []]),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float64()))]),
        [{"x": 1, "y": [0.5]}, {"x": None, "y": None}],
    ),
    "nested": (
        pa.list_(pa.struct([("m", pa.map_(pa.int64(), pa.list_(pa.binary())))])),
        [[{"m": [(1, [b"q", None])]}, None], [{"m": None}]],
    ),
}


def write(
    directory: Path, codes: list[int], page_rows: int = 4, pieces: int = 1
) -> StagedTable:  # fmt: skip
    """A table with these codes, whose rows are numbered."""
    writer = TableWriter(directory, SCHEMA, ROW_BYTES * page_rows)
    rows = pa.record_batch(
        [pa.array(codes, pa.int64()), pa.array(range(len(codes)), pa.int64())], schema=SCHEMA
    )
    for part in np.array_split(np.arange(len(codes)), pieces):
        writer.append(np.array(codes, dtype=np.int64)[part], rows.take(pa.array(part)))
    writer.finish()
    return StagedTable(directory, SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[StagedTable]:
    """Fifty rows with codes 0, 2, 4, ... on thirteen pages, in four chunks."""
    table = write(tmp_path / "table", list(range(0, 100, 2)))
    yield table
    table.close()


def page_of(table: StagedTable, number: int) -> tuple[Codes, pa.RecordBatch]:
    return table.ranges(*np.array([[table.page_start(number)], [table.page_start(number + 1)]]))


def ids(rows: pa.RecordBatch) -> list[int | None]:
    found: list[int | None] = rows["id"].to_pylist()
    return found


# -- round trip ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("page_bytes", [1, 3_000, 1 << 20])
def test_rows_when_of_any_type_then_come_back(tmp_path: Path, page_bytes: int, pieces: int) -> None:
    columns = [pa.array([*values, None] * 7, type_) for type_, values in COLUMNS.values()]
    rows = pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
    codes = np.arange(rows.num_rows)
    writer = TableWriter(tmp_path / "table", rows.schema, page_bytes)
    for part in np.array_split(codes, pieces):
        writer.append(part, rows.take(pa.array(part)))
    writer.finish()
    table = StagedTable(tmp_path / "table", rows.schema)
    try:
        assert table.rows == rows.num_rows
        assert table.take(codes).equals(rows)
        assert table.codes(0, table.pages).tolist() == codes.tolist()
        shuffled = np.random.default_rng(0).permutation(codes)
        assert table.take(shuffled).equals(rows.take(pa.array(shuffled)))
        with_null = table.take(np.array([5, -1, 0]))
        assert with_null.to_pylist()[1] == dict.fromkeys(COLUMNS)
        assert with_null.to_pylist()[::2] == rows.take(pa.array([5, 0])).to_pylist()
    finally:
        table.close()


@pytest.mark.parametrize("seed", range(4))
def test_rows_when_generated_then_come_back_page_by_page(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = Shape(700, ("string", "decimal38"), "zipf", null_share=0.1, payload="mixed")
    rows = make_relation(rng, shape, 1)
    codes = np.sort(rng.integers(-50, 50, 700))
    writer = TableWriter(tmp_path / "table", rows.schema, int(rng.integers(50, 5_000)))
    at = 0
    while at < 700:
        step = int(rng.integers(0, 200))
        writer.append(codes[at : at + step], rows.slice(at, step))
        at += step
    writer.finish()
    table = StagedTable(tmp_path / "table", rows.schema)
    try:
        pages = [page_of(table, number) for number in range(table.pages)]
        assert np.concatenate([stored for stored, _ in pages]).tolist() == codes.tolist()
        assert pa.Table.from_batches([page for _, page in pages]).equals(
            pa.Table.from_batches([rows])
        )
        assert table.fences.tolist() == [int(stored[0]) for stored, _ in pages]
        for number, (stored, page) in enumerate(pages):
            assert len(stored) == page.num_rows
            assert len(stored) == table.page_start(number + 1) - table.page_start(number)
    finally:
        table.close()


def test_table_when_it_has_no_rows_then_has_no_pages(tmp_path: Path) -> None:
    table = write(tmp_path / "table", [])
    try:
        assert (table.rows, table.pages) == (0, 0)
        assert table.take(np.zeros(0, dtype=np.int64)).schema.equals(SCHEMA)
        assert ids(table.take(np.array([-1, -1]))) == [None, None]
    finally:
        table.close()


def test_rows_when_not_in_code_order_then_are_refused(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "table", SCHEMA)
    rows = pa.record_batch([pa.array([1]), pa.array([1])], schema=SCHEMA)
    writer.append(np.array([5]), rows)
    with pytest.raises(AssertionError, match="out of order"):
        writer.append(np.array([4]), rows)
    writer.finish()


# -- pages and fences ---------------------------------------------------------------------------


def test_pages_when_rows_do_not_fill_the_last_then_it_is_shorter(table: StagedTable) -> None:
    assert (table.pages, table.page_rows) == (13, 4)
    assert table.fences.tolist() == list(range(0, 100, 8))
    assert [table.page_start(page) for page in (0, 1, 12, 13)] == [0, 4, 48, 50]
    codes, rows = page_of(table, 12)
    assert (codes.tolist(), ids(rows)) == ([96, 98], [48, 49])
    assert table.codes(11, 13).tolist() == [88, 90, 92, 94, 96, 98]


def test_pages_of_a_code_when_it_is_anywhere_then_hold_all_of_it(tmp_path: Path) -> None:
    """Codes between and beyond those of the table, and codes that fill several pages."""
    codes = np.repeat([-5, 0, 1, 3, 3, 3, 3, 7, 8, 9, 9, 20], [1, 2, 1, 4, 4, 4, 1, 3, 4, 5, 1, 2])
    table = write(tmp_path / "table", codes.tolist())
    try:
        for code in range(-7, 23):
            low, high = np.array([code]), np.array([code])
            first, stop = (int(pages[0]) for pages in table.pages_of(low, high))
            assert 0 <= first < stop <= table.pages
            begin, end = table.page_start(first), table.page_start(stop)
            inside = set(range(begin, end))
            assert set(np.flatnonzero(codes == code).tolist()) <= inside
    finally:
        table.close()


@pytest.mark.parametrize(
    ("code", "pages"),
    [
        pytest.param(-1, (0, 1), id="below the first"),
        pytest.param(0, (0, 1), id="the first"),
        pytest.param(7, (0, 1), id="inside a gap of the first page"),
        pytest.param(8, (0, 2), id="a fence: the page before may end with it"),
        pytest.param(9, (1, 2), id="behind a fence"),
        pytest.param(96, (11, 13), id="the last fence"),
        pytest.param(98, (12, 13), id="the last"),
        pytest.param(1_000, (12, 13), id="beyond the last"),
    ],
)
def test_pages_of_a_code_when_at_a_border_then_are_as_few_as_the_fences_can_tell(
    table: StagedTable, code: int, pages: tuple[int, int]
) -> None:
    sought = np.array([code])
    first, stop = table.pages_of(sought, sought)
    assert (int(first[0]), int(stop[0])) == pages


def test_pages_of_a_code_when_duplicates_span_pages_then_are_all_of_them(tmp_path: Path) -> None:
    table = write(tmp_path / "table", [1, 1, 1, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 9])
    try:
        assert table.fences.tolist() == [1, 5, 5, 5]
        sought = np.array([1, 5, 9])
        first, stop = table.pages_of(sought, sought)
        assert first.tolist() == [0, 0, 3]
        assert stop.tolist() == [1, 4, 4]
        first, stop = table.pages_of(np.array([2]), np.array([7]))
        assert (first.tolist(), stop.tolist()) == ([0], [4])
    finally:
        table.close()


def test_reads_when_counted_then_are_requests_and_bytes_of_codes(table: StagedTable) -> None:
    table.codes(0, 5)
    assert (table.counters.blocks_read, table.counters.bytes_read) == (1, 5 * 4 * 8)
    table.codes(5, 13)
    assert (table.counters.blocks_read, table.counters.bytes_read) == (2, 50 * 8)


# -- taking rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param([], id="none"),
        pytest.param([7], id="one"),
        pytest.param([0, 1, 2], id="in order"),
        pytest.param([49, 0, 25, 24, 1], id="in any order, over all chunks"),
        pytest.param([3, 3, 3, 16, 16, 3], id="again and again"),
        pytest.param([-1, 2, -1, 40, -7], id="with rows of nulls"),
        pytest.param([-1, -1], id="only nulls"),
        pytest.param(list(range(50))[::-1], id="all, backwards"),
    ],
)
@pytest.mark.parametrize("columns", [None, (1,), (1, 0)])
def test_take_when_positions_are_any_then_is_their_rows_in_that_order(
    table: StagedTable, positions: list[int], columns: tuple[int, ...] | None
) -> None:
    found = table.take(np.array(positions, dtype=np.int64), columns)
    assert found.schema.names == (
        ["k", "id"] if columns is None else [["k", "id"][c] for c in columns]
    )
    assert ids(found) == [None if position < 0 else position for position in positions]
    if columns != (1,):
        wanted = [None if position < 0 else 2 * position for position in positions]
        assert found["k"].to_pylist() == wanted
    found.validate(full=True)


def test_take_when_no_column_is_asked_for_then_is_a_batch_without_columns(
    table: StagedTable,
) -> None:
    assert table.take(np.array([1, 2]), ()).num_columns == 0


def test_take_when_a_column_may_not_be_null_then_says_so_unless_there_are_nulls(
    tmp_path: Path,
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    writer = TableWriter(tmp_path / "table", schema, 16)
    writer.append(np.arange(9), pa.record_batch([pa.array(range(9))], schema=schema))
    writer.finish()
    table = StagedTable(tmp_path / "table", schema)
    try:
        assert table.take(np.array([8, 0])).schema.equals(schema)
        found = table.take(np.array([8, -1, 0]))
        assert found.schema.field("id").nullable
        assert ids(found) == [8, None, 0]
        _, page = page_of(table, 0)
        assert take_rows(page, np.array([0, -1]), None).to_pylist() == [{"id": 0}, {"id": None}]
    finally:
        table.close()


def test_take_rows_when_positions_are_negative_then_are_rows_of_nulls() -> None:
    rows = pa.record_batch([pa.array([1, 2]), pa.array(["a", "b"])], names=["n", "s"])
    assert take_rows(rows, np.array([1, -1, 0]), (1,)).to_pylist() == [
        {"s": "b"}, {"s": None}, {"s": "a"},
    ]  # fmt: skip
    assert take_rows(rows, np.array([1]), ()).num_columns == 0


def test_stretches_when_neighbours_are_equal_then_go_together() -> None:
    assert list(stretches(np.array([3, 3, 1, 3]))) == [(0, 2), (2, 3), (3, 4)]
    assert list(stretches(np.zeros(0, dtype=np.int64))) == []


# -- memory -------------------------------------------------------------------------------------


def test_mapping_when_much_of_it_was_touched_then_is_given_back(tmp_path: Path) -> None:
    """No more than `release_bytes` may be resident once a call returns."""
    lists = [list(range(row)) for row in range(50)]
    rows = pa.record_batch({"id": range(50), "text": ["x"] * 50, "list": lists})
    writer = TableWriter(tmp_path / "table", rows.schema, 400, chunk_pages=1)
    writer.append(np.arange(50), rows)
    writer.finish()
    table = StagedTable(tmp_path / "table", rows.schema)
    assert len(table._chunks) > 10
    table.mapped.most_bytes = 2 * max(chunk.length for chunk in table._chunks)
    for start in range(50):
        table.take(np.array([start]))
        assert 0 < table.mapped.touched_bytes <= table.mapped.most_bytes
    table.mapped.most_bytes = 0
    assert ids(table.take(np.array([0, 20, 49]))) == [0, 20, 49]
    assert table.mapped.touched_bytes == 0
    table.close()


def test_rows_when_the_mapping_was_given_back_then_keep_their_values(table: StagedTable) -> None:
    """What was taken is a copy: it does not look into the file."""
    table.mapped.most_bytes = 0
    found = table.take(np.arange(50))
    table.close()
    assert ids(found) == list(range(50))
    reopened = StagedTable(table.directory, SCHEMA)
    table._codes_fd, table._records = reopened._codes_fd, reopened._records  # for the fixture


RANGES = [[(0, 50)], [(3, 4)], [(3, 5), (5, 23)], [(0, 1), (20, 24), (49, 50)], []]


@pytest.mark.parametrize("ranges", RANGES)
def test_ranges_when_read_together_then_count_as_if_each_were_read_by_itself(
    table: StagedTable, ranges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages have four rows and chunks sixteen: a range takes a request for every chunk, too."""
    counted: list[tuple[int, int]] = []
    count = table._count_read
    monkeypatch.setattr(table, "_count_read", lambda *at: (counted.append(at), count(*at)))
    begins, ends = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    codes, rows = table.ranges(begins, ends)
    positions = [position for begin, end in ranges for position in range(begin, end)]
    assert codes.tolist() == [2 * position for position in positions]
    assert ids(rows) == positions
    assert counted == ranges
    assert table.counters.bytes_read == 8 * len(positions)
    chunks = [(end - 1) // 64 - begin // 64 + 1 for begin, end in ranges]
    assert table.counters.blocks_read == len(ranges) + sum(chunks)
    pages = {position // 4 for position in positions}
    assert pages <= set(table._page_seen.nonzero()[0].tolist())


def test_positions_when_of_ranges_then_follow_each_other() -> None:
    begins, counts = np.array([5, 0, 9]), np.array([2, 0, 3])
    assert positions_of(begins, counts).tolist() == [5, 6, 9, 10, 11]
