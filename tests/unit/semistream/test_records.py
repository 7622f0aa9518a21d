"""Records: rows with flat columns come back, whichever are picked out."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.semistream.table import recordfile
from dovetail.semistream.table.reading import StagedTable
from dovetail.semistream.table.records import RecordFormat, is_flat
from dovetail.semistream.table.writing import TableWriter

KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.decimal128(20, 2), st.decimals(-(10**17), 10**17, places=2)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
]


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of any flat columns, nulls among them, perhaps a slice of more."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=10))
    count, cut = draw(st.integers(1, 20)), draw(st.integers(0, 9))
    columns = []
    for kind, values in kinds:
        some = draw(st.lists(st.none() | values, min_size=count + cut, max_size=count + cut))
        columns.append(pa.array(some, kind))
    names = [f"c{index}" for index in range(len(columns))]
    return pa.record_batch(columns, names=names).slice(cut)


@given(batches(), st.data())
def test_records_when_decoded_then_are_the_rows(rows: pa.RecordBatch, data: st.DataObject) -> None:
    layout = RecordFormat(rows.schema)
    records, ends = layout.encode(rows)
    begins = np.append(0, ends[:-1])
    assert records.size == ends[-1]
    if layout.width is not None:
        assert (ends - begins == layout.width).all()
    chosen = sorted(data.draw(st.lists(st.integers(0, rows.num_rows - 1), max_size=30)))
    columns = data.draw(st.permutations(range(rows.num_columns)))
    columns = columns[: data.draw(st.integers(0, len(columns)))]
    at = np.array(chosen, dtype=np.int64)
    found = layout.decode(records, begins[at], columns)
    for column, index in zip(found, columns, strict=True):
        column.validate(full=True)
        assert column.equals(rows.column(index).take(pa.array(at)))


@pytest.fixture(params=[0, 1 << 40], ids=["requested", "mapped"])
def near(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Records are read one way or the other, whatever lies between them."""
    monkeypatch.setattr(recordfile, "_NEAR_BYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("near")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches(), st.lists(st.integers(-3, 19), max_size=40), st.integers(1, 4), st.integers(0, 300)
)
def test_table_when_rows_are_picked_out_then_are_those_rows(
    tmp_path_factory: pytest.TempPathFactory,
    rows: pa.RecordBatch,
    chosen: list[int],
    chunk_pages: int,
    release_bytes: int,
) -> None:
    directory = tmp_path_factory.mktemp("records") / "table"
    writer = TableWriter(directory, rows.schema, page_bytes=100, chunk_pages=chunk_pages)
    writer.append(np.arange(rows.num_rows), rows)
    writer.finish()
    table = StagedTable(directory, rows.schema, release_bytes)
    positions = np.array([at for at in chosen if at < rows.num_rows], dtype=np.int64)
    found = table.take(positions)
    assert table.mapped.touched_bytes <= release_bytes
    table.close()
    found.validate(full=True)
    wanted = rows.take(pa.array(positions, mask=positions < 0))
    for column, other in zip(found.columns, wanted.columns, strict=True):
        assert column.equals(other)


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("release_bytes", [0, 1 << 12, 1 << 30])
def test_table_when_some_rows_are_very_wide_then_little_is_read_at_a_time(
    tmp_path: Path, release_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How wide rows are on average tells nothing of those that are picked out."""
    texts = ["y" * (200_000 if row % 100 == 7 else row % 5) for row in range(3_000)]
    rows = pa.record_batch({"id": range(3_000), "text": texts})
    writer = TableWriter(tmp_path / "table", rows.schema, page_bytes=1 << 20)
    writer.append(np.arange(3_000), rows)
    writer.finish()
    table = StagedTable(tmp_path / "table", rows.schema, release_bytes)
    assert table._records is not None
    sizes: list[int] = []
    decode = table._records._format.decode

    def noted(data: pa.Buffer, *rest: Any) -> list[pa.Array]:
        sizes.append(data.size)
        return decode(data, *rest)

    monkeypatch.setattr(table._records._format, "decode", noted)
    wide = np.arange(7, 3_000, 100)
    assert table.take(wide).equals(rows.take(pa.array(wide)))
    assert len(sizes) >= len(wide) * 200_000 // recordfile.READ_BYTES
    assert max(sizes) < 2 * recordfile.READ_BYTES
    everything = table.take(np.arange(3_000))
    assert everything.equals(rows)
    assert table.mapped.touched_bytes <= release_bytes
    table.close()


@pytest.mark.parametrize("texts", [["abc"] * 100, ["ab"] * 99 + ["a"], ["a", *["ab"] * 99], []])
def test_starts_when_records_are_all_as_wide_then_are_not_kept(
    tmp_path: Path, texts: list[str]
) -> None:
    rows = pa.record_batch({"id": range(len(texts)), "text": pa.array(texts, pa.string())})
    writer = TableWriter(tmp_path / "table", rows.schema, page_bytes=64, chunk_pages=2)
    for part in np.array_split(np.arange(len(texts)), 3):
        writer.append(part, rows.take(pa.array(part)))
    writer.finish()
    assert (tmp_path / "table" / "starts.bin").exists() == (len(set(texts)) != 1)
    table = StagedTable(tmp_path / "table", rows.schema)
    positions = np.arange(len(texts))[::-1]
    assert table.take(positions).equals(rows.take(pa.array(positions)))
    table.verify()
    table.close()


def test_requests_when_rows_lie_side_by_side_then_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordfile, "_NEAR_BYTES", 0)
    rows = pa.record_batch({"id": range(1_000), "text": [str(row) for row in range(1_000)]})
    writer = TableWriter(tmp_path / "table", rows.schema)
    writer.append(np.arange(1_000), rows)
    writer.finish()
    table = StagedTable(tmp_path / "table", rows.schema)
    table.verify()
    requests: list[int] = []
    pread = recordfile.os.pread

    def noted(fd: int, length: int, offset: int) -> bytes:
        requests.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(recordfile.os, "pread", noted)
    for positions, count in [
        (np.arange(1_000), 1),
        (np.repeat(np.arange(100, 200), 3), 1),
        (np.arange(0, 1_000, 2), 1),  # what lies between two is no more than a row
        (np.arange(0, 1_000, 10), 100),
    ]:
        requests.clear()
        assert table.take(positions).equals(rows.take(pa.array(positions)))
        assert len(requests) == count
    table.close()


def test_reading_when_rows_are_near_or_far_then_is_mapped_or_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.record_batch({"id": range(1_000), "text": ["x" * 1_000] * 1_000})
    writer = TableWriter(tmp_path / "table", rows.schema)
    writer.append(np.arange(1_000), rows)
    writer.finish()
    table = StagedTable(tmp_path / "table", rows.schema)
    ways: list[str] = []
    for name in ("_copied", "_requested"):
        way = getattr(table._records, name)
        noted = lambda *at, way=way, name=name: (ways.append(name), way(*at))[1]  # noqa: E731
        monkeypatch.setattr(table._records, name, noted)
    for step, name in [(1, "_copied"), (10, "_copied"), (100, "_requested")]:
        ways.clear()
        positions = np.arange(0, 1_000, step)
        assert table.take(positions).equals(rows.take(pa.array(positions)))
        assert set(ways) == {name}
    table.close()


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.int8(), pa.int8()), pa.null(),
     pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8(), 2)],
)  # fmt: skip
def test_columns_when_they_are_not_bytes_then_are_not_flat(kind: pa.DataType) -> None:
    assert not is_flat(kind)
