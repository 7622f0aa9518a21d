"""No tuple is shipped twice while a plan holds: the non-redundant semijoin (Sect. 3.2.1)."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.multisite.copies import Outlet
from dovetail.multisite.windows import Window
from dovetail.sites import (
    PAPER,
    Algorithm,
    CountWindow,
    Plan,
    Query,
    Simulation,
    Step,
    Stream,
    TimeWindow,
    topology,
)
from support.shipping import Shipped
from support.sites import counted, window_join

INTERVALS, ROWS = 12, 60
SCHEMA = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("id", pa.int64())])
COPYING = [Algorithm.SP_S, Algorithm.SM_S1, Algorithm.SM_S2]


def run(
    algorithm: Algorithm, names: str, window: Window, other: Algorithm | None = None
) -> Shipped:
    """All steps by one algorithm, or every second by another; few keys, so each is met often."""
    rng = np.random.default_rng(4)
    streams = tuple(Stream(name, SCHEMA, window) for name in names)
    query = Query(streams, tuple(topology("full", names, ["a"])), 10, 6)
    steps = {
        head: [
            Step(name, other if other and index % 2 else algorithm)
            for index, name in enumerate(n for n in names if n != head)
        ]
        for head in names
    }
    rows = {
        name: pa.record_batch(
            {
                "ts": np.sort(rng.integers(0, 10 * INTERVALS, ROWS)),
                "a": rng.integers(0, 12, ROWS),
                "id": np.arange(ROWS),
            },
            schema=SCHEMA,
        )
        for name in names
    }
    shipped = Shipped()
    simulation = Simulation(Plan(query, steps), lambda _: int(rng.integers(0, 7)))
    simulation.network.log = shipped.take
    simulation.run(rows, INTERVALS)
    for interval, expected in window_join(query, rows, INTERVALS).items():
        assert counted(simulation.table(interval)) == expected
    return shipped


@pytest.mark.parametrize("window", [TimeWindow(45), CountWindow(20)], ids=["time", "count"])
@pytest.mark.parametrize("names", ["AB", "ABC"])
@pytest.mark.parametrize("algorithm", PAPER)
def test_rows_when_a_plan_holds_then_go_over_each_link_once(
    algorithm: Algorithm, names: str, window: Window
) -> None:
    shipped = run(algorithm, names, window)
    assert shipped.rows == shipped.times.total() > ROWS // 2
    assert set(shipped.times.values()) == {1}
    if names == "AB":  # each row is wanted by rows of several intervals, and goes at most once
        assert shipped.rows <= 2 * ROWS
        assert (shipped.rows == 2 * ROWS) == (algorithm in (Algorithm.SP_S, Algorithm.SP_D))


@pytest.mark.parametrize("other", [a for a in PAPER if not a.at_source])
@pytest.mark.parametrize("algorithm", COPYING)
def test_rows_when_steps_want_them_for_copies_and_for_probes_then_go_over_each_link_once(
    algorithm: Algorithm, other: Algorithm
) -> None:
    shipped = run(algorithm, "ABC", TimeWindow(45), other)
    assert set(shipped.times.values()) == {1}


@pytest.mark.parametrize("algorithm", [Algorithm.SM_S1, Algorithm.SM_S2])
def test_shipped_when_rows_are_not_marked_as_sent_then_notices(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Outlet._send

    def forgetful(self: Outlet, numbers: object) -> object:
        self._sent[:] = False
        return send(self, numbers)  # type: ignore[arg-type]

    monkeypatch.setattr(Outlet, "_send", forgetful)
    with pytest.raises(AssertionError, match="sent twice"):
        run(algorithm, "AB", TimeWindow(45))
