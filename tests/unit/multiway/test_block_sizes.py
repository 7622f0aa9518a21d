"""How many blocks MINER writes: few and large ones where much room is needed at once.

What joining blocks costs goes by their number, and so do the entries that are kept of them. A slice
of narrow rows has many rows, each with index entries that outweigh it, and so needs the room of
several blocks of the least size.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context
from dovetail.multiway import MinerOptions, multiway_spec
from dovetail.multiway.miner.operator import Miner

SEED = 19
NAMES = ("r1", "r2", "r3")
SPEC = multiway_spec(
    {name: pa.schema([(column, pa.int64()) for column in ("k", "n", "x")]) for name in NAMES},
    [("r1.k", "r2.k"), ("r1.k", "r3.k")],
)
BUDGET = 2 << 20
LEAST_BLOCK = 10 << 10  # what a flush takes where little room is needed
ROW_BYTES = 24 + 22  # in memory: the row, its code, index entry and marks
ROWS = 40_000


def blocks_written(folder: Path, batch_rows: int, options: MinerOptions | None = None) -> float:
    """How many, for each `LEAST_BLOCK` bytes that were flushed."""
    folder.mkdir()
    store = BlockStore(folder, SPEC.schemas, "life1", ())
    join = Miner(SPEC, Context(Budget(BUDGET), store), options=options)
    rng = np.random.default_rng(SEED)
    for start in range(0, ROWS, batch_rows):
        for side, schema in enumerate(SPEC.schemas):
            numbers = np.arange(start, start + batch_rows)
            columns = [rng.integers(0, ROWS, batch_rows), numbers, numbers]
            list(join.push(side, pa.record_batch([pa.array(c) for c in columns], schema=schema)))
    join.check()
    flushed = join.ctx.counters.flushed_rows * ROW_BYTES
    assert flushed > 1.5 * BUDGET, "too little was flushed to tell"
    store.close()
    return join.ctx.counters.blocks_written * LEAST_BLOCK / flushed


@pytest.mark.parametrize("batch_rows", [1000, 8000])
def test_blocks_when_rows_are_narrow_then_are_few_and_large(
    tmp_path: Path, batch_rows: int
) -> None:
    assert blocks_written(tmp_path / "chosen", batch_rows) < 0.7
    fixed = MinerOptions(block_bytes=LEAST_BLOCK)
    assert blocks_written(tmp_path / "fixed", batch_rows, fixed) > 0.9, "the bound tells nothing"
