"""Totals over the steps of a partition."""

import json

from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Counters
from dovetail.spark.state.totals import Totals, own_rows


def test_totals_when_steps_are_added_then_sum_up_and_peaks_stay() -> None:
    first = Counters(rows_in=[3, 4], rows_out={"arriving": 5}, flushed_rows=2, flushed_bytes=20)
    second = Counters(rows_in=[1, 0], rows_out={"arriving": 1, "cleanup": 9}, bytes_read=7)
    budget = Budget(100)
    budget.reserve("rows", 60)
    start = Totals()
    one = start.after(first, budget, 0.5)
    budget.release("rows", 50)
    budget.reset_peaks()
    two = one.after(second, budget, 0.25)
    assert start == Totals(), "the totals before a step are left as they were"
    assert two.rows_in == (4, 4)
    assert two.rows_out == {"arriving": 6, "cleanup": 9}
    assert (two.flushed_rows, two.flushed_bytes, two.bytes_read) == (2, 20, 7)
    assert (two.steps, two.seconds) == (2, 0.75)
    assert two.memory_peak == {"rows": 60, "total": 60}


def test_own_rows_when_copies_were_counted_then_are_left_out() -> None:
    came = Counters(rows_in=[30, 40, 50])
    totals = Totals().after(came, Budget(None), 0.5, copies=[0, 15, 25])
    totals = totals.after(came, Budget(None), 0.5, copies=[0, 20, 25])
    assert totals.own_rows == [60, 45, 50]
    assert totals.rows_in == (60, 80, 100)
    facts = totals.facts()
    assert Totals.of(json.loads(json.dumps(facts))) == totals
    del facts["copies"]
    assert own_rows(facts) == [60, 80, 100]
    old = Totals.of(facts)
    assert old.own_rows == [60, 80, 100], "an older version does not tell copies apart"
    after = old.after(came, Budget(None), 0.5, copies=[0, 20, 25])
    assert after.own_rows == [90, 100, 125]
