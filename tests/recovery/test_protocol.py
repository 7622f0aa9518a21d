"""The commit protocol without Spark: tasks that die anywhere, replays, and two attempts at once.

`protocol.py` drives `StreamingTask`; here its fault points raise, or pause a thread. A task that
raises `Killed` leaves everything behind, as a killed process would.
"""

import pickle
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

import dovetail
from dovetail.errors import StateError, StateMissingError
from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.spark import endings, faults
from dovetail.spark import step as step_module
from dovetail.spark.jobs import enrich_course
from dovetail.spark.jobs import refresh as refresh_module
from dovetail.spark.state import PartitionState, prepare
from support.depth import full_or, only_full
from support.fault_points import POINTS
from support.processes import finding_support

pytestmark = pytest.mark.recovery

KILLS = full_or(20, 4)
#: All that spill but XJoin, which most tests here take.
OTHERS = (
    "diner",
    "diner-within-1",
    "diner-paper",
    "hmj",
    "rpj",
    "pmj",
    "pmj-within-1",
    "dphj",
    "miner",
)


class Killed(BaseException):
    """The process is gone."""


class Failed(Exception):
    """The task failed, and had a chance to tidy up."""


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Have a function called with the name of every fault point that is reached."""

    def install(hook: Callable[[str], None]) -> None:
        monkeypatch.setattr(faults, "fault_point", hook)

    tidy = PartitionState.discard

    def discard(self: PartitionState, version: int, attempt: str) -> None:
        if not isinstance(sys.exc_info()[1], Killed):
            tidy(self, version, attempt)

    monkeypatch.setattr(PartitionState, "discard", discard)
    monkeypatch.setattr(step_module, "_cached", None)
    return install


def drain(partition: Any, protocol: ModuleType, batch: int) -> Counter[str]:
    """Ticks until nothing is pending."""
    rows: Counter[str] = Counter()
    empty = protocol.rows_of(3, 0)  # a tick
    for number in range(batch, batch + 500):
        if not dovetail.progress(partition.spec.state).pending_rows:
            return rows
        rows += partition.run(number, empty, 0)
    raise AssertionError("the deferred work does not end")


def oracle(
    tools: Any, protocol: ModuleType, seed: int, batches: int, algorithm: str = ""
) -> Counter[str]:
    inputs = [protocol.rows_of(number, seed) for number in range(batches)]
    sides = [pa.concat_tables([rows[side] for rows in inputs]) for side in (0, 1)]
    return tools.multiset(tools.expected_join(*sides, algorithm))


@pytest.mark.parametrize(
    ("algorithm", "seed"),
    [
        ("xjoin", 0), ("diner", 8),
        *only_full(*(("xjoin", seed) for seed in range(1, 8))),
        *only_full(*(("diner", seed) for seed in range(9, 14))),
        ("shj", 14), ("diner-paper", 15), ("hmj", 16), ("rpj", 17), ("pmj", 18), ("dphj", 19),
        ("diner-within-1", 20), ("diner-within-2", 21), ("pmj-within-1", 22), ("shj-within-1", 23),
        ("miner", 24), ("mjoin", 25),
    ],
)  # fmt: skip
def test_history_when_tasks_die_and_batches_are_replayed_then_each_pair_comes_once(
    protocol: ModuleType, tools: Any, at_point: Any, tmp_path: Path, algorithm: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    spills = not algorithm.startswith("shj")
    partition = protocol.Partition(tmp_path, "70KB" if spills else None, algorithm)
    prepare(tmp_path, 1)
    batches = 24
    fired: Counter[str] = Counter()
    doom: list[tuple[str, type[BaseException]]] = []

    def hook(name: str) -> None:
        if doom and doom[0][0] == name:
            fired[name] += 1
            raise doom.pop()[1](name)

    at_point(hook)
    total: Counter[str] = Counter()
    history: list[Any] = []
    for batch in range(batches):
        rows = protocol.rows_of(batch, seed)
        seen: list[Counter[str]] = []
        wanted = 1 + int(rng.random() < 0.3)  # the second time as after a crash of the driver
        while len(seen) < wanted:
            doom.clear()
            if rng.random() < 0.6:
                doom.append((str(rng.choice(POINTS)), Killed if rng.random() < 0.7 else Failed))
            if rng.random() < 0.4:
                step_module._cached = None  # another worker
            history.append((batch, *doom))
            try:
                seen.append(partition.run(batch, rows, int(rng.integers(99)), keep=True))
            except (Killed, Failed):
                continue
        about = f"seed {seed}, {algorithm}, batch {batch}, history {history[-8:]}"
        assert all(rows == seen[0] for rows in seen), f"{about}: a replay emitted other rows"
        total += seen[0]
    doom.clear()
    total += drain(partition, protocol, batches)
    assert fired.total() > 5, f"seed {seed}: too few faults fired: {fired}"
    assert dovetail.progress(tmp_path).spilled_bytes > 0 or not spills
    wanted_rows = oracle(tools, protocol, seed, batches, algorithm)
    tools.assert_same(total, wanted_rows, f"seed {seed}, {algorithm}, faults {fired}")


@pytest.mark.parametrize("point", POINTS)
def test_task_when_killed_at_a_point_in_every_batch_then_each_pair_comes_once(
    protocol: ModuleType, tools: Any, at_point: Any, tmp_path: Path, point: str
) -> None:
    """The same point in batch after batch: what one death leaves must not trip the next."""
    partition = protocol.Partition(tmp_path)
    prepare(tmp_path, 1)
    armed = [False]
    fired = 0

    def hook(name: str) -> None:
        nonlocal fired
        if armed[0] and name == point:
            armed[0], fired = False, fired + 1
            raise Killed(name)

    at_point(hook)
    total: Counter[str] = Counter()
    seed, batches = 77, 10
    for batch in range(batches):
        rows = protocol.rows_of(batch, seed)
        armed[0] = True
        try:
            total += partition.run(batch, rows, 1, keep=True)
        except Killed:
            step_module._cached = None
            total += partition.run(batch, rows, 2, keep=True)
        armed[0] = False
    total += drain(partition, protocol, batches)
    assert fired >= (1 if point == "mid-claim" else 5), f"{point} fired {fired} times"
    tools.assert_same(total, oracle(tools, protocol, seed, batches), f"killed at {point}")


@pytest.mark.parametrize("algorithm", OTHERS)
def test_task_when_killed_at_one_point_after_the_other_then_each_pair_comes_once(
    protocol: ModuleType, tools: Any, at_point: Any, tmp_path: Path, algorithm: str
) -> None:
    """Every other algorithm at every point: once while its state is small, and once spilled."""
    partition = protocol.Partition(tmp_path, algorithm=algorithm)
    prepare(tmp_path, 1)
    waiting = [*POINTS, *POINTS[1:]]  # a state directory is claimed once
    armed = False

    def hook(name: str) -> None:
        nonlocal armed
        if armed and name == waiting[0]:
            armed = False
            raise Killed(waiting.pop(0))

    at_point(hook)
    total: Counter[str] = Counter()
    seed, batches = 78, 0
    while waiting:
        assert batches < 60, f"{algorithm} never dies at {waiting[0]}"
        rows, armed = protocol.rows_of(batches, seed), True
        try:
            total += partition.run(batches, rows, 1, keep=True)
        except Killed:
            step_module._cached = None
            total += partition.run(batches, rows, 2, keep=True)
        batches += 1
        if len(waiting) == len(POINTS) - 1:
            assert dovetail.progress(tmp_path).spilled_bytes > 0, f"{algorithm} spilled nothing"
    armed = False
    total += drain(partition, protocol, batches)
    wanted = oracle(tools, protocol, seed, batches, algorithm)
    tools.assert_same(total, wanted, f"{algorithm}, killed at one point after the other")


@pytest.mark.parametrize("later", POINTS[1:])
def test_task_when_killed_right_after_the_link_and_again_in_the_next_batch_then_goes_on(
    protocol: ModuleType, tools: Any, at_point: Any, tmp_path: Path, later: str
) -> None:
    """The first death leaves `latest` one behind; the second comes when what it names is gone."""
    partition = protocol.Partition(tmp_path)
    prepare(tmp_path, 1)
    doom: list[str] = []

    def hook(name: str) -> None:
        if doom and doom[0] == name:
            raise Killed(doom.pop())

    at_point(hook)
    total: Counter[str] = Counter()
    seed, batches = 5, 6
    for batch in range(batches):
        rows = protocol.rows_of(batch, seed)
        doom[:] = {2: ["after-link"], 3: [later], 4: ["after-link"], 5: [later]}.get(batch, [])
        while True:
            try:
                total += partition.run(batch, rows, batch)
                break
            except Killed:
                continue
        doom.clear()
    total += drain(partition, protocol, batches)
    tools.assert_same(total, oracle(tools, protocol, seed, batches), f"after-link, then {later}")


# -- two attempts at once -------------------------------------------------------------------


class Gate:
    """Holds one thread at a point until it is told to go on."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, name: str) -> None:
        if name == self.point and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(30)


class Attempt(threading.Thread):
    """One attempt of a batch in a thread, held at a point."""

    def __init__(self, run: Callable[[], Counter[str]], point: str) -> None:
        super().__init__()
        self.gate = Gate(point)
        self.work = run
        self.rows: Counter[str] | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.rows = self.work()
        except BaseException as error:  # noqa: BLE001  told to the test
            self.error = error
        finally:
            self.gate.reached.set()

    def go_to_gate(self) -> None:
        self.start()
        assert self.gate.reached.wait(30)

    def finish(self) -> Counter[str]:
        self.gate.released.set()
        self.join(30)
        if self.error is not None:
            raise self.error
        assert self.rows is not None
        return self.rows


@pytest.mark.parametrize("first_stop", POINTS)
def test_attempts_when_two_run_at_once_in_any_interleaving_then_both_emit_the_same(
    protocol: ModuleType, tools: Any, at_point: Any, tmp_path: Path, first_stop: str
) -> None:
    """One stops at a point, the other goes on to any point, the first ends, the other ends."""

    def hook(name: str) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Attempt):
            thread.gate(name)

    at_point(hook)
    for seed, second_stop in enumerate(POINTS):
        if (seed + POINTS.index(first_stop)) % 2:
            continue  # half of the pairs, spread evenly
        about = f"first stops at {first_stop}, second at {second_stop}, seed {seed}"
        root = tmp_path / second_stop
        partition = protocol.Partition(root)
        prepare(root, 1)
        total: Counter[str] = Counter()
        contested = {"mid-claim": 0}.get(first_stop, 2)
        batches = 4
        for batch in range(batches):
            rows = protocol.rows_of(batch, seed)
            if batch != contested:
                total += partition.run(batch, rows, 0)
                continue
            one = Attempt(partial(partition.run, batch, rows, 1), first_stop)
            two = Attempt(partial(partition.run, batch, rows, 2), second_stop)
            one.go_to_gate()
            assert one.is_alive(), f"{about}: the first was never held"
            two.go_to_gate()
            emitted = one.finish(), two.finish()
            assert emitted[0] == emitted[1], about
            total += emitted[0]
        total += drain(partition, protocol, batches)
        tools.assert_same(total, oracle(tools, protocol, seed, batches), about)


@pytest.fixture
def racers(tools: Any, tmp_path: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    command = [sys.executable, str(tools.folder / "protocol.py"), "race", str(tmp_path), "3"]
    both = [
        subprocess.Popen(
            [*command, order],
            env=finding_support(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for order in ("1", "2")
    ]
    yield both
    for racer in both:
        racer.kill()
        racer.communicate()


def test_attempts_when_two_processes_race_then_both_emit_the_same(
    protocol: ModuleType, tools: Any, tmp_path: Path, racers: list["subprocess.Popen[str]"]
) -> None:
    prepare(tmp_path, 1)
    partition = protocol.Partition(tmp_path)
    batches, seed = 24, 3
    total: Counter[str] = Counter()
    winners: Counter[int] = Counter()
    for batch in range(batches):
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(f"{batch}\n")
            racer.stdin.flush()
        answers = [int(racer.stdout.readline() or 0) for racer in racers]  # type: ignore[union-attr]
        rows = partition.run(batch, protocol.rows_of(batch, seed), 3)  # a third one, afterwards
        assert answers == [protocol.checksum(rows)] * 2, f"batch {batch}, seed {seed}"
        total += rows
        winners[len(list((tmp_path / "p00000").glob(f"b{batch}-*-out.arrows")))] += 1
    total += drain(partition, protocol, batches)
    tools.assert_same(total, oracle(tools, protocol, seed, batches), f"seed {seed}, {winners}")


# -- processes that are killed -------------------------------------------------------------


KILLED = ("xjoin", "diner", "miner")


@pytest.mark.parametrize(
    "algorithm",
    [*KILLED, *only_full(*(name for name in OTHERS if name not in ("diner-paper", *KILLED)))],
)
def test_output_when_workers_are_killed_again_and_again_then_equals_the_oracle(
    protocol: ModuleType, tools: Any, tmp_path: Path, algorithm: str
) -> None:
    """SIGKILL at random moments of a batch, not at points that somebody thought of."""
    seed = 31
    script, arguments = tools.folder / "protocol.py", [str(tmp_path), str(seed), algorithm]
    done = subprocess.run(
        [sys.executable, str(script), "die", *arguments, str(KILLS)],
        env=finding_support(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "sink").glob("*.rows"))
    batches = len(files) + 1  # one may have been committed, and not written to the sink
    assert batches > KILLS // 2, f"seed {seed}: only {batches} batches in {KILLS} lives"
    total = sum((pickle.loads(path.read_bytes()) for path in files), Counter())
    partition = protocol.Partition(tmp_path / "state", algorithm=algorithm)
    total += partition.run(batches - 1, protocol.rows_of(batches - 1, seed), 0)
    total += drain(partition, protocol, batches)
    assert dovetail.progress(tmp_path / "state").spilled_bytes > 0
    about = f"{algorithm}, seed {seed}, {KILLS} workers killed in {batches} batches"
    tools.assert_same(total, oracle(tools, protocol, seed, batches, algorithm), about)


# -- what is not there any more -------------------------------------------------------------


def test_task_when_checkpoint_is_older_than_the_state_then_refuses(
    protocol: ModuleType, tmp_path: Path
) -> None:
    """Started over from an old copy of the checkpoint, a task must not begin from nothing."""
    partition = protocol.Partition(tmp_path)
    prepare(tmp_path, 1)
    for batch in range(6):
        partition.run(batch, protocol.rows_of(batch, 1), 0)
    before = sorted((tmp_path / "p00000").iterdir())
    with pytest.raises(StateMissingError, match=r"is at batch 5.*asks for batch 2 again"):
        partition.run(2, protocol.rows_of(2, 1), 0)
    assert sorted((tmp_path / "p00000").iterdir()) == before


def test_task_when_its_partition_is_gone_then_refuses(protocol: ModuleType, tmp_path: Path) -> None:
    partition = protocol.Partition(tmp_path)
    prepare(tmp_path, 1)
    partition.run(0, protocol.rows_of(0, 1), 0)
    (tmp_path / "p00000").rename(tmp_path / "elsewhere")
    with pytest.raises(StateMissingError, match=r"p00000.latest is gone.*Restore"):
        partition.run(1, protocol.rows_of(1, 1), 0)
    (tmp_path / "elsewhere").rename(tmp_path / "p00000")
    partition.run(1, protocol.rows_of(1, 1), 0)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("job", ["join", "enrich"])
def test_files_when_many_steps_have_run_or_failed_then_are_closed(
    protocol: ModuleType, at_point: Any, tmp_path: Path, job: str, keep: bool
) -> None:
    """A worker lives as long as the query does: it must not collect open files."""
    partition = (protocol.Partition if job == "join" else protocol.LookupPartition)(tmp_path)
    prepare(tmp_path, 1)
    fail = [False]

    def hook(name: str) -> None:
        if fail[0] and name == "after-poll":
            raise Failed(name)

    at_point(hook)
    counts = []
    for batch in range(30):
        rows = protocol.rows_of(batch, 9)
        if job == "enrich" and batch % 5 == 0:
            partition.stage(batch // 5 + 1, "x", 50)
        fail[0] = batch % 3 == 1
        if fail[0]:
            with pytest.raises(Failed):
                partition.run(batch, rows, 0, keep=keep)
            fail[0] = False
        partition.run(batch, rows, 0, keep=keep)
        counts.append(psutil.Process().num_fds())
    assert dovetail.progress(tmp_path).spilled_bytes > 0 or job == "enrich"
    assert max(counts[5:]) <= counts[4], f"open files, batch by batch: {counts}"
    assert len(list((tmp_path / "p00000").glob("*.tmp"))) == 0


def test_cached_operator_when_the_budget_has_changed_then_is_not_used(
    protocol: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_module, "_cached", None)
    prepare(tmp_path, 1)
    for batch, memory in enumerate(["500KB", "500KB", "70KB", "70KB"]):
        protocol.Partition(tmp_path, memory).run(batch, protocol.rows_of(batch, 2), 0, keep=True)
    records = list(dovetail.progress(tmp_path).records())
    assert [record["cached"] for record in records] == [False, True, False, True]
    assert [record["budget"] for record in records] == [500 << 10, 500 << 10, 70 << 10, 70 << 10]


def test_state_when_any_byte_of_it_is_damaged_then_is_refused_or_unharmed(
    protocol: ModuleType, tools: Any, tmp_path: Path
) -> None:
    """Never a wrong answer: an error that names the file, or the right rows."""
    seed = 21
    rng = np.random.default_rng(seed)
    partition = protocol.Partition(tmp_path / "state")
    prepare(tmp_path / "state", 1)
    for batch in range(7):
        partition.run(batch, protocol.rows_of(batch, seed), 0)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    replayed = partition.run(6, protocol.rows_of(6, seed), 0)
    following = partition.run(8, protocol.rows_of(8, seed), 0)
    refused: Counter[str] = Counter()
    for _ in range(150):
        shutil.rmtree(tmp_path / "state")
        shutil.copytree(tmp_path / "copy", tmp_path / "state")
        files = [p for p in (tmp_path / "state").rglob("*") if p.is_file()]
        path = files[int(rng.integers(len(files)))]
        data = bytearray(path.read_bytes())
        place, change = int(rng.integers(len(data))), int(rng.integers(1, 256))
        data[place] ^= change
        path.write_bytes(data)
        about = f"seed {seed}, byte {place} of {path.name} changed by {change}"
        said = None
        try:
            again = partition.run(6, protocol.rows_of(6, seed), 0)
            after = partition.run(8, protocol.rows_of(8, seed), 0)
        except StateError as error:
            said = str(error)
        if said is None:
            tools.assert_same(again, replayed, about)
            tools.assert_same(after, following, about)
        else:
            refused[path.suffix or path.name[0]] += 1
            assert str(tmp_path / "state") in said, f"{about}: {said}"
    assert refused[".arrows"] > 10, f"seed {seed}: {refused}"
    assert refused["v"] > 3, f"seed {seed}: {refused}"


# -- a stream and a staged table ------------------------------------------------------------


def results_by_row(rows: Counter[str]) -> dict[int, str | None]:
    """The text that each stream row found, cut short; every row has exactly one result."""
    found: dict[int, str | None] = {}
    for text, count in rows.items():
        _, left_id, _, _, right_text = eval(text)
        assert count == 1, f"row {left_id} came {count} times"
        assert left_id not in found, f"row {left_id} came with two versions"
        found[left_id] = right_text and right_text.strip()
    return found


def test_input_when_it_falls_silent_before_the_other_then_diner_loads_it_back(
    protocol: ModuleType, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Footnote 1 of the DINER paper: what goes on meets the input that has ended in memory."""
    monkeypatch.setattr(step_module, "_cached", None)
    partition = protocol.Partition(tmp_path, "150KB", "diner")
    prepare(tmp_path, 1)
    every = [protocol.rows_of(4 * number, 3) for number in range(14)]
    inputs = [
        (left, right if n < 6 else right.slice(0, 0)) for n, (left, right) in enumerate(every)
    ]
    inputs.append(every[6])  # it had only been silent
    loaded, found = [], Counter[str]()
    for number, rows in enumerate(inputs):
        found += partition.run(number, rows, 0, keep=True)
        loaded.append(step_module._cached.operator.loaded.rows(1))
    assert not any(loaded[: 6 + endings.SILENT_STEPS]), loaded
    assert all(loaded[6 + endings.SILENT_STEPS : -1]), loaded
    found += drain(partition, protocol, len(inputs))
    left, right = (pa.concat_tables([rows[side] for rows in inputs]) for side in (0, 1))
    tools.assert_same(found, tools.multiset(tools.expected_join(left, right)), "a silent input")


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("algorithm", ["meshjoin", "ameshjoin", "ssbj"])
def test_lookup_when_table_is_refreshed_while_rows_wait_then_they_finish_on_the_old_one(
    protocol: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    keep: bool,
) -> None:
    monkeypatch.setattr(step_module, "_cached", None)
    monkeypatch.setattr(enrich_course, "MAX_SLICE_MS", 0)  # so that rows are left waiting
    partition = protocol.LookupPartition(tmp_path, algorithm=algorithm)
    prepare(tmp_path, 1)
    partition.stage(1, "old", 8000)
    first, second = (protocol.lookup_rows(batch, 200, 9000) for batch in (0, 1))
    total = partition.run(0, first, 0, keep=keep)
    waiting = dovetail.progress(tmp_path).pending_rows
    assert waiting > 50, "no row waits"
    partition.stage(2, "new", 8500)
    total += partition.run(1, second, 0, keep=keep)
    monkeypatch.setattr(enrich_course, "MAX_SLICE_MS", 1000)
    total += drain(partition, protocol, 2)
    wanted: dict[int, str | None] = {}
    for rows, text, keys in ((first, "old", 8000), (second, "new", 8500)):
        for key, number in protocol.numbered_keys(rows):
            wanted[number] = f"{text} {key}" if key < keys else None
    assert results_by_row(total) == wanted


@pytest.mark.parametrize(
    ("algorithm", "seed"), [("seek", 1), ("meshjoin", 2), ("ssbj", 3), ("inl", 4), ("meshjoin", 5)]
)
def test_lookup_history_when_tasks_die_and_the_table_changes_then_each_row_meets_one_version(
    protocol: ModuleType, at_point: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    algorithm: str, seed: int,
) -> None:  # fmt: skip
    """A version is deleted as soon as nothing committed refers to it."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(enrich_course, "MAX_SLICE_MS", 0)
    partition = protocol.LookupPartition(tmp_path, algorithm=algorithm)
    prepare(tmp_path, 1)
    doom: list[tuple[str, type[BaseException]]] = []
    fired: Counter[str] = Counter()

    def hook(name: str) -> None:
        if doom and doom[0][0] == name:
            fired[name] += 1
            raise doom.pop()[1](name)

    at_point(hook)
    total: Counter[str] = Counter()
    wanted: dict[int, str | None] = {}
    version, batches = 0, 14
    for batch in range(batches):
        if batch == 0 or rng.random() < 0.4:
            version += 1
            partition.stage(version, f"v{version}", 6000)
            keep = {f"v{version:06d}", f"v{max(1, version - 1):06d}"}
            refresh_module._delete_unused(tmp_path, keep, 1)
        rows = protocol.lookup_rows(batch, int(rng.integers(0, 120)), 6500)
        for key, number in protocol.numbered_keys(rows):
            wanted[number] = f"v{version} {key}" if key < 6000 else None
        seen: list[Counter[str]] = []
        while len(seen) < 1 + int(rng.random() < 0.3):
            doom[:] = [(str(rng.choice(POINTS)), Killed)] if rng.random() < 0.5 else []
            if rng.random() < 0.4:
                step_module._cached = None  # another worker
            try:
                seen.append(partition.run(batch, rows, int(rng.integers(99)), keep=True))
            except Killed:
                continue
        assert all(again == seen[0] for again in seen), f"seed {seed}: a replay emitted other rows"
        total += seen[0]
    doom.clear()
    monkeypatch.setattr(enrich_course, "MAX_SLICE_MS", 1000)
    total += drain(partition, protocol, batches)
    assert version > 2, f"seed {seed}: the table did not change"
    assert fired.total() > 2, f"seed {seed}: too few faults fired: {fired}"
    assert results_by_row(total) == wanted, f"seed {seed}, {algorithm}, faults {fired}"
    assert len(list((tmp_path / "table").glob("v*"))) <= 4


# -- as the state grows ---------------------------------------------------------------------


def test_step_when_four_times_as_many_came_before_then_commits_and_reads_no_more(
    protocol: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch meets itself alone, so that the results stay the same; the state does not."""
    monkeypatch.setattr(step_module, "_cached", None)
    partition = protocol.Partition(tmp_path)
    prepare(tmp_path, 1)
    directory = tmp_path / "p00000"
    total: Counter[str] = Counter()
    manifests, files = [], []
    batches, rows = 120, 100
    for batch in range(batches):
        numbers = batch * 1000 + np.arange(rows)
        texts = [f"{batch} {'x' * 60}"] * rows
        sides = (pa.table([numbers, numbers, texts], protocol.schema_of(s)) for s in SIDE_NAMES)
        total += partition.run(batch, tuple(sides), batch, keep=batch % 3 > 0)
        manifests.append((directory / f"v{batch:012d}").stat().st_size)
        files.append(len(list(directory.iterdir())))
    records = list(dovetail.progress(tmp_path).records())
    read = [record["bytes_read"] for record in records]
    catalogue = [record["memory"].get("catalogue", 0) for record in records]
    assert sum(record["flushed_bytes"] for record in records) > 20 * (70 << 10)
    for name, seen in [
        ("bytes of the manifest", manifests), ("files", files), ("bytes read", read),
        ("bytes of the catalogue", catalogue),
    ]:  # fmt: skip
        first, last = seen[batches // 8 : batches // 4], seen[-batches // 4 :]
        assert max(last) < 1.6 * max(first), f"{name}, batch by batch: {seen}"
    total += drain(partition, protocol, batches)
    assert len(total) == total.total() == batches * rows
