"""Intervals that wait for rows on their way: after a restart, and after back-pressure."""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import SiteUnavailableError
from dovetail.multisite.live import driver as driver_module
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.holds import GRACE_SECONDS, Holds
from dovetail.multisite.live.limits import Limits
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64())])
TAU = 10


def query(tau: int = TAU) -> Query:
    streams = tuple(Stream(name, SCHEMA, TimeWindow(100), site="here") for name in "AB")
    return Query(streams, (("A.k", "B.k"),), tau, 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_hold_when_all_producers_are_beyond_an_interval_then_it_may_end() -> None:
    holds = Holds(query(), Clock())
    assert holds.may_end("A", 3, {}, 35)
    holds.begin("A", ["p", "q"], 62)
    assert holds.may_end("B", 3, {}, 62)
    newest = {"p": 30, "q": 29}
    assert not holds.may_end("A", 3, newest, 62)
    newest["q"] = 30
    assert holds.may_end("A", 3, newest, 63)
    assert not holds.may_end("A", 4, newest, 63)
    newest |= {"p": 64, "q": 61}  # of the time before the hold: more may be on its way
    assert not holds.may_end("A", 7, newest, 70)
    newest["q"] = 65
    assert holds.may_end("A", 7, newest, 74)
    assert holds.may_end("A", 8, newest, 90)  # both have caught up: the clock alone counts


def test_hold_when_nobody_has_come_yet_then_waits_for_the_first_who_does() -> None:
    holds = Holds(query(), Clock())
    holds.begin("A", [], 62)
    assert not holds.may_end("A", 3, {}, 62)
    assert not holds.may_end("A", 3, {"p": 29}, 63)
    assert holds.may_end("A", 3, {"p": 30}, 64)
    assert holds.may_end("A", 7, {"p": 66}, 70)


def test_hold_when_a_producer_does_not_come_nearer_then_lasts_for_a_while_only() -> None:
    clock = Clock()
    holds = Holds(query(), clock)
    holds.begin("A", ["p", "gone"], 1000)
    newest = {"p": 100, "gone": 50}
    for step in range(5):  # it catches up
        clock.now += 0.9 * GRACE_SECONDS
        newest["p"] = 200 + 150 * step
        assert not holds.may_end("A", 60, newest, 1010 + 100 * step)
    for _ in range(2):  # always as late as this
        clock.now += 0.6 * GRACE_SECONDS
        newest["p"] += 100
        last = holds.may_end("A", 60, newest, newest["p"] + 700)
    assert last


class Wall:
    """In place of the module `time`: a wall clock that is set by hand, in milliseconds."""

    monotonic = staticmethod(time.monotonic)
    now = 1_000_050

    def time_ns(self) -> int:
        return self.now * 1_000_000


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(driver_module, "time", wall)
    return wall


def started(folder: Path, **limits: int) -> Driver:
    """A host of both streams; interval 10,001 is under way."""
    steps = {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_D)]}
    addresses = {"here": "grpc://127.0.0.1:1"}
    deployment = Deployment("q", Plan(query(100), steps), addresses, first_interval=10_001)
    driver = Driver(deployment, "here", folder, Limits(durable=False, **limits))
    driver.start()
    return driver


def put(driver: Driver, batch: int, at: int, seconds: float = 5, rows: int = 1) -> int:
    """Rows of stream A; how many were late in all."""
    batch_rows = pa.record_batch({"ts": [at] * rows, "k": [1] * rows})
    facts: dict[str, Any] = {"producer": "p", "batch": batch, "part": 0}
    return driver.put("A", batch_rows, facts, seconds)[1]


def pass_by(driver: Driver) -> None:
    """Until it has done what it does at this time."""
    for _ in range(2):
        driver.wake()
        driver.put("B", None, {}, 5)


def ticked(driver: Driver) -> int:
    pass_by(driver)
    return int(driver.status()["streams"]["A"]["ticked"])


def test_driver_when_started_again_then_takes_rows_of_intervals_that_ended_meanwhile(
    tmp_path: Path, wall: Wall
) -> None:
    driver = started(tmp_path)
    assert put(driver, 0, 1_000_060) == 0
    driver.stop()
    wall.now += 350
    again = started(tmp_path)
    assert ticked(again) == 10_000
    for batch in (1, 2, 3):
        assert put(again, batch, 1_000_000 + 90 * batch) == 0
    assert ticked(again) == 10_002
    assert put(again, 4, wall.now) == 0
    assert ticked(again) == 10_004
    assert put(again, 5, 1_000_060) == 1  # it is counted, and whoever sent it hears of it
    assert again.status()["streams"]["A"]["late"] == 1
    again.stop()


def test_driver_when_rows_had_to_wait_for_room_then_their_intervals_wait_for_them(
    tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = started(tmp_path, input_bytes=1000)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_halted", lambda: True)
        assert put(driver, 0, 1_000_060, rows=100) == 0
        wall.now += 250
        with pytest.raises(SiteUnavailableError, match="is behind"):
            put(driver, 1, 1_000_070, seconds=0.1)
    assert ticked(driver) == 10_000
    # of the interval whose rows fill the input: it cannot end without these, so they are let in
    assert put(driver, 1, 1_000_070) == 0
    assert put(driver, 2, 1_000_170) == 0
    assert ticked(driver) == 10_001
    assert driver.status()["streams"]["A"]["late"] == 0
    driver.stop()
