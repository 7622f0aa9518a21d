"""Joins of which nothing but the snapshot is left after each piece of work, however small it is."""

from typing import Any

import numpy as np
import pytest

from dovetail.kernel.protocol import Status
from dovetail.twoway import ALGORITHMS
from dovetail.twoway.base import MIN_BUDGET_BYTES


@pytest.mark.parametrize("phase", ["reactive", "cleanup"])
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"shj"}))  # which puts nothing off
def test_deferred_work_when_restored_after_every_poll_then_comes_to_an_end(
    algorithm: str, phase: str, make_bench: Any
) -> None:
    rng = np.random.default_rng(1)
    bench = make_bench(algorithm, budget=MIN_BUDGET_BYTES, payload_bytes=1_500)
    for _ in range(10):
        for side in (0, 1):
            bench.push(side, rng.integers(0, 15, 4).tolist())
    assert bench.operator.pending()
    if phase == "cleanup":
        bench.finish()
    polls, working = 0, True
    while working:
        bench.poll(1)
        working = bench.operator.status() is Status.MORE
        bench.restore()
        polls += 1
        assert polls < 300, "the work never ends"
    bench.complete()
    bench.assert_each_pair_once()
    assert polls > 3 or phase == "reactive", "which some leave to the end"
