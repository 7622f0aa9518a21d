"""Leaves read together count as if each were read by itself, whatever their rows are."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.protocol import Counters
from dovetail.semistream.inl import leaves as leaves_module
from dovetail.semistream.inl.leaves import Leaves, sizes_of
from dovetail.semistream.table.reading import StagedTable
from dovetail.semistream.table.writing import TableWriter

ROWS = 400
_VALUES = np.arange(ROWS)
_TEXTS = [None if row % 50 == 3 else "x" * (row % 13) for row in range(ROWS)]
COLUMNS = {
    "numbers": pa.array(_VALUES),
    "some": pa.array(_VALUES, mask=_VALUES % 90 == 7),
    "flags": pa.array(_VALUES % 2 == 0),
    "texts": pa.array(_TEXTS),
    "large": pa.array(_TEXTS, pa.large_binary()),
    "codes": pa.array([b"abc"] * ROWS, pa.binary(3)),
    "structs": pa.array([{"n": row, "t": text} for row, text in enumerate(_TEXTS)]),
    "lists": pa.array([list(range(row % 5)) for row in range(ROWS)]),
}


@pytest.fixture
def leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leaves:
    """Fifty leaves of eight rows, on pages and in chunks that end elsewhere."""
    monkeypatch.setattr(leaves_module, "LEAF_BYTES", 1)
    rows = pa.RecordBatch.from_pydict(COLUMNS)
    writer = TableWriter(tmp_path / "table", rows.schema, page_bytes=1_500, chunk_pages=3)
    writer.append(_VALUES, rows)
    writer.finish()
    leaves = Leaves(StagedTable(tmp_path / "table", rows.schema), 8 * 50, 1 << 20)
    leaves.table.counters = Counters()
    assert len(leaves) == 50
    return leaves


def test_leaves_when_read_together_then_count_like_single_ones(leaves: Leaves) -> None:
    together = leaves.read(np.arange(50))
    counted = leaves.table.counters
    leaves.table.counters = Counters()
    single = [leaves.read(np.array([leaf])) for leaf in together.leaves]
    alone = leaves.table.counters
    assert (counted.blocks_read, counted.bytes_read) == (alone.blocks_read, alone.bytes_read)
    assert counted.blocks_read > 2 * len(single)  # a leaf across chunks takes one more
    assert together.sizes.tolist() == [int(lot.sizes[0]) for lot in single]
    assert together.codes.tolist() == [code for lot in single for code in lot.codes.tolist()]
    rows = pa.Table.from_batches([lot.rows for lot in single])
    assert pa.Table.from_batches([together.rows]).equals(rows)
    leaves.table.close()


@pytest.mark.parametrize("name", COLUMNS)
def test_size_when_of_a_leaf_then_is_what_arrow_says(leaves: Leaves, name: str) -> None:
    """But for bits that say what is null where nothing is: Arrow has them now and then."""
    lot = leaves.read(np.arange(50))
    column = lot.rows.column(name)
    sizes = sizes_of(pa.RecordBatch.from_arrays([column], [name]), lot.starts)
    for leaf, size in enumerate((sizes - 8 * np.diff(lot.starts)).tolist()):
        part = column.slice(lot.starts[leaf], lot.starts[leaf + 1] - lot.starts[leaf])
        assert 0 <= part.nbytes - size <= 4
    leaves.table.close()
