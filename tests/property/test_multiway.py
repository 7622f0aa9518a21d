"""Every multi-way operator, under any circumstances, emits each matching combination exactly once.

Hypothesis draws the circumstances of a case (join tree, what its edges join on, sizes, skew,
budget, how rows come); the rows and the steps follow from the case's seed. So a case is repeated by
its printed value alone: one that ever failed goes into `FAILED_BEFORE`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.multiway import MIN_BYTES_PER_INPUT, MinerOptions, MultiWaySpec, multiway_spec
from support.arrivals import Habits, Poll, Push, Restore, Step
from support.depth import FULL
from support.generators import Distribution
from support.multiway import Outcome, Relation, Trial, combinations, random_script

pytestmark = pytest.mark.fuzz

Graph = Literal["chain", "star", "any", "one attribute"]
Style = Literal[
    "mixed", "work after every push", "restore after every step", "re-opened", "turns", "pauses"
]  # fmt: skip
BANDS: dict[str, list[float]] = {"int64": [0, 1, 3], "float64": [0.0, 0.37, 1.5], "date": [1, 2]}
EQUALITIES = ("int64", "int64", "float64", "string", "date", "decimal18", "binary")


@dataclass(frozen=True)
class Case:
    """The circumstances of one join."""

    seed: int
    inputs: int = 3
    graph: Graph = "chain"
    rows: tuple[int, int] = (10, 25)  #: each input has a number of rows in this inclusive range
    distribution: Distribution = "uniform"
    domain: int = 12
    null_share: float = 0.0
    nan_share: float = 0.0
    text_bytes: int = 1500
    budget: float | None = 1.0  #: as a multiple of the least; None is unbounded
    style: Style = "mixed"
    batch_rows: int = 4
    band_share: float = 0.25
    empty: bool = False  #: one of the inputs has no rows

    @property
    def budget_bytes(self) -> int | None:
        least = MIN_BYTES_PER_INPUT * self.inputs
        return None if self.budget is None else int(least * self.budget)

    @property
    def _longest_text(self) -> int:
        """So that two rows twice as long of each input fit into memory, and one of one more."""
        if self.budget_bytes is None:
            return self.text_bytes
        return min(self.budget_bytes // 16, 2 * self.budget_bytes // (5 * (2 * self.inputs + 1)))

    def build(self) -> tuple[MultiWaySpec, list[pa.RecordBatch], list[Step]]:
        rng = np.random.default_rng(self.seed)
        keys: list[dict[str, str]] = [{} for _ in range(self.inputs)]
        on = self._edges(rng, keys)
        rows = [int(rng.integers(self.rows[0], self.rows[1] + 1)) for _ in keys]
        if self.empty:
            rows[int(rng.integers(self.inputs))] = 0
        text_bytes = min(self.text_bytes, self._longest_text)
        relations = [
            Relation(
                count, columns, self.distribution, self.domain, self.null_share, self.nan_share,
                text_bytes,
            ).make(rng)
            for count, columns in zip(rows, keys, strict=True)
        ]  # fmt: skip
        inputs = {f"r{i}": relation.schema for i, relation in enumerate(relations)}
        return multiway_spec(inputs, on), relations, self._script(rng, rows)

    def _edges(
        self, rng: np.random.Generator, keys: list[dict[str, str]]
    ) -> list[tuple[str, str] | tuple[str, str, float]]:
        """Join each input with one before it; enters the columns that this needs."""
        if self.graph == "one attribute":
            type_ = str(rng.choice(EQUALITIES))
            for columns in keys:
                columns["a"] = type_
            parents = [int(rng.integers(i)) for i in range(1, self.inputs)]
            return [(f"r{parent}.a", f"r{i}.a") for i, parent in enumerate(parents, start=1)]
        on: list[tuple[str, str] | tuple[str, str, float]] = []
        for i in range(1, self.inputs):
            parent = {"chain": i - 1, "star": 0}.get(self.graph, int(rng.integers(i)))
            old = list(keys[parent])
            if old and rng.random() < 0.3:  # two edges on one attribute
                column = str(rng.choice(old))
            else:
                column = f"k{len(old)}"
                bands = rng.random() < self.band_share
                keys[parent][column] = str(rng.choice(list(BANDS) if bands else EQUALITIES))
            type_ = keys[parent][column]
            mine = f"k{len(keys[i])}"
            keys[i][mine] = type_
            ends = (f"r{parent}.{column}", f"r{i}.{mine}")
            if type_ in BANDS and rng.random() < 2 * self.band_share:
                on.append((*ends, float(rng.choice(BANDS[type_]))))
                continue
            on.append(ends)
            if rng.random() < 0.15:  # a composite key
                for end in (parent, i):
                    keys[end][f"c{i}"] = "int8"
                on.append((f"r{parent}.c{i}", f"r{i}.c{i}"))
        return on

    def _script(self, rng: np.random.Generator, rows: list[int]) -> list[Step]:
        batch_rows = self.batch_rows
        if self.budget_bytes is not None:
            # a batch may have twice as many rows twice as long, and has to fit beside some others
            batch_rows = max(1, min(batch_rows, self.budget_bytes // (12 * self.text_bytes)))
        if self.style == "restore after every step":
            script = random_script(rng, rows, Habits(batch_rows, restores=0, crashes=0, fuel=60))
            return list(itertools.chain.from_iterable((step, Restore()) for step in script))
        if self.style == "work after every push":
            script = random_script(rng, rows, Habits(batch_rows, polls=0, finishes=0))
            pairs = ((step, Poll(1)) if isinstance(step, Push) else (step,) for step in script)
            return [*itertools.chain.from_iterable(pairs), *([Poll(1)] * 15)]
        if self.style == "re-opened":
            habits = Habits(batch_rows, polls=0.6, finishes=0.5, fuel=200)
            return random_script(rng, rows, habits)
        if self.style == "pauses":
            habits = Habits(batch_rows, polls=0.15, finishes=0, fuel=3_000)
            return random_script(rng, rows, habits)
        if self.style == "turns":
            turns = [[Push(side, batch_rows)] * count for side, count in enumerate(rows)]
            return list(itertools.chain.from_iterable(turns))
        return random_script(rng, rows, Habits(batch_rows, fuel=200))


@dataclass
class Tally:
    """What happened in all the cases of one test."""

    cases: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.cases += 1
        self.happened.update(outcome.events)
        self.happened.update(outcome.rows_out)
        self.happened["spilled"] += outcome.flushed_rows > 0

    def assert_all_happened(self, *names: str) -> None:
        if not FULL:
            return
        missing = [name for name in names if not self.happened[name]]
        assert not missing, f"{missing} never happened in {self.cases} cases: {self.happened}"


def cases(
    inputs: tuple[int, ...] = (2, 3, 3, 4),
    graphs: tuple[Graph, ...] = ("chain", "star", "any", "any", "one attribute"),
    rows: tuple[tuple[int, int], ...] = ((3, 7), (4, 9), (0, 9)),
    budgets: tuple[float | None, ...] = (1.0, 1.0, 1.3, 2.0, None),
    styles: tuple[Style, ...] = ("mixed", "mixed", "work after every push", "re-opened"),
    distributions: tuple[Distribution, ...] = ("uniform", "uniform", "zipf", "sequential"),
    domains: tuple[int, ...] = (3, 3, 8),
    text_bytes: tuple[int, ...] = (6000, 4000),
    band_shares: tuple[float, ...] = (0.0, 0.25, 0.5),
    empty: bool = False,
) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        seed=st.integers(0, 2**63 - 1),
        inputs=st.sampled_from(inputs),
        graph=st.sampled_from(graphs),
        rows=st.sampled_from(rows),
        distribution=st.sampled_from(distributions),
        domain=st.sampled_from(domains),
        null_share=st.sampled_from([0.0, 0.0, 0.1]),
        nan_share=st.sampled_from([0.0, 0.1]),
        text_bytes=st.sampled_from(text_bytes),
        budget=st.sampled_from(budgets),
        style=st.sampled_from(styles),
        batch_rows=st.sampled_from([4, 3, 1]),
        band_share=st.sampled_from(band_shares),
        empty=st.just(empty),
    )


PHASES = ("spilled", "arriving", "cleanup", "restores", "interrupted cleanups")
THEMES: dict[str, tuple[st.SearchStrategy[Case], tuple[str, ...]]] = {
    "anything": (cases(), PHASES),
    "two inputs": (
        cases(inputs=(2,), rows=((6, 14),), domains=(6,), text_bytes=(3000,)), PHASES
    ),
    "three inputs": (cases(inputs=(3,)), PHASES),
    "four inputs": (cases(inputs=(4,)), PHASES),
    "five inputs": (cases(inputs=(5,)), PHASES),
    "eight inputs": (
        cases(inputs=(6, 8), rows=((2, 6),), domains=(2, 4), styles=("mixed",), text_bytes=(9000,)),
        ("spilled", "cleanup"),
    ),
    "chains": (cases(graphs=("chain",)), PHASES),
    "stars": (cases(graphs=("star",)), PHASES),
    "one attribute": (cases(graphs=("one attribute",)), PHASES),
    "bands": (cases(band_shares=(0.9,)), PHASES),
    "skewed keys": (
        cases(inputs=(2, 3), distributions=("zipf",), rows=((10, 20),), text_bytes=(2000,)), PHASES
    ),
    "one key value": (
        cases(inputs=(2, 3), rows=((5, 9),), distributions=("single",), text_bytes=(6000,),
              band_shares=(0.0,)),
        PHASES,
    ),
    "an empty input": (cases(empty=True), ("spilled", "restores")),
    "least budget": (cases(budgets=(1.0,), text_bytes=(6000,)), (*PHASES, "crashes")),
    "inputs re-opened": (cases(budgets=(1.0,), styles=("re-opened",)), (*PHASES, "reopenings")),
    "restored after every step": (
        cases(inputs=(2, 3, 4), rows=((3, 7),), budgets=(1.0,), text_bytes=(6000,),
              styles=("restore after every step",)),
        PHASES,
    ),
    "pauses": (
        cases(inputs=(2, 3), budgets=(1.0,), rows=((4, 9),), styles=("pauses",)),
        (*PHASES, "reactive", "crashes"),
    ),
    "one input after the other": (
        cases(budgets=(1.0,), styles=("turns",)), ("spilled", "cleanup", "arriving")
    ),
}  # fmt: skip
#: Small enough for an odometer that turns over single blocks of every input.
PAPER_THEMES = {
    "anything": cases(inputs=(2, 3, 3, 4), rows=((3, 8),)),
    "one attribute": cases(inputs=(2, 3), graphs=("one attribute",), rows=((3, 9),)),
    "least budget": cases(inputs=(3, 4), rows=((3, 7),), budgets=(1.0,)),
}
CASES = 2_000
#: How many times as many cases as the profile says; those that take long have fewer.
SHARES = {
    "an empty input": 2.0, "two inputs": 3.0, "three inputs": 3.0, "pauses": 2.0,
    "four inputs": 0.6, "five inputs": 0.4, "eight inputs": 0.1, "restored after every step": 0.4,
    "anything": 0.8, "chains": 0.6, "stars": 0.8, "skewed keys": 0.4,
}  # fmt: skip
MJOIN_SHARE = 1 / 4
MJOIN_CASES = 500


def cases_of(theme: str) -> int:
    """How many cases MINER sees of a theme."""
    return max(1, int(settings.default.max_examples * SHARES.get(theme, 1.0)))


class Runner:
    """Runs cases in directories of their own."""

    def __init__(self, directory: Path) -> None:
        self._directories = (directory / str(number) for number in itertools.count())

    def __call__(self, algorithm: str, case: Case, options: MinerOptions | None = None) -> Outcome:
        spec, relations, script = case.build()
        trial = Trial(
            algorithm, spec, relations, script, case.budget_bytes, options, repr(case),
            forgetful=case.style == "restore after every step",
        )  # fmt: skip
        outcome = trial.run(next(self._directories))
        outcome.assert_exactly_once(combinations(spec, relations))
        return outcome


@pytest.fixture
def runner(scratch: Path) -> Runner:
    return Runner(scratch)


def run_cases(
    strategy: st.SearchStrategy[Case], count: int, check: Callable[[Case], Outcome]
) -> Tally:
    """Run so many cases."""
    tally = Tally()

    @settings(max_examples=count)
    @given(strategy)
    def run(case: Case) -> None:
        tally.add(check(case))

    run()
    return tally


@pytest.mark.full
def test_profile_when_all_themes_run_then_operators_see_enough_cases() -> None:
    assert sum(map(cases_of, THEMES)) >= CASES
    assert sum(math.ceil(MJOIN_SHARE * cases_of(theme)) for theme in THEMES) >= MJOIN_CASES


@pytest.mark.parametrize("theme", THEMES)
def test_miner_when_driven_by_any_script_then_emits_each_combination_once(
    theme: str, runner: Runner
) -> None:
    strategy, expected = THEMES[theme]
    tally = run_cases(strategy, cases_of(theme), lambda case: runner("miner", case))
    tally.assert_all_happened(*expected)


@pytest.mark.parametrize("theme", THEMES)
def test_mjoin_when_driven_by_any_script_then_emits_each_combination_once(
    theme: str, runner: Runner
) -> None:
    strategy, _ = THEMES[theme]
    count = math.ceil(MJOIN_SHARE * cases_of(theme))
    tally = run_cases(strategy, count, lambda case: runner("mjoin", case))
    tally.assert_all_happened("spilled")


@pytest.mark.parametrize("theme", PAPER_THEMES)
def test_paper_miner_when_driven_by_any_script_then_emits_each_combination_once(
    theme: str, runner: Runner
) -> None:
    count = max(1, int(settings.default.max_examples) // 2)
    tally = run_cases(PAPER_THEMES[theme], count, lambda case: runner("miner-paper", case))
    tally.assert_all_happened("spilled", "cleanup", "restores")


# -- every failure ever seen ----------------------------------------------------------------

FAILED_BEFORE: list[tuple[str, Case]] = [
    # flushed rows of a few bytes gave up less memory than the catalogue took for their block
    ("miner", Case(seed=14, inputs=5, graph="any", style="re-opened")),
]


@pytest.mark.parametrize(("algorithm", "case"), FAILED_BEFORE)
def test_join_when_case_failed_before_then_emits_each_combination_once(
    algorithm: str, case: Case, runner: Runner
) -> None:
    runner(algorithm, case)
