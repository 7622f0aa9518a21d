"""Intervals that wait for rows on their way: after a restart, and after back-pressure."""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import SiteUnavailableError
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow
from dovetail.sites.live.deployment import Deployment
from dovetail.sites.live.driver import Driver
from dovetail.sites.live.holds import GRACE_SECONDS, Holds
from dovetail.sites.live.limits import Limits

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


def deployed(tau: int) -> Deployment:
    steps = {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_D)]}
    now = time.time_ns() // 1_000_000
    return Deployment(
        "q", Plan(query(tau), steps), {"here": "grpc://127.0.0.1:1"}, first_interval=now // tau + 1
    )


def put(driver: Driver, batch: int, at: int, seconds: float = 5, rows: int = 1) -> int:
    """Rows of stream A; how many were late in all."""
    batch_rows = pa.record_batch({"ts": [at] * rows, "k": [1] * rows})
    facts: dict[str, Any] = {"producer": "p", "batch": batch, "part": 0}
    return driver.put("A", batch_rows, facts, seconds)[1]


def test_driver_when_started_again_then_takes_rows_of_intervals_that_ended_meanwhile(
    tmp_path: Path,
) -> None:
    deployment = deployed(tau=100)
    first = 100 * deployment.first_interval
    driver = Driver(deployment, "here", tmp_path, Limits(durable=False))
    driver.start()
    assert put(driver, 0, first) == 0
    driver.stop()
    time.sleep(0.35)
    again = Driver(deployment, "here", tmp_path, Limits(durable=False))
    again.start()
    time.sleep(0.1)  # rounds by the clock
    for batch in (1, 2, 3):
        assert put(again, batch, first + 90 * batch) == 0
    now = time.time_ns() // 1_000_000
    assert put(again, 4, now) == 0
    while again.status()["streams"]["A"]["ticked"] < now // 100:
        time.sleep(0.01)
    assert put(again, 5, first) == 1  # it is counted, and whoever sent it hears of it
    assert again.status()["streams"]["A"]["late"] == 1
    again.stop()


def test_driver_when_rows_had_to_wait_for_room_then_their_intervals_wait_for_them(
    tmp_path: Path,
) -> None:
    deployment = deployed(tau=100)
    first = 100 * deployment.first_interval
    driver = Driver(deployment, "here", tmp_path, Limits(durable=False, input_bytes=1000))
    driver.start()
    driver._halted = lambda: True  # type: ignore[method-assign]
    assert put(driver, 0, first, rows=100) == 0
    time.sleep(0.25)
    with pytest.raises(SiteUnavailableError, match="is behind"):
        put(driver, 1, first + 110, seconds=0.1)
    del driver._halted  # type: ignore[method-assign]
    driver.wake()
    time.sleep(0.1)
    # of the interval whose rows fill the input: it cannot end without these, so they are let in
    assert put(driver, 1, first + 10) == 0
    assert put(driver, 2, first + 110) == 0
    assert driver.status()["streams"]["A"]["late"] == 0
    driver.stop()
