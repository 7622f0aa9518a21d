"""The pieces that every operator is given."""

from pathlib import Path

import pyarrow as pa

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Counters, LogicalClock, Operator
from dovetail.twoway import ALGORITHMS


def test_clock_when_ticked_then_counts_from_where_it_was() -> None:
    clock = LogicalClock(41)
    assert (clock.tick(), clock.tick(), clock.now) == (42, 43, 43)


def test_counters_when_rows_are_emitted_then_adds_them_up_by_phase() -> None:
    counters = Counters()
    for phase, rows in [("arriving", 3), ("cleanup", 2), ("arriving", 4)]:
        counters.emit(phase, rows)
    assert counters.rows_out == {"arriving": 7, "cleanup": 2}
    assert Counters().rows_in is not Counters().rows_in


def test_context_when_made_then_the_store_counts_for_it(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, (pa.schema([]),), "one")
    context = Context(Budget(None), store)
    assert store.counters is context.counters


def test_algorithms_when_listed_then_offer_the_whole_protocol() -> None:
    wanted = [name for name in vars(Operator) if not name.startswith("_")]
    assert {"push", "poll", "finish", "snapshot", "check"} <= set(wanted)
    for name, kind in ALGORITHMS.items():
        assert kind.name == name
        assert [method for method in wanted if not callable(getattr(kind, method, None))] == []
