"""Staged tables that were damaged, cut short, or lost a file: an error that names it."""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import StateCorruptError, StateMismatchError, StateMissingError
from dovetail.semistream.table.reading import StagedTable
from dovetail.semistream.table.writing import TableWriter

FILES = ("codes.bin", "records.bin", "starts.bin", "rows.arrows", "fences.bin", "table.json")
SCHEMA = pa.schema(
    [("k", pa.int64()), ("id", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int8()))]
)
ROWS = 50


def make_rows() -> pa.RecordBatch:
    texts = ["x" * (row % 7) for row in range(ROWS)]
    lists = [[row] * (row % 3) for row in range(ROWS)]
    columns = [pa.array(range(0, 2 * ROWS, 2)), pa.array(range(ROWS)), texts, lists]
    return pa.record_batch(columns, schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[StagedTable]:
    """Fifty rows in several chunks, with every kind of file there is."""
    writer = TableWriter(tmp_path / "table", SCHEMA, page_bytes=150, chunk_pages=2)
    writer.append(np.arange(0, 2 * ROWS, 2), make_rows())
    writer.finish()
    table = StagedTable(tmp_path / "table", SCHEMA)
    assert len(table._chunks) > 3
    assert sorted(path.name for path in table.directory.iterdir()) == sorted(FILES)
    yield table
    table.close()


def read_page(table: StagedTable, page: int) -> pa.RecordBatch:
    bounds = np.array([[table.page_start(page)], [table.page_start(page + 1)]])
    return table.ranges(*bounds)[1]


def read_all(directory: Path) -> None:
    table = StagedTable(directory, SCHEMA)
    try:
        found = [read_page(table, page) for page in range(table.pages)]
        assert pa.Table.from_batches(found).equals(pa.Table.from_batches([make_rows()]))
    finally:
        table.close()


def payload(directory: Path) -> range:
    """Where in `rows.arrows` the rows are: the schema before them is not read."""
    table = StagedTable(directory, SCHEMA)
    table.close()
    return range(table._chunks[0].offset, (directory / "rows.arrows").stat().st_size)


@pytest.mark.parametrize("name", FILES)
def test_table_when_a_bit_of_a_file_is_flipped_then_is_damaged(
    table: StagedTable, name: str
) -> None:
    path = table.directory / name
    whole = path.read_bytes()
    places = payload(table.directory) if name == "rows.arrows" else range(len(whole))
    for place in np.linspace(places[0], places[-1], 25).astype(int):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << (place % 8)
        path.write_bytes(spoilt)
        with pytest.raises(StateCorruptError, match=name):
            read_all(table.directory)
    path.write_bytes(whole)
    read_all(table.directory)


def test_table_when_opened_again_then_what_was_checked_before_is_remembered(
    table: StagedTable,
) -> None:
    again = StagedTable(table.directory, SCHEMA)
    read_page(again, again.pages - 1)
    again.close()
    again = StagedTable(table.directory, SCHEMA)
    assert again._page_seen.nonzero()[0].tolist() == [again.pages - 1]
    assert again._records is not None
    for seen in (again._chunk_seen, again._records._seen):
        assert seen.nonzero()[0].tolist() == [len(seen) - 1]
    again.close()


@pytest.mark.parametrize("name", ["codes.bin", "records.bin", "starts.bin", "rows.arrows"])
def test_table_when_damaged_after_it_was_read_whole_then_is_damaged(
    table: StagedTable, name: str
) -> None:
    read_all(table.directory)
    path = table.directory / name
    spoilt = bytearray(path.read_bytes())
    spoilt[-20] ^= 1
    path.write_bytes(spoilt)
    os.utime(path, ns=(1, 1))  # the clock of a file system may be coarse
    with pytest.raises(StateCorruptError, match=path.name):
        read_all(table.directory)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", FILES)
def test_table_when_a_file_is_cut_short_then_is_damaged(
    table: StagedTable, name: str, share: float
) -> None:
    path = table.directory / name
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(StateCorruptError, match=name):
        read_all(table.directory)


@pytest.mark.parametrize("name", FILES)
def test_table_when_a_file_is_gone_then_is_missing(table: StagedTable, name: str) -> None:
    (table.directory / name).unlink()
    with pytest.raises(StateMissingError, match=name):
        read_all(table.directory)


def test_table_when_its_directory_is_gone_then_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StateMissingError, match="holds no staged table"):
        StagedTable(tmp_path / "nowhere", SCHEMA)


def test_writer_when_not_finished_then_leaves_no_table(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "table", SCHEMA, 64)
    writer.append(np.arange(ROWS), make_rows())
    try:
        with pytest.raises(StateMissingError, match=r"table\.json"):
            StagedTable(tmp_path / "table", SCHEMA)
    finally:
        writer.finish()
    StagedTable(tmp_path / "table", SCHEMA).close()


def test_table_when_staged_in_another_format_then_says_to_stage_it_again(
    table: StagedTable,
) -> None:
    path = table.directory / "table.json"
    meta = json.loads(path.read_bytes().partition(b"\n")[2])
    del meta["format"]  # as before there were several
    body = json.dumps(meta).encode()
    path.write_bytes(f"{zlib.crc32(body)}\n".encode() + body)
    with pytest.raises(StateMismatchError, match=r"in format 1; .*refresh"):
        StagedTable(table.directory, SCHEMA)
