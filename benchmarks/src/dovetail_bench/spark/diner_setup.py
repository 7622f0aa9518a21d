"""What the groups of `spark-diner` have in common: budgets, batches, and runs side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.twoway.base import MIN_BUDGET_BYTES
from dovetail_bench.data import Files
from dovetail_bench.measure import Runs, interleaved, warm_up
from dovetail_bench.progress import Reporter
from dovetail_bench.result import Failure, Spread
from dovetail_bench.spark.runs import PARTITIONS, Job, SparkBed

LEAST_BUDGET_BYTES = 3 * MIN_BUDGET_BYTES  #: a partition's, with room for batches and catalogue
_MOST_BATCH_ROWS = 10_000  # Spark's default
_BATCHES = 100


@dataclass(frozen=True)
class Part:
    """What one group found."""

    ratios: Mapping[str, Spread]
    facts: Mapping[str, Any]
    failures: tuple[Failure, ...] = ()


def budget_of(input_bytes: int, share: float, partitions: int = PARTITIONS) -> int:
    """That share of the input, but not less than a join can well run with: tiny inputs get more."""
    return max(int(input_bytes * share), partitions * LEAST_BUDGET_BYTES)


def batch_rows(rows: int) -> int:
    """Rows of an Arrow batch: Spark's default at a million a side, less for fewer rows.

    A small input at 5 % memory would else have batches too large for its budget.
    """
    return max(1, min(_MOST_BATCH_ROWS, rows // _BATCHES))


def batch_setting(rows: int) -> dict[str, str]:
    """The same as a setting of a query."""
    return {"spark.sql.execution.arrow.maxRecordsPerBatch": str(batch_rows(rows))}


def side_by_side(
    bed: SparkBed,
    jobs: Sequence[Job],
    few_and_all: tuple[Files, Files],
    repetitions: int,
    reporter: Reporter,
) -> Runs:
    """Each job once on a few files to warm up, then all of them in turns."""
    few, files = few_and_all
    warming = Runs()
    warm_up([bed.contender(job, few) for job in jobs], warming, reporter)
    runs = interleaved([bed.contender(job, files) for job in jobs], repetitions, reporter)
    runs.failures[:0] = warming.failures
    return runs
