"""Plans: checked arguments that can be explained or turned into a DataFrame.

`explain` says what would be done, `dataframe` does it. A plan itself has read nothing but schemas
and the files of its state directory: no Spark job has run, no thread was started, nothing was
written. A state directory that does not fit is what `explain` tells, and `dataframe` refuses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.costs.explanation import Explanation
from dovetail.errors import StateError
from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.spark.jobs.checks import check_state, without_deferring
from dovetail.spark.jobs.join import JoinJob, narrowed, resolve_join
from dovetail.spark.jobs.join_all import (
    JoinAllJob,
    known_shares,
    resolve_join_all,
    sized,
    with_shares,
)
from dovetail.spark.jobs.join_all_words import explained_join_all, reason
from dovetail.spark.jobs.join_words import Pair, explained_join
from dovetail.spark.jobs.planning import planned
from dovetail.spark.jobs.shares import Inputs, checked_history
from dovetail.spark.state import IDENTITY
from dovetail.spark.state.metrics import progress
from dovetail.spark.watermarks import warn_of_watermarks
from dovetail.specs import JobSpec, JoinAllOptions, JoinAllSpec, JoinOptions, JoinSpec, Known
from dovetail.specs.conditions import Condition

SAMPLED_ROWS = 20_000  #: of keys, unless something else is asked for


@dataclass(frozen=True)
class Plan(ABC):
    """The base of plans."""

    problem: StateError | None  #: why the state directory does not fit

    @abstractmethod
    def dataframe(self) -> DataFrame:
        """The results, as a DataFrame that is not running yet."""

    def _check(self) -> None:
        if self.problem is not None:
            raise self.problem

    def _note(self, spec: JobSpec) -> str:
        """The note on the state directory in an explanation."""
        problem = self.problem
        if problem is None:
            if spec.state is None or not (spec.state / IDENTITY).exists():
                return "new: made when the query starts"
            try:
                return f"exists and fits, after batch {progress(spec.state).version}"
            except StateError as error:
                problem = error
        return f"DOES NOT FIT: {problem}"


def problem_of(look: Callable[[], object]) -> StateError | None:
    """The error that a check of a state directory raises; None if it fits."""
    try:
        look()
    except StateError as error:
        return error
    return None


@dataclass(frozen=True)
class JoinPlan(Plan):
    """The plan of a join of two inputs."""

    inputs: Pair
    options: JoinOptions
    spec: JoinSpec
    condition: Condition | None = None  #: what `where=` says

    @classmethod
    def of(cls, left: DataFrame, right: DataFrame, options: JoinOptions, name: str) -> "JoinPlan":
        """Check every argument."""
        inputs, spec, condition = resolve_join(left, right, options, name)
        warn_of_watermarks(
            dict(zip(SIDE_NAMES, inputs, strict=True)), defers=without_deferring(spec)
        )
        problem = problem_of(lambda: check_state(inputs, spec))
        return cls(problem, inputs, options, spec, condition)

    def dataframe(self) -> DataFrame:
        self._check()
        return planned(JoinJob(self.spec), self.inputs)

    def explain(
        self,
        history: Pair | None = None,
        *,
        samples: tuple[pa.Table, pa.Table] | None = None,
        sample_rows: int = SAMPLED_ROWS,
    ) -> Explanation:
        """Explain what the join would do, and why; no query is started.

        Of batch inputs and of `history` a sample is taken, for which Spark reads their key columns
        twice. The join is played through with it in a temporary folder, so that the explanation can
        tell which share of the results to expect while rows arrive, what will be in memory and on
        disk, and what Cleanup will cost; the storage where `state` is is measured for that.

        history: for streams, batch DataFrames with rows like those to come: the same files, say.
        samples: some rows of each side, to learn how wide rows are; else their types tell.
        sample_rows: about how many rows of the larger side to take; 0 takes none, and reads
            nothing.
        """
        note = self._note(self.spec)
        if history is not None and self.condition is not None:
            history = narrowed(history, self.condition)
        return explained_join(
            self.inputs, self.spec, self.options, note, history, samples, sample_rows,
            self.condition,
        )  # fmt: skip


@dataclass(frozen=True)
class JoinAllPlan(Plan):
    """The plan of a join of several inputs."""

    inputs: Inputs
    options: JoinAllOptions
    checked: JoinAllSpec  #: with shares as for keys that are spread evenly
    history: Inputs | None
    kept: Sequence[int] | None  #: the shares that the state directory was begun with

    @classmethod
    def of(
        cls, inputs: Inputs, options: JoinAllOptions, name: str, history: Any = None
    ) -> "JoinAllPlan":
        """Check every argument."""
        spec, options = resolve_join_all(inputs, options, name)
        warn_of_watermarks(inputs, defers=without_deferring(spec))
        ordered = None if history is None else checked_history(history, spec)
        frames, kept, problem = list(inputs.values()), None, None
        if frames[0].isStreaming:
            try:
                kept = known_shares(spec.state)
            except StateError as error:
                problem = error
        if kept is not None:
            spec = with_shares(inputs, spec, options, Known(spec.most_partitions, shares=kept))
        problem = problem or problem_of(lambda: check_state(frames, spec))
        return cls(problem, inputs, options, spec, ordered, kept)

    @cached_property
    def spec(self) -> JoinAllSpec:
        """With the shares that are used. Of `history` a sample is read if there are some to choose.

        Those of a state directory stay.
        """
        spec = self.checked
        if self.kept is not None or len(spec.grid.dimensions) < 2:
            return spec
        known = sized(self.inputs, spec, self.options, self.history)
        return with_shares(self.inputs, spec, self.options, known)

    def dataframe(self) -> DataFrame:
        self._check()
        return planned(JoinAllJob(self.spec), list(self.inputs.values()))

    def explain(self, history: Inputs | None = None, *, count: bool = True) -> Explanation:
        """Explain what `join_all` would do, beside a cascade of `join`.

        How rows are split over the partitions, how many travel, and what is kept; and the same for
        a cascade of two-way joins in its best order, with the intermediate results that it would
        have.

        history: for streams, batch DataFrames by name with rows like those to come, which are
            counted. Default: the `history` that the plan was made with.
        count: whether to count rows and keys of batch inputs or of `history`, for which Spark reads
            their join columns; False predicts no numbers of rows, and reads no batch inputs.
        """
        first = next(iter(self.inputs.values()))
        chosen_by = reason(first, self.options, self.history, kept=self.kept is not None)
        return explained_join_all(
            self.inputs, self.spec, self.options, self._note(self.spec), chosen_by,
            history or self.history, count=count,
        )  # fmt: skip
