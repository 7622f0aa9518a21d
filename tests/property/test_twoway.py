"""Every two-way operator, under any circumstances, emits each matching pair exactly once.

Hypothesis draws the circumstances of a case (key types, sizes, skew, budget, how rows come); the
rows and the steps follow from the case's seed. So a case is repeated by its printed value alone:
one that ever failed goes into `FAILED_BEFORE`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.kernel.catalogue import Entries, Pages
from dovetail.twoway import ALGORITHMS, Diner, ProgressiveMergeJoin, TwoWaySpec, XJoin
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.arrivals import (
    Bursts,
    Crash,
    Habits,
    Poll,
    Push,
    Restore,
    Step,
    burst_script,
    random_script,
)
from support.conformance import (
    Outcome,
    Relations,
    assert_exactly_once,
    assert_part_of,
    run_script,
)
from support.depth import FULL
from support.generators import (
    BAND_TYPES,
    KEY_TYPES,
    Distribution,
    Payload,
    Shape,
    join_spec,
    make_relations,
)
from support.oracle import Pairs, nested_loop

pytestmark = pytest.mark.fuzz

CASES_PER_OPERATOR = 2_000
Style = Literal["mixed", "bursts", "one side first", "restore after every step", "re-opened"]


@dataclass(frozen=True)
class Case:
    """The circumstances of one join."""

    seed: int
    keys: tuple[str, ...] = ("int64",)
    rows: tuple[int, int] = (100, 100)
    distribution: Distribution = "uniform"
    domain: int = 40
    null_share: float = 0.0
    nan_share: float = 0.0
    payload: Payload = "text"
    payload_bytes: int = 200
    budget: int | None = MIN_BUDGET_BYTES
    style: Style = "mixed"
    batch_rows: int = 15
    within: float | None = None

    def build(self) -> tuple[TwoWaySpec, Relations, list[Step]]:
        rng = np.random.default_rng(self.seed)
        shape = Shape(
            0, self.keys, self.distribution, self.domain, self.null_share, self.nan_share,
            self.payload, self.payload_bytes,
        )  # fmt: skip
        relations = make_relations(rng, *(replace(shape, rows=rows) for rows in self.rows))
        return join_spec(relations, self.within), relations, self._script(rng)

    def _script(self, rng: np.random.Generator) -> list[Step]:
        batch_rows = self.batch_rows
        if self.budget is not None:
            # a batch may have twice as many rows, and has to fit beside some rows in memory
            batch_rows = min(batch_rows, self.budget // (8 * (self.payload_bytes + 300)))
        if self.style == "bursts":
            script = burst_script(rng, self.rows, Bursts(2 * batch_rows, batch_rows))
            return [*script, Poll(50), Restore(), Poll(50), Crash(), Poll(200)]
        if self.style == "one side first":
            first = random_script(rng, (self.rows[0], 0), Habits(batch_rows, left_share=1.0))
            return first + random_script(rng, (0, self.rows[1]), Habits(batch_rows, left_share=0.0))
        if self.style == "restore after every step":
            script = random_script(rng, self.rows, Habits(batch_rows, restores=0, crashes=0))
            return list(itertools.chain.from_iterable((step, Restore()) for step in script))
        if self.style == "re-opened":
            return random_script(rng, self.rows, Habits(batch_rows, polls=0.6, finishes=0.6))
        return random_script(rng, self.rows, Habits(batch_rows))


@dataclass
class Tally:
    """What happened in all the cases of one test."""

    cases: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case, outcome: Outcome) -> None:
        self.cases += 1
        self.happened.update(outcome.events)
        self.happened.update(outcome.rows_out)
        self.happened["spilled"] += outcome.flushed_rows > 0
        self.happened["refused"] += outcome.error is not None
        self.happened["one key value spilled"] += (
            outcome.flushed_rows > 0 and case.distribution == "single"
        )

    def assert_all_happened(self, *names: str) -> None:
        if not FULL:
            return
        missing = [name for name in names if not self.happened[name]]
        assert not missing, f"{missing} never happened in {self.cases} cases: {self.happened}"


# -- circumstances --------------------------------------------------------------------------

SINGLE_KEYS = [(name,) for name in KEY_TYPES]
COMPOSITE_KEYS = [
    ("int32", "string"),
    ("bool", "binary"),
    ("float64", "date"),
    ("string", "decimal38", "timestamp"),
    ("int8", "float32", "time"),
]
ANY_KEYS = SINGLE_KEYS + COMPOSITE_KEYS
ANY_ROWS = st.tuples(st.integers(0, 130), st.integers(0, 130))


def cases(
    *keys: tuple[str, ...],
    rows: st.SearchStrategy[tuple[int, int]] = ANY_ROWS,
    budgets: tuple[int | None, ...] = (MIN_BUDGET_BYTES, MIN_BUDGET_BYTES, 100_000, 400_000, None),
    styles: tuple[Style, ...] = ("mixed", "mixed", "bursts", "one side first", "re-opened"),
    distributions: tuple[Distribution, ...] = ("uniform", "uniform", "zipf", "sequential"),
    payloads: tuple[tuple[Payload, int], ...] = (
        ("text", 200), ("text", 400), ("text", 400), ("mixed", 250), ("none", 0),
    ),
) -> st.SearchStrategy[Case]:  # fmt: skip
    def build(payload: tuple[Payload, int], **circumstances: object) -> Case:
        return Case(payload=payload[0], payload_bytes=payload[1], **circumstances)  # type: ignore[arg-type]

    return st.builds(
        build,
        seed=st.integers(0, 2**63 - 1),
        keys=st.sampled_from(keys or ANY_KEYS),
        rows=rows,
        distribution=st.sampled_from(distributions),
        domain=st.sampled_from([12, 40, 40, 200]),
        null_share=st.sampled_from([0.0, 0.05, 0.3]),
        nan_share=st.sampled_from([0.0, 0.1]),
        payload=st.sampled_from(payloads),
        budget=st.sampled_from(budgets),
        style=st.sampled_from(styles),
        # a batch for every row costs many times what others do, so fewer of the cases have it
        batch_rows=st.sampled_from([15, 25, 5, 15, 25, 5, 15, 1]),
    )


LEAST: tuple[int | None, ...] = (MIN_BUDGET_BYTES,)
WIDE: tuple[tuple[Payload, int], ...] = (("text", 400), ("text", 800))
LOPSIDED = st.permutations([st.integers(40, 60), st.integers(2, 8)]).flatmap(
    lambda pair: st.tuples(*pair)
)
EMPTY = st.permutations([st.just(0), st.integers(0, 150)]).flatmap(lambda pair: st.tuples(*pair))

THEMES: dict[str, st.SearchStrategy[Case]] = {
    "booleans and small integers": cases(("bool",), ("int8",), ("int16",)),
    "integers": cases(("int32",), ("int64",)),
    "floats": cases(("float32",), ("float64",)),
    "decimals": cases(("decimal9",), ("decimal18",), ("decimal38",)),
    "strings": cases(("string",)),
    "binaries": cases(("binary",)),
    "dates and times": cases(
        ("date",), ("timestamp",), ("timestamp_ntz",), ("time",), ("duration",)
    ),
    "composite keys": cases(*COMPOSITE_KEYS),
    "one key value": cases(
        # results are the product of both sides, so these are small, and the rows wide
        rows=LOPSIDED | st.tuples(st.integers(20, 30), st.integers(20, 30)),
        distributions=("single",),
        payloads=(("text", 2000),),
        budgets=(*LEAST, *LEAST, *LEAST, None),
    ),
    "skewed keys": cases(distributions=("zipf",)),
    "unique keys": cases(("int64",), ("string",), distributions=("sequential",)),
    "an empty side": cases(rows=EMPTY),
    "least budget": cases(payloads=WIDE, budgets=LEAST),
    "inputs re-opened": cases(budgets=LEAST, styles=("re-opened",)),
    "restored after every step": cases(
        rows=st.tuples(st.integers(15, 35), st.integers(15, 35)),
        payloads=(("text", 1500),),
        budgets=LEAST,
        styles=("restore after every step",),
    ),
    "bursts and pauses": cases(budgets=LEAST, styles=("bursts",)),
}
#: Everything a spilling join does; cases of one theme together have to get there.
PHASES = ("spilled", "reactive", "cleanup", "restores", "interrupted cleanups")
EXPECTED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(THEMES, PHASES),
    "one key value": (*PHASES, "one key value spilled"),
    "an empty side": ("spilled", "restores"),
    "inputs re-opened": (*PHASES, "reopenings", "crashes"),
    "bursts and pauses": (*PHASES, "crashes"),
}
#: Yardsticks that nobody is told to use: they see as many cases in all, but most of them lighter,
#: and fewer where a case cannot be made lighter.
RIVALS = {"hmj", "rpj", "pmj", "dphj", "diner-paper"}
RIVAL_SHARE = 1 / 4
LIGHT_SHARE = 9 / 8
#: Their rows are as wide as can be already.
NEVER_LIGHT = {"one key value", "restored after every step"}
WIDEST_PAYLOAD = 2_000
SPILLING = {"xjoin", "diner"} | RIVALS
#: These put nothing off while inputs are silent, so they have no such phase.
WITHOUT_REACTIVE = {"pmj", "dphj"}
#: Joins nothing until memory is full or both inputs have ended.
BLOCKING = {"pmj"}
#: With fewer, a theme gets everywhere only if every case has the least budget.
FEW_CASES = 100
SURE_TO_SPILL = {
    "least budget", "inputs re-opened", "restored after every step", "bursts and pauses",
}  # fmt: skip


def cases_of(algorithm: str, theme: str = "") -> int:
    """How many cases of a test, or of a theme, an operator sees."""
    full = int(settings.default.max_examples)
    if algorithm not in RIVALS:
        return full
    light = theme in THEMES and theme not in NEVER_LIGHT
    return math.ceil(full * (LIGHT_SHARE if light else RIVAL_SHARE))


def lighter(case: Case) -> Case:
    """Fewer rows and rather more bytes: at least as much is spilled, in a third of the time.

    More bytes, because what is kept beside the payload of a row counts as well. One case in sixteen
    stays as it is.
    """
    scale = min(3, WIDEST_PAYLOAD // max(1, case.payload_bytes))
    if scale < 2 or case.seed % 16 == 0:
        return case
    rows = tuple(math.ceil(number / scale) for number in case.rows)
    payload_bytes = min(WIDEST_PAYLOAD, (scale + 2) * case.payload_bytes)
    return replace(case, rows=rows, domain=case.domain // scale, payload_bytes=payload_bytes)


def expected_of(algorithm: str, theme: str) -> list[str]:
    """What the cases of a theme have to get to."""
    if cases_of(algorithm, theme) < FEW_CASES and theme not in SURE_TO_SPILL:
        return ["restores"]
    # a rival's memory is full in few of the cases that were not made for it, and a pause is rarer
    rare = algorithm in RIVALS and theme not in SURE_TO_SPILL
    missing = {"reactive"} if rare or algorithm in WITHOUT_REACTIVE else set()
    return [name for name in EXPECTED[theme] if name not in missing]


def run_cases(
    strategy: st.SearchStrategy[Case], wanted: int, check: Callable[[Case], Outcome]
) -> Tally:
    """Run as many cases as are wanted."""
    tally = Tally()

    @settings(max_examples=wanted)
    @given(strategy)
    def run(case: Case) -> None:
        tally.add(case, check(case))

    run()
    assert tally.cases >= wanted
    return tally


@contextmanager
def pages_of_two_in_every_other(case: Case) -> Iterator[list[int]]:
    """Pages of the catalogue as small as can be, or as the budget has it; lists those written."""
    written: list[int] = []
    write = Pages.write

    def count(self: Pages, entries: Entries) -> Entries:
        written.append(len(entries))
        return write(self, entries)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (XJoin, ProgressiveMergeJoin, Diner):
            patch.setattr(kind, "page_entries", 2 if case.seed % 2 else None)
        patch.setattr(Pages, "write", count)
        yield written


class Runner:
    """Runs cases in directories of their own."""

    def __init__(self, directory: Path) -> None:
        self._directories = (directory / str(number) for number in itertools.count())

    def __call__(self, algorithm: str, case: Case, budget: int | None) -> tuple[Outcome, Pairs]:
        spec, relations, script = case.build()
        with pages_of_two_in_every_other(case) as paged:
            outcome = run_script(
                algorithm, spec, relations, script, budget, next(self._directories),
                label=repr(case),
            )  # fmt: skip
        outcome.events["paged"] += len(paged) > 0
        return outcome, nested_loop(spec, *relations)

    def check(self, algorithm: str, case: Case) -> Outcome:
        outcome, expected = self(algorithm, case, case.budget)
        if algorithm in SPILLING or case.budget is None or outcome.error is None:
            assert_exactly_once(outcome, expected)
        else:
            # over its budget, an operator that cannot spill stops, and says which ones can
            assert "'xjoin'" in str(outcome.error), case
            assert_part_of(outcome, expected)
        return outcome


@pytest.fixture
def runner(scratch: Path) -> Runner:
    return Runner(scratch)


@pytest.mark.full
def test_profile_when_all_themes_run_then_each_operator_sees_enough_cases() -> None:
    for algorithm in ALGORITHMS:
        seen = sum(cases_of(algorithm, theme) for theme in THEMES)
        assert seen >= CASES_PER_OPERATOR, algorithm


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_join_when_driven_by_any_script_then_emits_each_pair_once(
    algorithm: str, theme: str, runner: Runner
) -> None:
    strategy = THEMES[theme]
    if algorithm in RIVALS:
        strategy = strategy.map(lighter)
    wanted = cases_of(algorithm, theme)
    tally = run_cases(strategy, wanted, lambda case: runner.check(algorithm, case))
    if algorithm in SPILLING:
        tally.assert_all_happened(*expected_of(algorithm, theme))
        sure = theme in SURE_TO_SPILL or cases_of(algorithm) >= FEW_CASES
        if sure:  # the catalogue of their blocks is on disk, too
            tally.assert_all_happened("paged")
    else:
        tally.assert_all_happened("restores", *(["arriving"] if theme != "an empty side" else []))


@pytest.mark.parametrize("algorithm", [n for n in ALGORITHMS if n not in SPILLING])
def test_join_when_over_budget_then_refuses_and_what_it_emitted_is_right(
    algorithm: str, runner: Runner
) -> None:
    strategy = cases(payloads=WIDE, budgets=(MIN_BUDGET_BYTES, 100_000))
    wanted = cases_of(algorithm)
    tally = run_cases(strategy, wanted, lambda case: runner.check(algorithm, case))
    tally.assert_all_happened("refused", "arriving")


# -- band joins -----------------------------------------------------------------------------


def band_cases(name: str) -> st.SearchStrategy[Case]:
    if name.startswith("float"):
        widths = st.sampled_from([0.0, 0.1, 0.37, 0.74, 1e-45, 5e-324, 3.0, 1e39, 1e308, math.inf])
    else:
        widths = st.sampled_from([0, 1, 2, 7, 100, 2**31, 2**62, 2**63 - 1])
    base = cases((name,), budgets=(None, None, None, 400_000), payloads=(("text", 20),))
    return st.builds(lambda case, within: replace(case, within=within), base, widths)


@pytest.mark.parametrize("key", BAND_TYPES)
@pytest.mark.parametrize("algorithm", [n for n, kind in ALGORITHMS.items() if kind.joins_bands])
def test_band_join_when_driven_by_any_script_then_emits_each_pair_once(
    algorithm: str, key: str, runner: Runner
) -> None:
    wanted = cases_of(algorithm)
    tally = run_cases(band_cases(key), wanted, lambda case: runner.check(algorithm, case))
    tally.assert_all_happened("cleanup" if algorithm in BLOCKING else "arriving", "restores")


SPILLING_BANDS = [n for n, kind in ALGORITHMS.items() if kind.joins_bands and n in SPILLING]


@pytest.mark.parametrize("algorithm", SPILLING_BANDS)
def test_band_join_when_spilling_then_emits_each_pair_once(algorithm: str, runner: Runner) -> None:
    def with_band(case: Case, width: float) -> Case:
        return replace(case, within=width if case.keys[0].startswith("float") else int(width))

    keys = [(name,) for name in BAND_TYPES]
    rows = st.tuples(st.integers(30, 60), st.integers(30, 60))
    base = cases(*keys, rows=rows, budgets=LEAST, payloads=(("text", 800),))
    strategy = st.builds(with_band, base, st.sampled_from([0.0, 1.0, 2.5, 7.0, 1e9, 9e18]))
    wanted = cases_of(algorithm)
    tally = run_cases(strategy, wanted, lambda case: runner.check(algorithm, case))
    tally.assert_all_happened("spilled", "restores", "cleanup", "arriving")
    if issubclass(ALGORITHMS[algorithm], Diner):
        tally.assert_all_happened("reactive", "interrupted cleanups", "paged")


# -- against the same operator without a budget ---------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(SPILLING))
def test_join_when_spilling_then_equals_its_unbounded_twin(algorithm: str, runner: Runner) -> None:
    def check(case: Case) -> Outcome:
        bounded, _ = runner(algorithm, case, case.budget)
        twin, _ = runner(algorithm, case, None)
        assert twin.flushed_rows == 0
        assert_exactly_once(bounded, twin.pairs())
        assert set(twin.rows_out) <= {"cleanup" if algorithm in BLOCKING else "arriving"}
        return bounded

    rows = st.tuples(st.integers(45, 60), st.integers(45, 60))
    strategy = cases(rows=rows, budgets=LEAST, payloads=(("text", 800),))
    # rows with a null are not kept, and would let some of the cases fit into memory
    tally = run_cases(
        strategy.map(lambda case: replace(case, null_share=0.0)), cases_of(algorithm), check
    )
    assert tally.happened["spilled"] == tally.cases, "every one of these is larger than its budget"


# -- scripts that Hypothesis can shrink -----------------------------------------------------

STEPS = st.one_of(
    st.builds(Push, st.integers(0, 1), st.integers(0, 15)),
    st.builds(Push, st.integers(0, 1), st.integers(8, 15)),
    st.builds(Poll, st.integers(1, 500)),
    st.sampled_from([Restore(), Crash()]),
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_join_when_steps_are_drawn_one_by_one_then_emits_each_pair_once(
    algorithm: str, scratch: Path
) -> None:
    runner = (scratch / str(number) for number in itertools.count())
    case = Case(seed=1, rows=(75, 75), domain=30, payload_bytes=800)
    spec, relations, _ = case.build()
    expected = nested_loop(spec, *relations)
    budget = case.budget if algorithm in SPILLING else None

    @settings(max_examples=cases_of(algorithm))
    @given(st.lists(STEPS, max_size=40))
    def run(script: list[Step]) -> None:
        outcome = run_script(algorithm, spec, relations, script, budget, next(runner))
        assert_exactly_once(outcome, expected)

    run()


# -- every failure ever seen ----------------------------------------------------------------

_BAND = Case(seed=0, domain=12, payload_bytes=20, budget=None)
FAILED_BEFORE: list[tuple[str, Case]] = [
    # an infinite key within an infinite distance: found only if the finite key came later
    ("shj", replace(_BAND, keys=("float64",), within=math.inf)),
    ("shj", replace(_BAND, keys=("float32",), within=math.inf, style="one side first")),
]


@pytest.mark.parametrize(("algorithm", "case"), FAILED_BEFORE)
def test_join_when_case_failed_before_then_emits_each_pair_once(
    algorithm: str, case: Case, runner: Runner
) -> None:
    runner.check(algorithm, case)
