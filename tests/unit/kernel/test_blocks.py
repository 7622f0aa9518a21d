"""The block store: what is read is what was written, or an error that names the file."""

import errno
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import StateCorruptError, StateMissingError, StorageError
from dovetail.kernel.blocks import BLOCK, FLUSHED, LOGGED, NEVER, RESIDENT, BlockList, BlockStore
from dovetail.kernel.logs import FAN_IN
from dovetail.kernel.memory import give_back_freed
from dovetail.kernel.protocol import LEFT, RIGHT, Counters
from dovetail.kernel.runs import Run, sort_run
from support.conformance import identical
from support.generators import KEY_TYPES, Shape, make_relation

Reading = Callable[[BlockStore, np.void], Run]

SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.string())])


def make_run(rows: int, seed: int = 0, text: str = "some text") -> Run:
    rng = np.random.default_rng(seed)
    batch = pa.record_batch({"n": np.arange(rows), "t": [text] * rows}, schema=SCHEMA)
    return sort_run(rng.integers(-1000, 1000, rows), 5, batch)


def assert_same(one: Run, two: Run) -> None:
    assert np.array_equal(one.codes, two.codes)
    assert np.array_equal(one.ats, two.ats)
    assert one.rows.equals(two.rows)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    store = BlockStore(tmp_path, (SCHEMA, SCHEMA), "one")
    yield store
    store.close()


# -- round trips ----------------------------------------------------------------------------


def test_block_when_read_back_then_is_the_run(store: BlockStore) -> None:
    run = make_run(100)
    block = store.append(run, LEFT, FLUSHED, part=3, dts=9)
    back = store.read(block)
    assert_same(back, run)
    assert back.block == block


def test_block_when_viewed_then_is_the_run_and_stays_it_without_the_file(
    store: BlockStore,
) -> None:
    run, other = make_run(100), make_run(7, seed=1)
    blocks = [store.append(one, LEFT, RESIDENT) for one in (run, other)]
    store.sync()
    views = [store.view(block)[0] for block in blocks]
    (store.directory / store.files[0]).unlink()
    store.close()
    assert_same(views[0], run)
    assert_same(views[1], other)
    assert views[1].block == blocks[1]


def test_view_when_nothing_is_looked_at_then_takes_no_memory(store: BlockStore) -> None:
    block = store.append(make_run(1, text="x" * (64 << 20)), LEFT, RESIDENT)
    store.sync()
    give_back_freed()
    before = psutil.Process().memory_info().rss
    views = [store.view(block) for _ in range(3)]  # the first of them is checked
    assert psutil.Process().memory_info().rss - before < 16 << 20
    assert views[0][0].rows.equals(views[2][0].rows)
    assert psutil.Process().memory_info().rss - before > 64 << 20, "a test that can fail"


def test_view_when_an_array_is_forgotten_then_takes_no_memory_and_is_there_again(
    store: BlockStore,
) -> None:
    block = store.append(make_run(1 << 20, text=""), LEFT, RESIDENT)
    store.sync()
    run, view = store.view(block)
    give_back_freed()
    before = psutil.Process().memory_info().rss
    total = int(run.codes.sum())
    assert psutil.Process().memory_info().rss - before >= 7 << 20
    view.forget(run.codes)
    assert psutil.Process().memory_info().rss - before < 2 << 20
    assert int(run.codes.sum()) == total
    with pytest.raises(AssertionError, match="elsewhere"):
        view.forget(np.zeros(5))


def test_block_when_written_then_entry_has_its_zone_map(store: BlockStore) -> None:
    run = make_run(100)
    run.ats[:50] = 2
    block = store.append(run, RIGHT, FLUSHED, part=3, dts=9)
    assert (block["side"], block["kind"], block["part"], block["rows"]) == (RIGHT, FLUSHED, 3, 100)
    assert (block["code_min"], block["code_max"]) == (run.codes.min(), run.codes.max())
    assert (block["ats_min"], block["ats_max"], block["dts"]) == (2, 5, 9)
    assert store.append(run, LEFT, RESIDENT)["dts"] == NEVER


@pytest.mark.parametrize("name", KEY_TYPES)
def test_block_when_columns_are_of_any_type_then_comes_back_bit_for_bit(
    name: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    rows = make_relation(rng, Shape(50, (name,), null_share=0.2, payload="mixed"), LEFT)
    run = sort_run(np.arange(50), 1, rows)
    store = BlockStore(tmp_path, (rows.schema,), "one")
    piece = run.slice(7, 40)  # flushes write slices
    back = store.read(store.append(piece, LEFT, FLUSHED))
    for found, wanted in zip(back.rows.columns, piece.rows.columns, strict=True):
        assert identical(found, wanted)
    store.close()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 30)), max_size=12))
def test_blocks_when_interleaved_over_files_then_each_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[tuple[int, int, int]]
) -> None:
    store = BlockStore(tmp_path_factory.mktemp("store"), (SCHEMA, SCHEMA), "one")
    runs = [make_run(rows, seed) for seed, (_, _, rows) in enumerate(blocks)]
    entries = [
        store.append(run, side, kind)
        for run, (side, kind, _) in zip(runs, blocks, strict=True)
    ]  # fmt: skip
    for run, entry in reversed(list(zip(runs, entries, strict=True))):
        assert_same(store.read(entry), run)
    assert len(store.files) == len({(side, kind) for side, kind, _ in blocks})
    store.close()


def test_blocks_when_read_through_another_store_then_are_the_same(store: BlockStore) -> None:
    run = make_run(20)
    block = store.append(run, LEFT, RESIDENT)
    store.sync()
    other = BlockStore(store.directory, (SCHEMA, SCHEMA), "two", tuple(store.files))
    assert_same(other.read(block), run)
    later = other.append(make_run(5), LEFT, RESIDENT)
    assert int(later["file"]) == 1
    assert other.files == ["one-left-run.arrows", "two-left-run.arrows"]
    other.close()


def test_store_when_begun_anew_then_writes_new_files_and_reads_the_old(store: BlockStore) -> None:
    old = store.append(make_run(20), LEFT, FLUSHED)
    store.sync()
    counters = Counters()
    store.begin("two", counters)
    new = store.append(make_run(10, seed=1), LEFT, FLUSHED)
    assert_same(store.read(old), make_run(20))
    assert_same(store.read(new), make_run(10, seed=1))
    assert store.files == ["one-left-disk.arrows", "two-left-disk.arrows"]
    assert (counters.blocks_written, counters.blocks_read) == (1, 2)


def test_segment_file_when_opened_by_arrow_then_is_an_ipc_stream(store: BlockStore) -> None:
    runs = [make_run(rows, seed=rows) for rows in (3, 10, 1)]
    for run in runs:
        store.append(run, LEFT, FLUSHED)
    store.sync()
    with pa.OSFile(str(store.directory / store.files[0])) as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.select(SCHEMA.names).equals(pa.Table.from_batches([run.rows for run in runs]))
    assert table["__code"].to_pylist() == [code for run in runs for code in run.codes.tolist()]


def test_store_when_blocks_pass_then_counts_them(store: BlockStore) -> None:
    block = store.append(make_run(10), LEFT, FLUSHED)
    store.read(block)
    store.read(block)
    assert (store.counters.blocks_written, store.counters.blocks_read) == (1, 2)
    assert store.counters.bytes_read == 2 * int(block["length"])


def test_store_when_many_files_are_read_then_keeps_few_open(tmp_path: Path) -> None:
    files: tuple[str, ...] = ()
    blocks = []
    for number in range(80):
        store = BlockStore(tmp_path, (SCHEMA,), f"s{number}", files)
        blocks.append(store.append(make_run(2, number), LEFT, FLUSHED))
        store.sync()
        files = tuple(store.files)
    before = psutil.Process().num_fds()
    for number, block in enumerate(blocks * 2):
        assert_same(store.read(block), make_run(2, number % 80))
    assert psutil.Process().num_fds() - before <= 64
    store.close()
    assert psutil.Process().num_fds() <= before


# -- damage ---------------------------------------------------------------------------------


@pytest.fixture(params=["read", "view"])
def read(request: pytest.FixtureRequest) -> Reading:
    if request.param == "read":
        return BlockStore.read
    return lambda store, block: store.view(block)[0]


def test_block_when_any_byte_is_flipped_then_names_the_file(
    store: BlockStore, read: Reading
) -> None:
    store.append(make_run(3), LEFT, FLUSHED)
    block = store.append(make_run(4, seed=1), LEFT, FLUSHED)
    store.sync()
    path = store.directory / store.files[0]
    data = bytearray(path.read_bytes())
    begin = int(block["offset"])
    for place in range(begin, begin + int(block["length"])):
        data[place] ^= 0x40
        path.write_bytes(data)
        with pytest.raises(StateCorruptError, match=path.name):
            read(store, block)
        data[place] ^= 0x40
    path.write_bytes(data)
    assert_same(read(store, block), make_run(4, seed=1))


def test_block_when_file_is_truncated_then_names_the_file(store: BlockStore, read: Reading) -> None:
    block = store.append(make_run(50), LEFT, FLUSHED)
    store.sync()
    path = store.directory / store.files[0]
    size = path.stat().st_size
    for length in (size - 1, int(block["offset"]), 10, 0):
        os.truncate(path, length)
        with pytest.raises(StateCorruptError, match=path.name):
            read(store, block)


def test_block_when_file_holds_another_block_then_names_the_file(
    store: BlockStore, read: Reading
) -> None:
    block = store.append(make_run(50), LEFT, FLUSHED)
    other = store.append(make_run(50, seed=1), RIGHT, FLUSHED)
    assert block["length"] == other["length"]
    store.sync()
    paths = [store.directory / name for name in store.files]
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(StateCorruptError, match=paths[0].name):
        read(store, block)


def test_block_when_file_is_gone_then_says_so(store: BlockStore, read: Reading) -> None:
    block = store.append(make_run(5), LEFT, FLUSHED)
    store.sync()
    (store.directory / store.files[0]).unlink()
    with pytest.raises(StateMissingError, match=store.files[0]):
        read(store, block)


def test_view_when_damaged_after_it_was_checked_then_names_the_file(store: BlockStore) -> None:
    block = store.append(make_run(5), LEFT, RESIDENT)
    store.sync()
    assert_same(store.view(block)[0], make_run(5))
    path = store.directory / store.files[0]
    data = bytearray(path.read_bytes())
    data[int(block["offset"]) + 100] ^= 1
    time.sleep(0.02)  # a file's time may be as coarse as the system's clock
    path.write_bytes(data)
    with pytest.raises(StateCorruptError, match=path.name):
        store.view(block)


# -- storage that refuses -------------------------------------------------------------------


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file may grow beyond this: the closest to a full disk that needs no privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("rows", [5, 2_000], ids=["buffered", "larger than any buffer"])
def test_append_when_there_is_no_room_then_raises_and_older_blocks_stay(
    store: BlockStore, rows: int
) -> None:
    block = store.append(make_run(5), LEFT, FLUSHED)
    path = store.directory / store.files[0]
    with room_for(path.stat().st_size + 100), pytest.raises(StorageError, match=path.name):
        store.append(make_run(rows), LEFT, FLUSHED)
    assert_same(store.read(block), make_run(5))


@pytest.mark.parametrize("rows", [5, 2_000], ids=["buffered", "larger than any buffer"])
def test_close_when_a_write_has_failed_then_gives_every_handle_back(
    tmp_path: Path, rows: int
) -> None:
    """What could not be written is lost, and closing must not fail over it once more."""
    before = psutil.Process().num_fds()
    store = BlockStore(tmp_path, (SCHEMA, SCHEMA), "one")
    blocks = [store.append(make_run(5), side, FLUSHED) for side in (LEFT, RIGHT)]
    store.read(blocks[0])
    with room_for((tmp_path / store.files[0]).stat().st_size + 100):
        with pytest.raises(StorageError):
            store.append(make_run(rows), LEFT, FLUSHED)
        store.close()
    assert psutil.Process().num_fds() == before


def test_append_when_disk_is_full_then_says_to_make_room(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def __init__(self, *_: object) -> None:
            self.closed = False

        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(Path, "open", FullDisk)
    with pytest.raises(StorageError, match=r"No space left on device.*make room"):
        store.append(make_run(5), LEFT, FLUSHED)


def test_append_when_directory_is_gone_then_says_to_check_it(tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "nowhere", (SCHEMA,), "one")
    with pytest.raises(StorageError, match=r"nowhere.*check that the directory exists"):
        store.append(make_run(5), LEFT, FLUSHED)


def test_append_when_a_file_of_that_name_exists_then_never_overwrites_it(tmp_path: Path) -> None:
    first = BlockStore(tmp_path, (SCHEMA,), "one")
    block = first.append(make_run(5), LEFT, FLUSHED)
    first.sync()
    second = BlockStore(tmp_path, (SCHEMA,), "one")
    with pytest.raises(StorageError):
        second.append(make_run(7), LEFT, FLUSHED)
    assert_same(first.read(block), make_run(5))
    first.close()


def test_sync_when_storage_fails_then_is_a_storage_error(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store.append(make_run(5), LEFT, FLUSHED)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"Input/output error"):
        store.sync()


def test_read_when_storage_fails_then_is_a_storage_error(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    block = store.append(make_run(5), LEFT, FLUSHED)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StorageError, match=f"cannot read .*{store.files[0]}"):
        store.read(block)


def test_read_when_the_system_reads_piecemeal_then_reads_on(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reads at most 2 GB at once, and a network file system may read less than asked."""
    block = store.append(make_run(100), LEFT, FLUSHED)
    whole = os.pread
    monkeypatch.setattr(
        os, "pread", lambda fd, length, offset: whole(fd, min(length, 1000), offset)
    )
    assert_same(store.read(block), make_run(100))


# -- catalogues -----------------------------------------------------------------------------


def test_block_list_when_blocks_are_appended_then_keeps_them_in_order_and_packed() -> None:
    blocks = BlockList()
    assert len(blocks) == 0
    for number in range(100):
        entry = np.zeros((), dtype=BLOCK)
        entry["offset"] = number
        blocks.append(entry[()])
        assert len(blocks) == len(blocks.entries) == number + 1
    assert blocks.entries["offset"].tolist() == list(range(100))


def test_block_when_damaged_and_about_to_be_copied_then_names_the_file_that_it_was_written_to(
    tmp_path: Path,
) -> None:
    """A copy of it would be damage in a file that nobody has a backup of."""
    store = BlockStore(tmp_path, (SCHEMA, SCHEMA), "a0")
    blocks = []
    for attempt in range(1, FAN_IN + 1):
        blocks.append(store.append(make_run(20, seed=attempt), LEFT, LOGGED))
        store.sync()
        store.begin(f"a{attempt}", Counters())
    name, offset, length = store._place(blocks[2])
    assert name == "a2-left-log.arrows"
    store.close()
    with (tmp_path / name).open("r+b") as handle:
        handle.seek(offset + length // 2)
        handle.write(b"\xff")
    with pytest.raises(StateCorruptError, match=name):
        store.append(make_run(20), LEFT, LOGGED)
    assert store._place(blocks[2])[0] == name, "a version names it until it has been replaced"
    store.close()
