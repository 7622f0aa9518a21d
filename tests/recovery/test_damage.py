"""State that was damaged or restored: a clear error, or the right result, and no third kind.

A query without Spark: the clock plans each batch as it would for Spark, which keeps its offsets,
and every partition that gets rows or is woken runs its step. `Query.log` is Spark's offset log.
"""

import errno
import importlib.util
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import DovetailError, StateMismatchError, StorageError
from dovetail.spark import step as step_module
from dovetail.spark.sources.clock import ClockReader
from dovetail.spark.state import prepare

pytestmark = pytest.mark.recovery

PARTITIONS = 2
SEED = 5
BEFORE = 6  #: batches before the damage
AFTER = 8  #: and until the input ends


@pytest.fixture(scope="module")
def protocol(tools: Any) -> Any:
    path = tools.folder / "protocol.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Query:
    """What Spark does for a query: plan batches, log their offsets, run tasks, keep the results."""

    def __init__(self, root: Path, protocol: Any) -> None:
        self.state = root / "state"
        self.protocol = protocol
        self.tasks = [
            protocol.Partition(self.state, "140KB", "xjoin", number, PARTITIONS)
            for number in range(PARTITIONS)
        ]
        self.log: list[dict[str, Any]] = []
        self.sink: dict[int, Counter[str]] = {}
        self.restart()

    def restart(self) -> None:
        """A new process on the same checkpoint; workers keep nothing."""
        step_module._cached = None
        self.clock = ClockReader(self.state, PARTITIONS)
        if not self.log:
            self.start = self.clock.initialOffset()

    @property
    def done(self) -> int:
        return len(self.log)

    def plan(self, number: int) -> dict[str, Any]:
        """The clock's offset after a batch: of the log, where the batch is replayed."""
        start = self.log[number - 1] if number else self.start
        if number < len(self.log):
            self.clock.partitions(start, self.log[number])
        else:
            end = self.clock.latestOffset(start, None)
            self.log.append(json.loads(json.dumps(end)))
        return start

    def run(self, number: int, only: int | None = None) -> None:
        """A batch from its plan to the sink; `only`: the driver dies after this partition."""
        start = self.plan(number)
        offset = self.log[number]
        woken = offset["wake"] if offset["tick"] > start["tick"] else []
        rows = self.rows(number)
        out: Counter[str] = Counter()
        for task in self.tasks:
            mine = tuple(part_of(table, task.number) for table in rows)
            if len(mine[0]) or len(mine[1]) or task.number in woken:
                out += task.run(number, mine, SEED)
            if only == task.number:
                return
        self.sink[number] = out

    def rows(self, number: int) -> tuple[pa.Table, pa.Table]:
        """No rows once the input has ended; the batches up to there are ones with rows."""
        left, right = self.protocol.rows_of(number // 3 * 4 + number % 3, SEED)
        return (left, right) if number < AFTER else (left.slice(0, 0), right.slice(0, 0))

    def finish(self) -> Counter[str]:
        """Run to the end of the input, and until the clock stands still."""
        while self.done < AFTER:
            self.run(self.done)
        for _ in range(300):
            at = self.log[-1]
            if self.clock.latestOffset(at, None) == at:
                return sum(self.sink.values(), Counter())
            self.run(self.done)
        raise AssertionError("the query does not come to rest")


def part_of(table: pa.Table, partition: int) -> pa.Table:
    chosen = table["k"].to_numpy() % PARTITIONS == partition
    return table.filter(pa.array(chosen))


@dataclass(frozen=True)
class Begun:
    """A query stopped after some batches, with a copy of its state after each."""

    query: Query
    wanted: Counter[str]  #: its result in the end
    log: list[dict[str, Any]]
    sink: dict[int, Counter[str]]

    def restored(self, batch: int = BEFORE - 1, partition: int | None = None) -> Query:
        """It, with its state as of after a batch: all of it, or one partition."""
        query, name = self.query, "" if partition is None else f"p{partition:05d}"
        query.log, query.sink = list(self.log), dict(self.sink)
        for at, part in ((BEFORE - 1, ""), (batch, name)):
            shutil.rmtree(query.state / part, ignore_errors=True)
            shutil.copytree(query.state.with_name(f"after{at}") / part, query.state / part)
        query.restart()
        return query


@pytest.fixture(scope="module")
def begun(protocol: Any, tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    query = Query(tmp_path_factory.mktemp("query"), protocol)
    for number in range(BEFORE):
        query.run(number)
        shutil.copytree(query.state, query.state.with_name(f"after{number}"))
    rows = [query.rows(number) for number in range(AFTER)]
    sides = [pa.concat_tables([pair[side] for pair in rows]) for side in (0, 1)]
    wanted = tools.multiset(tools.expected_join(*sides, "xjoin"))
    return Begun(query, wanted, list(query.log), dict(query.sink))


def outcome(query: Query, wanted: Counter[str], replay: int | None) -> str:
    """`error` or `right`; anything else fails."""
    try:
        if replay is not None:
            query.run(replay)
        found = query.finish()
    except DovetailError as error:
        text = str(error)
        assert str(query.state) in text, f"the message does not say where: {text}"
        return "error"
    assert found == wanted, (
        f"{wanted.total()} rows expected, {found.total()} found without an error"
    )
    return "right"


# -- damages --------------------------------------------------------------------------------


def flipped(at: float) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        start = min(int(len(data) * at), len(data) - 1)
        for place in range(start, min(start + 4, len(data))):
            data[place] ^= 0xFF
        path.write_bytes(data)

    return flip


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0123")


def removed(path: Path) -> None:
    path.unlink()


def swapped(path: Path) -> None:
    """Exchanged with the newest file of its kind in the other partition."""
    others = alike(path, path.parent.with_name("p00001"))
    mine, theirs = path.read_bytes(), others[-1].read_bytes()
    path.write_bytes(theirs)
    others[-1].write_bytes(mine)


def copied_over(path: Path) -> None:
    """With the content of the oldest file of its kind, or of the other partition's."""
    others = [p for p in alike(path, path.parent) if p != path]
    path.write_bytes((others or alike(path, path.parent.with_name("p00001")))[0].read_bytes())


def alike(path: Path, folder: Path) -> list[Path]:
    """The files of its kind in a partition, oldest first."""
    pattern = next(p for p in FILES.values() if path.match(p)).partition("/")[2]
    return sorted(folder.glob(pattern), key=lambda p: p.stat().st_mtime_ns)


DAMAGES = {
    "first bytes": flipped(0),
    "a tenth": flipped(0.1),
    "half": flipped(0.5),
    "last bytes": flipped(0.999),
    "shortened": shortened,
    "emptied": emptied,
    "lengthened": lengthened,
    "removed": removed,
    "swapped": swapped,
    "copied over": copied_over,
}
FILES = {
    "manifest": "p00000/v*",
    "log of rows": "p00000/*-log.arrows",
    "catalogue": "p00000/*-catalogue.bin",
    "latest": "p00000/latest",
    "identity": "identity.json",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_state_when_a_file_is_damaged_then_is_a_clear_error_or_the_right_result(
    begun: Begun, damage: str
) -> None:
    met: Counter[str] = Counter()
    for kind, pattern in FILES.items():
        query = begun.restored()
        found = sorted(query.state.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        assert found, f"there is no {kind}"
        if damage in ("swapped", "copied over") and (
            kind in ("latest", "identity") or not alike(found[-1], query.state / "p00001")
        ):
            continue
        DAMAGES[damage](found[-1])
        met[outcome(query, begun.wanted, None)] += 1
    assert met["error"] > 0, f"{damage}: nothing was noticed"


@pytest.mark.parametrize("damage", ["first bytes", "half", "last bytes", "shortened", "removed"])
def test_outbox_when_damaged_in_a_replay_then_is_a_clear_error_or_the_right_result(
    begun: Begun, damage: str
) -> None:
    query = begun.restored()
    last = BEFORE - 1
    (outbox,) = query.state.glob(f"p00000/b{last}-*-out.arrows")
    query.sink.pop(last)  # the driver died before the sink had it
    DAMAGES[damage](outbox)
    assert outcome(query, begun.wanted, last) == ("right" if damage == "first bytes" else "error")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("its number", lambda path: path.rename(path.with_name("v000000000004"))),
        ("an earlier one", lambda path: shutil.copy(path.with_name("v000000000004"), path)),
        ("a later number", lambda path: shutil.copy(path, path.with_name("v000000000007"))),
    ],
)
def test_manifest_when_under_another_versions_name_then_is_refused(
    begun: Begun,
    kind: str,
    change: Callable[[Path], object],
) -> None:
    query = begun.restored()
    change(query.state / f"p00000/v{BEFORE - 1:012d}")
    assert outcome(query, begun.wanted, None) == "error", kind


def test_manifest_when_of_another_partition_then_says_so(
    begun: Begun,
) -> None:
    query = begun.restored()
    shutil.rmtree(query.state / "p00000")
    shutil.copytree(query.state / "p00001", query.state / "p00000")
    with pytest.raises(DovetailError, match="that of partition 1, not of partition 0"):
        query.run(query.done)


# -- what others may do ---------------------------------------------------------------------


def test_state_when_it_cannot_be_deleted_from_then_says_so_and_goes_on_later(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = begun.restored()

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(StorageError, match="Read-only file system") as raised:
            query.run(query.done)
    assert str(query.state) in str(raised.value)
    query.log.pop()
    assert outcome(query, begun.wanted, None) == "right"


def test_state_when_made_in_a_closed_directory_then_is_as_closed(tmp_path: Path) -> None:
    for mode in (0o700, 0o750):
        (tmp_path / "closed").mkdir(exist_ok=True)
        (tmp_path / "closed").chmod(mode)
        root = tmp_path / "closed" / f"{mode:o}" / "state"
        prepare(root, 2)
        made = [root.parent, root, *root.glob("p*")]
        assert len(made) == 4
        assert {path.stat().st_mode & 0o777 & ~mode for path in made} == {0}


# -- restored from a backup -----------------------------------------------------------------


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("partition", [None, 0, 1])
@pytest.mark.parametrize("versions", [1, 3])
def test_state_when_older_than_the_checkpoint_then_is_refused(
    begun: Begun,
    versions: int,
    partition: int | None,
    crashed: bool,
) -> None:
    """Spark has planned one more batch, which was empty; or with `crashed`, which is replayed."""
    query = begun.restored()
    if crashed:
        query.run(BEFORE, only=0)
    else:
        query.plan(BEFORE)
    log = list(query.log)
    query = begun.restored(BEFORE - 1 - versions, partition)
    query.log = log
    with pytest.raises(StateMismatchError, match="older than the query's checkpoint") as raised:
        query.run(BEFORE if crashed else BEFORE + 1)
    assert f"batch {BEFORE - 1}" in str(raised.value)
    assert f"batch {BEFORE - 1 - versions}" in str(raised.value)


def test_state_when_older_and_the_first_batch_after_a_rest_is_replayed_then_is_refused_after_it(
    begun: Begun,
) -> None:
    """Spark asks the clock nothing before such a replay, so one batch runs on the old state."""
    query = begun.restored()
    rest = {**query.log[-1], "known": [BEFORE - 1] * PARTITIONS}
    log = [*query.log, rest]
    query = begun.restored(BEFORE - 3)
    query.log = [*log, rest]  # planned with rows alone: the clock stood still
    for task in query.tasks:
        mine = tuple(part_of(table, task.number) for table in query.rows(BEFORE + 1))
        task.run(BEFORE + 1, mine, SEED)
    with pytest.raises(StateMismatchError, match=f"is at batch {BEFORE + 1}, made from batch"):
        query.clock.latestOffset(query.log[-1], None)


def test_state_when_it_lacks_what_a_tick_has_done_then_is_refused(
    begun: Begun,
) -> None:
    """A woken partition commits, so its version is known before the next batch is planned."""
    query = begun.restored()
    while True:
        shutil.rmtree(query.state.with_name("before"), ignore_errors=True)
        shutil.copytree(query.state, query.state.with_name("before"))
        query.run(query.done)
        if query.log[-1]["wake"]:
            break
    shutil.rmtree(query.state)
    shutil.move(query.state.with_name("before"), query.state)
    query.restart()
    with pytest.raises(StateMismatchError, match="older than the query's checkpoint"):
        query.run(query.done)


def test_state_when_restored_with_its_checkpoint_then_gives_the_right_result(
    begun: Begun,
) -> None:
    query = begun.restored(2)
    query.log, query.sink = query.log[:3], {n: query.sink[n] for n in range(3)}
    query.restart()
    assert outcome(query, begun.wanted, None) == "right"
