"""Joins of which nothing but the snapshot is left after each piece of work, however small it is."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from dovetail.multiway import MIN_BYTES_PER_INPUT, multiway_spec
from dovetail.multiway.base import MultiWayJoin
from dovetail.multiway.relation_blocks import RANGE_BYTES
from support.arrivals import Finish, Poll, Push, Restore
from support.multiway import Outcome, Relation, Trial, combinations

GRAPHS = {
    "two inputs": [("r0.k0", "r1.k0")],
    "chain": [("r0.k0", "r1.k0"), ("r1.k1", "r2.k0")],
    "star": [("r0.k0", "r1.k0"), ("r0.k1", "r2.k0"), ("r0.k2", "r3.k0")],
    "one attribute": [("r0.k0", "r1.k0"), ("r1.k0", "r2.k0")],
}


def run(algorithm: str, graph: str, directory: Path) -> Outcome:
    """A join of many blocks in the least memory, all of whose deferred work is Cleanup's."""
    on = GRAPHS[graph]
    rng = np.random.default_rng(1)
    keys = {"r0": ["k0", "k1", "k2"], "r1": ["k0", "k1"], "r2": ["k0"], "r3": ["k0"]}
    inputs = sorted({end.split(".")[0] for edge in on for end in edge})
    rows = {"r0": 20, "r1": 20, "r2": 16, "r3": 12}
    relations = [
        Relation(rows[name], dict.fromkeys(keys[name], "int64"), domain=14, text_bytes=4_000)
        .make(rng)
        for name in inputs
    ]  # fmt: skip
    schemas = {name: rows.schema for name, rows in zip(inputs, relations, strict=True)}
    spec = multiway_spec(schemas, on)
    budget = MIN_BYTES_PER_INPUT * len(spec)
    trial = Trial(algorithm, spec, relations, [Push(0, 2)], budget, label=graph, forgetful=True)
    outcome = trial.run(directory)
    outcome.assert_exactly_once(combinations(spec, relations))
    return outcome


@pytest.mark.parametrize(
    ("algorithm", "graph"),
    # without reductions, a poll for each combination of blocks
    [*itertools.product(("miner", "mjoin"), GRAPHS), ("miner-paper", "two inputs")],
)
def test_cleanup_when_restored_after_every_poll_then_comes_to_an_end(
    algorithm: str, graph: str, tmp_path: Path
) -> None:
    outcome = run(algorithm, graph, tmp_path / "state")
    assert outcome.flushed_rows > 20
    assert outcome.rows_out["cleanup"] > 0
    assert outcome.events["interrupted cleanups"] > 3


def test_cleanup_when_inputs_re_open_many_times_then_what_is_kept_does_not_grow(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(3)
    relations = [
        Relation(40, dict.fromkeys(keys, "int64"), domain=12, text_bytes=2_000).make(rng)
        for keys in (("k0",), ("k0", "k1"), ("k0",))
    ]
    schemas = {f"r{i}": rows.schema for i, rows in enumerate(relations)}
    spec = multiway_spec(schemas, [("r0.k0", "r1.k0"), ("r1.k1", "r2.k0")])
    cycle = [*(Push(side, 2) for side in range(3)), *map(Finish, range(3)), Poll(1 << 30)]
    script = [step for number in range(20) for step in (*cycle, *[Restore()] * (number % 2))]
    ranges: list[int] = []

    def look(join: MultiWayJoin) -> None:
        ranges.append(max(len(blocks.departures) for c in join.cells for blocks in c.relations))
        assert join._catalogue.nbytes >= join.pages.nbytes + RANGE_BYTES * ranges[-1]

    trial = Trial("miner", spec, relations, script, MIN_BYTES_PER_INPUT * 3, look=look)
    outcome = trial.run(tmp_path / "state")
    outcome.assert_exactly_once(combinations(spec, relations))
    assert outcome.events["reopenings"] > 50
    assert outcome.rows_out["cleanup"] > 0
    assert ranges[-1] > 0
    assert max(ranges) <= 4
