"""The relations that benchmarks join, and what is known of them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_bench.data import KEY, make_matched_relations, make_relations, write_files

SCHEMA = [pa.int64(), pa.int64(), pa.float64(), pa.string()]


def test_relations_when_made_then_pairs_are_those_of_a_plain_count() -> None:
    relations = make_relations(500, 100, np.random.default_rng(3))
    left, right = (Counter(table[KEY].to_pylist()) for table in (relations.left, relations.right))
    assert relations.pairs == sum(count * right[key] for key, count in left.items()) > 0
    assert [field.type for field in relations.left.schema] == SCHEMA
    assert set(map(len, relations.right["right_text"].to_pylist())) == {16}
    assert relations.nbytes == relations.left.nbytes + relations.right.nbytes


def test_relations_when_the_seed_is_the_same_then_so_are_the_rows() -> None:
    one, two = (make_relations(50, 9, np.random.default_rng(3)) for _ in range(2))
    assert one.left.equals(two.left)
    assert one.right.equals(two.right)


def test_matched_relations_when_made_then_batches_meet_only_their_own_number() -> None:
    relations = make_matched_relations(25, 10, np.random.default_rng(0))
    keys = [set(batch[KEY].to_pylist()) for _, batch in relations.batches(10)]
    assert relations.pairs == 25
    assert len(set.union(*keys)) == 25
    assert keys[::2] == keys[1::2]


def test_batches_when_taken_then_sides_alternate_and_no_row_is_lost() -> None:
    relations = make_relations(25, 9, np.random.default_rng(0))
    batches = list(relations.batches(10))
    assert [(side, batch.num_rows) for side, batch in batches] == [
        (0, 10), (1, 10), (0, 10), (1, 10), (0, 5), (1, 5),
    ]  # fmt: skip


def test_write_files_when_written_then_holds_all_rows_in_the_order_of_time(tmp_path: Path) -> None:
    relations = make_relations(103, 9, np.random.default_rng(0))
    files = write_files(relations, tmp_path, 10)
    paths = sorted(Path(files.side(0)).iterdir())
    times = [path.stat().st_mtime for path in paths]
    assert len(paths) == files.files == 10
    assert times == sorted(set(times))
    assert pa.concat_tables(map(pq.read_table, paths)).equals(relations.left)
