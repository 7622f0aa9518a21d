"""The clock ticks while work is pending, and only then; its offsets are in test_newest.py."""

import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.errors import StorageError
from dovetail.spark.endings import SILENT_STEPS, Silence
from dovetail.spark.jobs.course import Course, Leg, Loaded
from dovetail.spark.layout import CLOCK, LAST_ROWS
from dovetail.spark.sources.clock import ClockReader
from dovetail.spark.state.newest import Newest


def test_clock_reader_when_query_begins_then_prepares_the_state_once(tmp_path: Path) -> None:
    ClockReader(tmp_path / "state", 2).initialOffset()
    latest = [tmp_path / "state" / name / "latest" for name in ("p00000", "p00001")]
    assert [path.read_text() for path in latest] == ["-1", "-1"]
    latest[0].write_text("12")
    ClockReader(tmp_path / "state", 2).initialOffset()
    assert [path.read_text() for path in latest] == ["12", "-1"]


def test_clock_reader_when_state_cannot_be_made_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        ClockReader(tmp_path / "file", 1).initialOffset()


# -- in a query -----------------------------------------------------------------------------


def quiet_for(query: Any, seconds: float) -> int:
    """How many more micro-batches ran in a while."""
    before = query.lastProgress["batchId"]
    query.awaitTermination(seconds)
    assert query.exception() is None
    return query.lastProgress["batchId"] - before


@pytest.mark.spark
@pytest.mark.parametrize("trigger", [{}, {"processingTime": "200 milliseconds"}])
def test_stream_when_silent_then_works_off_what_is_pending_and_comes_to_rest(
    bench: Any, trigger: dict[str, str]
) -> None:
    seed = 5
    rng = np.random.default_rng(seed)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 150, 1500), files=1)
    with bench.running(bench.join(memory="200KB", slice_ms=20), **trigger) as query:
        for more in (True, False):  # comes to rest again after more rows
            query.processAllAvailable()
            progress = bench.progress()
            assert progress.pending_rows == 0
            assert progress.spilled_bytes > 0
            assert progress.rows_out.get("cleanup", 0) > 0
            assert quiet_for(query, 2.5) == 0, "micro-batches ran although nothing was pending"
            bench.check(f"silent stream, {trigger}, seed {seed}")
            if more:
                for side in ("left", "right"):
                    bench.keyed(side, rng.integers(0, 150, 400), files=1)
        ticks = [record for record in progress.records() if not any(record["rows_in"])]
        assert ticks, "no step worked while the stream was silent"


@pytest.mark.spark
def test_ticks_when_slices_are_short_then_are_several_and_wake_only_who_has_work(
    bench: Any,
) -> None:
    """One partition has all the rows; ticks leave the other one alone."""
    for side in ("left", "right"):
        bench.keyed(side, np.full(260, 3), text=400, files=1)
    bench.run(bench.join(memory="200KB", slice_ms=1))
    records = list(bench.progress().records())
    ticks = [record for record in records if not any(record["rows_in"])]
    assert len(ticks) > 1, records
    assert {record["partition"] for record in ticks} == {records[0]["partition"]}
    assert ticks[-1]["pending"] == 0
    bench.check("one busy partition")


LONG = [(0, []), (1, []), (2, []), (3, [0, 1]), (9, [0, 1])]
LAST = [(0, []), (1, []), (2, [0, 1])]


@pytest.mark.parametrize(
    ("last_rows", "silent", "ended"),
    [*((False, *case) for case in LONG), *((True, *case) for case in LAST)],
)
def test_step_when_silence_lasts_then_inputs_count_as_ended(
    last_rows: bool, silent: int, ended: list[int]
) -> None:
    """Cleanup is not to wait until the Reactive phase has let every block meet every other."""
    finished: list[int] = []
    operator = SimpleNamespace(finish=finished.append)
    spec: Any = SimpleNamespace(slice_ms=250, inputs=("", ""))
    course = Course(spec, Leg.__new__(Leg), Loaded(operator, ExitStack()))  # type: ignore[arg-type]
    course.last_rows = last_rows
    course.work_off = lambda _: None  # type: ignore[method-assign]
    course.defer(Silence(silent, ((0, 0), (0, 0))))
    assert finished == ended


@pytest.mark.parametrize(("available_now", "tag"), [(True, LAST_ROWS), (False, CLOCK)])
def test_tick_when_the_query_is_an_available_now_one_then_tells(
    tmp_path: Path, available_now: bool, tag: int
) -> None:
    reader = ClockReader(tmp_path, 1)
    reader._newest = lambda: [Newest(version=3, parent=2, pending=5)]
    if available_now:
        reader.prepareForTriggerAvailableNow()
    start = {"tick": 3, "wake": [], "known": [2]}
    end = reader.latestOffset(start, None)
    (wake,) = reader.partitions(start, json.loads(json.dumps(end)))
    assert list(reader.read(wake)) == [(0, tag == LAST_ROWS)]


def test_input_when_others_bring_rows_without_it_then_counts_as_ended_until_its_next() -> None:
    silence, so_far = Silence().among(2), 0
    for rows in [(10, 10), (10, 10), *[(10, 0)] * (SILENT_STEPS - 1)]:
        silence, so_far = silence.then(rows), so_far + sum(rows)
        assert silence.fallen_silent(so_far) == []
    silence = silence.then((10, 0))
    assert silence.fallen_silent(so_far + 10) == [1]
    assert silence.fallen_silent(10_000) == [], "these were few of all the rows"
    restored = Silence.of(json.loads(json.dumps(silence.facts())))
    assert restored == silence
    assert restored.then((0, 0)).fallen_silent(so_far + 10) == [1], "nobody spoke"
    assert restored.then((0, 1)).fallen_silent(so_far + 11) == []
