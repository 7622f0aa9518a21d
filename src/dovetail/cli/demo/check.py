"""Whether a demo's result is Spark's own: two DataFrames compared, and what is said of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXAMPLES_SHOWN = 3


@dataclass(frozen=True)
class Comparison:
    """The multiset of result rows against that of Spark's batch join."""

    expected: int
    found: int
    missing: int  #: rows of the batch join that the result lacks
    surplus: int  #: rows of the result that the batch join lacks
    examples: tuple[str, ...] = ()  #: some of either


def compare(expected: "DataFrame", found: "DataFrame") -> Comparison:
    """Compare two DataFrames of the same columns as multisets of rows, exactly."""
    from pyspark.sql import functions as F

    side = F.col("__side")
    sides = expected.withColumn("__side", F.lit(1)).unionByName(
        found.withColumn("__side", F.lit(0))
    )
    counts = sides.groupBy(*expected.columns).agg(
        F.sum(side).alias("__expected"), F.sum(1 - side).alias("__found")
    )
    missing = F.col("__expected") - F.col("__found")
    totals = counts.agg(
        F.sum("__expected"),
        F.sum("__found"),
        F.sum(F.greatest(missing, F.lit(0))),
        F.sum(F.greatest(-missing, F.lit(0))),
    ).first()
    assert totals is not None
    rows_expected, rows_found, rows_missing, rows_surplus = (int(value or 0) for value in totals)
    different = []
    if rows_missing or rows_surplus:
        different = counts.where(missing != 0).limit(_EXAMPLES_SHOWN).collect()
    examples = tuple(str(row) for row in different)
    return Comparison(rows_expected, rows_found, rows_missing, rows_surplus, examples)


def report(console: Console, result: Comparison, what: str) -> bool:
    """Say how a comparison came out. Whether both are the same."""
    if not result.missing and not result.surplus:
        console.print(
            f"[bold green]checked[/bold green] against {what}: {result.found:,} rows, identical"
        )
        return True
    console.print(
        f"[bold red]wrong[/bold red]: the result has {result.found:,} rows, {what} "
        f"{result.expected:,}; {result.missing:,} are missing and {result.surplus:,} are too many"
    )
    for example in result.examples:
        console.print(f"  {example}", markup=False, soft_wrap=True)
    return False
