"""What SSBJ's inequality gives in the paper's bytes."""

import numpy as np
import pytest

from dovetail.bench.semistream_runs import FACTORS, Law, with_repetition
from dovetail.bench.ssbj_paper import NODE_BYTES, analytic, expected_ratio, theory
from dovetail.costs.meshjoin import Workload
from dovetail.costs.ssbj import SsbjModel, Stream
from dovetail.costs.storage import DISK_7200

ROWS = 50_000


@pytest.mark.parametrize("memory", [0.01, 0.1])
@pytest.mark.parametrize("key_bytes", [0, 8])
def test_expected_ratio_when_beside_the_cost_model_then_is_the_same(
    memory: float, key_bytes: int
) -> None:
    """The model goes through the values one by one; here they are counted by rank and matches."""
    law, matches = Law(ROWS, 1.0, seed=1), with_repetition(ROWS, seed=1)
    workload = Workload(ROWS, 120, 4096, 20, pointer_bytes=NODE_BYTES)
    stream = Stream.of(law.probability, matches)
    model = SsbjModel(workload, FACTORS, DISK_7200, stream, 1.0, key_bytes)
    room = memory * 120 * ROWS
    window = expected_ratio(ROWS, memory, key_bytes) * room / (20 + NODE_BYTES)
    cached = model.is_cached(window)
    cache = np.where(matches > 0, 120 * matches, key_bytes)[cached].sum()
    waiting = window * law.probability[~cached].sum() * (20 + NODE_BYTES)
    assert cache + waiting == pytest.approx(room, rel=0.05)


def test_expected_ratio_when_the_table_is_the_papers_then_is_near_what_it_reports() -> None:
    assert expected_ratio(100_000_000, 0.10) == pytest.approx(6.3, abs=0.05)
    assert expected_ratio(100_000_000, 0.01) == pytest.approx(4.0, abs=0.05)


def test_theory_when_it_is_told_then_has_the_figures_of_this_size() -> None:
    assert "4 at 1 % and 6.3 at 10 % for its 100 million rows" in theory(200_000)
    assert "2.7 and 4.2 for 200,000 rows" in theory(200_000)
    told = analytic(200_000)["200,000 rows, entries free"]
    assert told["memory=10%"] == pytest.approx(expected_ratio(200_000, 0.10), rel=1e-3)
