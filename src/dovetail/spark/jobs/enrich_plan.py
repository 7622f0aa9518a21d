"""The plan of an enrichment, whose table is staged when the DataFrame is asked for.

The algorithm is its state directory's, the user's, or predicted. Once a step has claimed a
directory, `auto` is the algorithm of its identity, whatever the models would say now, and the
machine is not measured again (see `state.chosen`).
"""

import atexit
import contextlib
import math
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dovetail.costs.choice import Recorded
from dovetail.costs.explain_enrich import explain_enrich
from dovetail.costs.explanation import Explanation
from dovetail.costs.latency import pages_within
from dovetail.costs.retune import Tuner
from dovetail.costs.skew import Skew
from dovetail.costs.storage import THIS_MACHINE, profile
from dovetail.errors import ArgumentError, MemoryBudgetError, StateError
from dovetail.semistream.scan.meshjoin import AMeshJoin
from dovetail.spark.jobs.checks import check_is_frame, check_state
from dovetail.spark.jobs.enrich import EnrichJob, resolve_enrich
from dovetail.spark.jobs.enrich_costs import foreseen
from dovetail.spark.jobs.planning import planned
from dovetail.spark.jobs.plans import SAMPLED_ROWS, Plan, problem_of
from dovetail.spark.jobs.refresh import refresh_regularly
from dovetail.spark.jobs.staging import check_staged_budget, ensure_staged
from dovetail.spark.jobs.streamkeys import StreamKeys
from dovetail.spark.sources.tables import OpenTable, Table, open_table
from dovetail.spark.state import IDENTITY, read_identity
from dovetail.spark.state.chosen import read_chosen, record
from dovetail.spark.watermarks import warn_of_watermarks
from dovetail.specs import EnrichOptions, EnrichSpec

# rows wait for others with which they share a read, in whatever memory
_WITHOUT_DEFERRING = "enrich what has been aggregated"
_AUTO = "auto"


@dataclass(frozen=True)
class EnrichPlan(Plan):
    """The plan of a stream that is looked up in a table."""

    stream: DataFrame
    table: OpenTable
    options: EnrichOptions
    spec: EnrichSpec  #: with the algorithm of its state directory, or what `auto` is to begin with
    history: DataFrame | None
    kept: Recorded | None  #: the choice that the state directory keeps
    asked: EnrichOptions  #: with the algorithm of a state directory in use

    @classmethod
    def of(
        cls, stream: DataFrame, table: Table, options: EnrichOptions, name: str, history: Any = None
    ) -> "EnrichPlan":
        """Check every argument."""
        check_is_frame("the stream", stream)
        warn_of_watermarks({"the stream": stream}, defers=_WITHOUT_DEFERRING)
        opened = open_table(stream.sparkSession, table)
        spec = resolve_enrich(stream, opened, options, name)
        StreamKeys(stream, history).check(spec.semistream)
        kept, problem, asked = None, None, options
        state = spec.state
        if stream.isStreaming and state is not None and (state / IDENTITY).exists():
            try:
                if options.algorithm == _AUTO:
                    known = read_identity(state)
                    spec = replace(spec, algorithm=str(known.get("algorithm")))
                asked = replace(options, algorithm=spec.algorithm)
                kept = read_chosen(state)
            except StateError as error:
                problem = error
        if kept is not None and kept.choice.algorithm != spec.algorithm:
            kept = None
        problem = problem or problem_of(lambda: check_state([stream], spec))
        return cls(problem, stream, opened, options, spec, history, kept, asked)

    def dataframe(self) -> DataFrame:
        """The results, as a DataFrame that is not running yet. The table is staged for it, now."""
        self._check()
        session, spec = self.stream.sparkSession, self.spec
        # a batch is not read for them where they change nothing
        wanted = self.options.algorithm == _AUTO or self.history is not None
        keys = StreamKeys(self.stream, self.history, SAMPLED_ROWS if wanted else 0)
        recorded = self._choice(spec, keys)
        spec = self._paced(replace(spec, algorithm=recorded.choice.algorithm), recorded)
        state = spec.state or _scratch(session)
        spec = replace(spec, state=state)
        ensure_staged(self.table, spec)
        check_staged_budget(spec)
        recorded = self._choice(spec, keys, recorded)  # the table's size is known now
        if recorded.choice.algorithm != spec.algorithm:
            spec = self._paced(replace(spec, algorithm=recorded.choice.algorithm), recorded)
        record(state, recorded)
        if spec.refresh_seconds is not None:
            refresh_regularly(session, state, spec.refresh_seconds)
        job = EnrichJob(spec, self.table.schema, recorded, self._tuner(spec, recorded))
        return planned(job, [self.stream])

    def _choice(
        self, spec: EnrichSpec, keys: StreamKeys, measured: Recorded | None = None
    ) -> Recorded:
        """The algorithm that is kept, asked for or chosen, and why.

        keys: whose skew is looked at; measured: an earlier choice, whose machine has not changed.
        """
        if self.kept is not None:
            return self.kept
        return Recorded.of(foreseen(self.stream, self.table, spec, self.asked, measured, keys))

    def _tuner(self, spec: EnrichSpec, recorded: Recorded) -> Tuner | None:
        """The tuner of an algorithm whose settings follow the arrival rate; else None."""
        if spec.algorithm == AMeshJoin.name:
            with contextlib.suppress(MemoryBudgetError, ArgumentError):  # others say what is wrong
                plan = foreseen(self.stream, self.table, spec, self.options, recorded)
                return Tuner.of(plan)
        return None

    def _paced(self, spec: EnrichSpec, recorded: Recorded) -> EnrichSpec:
        """With what a step scans, as long as it is not known how often steps come.

        Raises `ArgumentError` if rows would have to wait for longer than they may.
        """
        if spec.pace is None:
            return spec
        plan = foreseen(self.stream, self.table, spec, self.options, recorded)
        return replace(spec, pace=replace(spec.pace, pages=pages_within(plan, spec.pace.seconds)))

    def explain(
        self,
        history: DataFrame | None = None,
        *,
        samples: tuple[pa.Table, pa.Table] | None = None,
        skew: float | None = None,
        sample_rows: int = SAMPLED_ROWS,
        storage: str = THIS_MACHINE,
    ) -> Explanation:
        """Explain what `enrich` would do, and predict each algorithm.

        Memory, rows a second, longest wait and bytes read for a row come from cost models and a
        measurement of this machine, which takes about two seconds and a temporary file of 32 MB
        where `state` is. Nothing is staged or started.

        history: a batch DataFrame with rows like those to come, to predict with. Default: the
            `history` that the plan was made with, by which `auto` is chosen, too.
        samples: some rows of stream and table, to learn how wide rows are; else their types tell.
        skew: how skewed keys are imagined to be, as a Zipf exponent: 0 is uniform, 1 strongly
            skewed. Default: as they are found in `history` or a batch.
        sample_rows: how many rows to take for that; 0 takes none, and reads nothing.
        storage: where the staged table is imagined to lie: `"this machine"`, which is measured,
            `"7200 rpm disk"` or `"object store"`. The predictions are for it, and what `auto` would
            be there is told. `enrich` itself goes by the machine it runs on.
        """
        if skew is not None and not 0 <= skew < math.inf:
            raise ArgumentError(f"skew={skew!r} is not a number of 0 or more")
        if sample_rows < 0:
            raise ArgumentError(f"sample_rows={sample_rows!r} is not a number of 0 or more")
        asked = profile(storage)
        keys = StreamKeys(self.stream, self.history, sample_rows)
        recorded = self._choice(self.spec, keys)
        spec = replace(self.spec, algorithm=recorded.choice.algorithm)
        plan = foreseen(self.stream, self.table, spec, self.options, recorded, keys, samples)
        found = plan.skew
        if skew is not None:
            found = Skew(float(skew))
        elif history is not None:
            likely = StreamKeys(self.stream, history, sample_rows)
            likely.check(spec.semistream)
            found = likely.skew(plan.spec, plan.table.rows)
        plan = replace(plan, skew=found, state_note=self._note(spec), profile=asked)
        if plan.latency is not None:
            plan = replace(plan, pages=pages_within(plan, plan.latency))
        return explain_enrich(plan)


def _scratch(session: SparkSession) -> Path:
    """Where a batch job stages its table: gone when this process ends."""
    if not (session.sparkContext.master or "").startswith("local"):
        raise ArgumentError(
            "state= is needed on a cluster, for a batch DataFrame too: a directory that every "
            "executor reaches, where the table is staged"
        )
    directory = Path(tempfile.mkdtemp(prefix="dovetail-staged-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
