"""What SSBJ's inequality gives in the paper's bytes."""

import math

import numpy as np
import pytest

from dovetail.costs.meshjoin import Workload
from dovetail.costs.ssbj import SsbjModel, Stream
from dovetail.costs.storage import DISK_7200
from dovetail_bench.semistream.relation import Law, with_repetition
from dovetail_bench.semistream.runs import FACTORS
from dovetail_bench.ssbj.theory import (
    ROW_BYTES,
    analytic,
    balance,
    balance_in,
    rows_for,
    rows_in_a_scan,
    theory,
)

ROWS = 50_000
PAPER = 100_000_000


@pytest.mark.parametrize("memory", [0.01, 0.1])
@pytest.mark.parametrize("key_bytes", [0, 8])
def test_balance_when_beside_the_cost_model_then_is_the_same(memory: float, key_bytes: int) -> None:
    """The model goes through the values one by one; here they are counted by rank and matches."""
    law, matches = Law(ROWS, 1.0, seed=1), with_repetition(ROWS, seed=1)
    workload = Workload(ROWS, 120, 4096, 20, pointer_bytes=4)
    stream = Stream.of(law.probability, matches)
    model = SsbjModel(workload, FACTORS, DISK_7200, stream, 1.0, key_bytes)
    found = balance_in(memory, ROWS, key_bytes)
    cached = model.is_cached(found.rows)
    cache = np.where(matches > 0, 120 * matches, key_bytes)[cached].sum()
    waiting = found.rows * law.probability[~cached].sum() * ROW_BYTES
    assert cache + waiting == pytest.approx(memory * 120 * ROWS, rel=0.05)
    assert law.probability[cached].sum() == pytest.approx(found.settled, abs=0.03)


def by_rank(window: float, rows: int, domain: int) -> tuple[float, float]:
    """Bytes, and the share that waits: every value by itself, with what it is to be expected."""
    ranks = np.arange(1, domain + 1, dtype=np.float64)
    chance = 1 / ranks
    chance /= chance.sum()
    mean = rows / domain
    cost, settled = np.zeros(domain), np.zeros(domain)
    for m in range(12):
        share = math.exp(-mean) * mean**m / math.factorial(m)
        cached = 20 * window * chance > 120 * m
        cost += share * np.where(cached, 120 * m, ROW_BYTES * window * chance)
        settled += share * np.where(cached, chance, 0)
    return float(cost.sum()), float(1 - settled.sum())


@pytest.mark.parametrize("domain", [1.0, 2.0])
@pytest.mark.parametrize("window", [0.1, 3.0])
def test_balance_when_values_are_added_up_one_by_one_then_is_the_same(
    domain: float, window: float
) -> None:
    nbytes, waits = by_rank(window * ROWS, ROWS, round(domain * ROWS))
    found = balance(ROWS, window * ROWS, domain=domain)
    assert found.nbytes == pytest.approx(nbytes, rel=0.02)
    assert found.most == pytest.approx(1 / waits, rel=0.02)


def test_balance_when_the_table_is_the_papers_then_is_near_what_it_reports() -> None:
    few, many = (balance_in(memory, PAPER) for memory in (0.01, 0.10))
    assert (few.ratio, many.ratio) == pytest.approx((4.0, 6.3), abs=0.05)
    assert (few.most, many.most) == pytest.approx((4.5, 7.6), abs=0.05)
    few, many = (balance_in(memory, PAPER, domain=2.0) for memory in (0.01, 0.10))
    assert (few.ratio, many.ratio) == pytest.approx((6.6, 10.4), abs=0.05)


def test_rows_for_a_ratio_when_it_is_7_then_are_7_times_the_table() -> None:
    assert rows_for(7.0, 20_000_000) == pytest.approx(6.7, abs=0.1)
    few, more = rows_in_a_scan()
    assert (few, more) == pytest.approx((0.04, 0.08), abs=0.005)
    assert balance(20_000_000, few * 20_000_000).ratio == pytest.approx(3.0, abs=0.06)
    assert balance(20_000_000, more * 20_000_000).ratio == pytest.approx(3.3, abs=0.06)


def test_theory_when_it_is_told_then_has_the_figures_of_this_size() -> None:
    told = theory(200_000)
    assert "4.0 times at 1% and 6.3 times at 10% for its 100 million" in told["by the inequality"]
    assert "2.7 times at 1% and 4.2 times at 10% for 200,000 rows" in told["by the inequality"]
    assert "4.5 times at 1% and 7.6 times at 10%" in told["by equations (2) and (3)"]
    assert "1.6 to 2.2 times" in told["Fig. 5f"]
    assert "6.7 stream rows for each table row" in told["Fig. 4"]
    assert "4% to 8% of the table come, which gives 3.0 to 3.3" in told["Fig. 4"]
    found = analytic(200_000)["200,000 rows, entries free"]
    assert found["memory=10%"] == pytest.approx(balance_in(0.10, 200_000).ratio, rel=1e-3)
