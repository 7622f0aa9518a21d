"""Rows left out under load: each arrives in the results or in `shed_to`, once, whatever happens.

`protocol.py` drives `StreamingTask` without Spark. Rates and clock are given, so that what is shed
does not depend on how fast the machine is.
"""

import importlib.util
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dovetail
from dovetail.errors import StateMissingError, StorageError
from dovetail.semistream.overload import Pace, Rates, Shedding
from dovetail.semistream.shedding import SHEDDERS
from dovetail.spark import endings, faults
from dovetail.spark import step as step_module
from dovetail.spark.jobs import course, enrich_course
from dovetail.spark.state import PartitionState, prepare
from support.fault_points import POINTS, SHED_POINTS

pytestmark = pytest.mark.recovery

KEYS = 3000
HALF = Rates(arrival=2.0, service=1.0)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(scope="module")
def protocol(tools: Any) -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol", tools.folder / "protocol.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Have a function called at every fault point; a task that raises `Killed` tidies nothing."""

    def install(hook: Callable[[str], None]) -> None:
        monkeypatch.setattr(faults, "fault_point", hook)

    tidy = PartitionState.discard

    def discard(self: PartitionState, version: int, attempt: str) -> None:
        if not isinstance(sys.exc_info()[1], Killed):
            tidy(self, version, attempt)

    monkeypatch.setattr(PartitionState, "discard", discard)
    return install


@pytest.fixture(autouse=True)
def no_operator_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "_cached", None)


class Shed:
    """A partition that sheds, and what went in and came out."""

    def __init__(self, protocol: ModuleType, root: Path, strategy: str = "keep") -> None:
        self.protocol = protocol
        self.state, self.to = root / "state", root / "left out"
        self.partition = protocol.LookupPartition(
            self.state, shed=Shedding(strategy, rates=HALF), shed_to=self.to
        )
        self.state.mkdir()
        prepare(self.state, 1)
        self.partition.stage(1, "v1", KEYS)
        self.arrived: Counter[int] = Counter()
        self.results: Counter[str] = Counter()

    def rows(self, batch: int, rows: int = 90) -> tuple[pa.Table, pa.Table]:
        return self.protocol.lookup_rows(batch, rows, KEYS + 300)  # type: ignore[no-any-return]

    def run(self, batch: int, order: int = 0) -> Counter[str]:
        """One attempt; each order is another one in which the rows come."""
        return self.partition.run(batch, self.rows(batch), order, keep=True)  # type: ignore[no-any-return]

    def take(self, batch: int, results: Counter[str]) -> None:
        """A batch has come to its end, with these results."""
        self.results += results
        self.arrived.update(number for _, number in self.protocol.numbered_keys(self.rows(batch)))

    def left_out(self) -> Counter[int]:
        files = sorted(self.to.glob("*.parquet"))
        return Counter(n for file in files for n in pq.read_table(file)["left_id"].to_pylist())

    def check(self, about: str) -> None:
        """Nothing is lost or repeated, the counts agree, and the results are those of the rest."""
        kept = Counter(int(row.split(", ")[1]) for row in self.results.elements())
        gone = self.left_out()
        assert kept + gone == self.arrived, f"{about}: kept and left out are not what arrived"
        assert not kept & gone, about
        progress = dovetail.progress(self.state)
        assert (progress.rows_in[0], progress.rows_shed) == (kept.total(), gone.total()), about
        assert 0 < gone.total() < self.arrived.total(), about
        for row in self.results:
            key, _, _, right, _ = row.strip("()").split(", ", 4)
            assert right == (key if int(key) < KEYS else "None"), f"{about}: {row}"


@pytest.mark.parametrize("point", [*POINTS, *SHED_POINTS])
def test_rows_when_a_task_is_killed_at_a_point_in_every_batch_then_each_is_somewhere_once(
    protocol: ModuleType, at_point: Any, tmp_path: Path, point: str
) -> None:
    strategies = list(SHEDDERS)
    shed = Shed(protocol, tmp_path, strategies[[*POINTS, *SHED_POINTS].index(point) % 4])
    armed, fired = [False], 0

    def hook(name: str) -> None:
        nonlocal fired
        if armed[0] and name == point:
            armed[0], fired = False, fired + 1
            raise Killed(name)

    at_point(hook)
    for batch in range(3):
        armed[0] = True
        try:
            found = shed.run(batch, order=1)
        except Killed:
            step_module._cached = None
            found = shed.run(batch, order=2)
        armed[0] = False
        assert shed.run(batch, order=3) == found, "a replay emits the same"
        shed.take(batch, found)
    assert fired >= (1 if point == "mid-claim" else 2), f"{point} fired {fired} times"
    shed.check(f"killed at {point}")
    assert not list(shed.to.glob(".*")), "hidden files are left"


def test_rows_when_a_task_dies_after_the_commit_and_its_batch_is_never_replayed_then_are_published(
    protocol: ModuleType, at_point: Any, tmp_path: Path
) -> None:
    """The next step publishes what the one before was to, also if it sheds no more itself."""
    shed = Shed(protocol, tmp_path)
    doom = ["after-commit"]

    def hook(name: str) -> None:
        if doom and doom[0] == name:
            raise Killed(doom.pop())

    at_point(hook)
    with pytest.raises(Killed):
        shed.run(0)
    assert not shed.left_out()
    calm = replace(shed.partition.spec, shedding=None)
    shed.partition.spec, before = calm, shed.partition.spec
    shed.run(1)
    assert shed.left_out().total() == 45
    shed.partition.spec = before
    assert dovetail.progress(shed.state).rows_shed == 45


# -- two attempts at once ---------------------------------------------------------------------


class Held(threading.Thread):
    """An attempt in a thread that stops at a point until it is told to go on."""

    def __init__(self, work: Callable[[], Counter[str]], point: str) -> None:
        super().__init__()
        self.work, self.point = work, point
        self.reached, self.released = threading.Event(), threading.Event()
        self.found: Counter[str] | None = None

    def run(self) -> None:
        try:
            self.found = self.work()
        finally:
            self.reached.set()

    def stop_here(self, name: str) -> None:
        if name == self.point and threading.current_thread() is self and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(30)


@pytest.mark.parametrize(
    "point",
    ["after-load", "after-outbox", "before-link", "after-link", *SHED_POINTS, "mid-emit"],
)
def test_rows_when_two_attempts_run_at_once_then_each_is_somewhere_once(
    protocol: ModuleType, at_point: Any, tmp_path: Path, point: str
) -> None:
    shed = Shed(protocol, tmp_path, "sample")
    stopped: list[Held] = []
    at_point(lambda name: [held.stop_here(name) for held in stopped])
    for batch in range(3):
        held = Held(partial(shed.run, batch, 1), point)
        stopped[:] = [held]
        held.start()
        assert held.reached.wait(30)
        quick = shed.run(batch, order=2)
        held.released.set()
        held.join(30)
        assert held.found == quick, f"batch {batch}: the attempts emitted different rows"
        shed.take(batch, quick)
    shed.check(f"two attempts, one held at {point}")


# -- files that are taken away, lost or in the way -----------------------------------------------


def test_file_when_taken_away_then_a_replay_does_not_make_it_again(
    protocol: ModuleType, tmp_path: Path
) -> None:
    shed = Shed(protocol, tmp_path)
    shed.run(0)
    (file,) = shed.to.glob("*.parquet")
    assert file.name == f"shed-{protocol.QUERY}-b000000000000-p00000.parquet"
    file.unlink()
    shed.run(0, order=5)
    shed.run(1)
    assert [path.name for path in shed.to.iterdir()] == [
        file.name.replace("b000000000000", "b000000000001")
    ]


def test_outbox_when_lost_before_it_was_published_then_says_what_is_lost(
    protocol: ModuleType, at_point: Any, tmp_path: Path
) -> None:
    shed = Shed(protocol, tmp_path)

    def die(name: str) -> None:
        if name == "after-commit":
            raise Killed(name)

    at_point(die)
    with pytest.raises(Killed):
        shed.run(0)
    (box,) = (shed.state / "p00000").glob("*-shed.arrows")
    box.unlink()
    at_point(lambda name: None)
    with pytest.raises(StateMissingError, match="45 rows that were left out"):
        shed.run(0)


def test_target_when_it_cannot_be_written_then_the_task_fails_and_a_retry_publishes(
    protocol: ModuleType, tmp_path: Path
) -> None:
    shed = Shed(protocol, tmp_path)
    shed.to.write_text("in the way")
    with pytest.raises(StorageError, match="left out"):
        shed.run(0)
    shed.to.unlink()
    shed.take(0, shed.run(0))
    shed.check("the target was a file at first")


def test_target_when_changed_between_runs_then_rows_go_where_they_were_to(
    protocol: ModuleType, at_point: Any, tmp_path: Path
) -> None:
    shed = Shed(protocol, tmp_path)
    doom = ["after-commit"]

    def hook(name: str) -> None:
        if doom and doom[0] == name:
            raise Killed(doom.pop())

    at_point(hook)
    with pytest.raises(Killed):
        shed.run(0)
    other = tmp_path / "elsewhere"
    spec = shed.partition.spec
    shed.partition.spec = replace(spec, shedding=replace(spec.shedding, to=other))
    shed.take(0, shed.run(0))
    shed.check("the place was changed")
    assert not other.exists()


# -- measured, by a clock that is set ------------------------------------------------------------


class Ticking:
    """A partition whose steps begin so many seconds apart, whatever they really take."""

    def __init__(self, protocol: ModuleType, root: Path, **options: Any) -> None:
        self.protocol = protocol
        self.state = root / "state"
        self.state.mkdir()
        self.partition = protocol.LookupPartition(self.state, **options)
        prepare(self.state, 1)
        self.time = 1000.0
        self._batch = itertools.count()

    def step(self, rows: int, seconds: float) -> dict[str, Any]:
        """A step with so many rows, or a tick; returns its record."""
        batch = next(self._batch)
        self.time += seconds
        task = self.partition.task(batch, keep=True)
        task.now = lambda: self.time
        pushed = self.protocol.lookup_rows(batch, rows, KEYS)
        for _ in task.run(self.partition.shuffled(pushed, 1)):
            pass
        return list(dovetail.progress(self.state).records())[-1]

    def records(self, steps: int, rows: int, seconds: float) -> Iterator[dict[str, Any]]:
        for _ in range(steps):
            yield self.step(rows, seconds)


def test_shedding_when_the_stream_outruns_the_join_then_begins_once_rates_are_known(
    protocol: ModuleType, tmp_path: Path
) -> None:
    """Steps that begin a microsecond apart: no machine serves a hundred rows in that time."""
    fast = Ticking(protocol, tmp_path, shed="keep")
    fast.partition.stage(1, "v1", KEYS)
    records = list(fast.records(6, rows=100, seconds=1e-6))
    assert [record["rows_shed"] for record in records[:2]] == [0, 0]
    assert all(record["rows_shed"] > 90 for record in records[2:])
    assert records[-1]["arrival_rate"] > records[-1]["service_rate"] > 0


def test_shedding_when_the_join_keeps_up_then_nothing_is_left_out(
    protocol: ModuleType, tmp_path: Path
) -> None:
    """Steps that begin a day apart, then ones that follow at once: the first day is not held
    against the machine, nor does it take its word for ever."""
    slow = Ticking(protocol, tmp_path, shed="keep")
    slow.partition.stage(1, "v1", KEYS)
    assert all(record["rows_shed"] == 0 for record in slow.records(5, rows=100, seconds=86_400))
    assert dovetail.progress(slow.state).rows_in[0] == 500


def limit_slices(monkeypatch: pytest.MonkeyPatch, milliseconds: int) -> None:
    """Deferred work has no more time than this, in a silence or at once."""
    monkeypatch.setattr(enrich_course, "MAX_SLICE_MS", milliseconds)
    monkeypatch.setattr(endings, "WORK_MS", milliseconds)


def test_wait_when_rows_are_settled_in_later_steps_then_is_measured_from_their_own(
    protocol: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_slices(monkeypatch, 0)
    waiting = Ticking(protocol, tmp_path, algorithm="meshjoin")
    waiting.partition.stage(1, "v1", 20_000)
    assert waiting.step(rows=10, seconds=1.0)["wait_seconds"] is None
    record = waiting.step(rows=0, seconds=3.0)
    assert (record["wait_seconds"], record["oldest_seconds"]) == (None, 3.0)
    limit_slices(monkeypatch, 2000)
    record = waiting.step(rows=0, seconds=4.0)
    assert (record["wait_seconds"], record["oldest_seconds"]) == (7.0, 0.0)
    assert dovetail.progress(waiting.state).longest_wait_s == 7.0


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj"])
def test_latency_when_a_scan_takes_several_steps_then_rows_are_settled_in_time(
    protocol: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """No time is left for deferred work, so a step scans only what the bound asks for."""
    limit_slices(monkeypatch, 0)
    monkeypatch.setattr(course, "FUEL", 1)
    pending = {}
    for name, pace in (("bound", Pace(6.0, pages=100)), ("free", None)):
        (tmp_path / name).mkdir()
        scan = Ticking(protocol, tmp_path / name, algorithm=algorithm)
        scan.partition.stage(1, "v1", 20_000)
        scan.partition.spec = replace(scan.partition.spec, pace=pace)
        counts = [record["pending"] for record in scan.records(1, rows=10, seconds=1.0)]
        counts += [record["pending"] for record in scan.records(5, rows=0, seconds=1.0)]
        pending[name] = counts
        if pace is not None:
            assert 1.0 < dovetail.progress(scan.state).longest_wait_s <= pace.seconds
    assert pending["bound"][0] == 10, "the table is scanned in one step"
    assert pending["bound"][-1] == 0
    assert pending["free"][-1] == 10


def test_latency_when_rows_are_sought_then_none_is_left_for_a_later_step(
    protocol: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_slices(monkeypatch, 0)
    pending = {}
    for name, latency in (("bound", "5 seconds"), ("free", None)):
        (tmp_path / name).mkdir()
        seek = Ticking(protocol, tmp_path / name, latency=latency)
        seek.partition.stage(1, "v1", KEYS)
        pending[name] = seek.step(rows=50, seconds=1.0)["pending"]
    assert pending == {"bound": 0, "free": 50}
