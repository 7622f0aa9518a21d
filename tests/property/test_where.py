"""Joins with a condition beside their keys: every operator emits the pairs that satisfy it, once.

The condition reads columns of both sides, also ones that are in no result. The oracle is a nested
loop whose pairs are asked one by one, in Python.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.kernel.predicates import Call, Column, Literal, bind
from dovetail.kernel.protocol import LEFT, RIGHT
from dovetail.twoway import ALGORITHMS
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.arrivals import Habits, random_script
from support.conformance import Relations, assert_exactly_once, run_script
from support.generators import Shape, join_spec, make_relations
from support.oracle import nested_loop

pytestmark = pytest.mark.fuzz

ROWS = st.integers(0, 130) | st.integers(90, 130)
HIDDEN = "__dovetail_where_0"
#: left_id % 3 = the right side's hidden number, or the left row is much newer, or it is unknown
CONDITION = Call(
    "or",
    (
        Call(
            "=",
            (
                Call("%", (Column(LEFT, "left_id"), Literal(3, pa.int64()))),
                Column(RIGHT, HIDDEN),
            ),
        ),
        Call(
            ">",
            (
                Column(LEFT, "left_id"),
                Call("+", (Column(RIGHT, "right_id"), Literal(60, pa.int64()))),
            ),
        ),
    ),
)


def is_true(left: int, right: int) -> bool:
    hidden = None if right % 5 == 4 else right % 3
    return left % 3 == hidden or left > right + 60


def with_hidden(relations: Relations) -> Relations:
    """A column more on the right, unknown for every fifth row."""
    left, right = relations
    numbers = np.arange(right.num_rows)
    hidden = pa.array(numbers % 3, mask=numbers % 5 == 4)
    return left, right.append_column(HIDDEN, hidden)


@pytest.mark.parametrize(
    ("algorithm", "within"),
    [(name, None) for name in ALGORITHMS]
    + [(name, 2) for name, kind in ALGORITHMS.items() if kind.joins_bands],
)
def test_join_when_pairs_have_to_satisfy_a_condition_then_emits_those_once(
    algorithm: str, within: int | None, tmp_path: Path
) -> None:
    seen = {"spilled": 0, "left out": 0, "found": 0}

    @given(
        seed=st.integers(0, 2**32),
        rows=st.tuples(ROWS, ROWS),
        domain=st.integers(1, 40),
        tight=st.sampled_from([True, True, False]),
    )
    def check(seed: int, rows: tuple[int, int], domain: int, tight: bool) -> None:
        rng = np.random.default_rng(seed)
        shape = Shape(0, ("int64",), "uniform", domain, 0.1, payload_bytes=600)
        relations = with_hidden(
            make_relations(rng, replace(shape, rows=rows[0]), replace(shape, rows=rows[1]))
        )
        spec = join_spec(relations, within)
        residual = bind(CONDITION, *spec.schemas)
        spec = replace(spec, residual=residual, hidden=(0, 1))
        budget = MIN_BUDGET_BYTES if tight and algorithm != "shj" else None
        script = random_script(rng, rows, Habits(6))
        where = tmp_path / str(rng.integers(1 << 62))
        outcome = run_script(algorithm, spec, relations, script, budget, where, label=f"{seed}")
        matching = nested_loop(spec, *relations)
        wanted = np.array([is_true(int(a), int(b)) for a, b in matching], dtype=np.bool_)
        assert HIDDEN not in outcome.table().schema.names
        assert_exactly_once(outcome, matching[wanted])
        seen["spilled"] += outcome.flushed_rows > 0
        seen["left out"] += int((~wanted).sum())
        seen["found"] += int(wanted.sum())

    check()
    assert seen["found"], seen
    assert seen["left out"], seen
    assert seen["spilled"] or algorithm == "shj", seen
