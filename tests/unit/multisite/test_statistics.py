"""Measured statistics against the truth, and a planner that acts on them."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.multisite.statistics import Sample, compare, matched
from dovetail.sites import (
    Algorithm,
    CostModel,
    LinkPrice,
    Plan,
    Planner,
    Prices,
    Query,
    Simulation,
    Step,
    Stream,
    TimeWindow,
)
from support.sites import counted, window_join


@pytest.mark.parametrize(("keys", "skew"), [(100, 0.0), (5_000, 0.0), (5_000, 0.5)])
def test_compare_when_samples_are_small_then_is_near_the_truth(keys: int, skew: float) -> None:
    rng = np.random.default_rng(keys)
    weights = 1.0 / np.arange(1, keys + 1) ** skew
    weights /= weights.sum()
    left = rng.permutation(keys)[rng.choice(keys, 20_000, p=weights)]
    right = keys // 3 + rng.integers(0, keys, 15_000)
    shared, selectivity = compare(Sample.of(left), Sample.of(right))
    distinct = np.unique(left), np.unique(right)
    assert Sample.of(left).distinct == pytest.approx(len(distinct[0]), rel=0.2)
    assert shared == pytest.approx(len(np.intersect1d(*distinct)), rel=0.25)
    matches = sum(int((right == key).sum()) * int((left == key).sum()) for key in distinct[0])
    assert selectivity == pytest.approx(matches / (20_000 * 15_000), rel=0.4)


def test_compare_when_nothing_is_shared_then_is_zero() -> None:
    assert compare(Sample.of(np.arange(1000)), Sample.of(np.arange(1000, 3000))) == (0, 0)


def zipf(rng: np.random.Generator, keys: int, rows: int, skew: float = 1.0) -> np.ndarray:
    weights = 1.0 / np.arange(1, keys + 1) ** skew
    return rng.choice(keys, rows, p=weights / weights.sum())


def test_matched_when_some_keys_are_frequent_then_is_the_share_of_rows() -> None:
    rng = np.random.default_rng(2)
    left, right = zipf(rng, 100, 3_000), zipf(rng, 60, 500)
    share = np.isin(left, right).mean()
    assert matched(Sample.of(left), Sample.of(right)) == pytest.approx(share)
    assert len(np.intersect1d(left, right)) / len(np.unique(left)) < share - 0.1
    left, right = zipf(rng, 3_000, 20_000, 0.5), zipf(rng, 3_000, 2_000, 0.5)
    assert Sample.of(left).reach < 1
    share = np.isin(left, right).mean()
    assert matched(Sample.of(left), Sample.of(right)) == pytest.approx(share, abs=0.15)


@pytest.mark.parametrize("algorithm", [Algorithm.SM_D1, Algorithm.SM_S1])
def test_model_when_some_keys_are_frequent_then_measured_shares_predict_the_bytes(
    algorithm: Algorithm,
) -> None:
    rng = np.random.default_rng(4)
    schema = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("pad", pa.binary(100))])
    streams = {
        name: pa.RecordBatch.from_arrays(
            [
                np.sort(rng.integers(0, 1500, 6000)),
                zipf(rng, 2_000, 6000),
                pa.array([b"x" * 100] * 6000, pa.binary(100)),
            ],
            schema=schema,
        )
        for name in "AB"
    }
    described = tuple(Stream(name, schema, TimeWindow(60)) for name in "AB")
    query = Query(described, (("A.k", "B.k"),), 10, 3)
    start = Plan(query, {"A": [Step("B", algorithm)]}, one_way=True)
    simulation = Simulation(start, lambda _: 3, statistics_every=50)
    planner = simulation.planner = Planner(start, simulation.network, Prices(), gain=1e9)
    sent = 0

    def log(message) -> None:
        nonlocal sent
        sent += message.nbytes * (message.header.receiver >= 0)

    simulation.network.log = log
    simulation.run(streams, 150)
    assert planner.statistics is not None
    predicted = CostModel(query, planner.statistics, Prices()).plan(start).nbytes * 1500
    assert predicted == pytest.approx(sent, rel=0.15)


def drifting(intervals: int) -> tuple[Query, dict[str, pa.RecordBatch]]:
    """Two streams; in the first half few rows of A match, in the second few rows of B come."""
    rng = np.random.default_rng(11)
    half = intervals * 5
    schema = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("pad", pa.binary(200))])
    shapes = {
        "A": [(40, range(200)), (800, range(5))],
        "B": [(800, range(195, 395)), (40, range(5))],
    }
    streams = {}
    for name, parts in shapes.items():
        times = [
            np.sort(rng.integers(i * half, (i + 1) * half, n)) for i, (n, _) in enumerate(parts)
        ]
        keys = [rng.choice(keys, n) for n, keys in parts]
        count = sum(n for n, _ in parts)
        streams[name] = pa.RecordBatch.from_arrays(
            [
                np.concatenate(times),
                np.concatenate(keys),
                pa.array([b"x" * 200] * count, pa.binary(200)),
            ],
            schema=schema,
        )
    described = tuple(Stream(name, schema, TimeWindow(40)) for name in "AB")
    return Query(described, (("A.k", "B.k"),), 10, 3), streams


def test_planner_when_streams_drift_then_changes_the_plan_and_saves_bytes() -> None:
    query, streams = drifting(40)
    prices = Prices(LinkPrice(latency=1, bandwidth=100))
    start = Plan(query, {"A": [Step("B", Algorithm.SP_S)], "B": [Step("A", Algorithm.SP_D)]})
    used = []
    for adapting in (False, True):
        simulation = Simulation(start, lambda _: 3, statistics_every=5 if adapting else 0)
        simulation.planner = Planner(start, simulation.network, prices)
        simulation.run(streams, 40)
        for interval, expected in window_join(query, streams, 40).items():
            assert counted(simulation.table(interval)) == expected
        used.append(simulation.network.total.nbytes)
        changes = simulation.planner.changes
    assert len(changes) >= 2
    assert changes[0][1].sequences != changes[-1][1].sequences
    assert used[1] < 0.7 * used[0]  # the statistics themselves included
