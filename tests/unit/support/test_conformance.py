"""The conformance suite itself: it passes what is right and names what is wrong."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.twoway import ALGORITHMS
from support.arrivals import Crash, Finish, Poll, Push, Restore, Save, Step
from support.conformance import (
    Outcome,
    assert_exactly_once,
    assert_part_of,
    identical,
    run_script,
)
from support.generators import Shape, join_spec, make_relations
from support.oracle import Pairs, nested_loop

SCRIPT: list[Step] = [
    Push(0, 10), Save(), Push(1, 10), Crash(), Push(1, 5), Restore(), Push(1, 30), Finish(0),
    Poll(10), Push(0, 30), Finish(0), Finish(1), Poll(10), Crash(), Poll(10),
]  # fmt: skip


@pytest.fixture
def outcome_and_answer(tmp_path: Path) -> tuple[Outcome, Pairs]:
    shape = Shape(30, ("float64",), domain=12)
    relations = make_relations(np.random.default_rng(0), shape, shape)
    spec = join_spec(relations)
    outcome = run_script("shj", spec, relations, SCRIPT, None, tmp_path / "run", label="seed 0")
    return outcome, nested_loop(spec, *relations)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_run_script_when_inputs_crash_and_re_open_then_counts_what_happened(
    algorithm: str, tmp_path: Path
) -> None:
    shape = Shape(30, ("int64",), domain=12)
    relations = make_relations(np.random.default_rng(0), shape, shape)
    spec = join_spec(relations)
    outcome = run_script(algorithm, spec, relations, SCRIPT, 1 << 20, tmp_path / "run")
    assert_exactly_once(outcome, nested_loop(spec, *relations))
    assert (outcome.events["crashes"], outcome.events["restores"]) == (2, 1)
    assert outcome.events["reopenings"] > 0
    assert sum(outcome.rows_out.values()) == outcome.table().num_rows
    assert not (tmp_path / "run").exists()


def test_assertion_when_a_pair_is_missing_then_names_case_and_pair(
    outcome_and_answer: tuple[Outcome, Pairs],
) -> None:
    outcome, expected = outcome_and_answer
    outcome.batches[0] = outcome.batches[0].slice(1)
    with pytest.raises(AssertionError, match=r"seed 0: shj of 30 x 30 rows .* 1 of \d+ pairs are"):
        assert_exactly_once(outcome, expected)
    assert_part_of(outcome, expected)


def test_assertion_when_a_pair_comes_twice_then_says_so(
    outcome_and_answer: tuple[Outcome, Pairs],
) -> None:
    outcome, expected = outcome_and_answer
    outcome.batches.append(outcome.batches[0].slice(0, 1))
    for check in (assert_exactly_once, assert_part_of):
        with pytest.raises(AssertionError, match=r"1 are too many, 1 of these repeated"):
            check(outcome, expected)


def test_assertion_when_a_pair_does_not_match_then_says_so(
    outcome_and_answer: tuple[Outcome, Pairs],
) -> None:
    outcome, expected = outcome_and_answer
    for check in (assert_exactly_once, assert_part_of):
        with pytest.raises(AssertionError, match=r"1 are too many, 0 of these repeated"):
            check(outcome, expected[1:])


def test_assertion_when_a_value_is_altered_then_names_the_column(
    outcome_and_answer: tuple[Outcome, Pairs],
) -> None:
    outcome, expected = outcome_and_answer
    batch = outcome.batches[0]
    place = batch.schema.get_field_index("left_text")
    altered = pa.array(["other"] * batch.num_rows)
    outcome.batches[0] = batch.set_column(place, "left_text", altered)
    with pytest.raises(AssertionError, match="column left_text was altered"):
        assert_exactly_once(outcome, expected)


def test_identical_when_floats_differ_in_bits_only_then_tells_them_apart() -> None:
    assert not identical(pa.array([0.0]), pa.array([-0.0]))
    assert identical(pa.array([float("nan"), None]), pa.array([float("nan"), None]))
    assert not identical(pa.array([1.0, None]), pa.array([1.0, 2.0]))
