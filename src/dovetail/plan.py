"""Plans of `join`, `join_all` and `enrich`: explained, or turned into a DataFrame.

    plan = dovetail.plan.join(orders, payments, on="order_id", memory="64MB", state="ckpt/join")
    print(plan.explain())
    joined = plan.dataframe()

Each function checks its arguments, and returns a plan. Planning runs no Spark job, starts no thread
and writes nothing. `explain` says what would be done and why; `dataframe` has it done, when its
query is started. `dovetail.join(...)` is short for `dovetail.plan.join(...).dataframe()`, and so
are the others.

The functions here only name the arguments; `specs` checks them and `spark` plans them. Spark is
imported when it is first needed, so that `import dovetail` is quick and works without Java.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.specs import (
    EnrichAlgorithm,
    EnrichHow,
    EnrichOptions,
    JoinAlgorithm,
    JoinAllAlgorithm,
    JoinAllOptions,
    JoinHow,
    JoinOptions,
    On,
    OnAll,
    Shed,
    Within,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dovetail.semistream.overload import Shedding
    from dovetail.spark.jobs.enrich_plan import EnrichPlan
    from dovetail.spark.jobs.plans import JoinAllPlan, JoinPlan


def join(
    left: "DataFrame",
    right: "DataFrame",
    on: On | None = None,
    *,
    where: str | None = None,
    within: Within = None,
    how: JoinHow = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: JoinAlgorithm = "auto",
    partitions: int | None = None,
    slice_ms: int = 250,
    name: str = "join",
) -> "JoinPlan":
    """Join two streams, or two batch DataFrames, inside a memory budget.

    The result holds every pair of rows that Spark's own inner join of the same rows holds, each
    exactly once, across crashes and restarts. It is an ordinary DataFrame: write it anywhere.

    Watermarks do not pass through the join. With one behind it, results that were put off for lack
    of `memory` come when their windows have closed, and Spark drops them as late: group by windows
    before the join, set `memory="unbounded"`, or aggregate what the sink has written.

    on: a column name, a list of names, or pairs `("left_column", "right_column")`. A name used on
        both sides appears once in the output. Numbers of two types are compared as Spark compares
        them, a long with a double as doubles; what is in the output keeps its type. May be left
        out if `where` has an equality of both sides, or a range with both bounds.
    where: a condition in Spark SQL over the columns of both sides; one that both have is
        `left.x` or `right.x`. Equalities become keys, Spark filters each input by what reads it
        alone, and the rest is asked of every pair whose keys match: `"left.day = right.day AND
        clicked_at BETWEEN shown_at AND shown_at + INTERVAL 1 HOUR"`.
    within: a band join, `|left - right| <= within`, on one numeric, date or timestamp key. For
        dates and timestamps `"5 minutes"` or a timedelta; a bare number is for numbers only. Both
        keys are in the output; of one name `k`, as `left_k` and `right_k`.
    memory: the join's whole budget over all partitions: a number of bytes, or a size as Spark
        writes it, where 1 KB is 1024 bytes, `"64MB"`, `"64m"`; or `"unbounded"`. Default: a quarter
        of the machine's memory, or on a cluster of an executor's; `explain` tells.
    state: the directory of the join's state, beside the query's checkpoint and reachable from
        every executor. Default: `<spark.sql.streaming.checkpointLocation>/dovetail/<name>`. A
        batch join keeps none.
    algorithm: `"auto"` or `"diner"` (keeps the rows that are likeliest to join, spills the rest),
        `"xjoin"` (spills; equality), `"shj"` (all in memory), or one of the rivals `"hmj"`,
        `"rpj"`, `"pmj"`, `"dphj"`.
    partitions: how many partitions; default: the session's parallelism. Fixed for the life of
        a state directory.
    slice_ms: how long a silent stream's deferred work may keep new rows waiting, to begin with.
    name: tells joins of one session apart in the default `state`.

    >>> joined = dovetail.join(orders, payments, on="order_id", memory="64MB", state="ckpt/join")
    >>> joined.writeStream.option("checkpointLocation", "ckpt/query").toTable("paid_orders")
    """
    from dovetail.spark.jobs.plans import JoinPlan

    options = JoinOptions(on, how, memory, state, algorithm, partitions, slice_ms, within, where)
    return JoinPlan.of(left, right, options, name)


def join_all(
    inputs: "Mapping[str, DataFrame]",
    on: OnAll,
    *,
    within: Within = None,
    how: JoinHow = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: JoinAllAlgorithm = "auto",
    partitions: int | None = None,
    slice_ms: int = 250,
    sizes: Mapping[str, float] | None = None,
    history: "Mapping[str, DataFrame] | None" = None,
    name: str = "join_all",
) -> "JoinAllPlan":
    """Join several streams, or several batch DataFrames, inside a memory budget.

    One operator takes all inputs in, so that no intermediate result is kept or shuffled. The result
    holds what a cascade of Spark's inner joins of the same rows holds, each combination exactly
    once, across crashes and restarts.

    Watermarks do not pass through it, and behind it drop results that were put off; see `join`.

    inputs: two to eight DataFrames by name.
    on: pairs `("input.column", "input.column")`, a name that inputs share (all that have such a
        column are joined on it), or a list of these. They have to form a tree over the inputs: a
        chain, a star, a snowflake. Several pairs of the same two inputs are a composite key. A pair
        with a third item is a band, `("a.time", "b.time", timedelta(seconds=5))`.
    within: makes a band of every pair without a third item, as for `join`.
    sizes: about how many rows each input has, by name; relative numbers will do. They decide how
        rows are split over partitions where inputs are joined on different columns. Default: what
        `history` has, or Spark knows of batch inputs; else streams count as equally large.
    history: batch DataFrames by name with rows like those to come, or the batch inputs themselves.
        Rows are then split so that the fullest partition is smallest by a sample of these, for
        which Spark reads their join columns, now. Default: keys count as spread evenly.
    algorithm: `"auto"` or `"miner"` (keeps the rows that are likeliest to join, spills the rest),
        `"miner-paper"` (as published), or its rival `"mjoin"`.
    partitions: how many partitions at most; default: the session's parallelism. Joined on one
        column, each row goes to one of them. Else they are a grid of the columns' shares, and a row
        is sent to all cells along the columns that it lacks; `explain` tells. Fixed for
        the life of a state directory.
    memory, state, slice_ms, name: as for `join`.

    The output has every column of every input. A name that more than one input has is prefixed with
    the input's name and an underscore, in each of them.

    >>> paths = dovetail.join_all(
    ...     {"person": persons, "auction": auctions, "bid": bids},
    ...     on=[("person.id", "auction.seller"), ("auction.id", "bid.auction")],
    ...     memory="64MB",
    ...     state="ckpt/paths",
    ... )
    """
    from dovetail.spark.jobs.plans import JoinAllPlan

    options = JoinAllOptions(on, how, memory, state, algorithm, partitions, slice_ms, within, sizes)
    return JoinAllPlan.of(inputs, options, name, history)


def enrich(
    stream: "DataFrame",
    table: "DataFrame | str | Path",
    on: On,
    *,
    how: EnrichHow = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: EnrichAlgorithm = "auto",
    columns: Sequence[str] | None = None,
    ordered: bool = False,
    refresh: str | dt.timedelta | None = None,
    shed: "Shed | Shedding | None" = None,
    shed_to: str | Path | None = None,
    latency: str | dt.timedelta | None = None,
    partitions: int | None = None,
    slice_ms: int = 250,
    history: "DataFrame | None" = None,
    name: str = "enrich",
) -> "EnrichPlan":
    """Look the rows of a stream up in a table that may be larger than memory.

    The table is staged once, below `state`, as sorted pages of the columns that are needed; the
    stream is joined with that copy inside the memory budget, exactly once across crashes and
    restarts. The same call takes a batch DataFrame in place of the stream.

    Watermarks do not pass through it. Rows may wait for a later micro-batch, and a watermark behind
    it then drops their results as late: group by windows before it, or aggregate the sink's table.

    table: a batch DataFrame, the path of Parquet files, or the name of a table. Or an Iceberg or
        Delta table, read at its newest snapshot: the path of its folder, of an Iceberg metadata
        file, or a name `catalog.namespace.table` that pyiceberg is configured for. These need
        `pip install "dovetail[iceberg]"` or `"dovetail[delta]"`, on driver and workers.
    on: a column name, a list of names, or pairs `("stream_column", "table_column")`. A name used
        on both sides appears once in the output.
    how: `"inner"`, `"left"` (rows without a match have nulls), `"semi"` (rows with a match) or
        `"anti"` (rows without: what the table does not know yet). A row with a null in its key
        matches nothing.
    memory: the whole budget over all partitions, `"64MB"`, bytes or `"unbounded"`, and its default,
        as for `join`.
    state: the directory of the staged table and the state, beside the query's checkpoint and
        reachable from every executor.
    algorithm: `"auto"` (by the cost models, once for a state directory; `explain` says
        which and why), `"seek"` (reads the pages that are needed, with a cache),
        `"seek-uncached"`, `"ssbj"`, `"ameshjoin"`, `"meshjoin"` (cyclic scans) or `"inl"`.
    columns: the table's columns to add; default: all of them.
    ordered: emit results in the order in which the rows reached their partition.
    refresh: how often to look whether the table has changed, `"5 minutes"`; a changed one is staged
        anew, and rows that come then are joined with it. Needs a path or name as `table`. Without
        it, `dovetail.refresh(state)` does the same when it is called.
    shed: what to keep while rows come faster than they are served; all others are left out, and
        counted. `"keep"` the first, `"sample"` some by chance, `"topw"` those with the most
        results, `"cluster"` by chance, the more results the more likely. Default: keep all of
        them, and fall behind. Both rates are measured. A source that hands out batches of one
        size (`maxFilesPerTrigger`) does not outrun it: what is left waits at the source.
    shed_to: a directory for the rows left out, as Parquet files with the stream's columns, each
        row once: run them through `enrich` as a batch when there is time.
    latency: how long a row may wait until it is settled, `"5 seconds"`. An error if the
        machine is predicted not to be able to. `progress(state).longest_wait_s` tells how long it
        was.
    history: a batch DataFrame with rows like those to come, the same files, say. For a new state
        directory, `auto` goes by how skewed keys are in a sample of its rows, for which Spark reads
        the key columns, now. Default: the stream itself if it is a batch; else they are uniform.
    partitions, slice_ms, name: as for `join`.

    >>> enriched = dovetail.enrich(
    ...     orders, customers, on="custkey", how="left", memory="64MB", state="ckpt/orders-enrich"
    ... )
    """
    from dovetail.spark.jobs.enrich_plan import EnrichPlan

    options = EnrichOptions(
        on, how, memory, state, algorithm, partitions, slice_ms, columns, ordered, refresh,
        shed, shed_to, latency,
    )  # fmt: skip
    return EnrichPlan.of(stream, table, options, name, history)
