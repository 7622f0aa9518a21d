"""State that an earlier version has written: `kept/` was made at commit fa5fd1f, in format 3.

`kept/join` is that of `protocol.Partition` with DINER in 64 KB after batches 0 to 3 of seed 8, with
rows on disk; `kept/enrich` that of `protocol.LookupPartition` with AMESHJOIN after batches 0 to 2,
which left every other row out, and whose rows wait.
"""

import importlib.util
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dovetail
from dovetail.spark import step
from dovetail.spark.state import PartitionState, manifest

pytestmark = pytest.mark.recovery

KEPT = Path(__file__).parent / "kept"
SEED = 8


@pytest.fixture
def protocol(tools: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(step, "_cached", None)
    spec = importlib.util.spec_from_file_location("protocol", tools.folder / "protocol.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "kept"))


@pytest.mark.parametrize(("job", "newest"), [("join", 3), ("enrich", 2)])
def test_manifest_when_it_is_written_again_then_is_the_same(
    kept: Path, job: str, newest: int
) -> None:
    state = PartitionState(kept / job, 0, "the-query")
    assert state.versions() == [newest - 1, newest]
    for version in state.versions():
        known = state.read(version)
        manifest.write(kept / "again", known)
        again = manifest.read(kept / "again")
        (kept / "again").unlink()
        assert vars(again) | {"snapshot": None} == vars(known) | {"snapshot": None}
        assert again.snapshot.meta == known.snapshot.meta
        assert again.snapshot.blocks.tobytes() == known.snapshot.blocks.tobytes()
        brief = manifest.read_brief(state.path(version))
        assert (brief.parent, brief.pending) == (version - 1, known.pending)
        assert all((state.directory / name).exists() for name in known.files)


def test_manifest_when_rows_were_shed_and_wait_then_tells(kept: Path) -> None:
    found = PartitionState(kept / "enrich", 0).read(2)
    assert (found.pending, found.totals.rows_shed, found.totals.rows_in) == (30, 30, (30, 0))
    assert found.waits is not None
    assert [first for first, _ in found.waits.steps] == [0, 10, 20]
    assert found.load is not None
    assert found.load.last_taken == 10


def test_join_when_its_state_was_written_earlier_then_goes_on_from_there(
    kept: Path, protocol: Any, tools: Any
) -> None:
    before = dovetail.progress(kept / "join")
    assert before.spilled_bytes > 0
    assert before.pending_rows > 0
    partition = protocol.Partition(kept / "join", memory="64KB", algorithm="diner")
    inputs = [protocol.rows_of(batch, SEED) for batch in range(6)]
    found: Counter[str] = Counter()
    for batch in range(4, 60):
        rows = inputs[batch] if batch < 6 else protocol.rows_of(3, SEED)
        found += partition.run(batch, rows, 0)
        if batch >= 6 and not dovetail.progress(kept / "join").pending_rows:
            break
    sides = [pa.concat_tables([rows[side] for rows in inputs]) for side in (0, 1)]
    expected = tools.multiset(tools.expected_join(*sides, "diner"))
    emitted = sum(before.rows_out.values())
    assert found.total() == expected.total() - emitted, "each pair once, some of them earlier"
    assert found <= expected


def test_enrichment_when_its_state_was_written_earlier_then_settles_the_rows_that_wait(
    kept: Path, protocol: Any
) -> None:
    partition = protocol.LookupPartition(kept / "enrich", algorithm="ameshjoin")
    none = protocol.lookup_rows(3, 0, 50)
    found: Counter[str] = Counter()
    for batch in range(3, 20):
        found += partition.run(batch, none, 0)
    waited = [protocol.lookup_rows(batch, 20, 50)[0].slice(0, 10) for batch in range(3)]
    assert found.total() == 30
    numbers = sorted(number for rows in waited for number in rows["left_id"].to_pylist())
    assert len(numbers) == 30
    assert not dovetail.progress(kept / "enrich").pending_rows
