"""Rows from a few bytes to a large part of the budget, mixed: every operator takes them in.

In batches of any size, also larger than the budget, with memory from the least to unbounded. Only a
row that a share cannot hold is refused: then nothing is lost, and the memory that the error names
is enough.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.memory import parse_bytes
from dovetail.multiway import MIN_BYTES_PER_INPUT, multiway_spec
from dovetail.semistream import ALGORITHMS as LOOKUPS
from dovetail.semistream import HOWS, SemiStreamSpec
from dovetail.semistream.base import MIN_BUDGET_BYTES as LEAST_OF_LOOKUP
from dovetail.twoway import TwoWaySpec
from dovetail.twoway.base import MIN_BUDGET_BYTES, WORKING_SHARE
from support.arrivals import Habits, random_script
from support.conformance import assert_exactly_once, assert_part_of, run_script
from support.depth import FULL, full_or
from support.multiway import Trial, combinations
from support.multiway import random_script as random_turns
from support.oracle import nested_loop
from support.semistream import drive
from support.wide import KINDS, Kind, WideRelation

pytestmark = pytest.mark.fuzz

SPILLING = ["diner", "diner-paper", "xjoin", "hmj", "rpj", "pmj", "dphj"]
BANDS = ["diner", "diner-paper", "pmj"]
CASES = full_or(40, 5)
FEW = full_or(12, 2)
#: Of the budget: the widest rows of the inputs.
PAIRS = [(0.1, 0.1), (0.14, 0.01), (0.002, 0.14), (0.06, 0.06)]
HABITS = Habits(12, polls=0.5, fuel=100, finishes=0.2, restores=0.15, crashes=0.1)


@dataclass(frozen=True)
class Case:
    """The circumstances of one join."""

    seed: int
    budget: float | None  #: as a multiple of the least
    shares: tuple[float, float]
    kinds: tuple[Kind, Kind]
    rows: tuple[int, int]

    def budget_bytes(self, least: int) -> int | None:
        return None if self.budget is None else int(least * self.budget)

    def relations(self, least: int, names: tuple[str, ...]) -> list[pa.RecordBatch]:
        rng = np.random.default_rng(self.seed)
        total = self.budget_bytes(least) or least
        turns = zip(
            names, itertools.cycle(self.shares), itertools.cycle(self.kinds),
            itertools.cycle(self.rows),
        )  # fmt: skip
        return [
            WideRelation(rows, int(share * total), kind).make(rng, name)
            for name, share, kind, rows in turns
        ]


def cases(rows: tuple[int, ...] = (3, 12, 30)) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        seed=st.integers(0, 2**32 - 1),
        budget=st.sampled_from([1.0, 1.0, 1.3, 4.0, None]),
        shares=st.sampled_from(PAIRS),
        kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
        rows=st.tuples(st.sampled_from(rows), st.sampled_from(rows)),
    )


@pytest.fixture
def folders(scratch: Path) -> Iterator[Path]:
    return (scratch / str(number) for number in itertools.count())


@pytest.mark.parametrize(
    ("algorithm", "within"), [*((name, None) for name in SPILLING), *((name, 1) for name in BANDS)]
)
def test_two_way_when_rows_are_of_any_width_then_each_pair_comes_once(
    algorithm: str, within: int | None, folders: Iterator[Path]
) -> None:
    happened = Counter[str]()

    @settings(max_examples=CASES)
    @given(cases())
    def check(case: Case) -> None:
        left, right = case.relations(MIN_BUDGET_BYTES, ("left", "right"))
        spec = TwoWaySpec(left.schema, right.schema, ("k",), ("k",), within)
        script = random_script(np.random.default_rng(case.seed), case.rows, HABITS)
        budget = case.budget_bytes(MIN_BUDGET_BYTES)
        outcome = run_script(
            algorithm, spec, (left, right), script, budget, next(folders), label=repr(case)
        )
        assert_exactly_once(outcome, nested_loop(spec, left, right))
        happened.update(outcome.rows_out)
        happened["spilled"] += outcome.flushed_rows > 0
        if budget is not None:
            assert outcome.peak_bytes <= budget
            pair = sum(widest(relation) for relation in (left, right))
            most = max(int(budget * WORKING_SHARE) // 8, pair) + 64 * left.num_columns
            assert max((out.nbytes for out in outcome.batches), default=0) <= most

    check()
    assert happened["spilled"] or not FULL
    assert happened["cleanup"] or not FULL


def widest(relation: pa.RecordBatch) -> int:
    return max(relation.slice(row, 1).nbytes for row in range(relation.num_rows))


@pytest.mark.parametrize("algorithm", ["miner", "miner-paper", "mjoin"])
def test_multi_way_when_rows_are_of_any_width_then_each_combination_comes_once(
    algorithm: str, folders: Iterator[Path]
) -> None:
    happened = Counter[str]()
    names = ("r0", "r1", "r2")

    @settings(max_examples=CASES)
    @given(cases((2, 5, 8)))
    def check(case: Case) -> None:
        relations = case.relations(len(names) * MIN_BYTES_PER_INPUT, names)
        relations = [
            relation.rename_columns(
                ["id" if column == f"{name}_id" else column for column in relation.schema.names]
            )
            for name, relation in zip(names, relations, strict=True)
        ]
        inputs = {n: relation.schema for n, relation in zip(names, relations, strict=True)}
        spec = multiway_spec(inputs, [("r0.k", "r1.k"), ("r1.k", "r2.k")])
        rng = np.random.default_rng(case.seed)
        script = random_turns(rng, [relation.num_rows for relation in relations], HABITS)
        budget = case.budget_bytes(len(names) * MIN_BYTES_PER_INPUT)
        trial = Trial(algorithm, spec, relations, script, budget, label=repr(case))
        outcome = trial.run(next(folders))
        outcome.assert_exactly_once(combinations(spec, relations))
        happened["spilled"] += outcome.flushed_rows > 0
        happened.update(outcome.rows_out)

    check()
    assert happened["spilled"] or not FULL
    assert happened["cleanup"] or not FULL


@pytest.mark.parametrize("algorithm", sorted(LOOKUPS))
@settings(max_examples=CASES)
@given(case=cases(), how=st.sampled_from(HOWS), ordered=st.booleans())
def test_lookup_when_rows_are_of_any_width_then_each_result_comes_once(
    algorithm: str, case: Case, how: str, ordered: bool
) -> None:
    stream, table = case.relations(LEAST_OF_LOOKUP + 10_000, ("left", "right"))
    spec = SemiStreamSpec(stream.schema, table.schema, ("k",), ("k",), how, ordered=ordered)
    budget = case.budget_bytes(LEAST_OF_LOOKUP + 10_000)
    done = drive(
        spec, algorithm, stream, table, seed=case.seed, budget_bytes=budget, page_bytes=4_000,
        restore_share=0.3, most_rows=25,
    )  # fmt: skip
    assert results_of(done.batches, how) == wanted_of(stream, table, how)
    if budget is not None:
        assert done.peak_bytes <= budget
        pair = widest(stream) + widest(table)
        most = max(budget // 8, pair) + 64 * (stream.num_columns + table.num_columns)
        assert max((out.nbytes for out in done.batches), default=0) <= most


def results_of(batches: list[pa.RecordBatch], how: str) -> Counter[tuple[int, int | None]]:
    found: Counter[tuple[int, int | None]] = Counter()
    for out in batches:
        left = out["left_id"].to_pylist()
        right = out["right_id"].to_pylist() if how in ("inner", "left") else [None] * len(left)
        found.update(zip(left, right, strict=True))
    return found


def wanted_of(
    stream: pa.RecordBatch, table: pa.RecordBatch, how: str
) -> Counter[tuple[int, int | None]]:
    spec = TwoWaySpec(stream.schema, table.schema, ("k",), ("k",))
    pairs = [(int(a), int(b)) for a, b in nested_loop(spec, stream, table)]
    matched = {a for a, _ in pairs}
    others = [row for row in range(stream.num_rows) if (row in matched) == (how == "semi")]
    alone = [] if how == "inner" else [(row, None) for row in others]
    return Counter([*(pairs if how in ("inner", "left") else []), *alone])


# -- a row that a share cannot hold ---------------------------------------------------------

TOO_WIDE = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    budget=st.sampled_from([1.0, 1.7, 5.0]),
    shares=st.sampled_from([(0.4, 0.01), (0.05, 0.5), (0.3, 0.3), (1.5, 0.1)]),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    rows=st.tuples(st.sampled_from([4, 15]), st.sampled_from([4, 15])),
)


def named_in(error: MemoryBudgetError | None) -> int:
    """The memory that would do."""
    found = re.search(r"memory='([\d.]+ [KMG]?B)' would do", str(error))
    assert found, error
    return parse_bytes(found[1])


@pytest.mark.parametrize("algorithm", SPILLING)
def test_two_way_when_a_row_is_too_wide_then_the_memory_named_is_enough(
    algorithm: str, folders: Iterator[Path]
) -> None:
    @settings(max_examples=FEW)
    @given(TOO_WIDE)
    def check(case: Case) -> None:
        left, right = case.relations(MIN_BUDGET_BYTES, ("left", "right"))
        spec = TwoWaySpec(left.schema, right.schema, ("k",), ("k",))
        script = random_script(np.random.default_rng(case.seed), case.rows, HABITS)
        budget, wanted = case.budget_bytes(MIN_BUDGET_BYTES), nested_loop(spec, left, right)
        refused = run_script(algorithm, spec, (left, right), script, budget, next(folders))
        assert_part_of(refused, wanted)
        assert refused.error is not None
        while refused.error is not None:  # again, if a wider row comes later
            least = named_in(refused.error)
            assert least > (refused.budget_bytes or 0)
            refused = run_script(algorithm, spec, (left, right), script, least, next(folders))
        assert_exactly_once(refused, wanted)

    check()


@pytest.mark.parametrize("algorithm", sorted(LOOKUPS))
@settings(max_examples=FEW)
@given(case=TOO_WIDE, how=st.sampled_from(HOWS))
def test_lookup_when_a_row_is_too_wide_then_the_memory_named_is_enough(
    algorithm: str, case: Case, how: str
) -> None:
    wide, narrow = max(case.shares), 0.01
    case = replace(case, shares=(wide, narrow))
    stream, table = case.relations(LEAST_OF_LOOKUP + 10_000, ("left", "right"))
    spec = SemiStreamSpec(stream.schema, table.schema, ("k",), ("k",), how)

    def run(budget: int | None) -> list[pa.RecordBatch]:
        return drive(
            spec, algorithm, stream, table, seed=case.seed, budget_bytes=budget, page_bytes=4_000
        ).batches

    budget = case.budget_bytes(LEAST_OF_LOOKUP + 10_000) or 0
    with pytest.raises(MemoryBudgetError, match="a row of"):
        run(budget)
    found = None
    while found is None:
        try:
            found = run(budget)
        except MemoryBudgetError as error:  # again, if a wider row comes later
            least = named_in(error)
            assert least > budget
            budget = least
    assert results_of(found, how) == wanted_of(stream, table, how)
