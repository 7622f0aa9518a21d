"""The inputs of `spark-multi-way`, and what its contenders are given."""

import numpy as np
import pytest

from dovetail_bench import registry
from dovetail_bench.spark.multi_way import NAME, SHAPES, jobs_for, make_inputs


@pytest.mark.parametrize("shape", SHAPES)
def test_inputs_when_made_then_have_the_results_they_say(shape: str) -> None:
    count, chain = SHAPES[shape]
    inputs = make_inputs(np.random.default_rng(3), 60, count, chain=chain)
    names = list(inputs.tables)
    ending = dict.fromkeys(range(60), 1)  # results that end in each row of an input
    for one, two, column in zip(names, names[1:], inputs.columns, strict=False):
        here, there = (inputs.tables[name][column].to_pylist() for name in (one, two))
        ending = {
            row: sum(ending[other] for other, value in enumerate(here) if value == key)
            for row, key in enumerate(there)
        }
    assert inputs.results == sum(ending.values()) > 0
    assert len({column for pair in inputs.on for column in pair}) == (
        2 * (count - 1) if chain else count
    )


def test_jobs_when_made_then_every_budget_has_a_cascade_beside_it() -> None:
    inputs = make_inputs(np.random.default_rng(3), 60, 3, chain=True)
    names = [job.name for job in jobs_for(inputs)]
    assert sorted(names) == sorted(
        ["rocksdb", "inheap", "unbounded", "20%", "cascade unbounded", "cascade 20%"]
    )
    assert NAME in registry.benchmarks()
