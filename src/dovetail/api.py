"""The public calls: arguments in, DataFrames out.

The functions here only name the arguments; `specs` checks them and `spark` plans them. Spark is
imported when it is first needed, so that `import dovetail` is quick and works without Java.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.specs import EnrichOptions, JoinAllOptions, JoinOptions, On, OnAll, Within

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.costs.explain import Explanation
    from dovetail.semistream.overload import Shedding
    from dovetail.sites.live.access import Access
    from dovetail.spark.jobs.refresh import Refreshed
    from dovetail.spark.state.metrics import Progress


def join(
    left: "DataFrame",
    right: "DataFrame",
    on: On,
    *,
    within: Within = None,
    how: str = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: str = "auto",
    partitions: int | None = None,
    slice_ms: int = 250,
    name: str = "join",
) -> "DataFrame":
    """Join two streams, or two batch DataFrames, inside a memory budget.

    The result holds every pair of rows that Spark's own inner join of the same rows holds, each
    exactly once, across crashes and restarts. It is an ordinary DataFrame: write it anywhere.

    Watermarks do not pass through the join. With one behind it, results that were put off for lack
    of `memory` come when their windows have closed, and Spark drops them as late: group by windows
    before the join, leave `memory` out, or aggregate what the sink has written.

    on: a column name, a list of names, or pairs `("left_column", "right_column")`. A name used on
        both sides appears once in the output. Numbers of two types are compared as Spark compares
        them, a long with a double as doubles; what is in the output keeps its type.
    within: a band join, `|left - right| <= within`, on one numeric, date or timestamp key. For
        dates and timestamps `"5 minutes"` or a timedelta; a bare number means days or seconds. Both
        keys are in the output; of one name `k`, as `left_k` and `right_k`.
    memory: the join's whole budget over all partitions; None is unbounded. A number of bytes, or a
        size as Spark writes it, where 1 KB is 1024 bytes: `"64MB"`, `"64m"`.
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

    options = JoinOptions(on, within, how, memory, state, algorithm, partitions, slice_ms)
    return JoinPlan.of(left, right, options, name).dataframe()


def join_all(
    inputs: "Mapping[str, DataFrame]",
    on: OnAll,
    *,
    within: Within = None,
    how: str = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: str = "auto",
    partitions: int | None = None,
    slice_ms: int = 250,
    sizes: Mapping[str, float] | None = None,
    history: "Mapping[str, DataFrame] | None" = None,
    name: str = "join_all",
) -> "DataFrame":
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
        is sent to all cells along the columns that it lacks; `explain_join_all` tells. Fixed for
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

    options = JoinAllOptions(on, within, how, memory, state, algorithm, partitions, slice_ms, sizes)
    return JoinAllPlan.of(inputs, options, name, history).dataframe()


def enrich(
    stream: "DataFrame",
    table: "DataFrame | str | Path",
    on: On,
    *,
    how: str = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    ordered: bool = False,
    refresh: "str | dt.timedelta | None" = None,
    shed: "str | Shedding | None" = None,
    shed_to: str | Path | None = None,
    latency: "str | float | dt.timedelta | None" = None,
    partitions: int | None = None,
    slice_ms: int = 250,
    history: "DataFrame | None" = None,
    name: str = "enrich",
) -> "DataFrame":
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
    memory: the whole budget over all partitions, `"64MB"` or bytes, as for `join`; None is
        unbounded.
    state: the directory of the staged table and the state, beside the query's checkpoint and
        reachable from every executor.
    algorithm: `"auto"` (by the cost models, once for a state directory; `explain_enrich` says
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
    latency: how long a row may wait until it is settled, `"5 seconds"`; a bare number is seconds.
        An error if the machine is predicted not to be able to. `progress(state).longest_wait` tells
        how long it was.
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
        on, how, memory, state, algorithm, columns, ordered, refresh, partitions, slice_ms,
        shed=shed, shed_to=shed_to, latency=latency,
    )  # fmt: skip
    return EnrichPlan.of(stream, table, options, name, history).dataframe()


def refresh(state: str | Path, table: "DataFrame | str | Path | None" = None) -> "Refreshed":
    """Stage a table that has changed anew; a running `enrich` takes it up with its next rows.

    A row that is being joined finishes on the version it began with. Returns the `version` in use
    and whether it is a `changed` one; printed, that is "staged as v000002" or "unchanged, v000001".
    It is the same if the table's files (of an Iceberg or Delta table: its snapshot) are.

    table: needed if the table was given to `enrich` as a DataFrame.

    >>> print(dovetail.refresh("ckpt/orders-enrich"))
    """
    from dovetail.spark.jobs.refresh import restage
    from dovetail.spark.session import active_session

    return restage(state, table, active_session())


def explain(
    left: "DataFrame",
    right: "DataFrame",
    on: On,
    *,
    within: Within = None,
    how: str = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: str = "auto",
    partitions: int | None = None,
    slice_ms: int = 250,
    name: str = "join",
    samples: "tuple[pa.Table, pa.Table] | None" = None,
    history: "tuple[DataFrame, DataFrame] | None" = None,
    sample_rows: int = 20_000,
) -> "Explanation":
    """What `join` would do with the same arguments, and why; no query is started.

    The arguments are checked as `join` checks them. A state directory that does not fit is not an
    error here: the explanation says so.

    Of batch inputs and of `history` a sample is taken, for which Spark reads their key columns
    twice. The join is played through with it in a temporary folder, so that the explanation can
    tell which share of the results to expect while rows arrive, what will be in memory and on disk,
    and what Cleanup will cost; the storage where `state` is is measured for that.

    samples: some rows of each side, to learn how wide rows are; else their types tell.
    history: for streams, batch DataFrames with rows like those to come: the same files, say.
    sample_rows: about how many rows of the larger side to take; 0 takes none, and reads nothing.

    >>> print(dovetail.explain(orders, payments, on="order_id", memory="64MB", state="ckpt/join"))
    """
    from dovetail.spark.jobs.plans import JoinPlan

    options = JoinOptions(on, within, how, memory, state, algorithm, partitions, slice_ms)
    plan = JoinPlan.of(left, right, options, name)
    return plan.explain(history, samples=samples, sample_rows=sample_rows)


def explain_enrich(
    stream: "DataFrame",
    table: "DataFrame | str | Path",
    on: On,
    *,
    how: str = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    ordered: bool = False,
    refresh: "str | dt.timedelta | None" = None,
    shed: "str | Shedding | None" = None,
    shed_to: str | Path | None = None,
    latency: "str | float | dt.timedelta | None" = None,
    partitions: int | None = None,
    slice_ms: int = 250,
    history: "DataFrame | None" = None,
    name: str = "enrich",
    samples: "tuple[pa.Table, pa.Table] | None" = None,
    skew: float | None = None,
    sample_rows: int = 20_000,
    storage: str = "this machine",
) -> "Explanation":
    """What `enrich` would do with the same arguments, and what each algorithm is predicted to do.

    Memory, rows a second, longest wait and bytes read for a row come from cost models and a
    measurement of this machine, which takes about two seconds and a temporary file of 32 MB where
    `state` is. Nothing is staged or started.

    samples: some rows of stream and table, to learn how wide rows are; else their types tell.
    skew: how skewed keys are imagined to be, as a Zipf exponent: 0 is uniform, 1 strongly skewed.
        Default: as `enrich` finds them, by `history` or a batch, of which it takes 20,000 rows.
    sample_rows: how many rows to take for that; 0 takes none, and reads nothing.
    storage: where the staged table is imagined to lie: `"this machine"`, which is measured,
        `"7200 rpm disk"` or `"object store"`. The predictions are for it, and what `auto` would be
        there is told. `enrich` itself goes by the machine it runs on.

    >>> print(dovetail.explain_enrich(orders, customers, on="custkey", memory="64MB", state="ckpt"))
    """
    from dovetail.spark.jobs.enrich_plan import EnrichPlan

    options = EnrichOptions(
        on, how, memory, state, algorithm, columns, ordered, refresh, partitions, slice_ms,
        shed=shed, shed_to=shed_to, latency=latency,
    )  # fmt: skip
    return EnrichPlan.of(stream, table, options, name, history).explain(
        samples=samples, skew=skew, sample_rows=sample_rows, storage=storage
    )


def explain_join_all(
    inputs: "Mapping[str, DataFrame]",
    on: OnAll,
    *,
    within: Within = None,
    how: str = "inner",
    memory: str | int | None = None,
    state: str | Path | None = None,
    algorithm: str = "auto",
    partitions: int | None = None,
    slice_ms: int = 250,
    sizes: Mapping[str, float] | None = None,
    name: str = "join_all",
    history: "Mapping[str, DataFrame] | None" = None,
    count: bool = True,
) -> "Explanation":
    """What `join_all` would do with the same arguments, beside a cascade of `join`.

    How rows are split over the partitions, how many travel, and what is kept; and the same for a
    cascade of two-way joins in its best order, with the intermediate results that it would have.

    history: as for `join_all`; for streams, it is also what is counted.
    count: whether to count rows and keys of batch inputs or of `history`, for which Spark reads
        their join columns; False predicts no numbers of rows, and reads no batch inputs.

    >>> print(dovetail.explain_join_all({"a": a, "b": b, "c": c}, on="id", memory="64MB"))
    """
    from dovetail.spark.jobs.plans import JoinAllPlan

    options = JoinAllOptions(on, within, how, memory, state, algorithm, partitions, slice_ms, sizes)
    return JoinAllPlan.of(inputs, options, name, history).explain(count=count)


def progress(state: str | Path) -> "Progress":
    """What a join has done so far, from its state directory; needs no running query.

    >>> print(dovetail.progress("ckpt/join"))
    """
    from dovetail.spark.state.metrics import progress as read_progress

    return read_progress(state)


def publish(
    df: "DataFrame",
    site: str,
    *,
    query: str,
    stream: str,
    checkpoint: str | Path,
    access: "Access | None" = None,
    lateness: int | dt.timedelta | None = None,
    trigger: Mapping[str, object] | None = None,
    name: str | None = None,
    timeout: float = 600.0,
) -> "StreamingQuery | None":
    """Make a DataFrame the input of a stream at a site; called as `dovetail.sites.publish`.

    Starts a streaming query and returns it. Each row is put exactly once, across failures and
    restarts with the same checkpoint, also where a micro-batch that is run again comes in another
    order. A batch DataFrame is put at once, in the order of its times, and None is returned; the
    same call again has no effect.

    site: the address of any site of the query, `"grpc+tls://host:port"`.
    query, stream: the names of a query that runs there, and of one of its streams. The DataFrame
        has that stream's columns, in any order.
    checkpoint: a folder of its own that driver and executors reach by the same path; Spark's
        checkpoint goes below it, and the rows of the current micro-batch.
    access: the token and the CA; default: as the environment says. They stay with the driver.
    lateness: how much older than the newest row of all earlier micro-batches a row may be, as a
        timedelta or in the unit of the time column; intervals end by it where the rows of a query
        make its time. Default: the delay of `withWatermark`; of a batch DataFrame, 0. A stream
        without new rows holds all others up, unless `SiteClient.advance` is called for it; so
        publish all streams of a query at the same time.
    trigger: as for `DataStreamWriter.trigger`, `{"availableNow": True}`.
    name: of the streaming query.
    timeout: how many seconds to wait for a site that is behind or away before the query fails.

    >>> dovetail.sites.publish(
    ...     packets.withWatermark("ts", "5 seconds"),
    ...     "grpc+tls://paris.example:7071",
    ...     query="packets",
    ...     stream="r1",
    ...     checkpoint="ckpt/r1",
    ... )
    """
    from dovetail.spark.sources.site_publish import PublishOptions
    from dovetail.spark.sources.site_publish import publish as publish_planned

    options = PublishOptions(
        site, query, stream, checkpoint, access, lateness, trigger, name, timeout
    )
    return publish_planned(df, options)


def register(spark: "SparkSession") -> None:
    """Let a session read the results of queries over sites; called as `dovetail.sites.register`.

    >>> dovetail.sites.register(spark)
    >>> reader = spark.readStream.format("dovetail_site").option("query", "packets")
    >>> results = reader.option("address", "grpc+tls://paris.example:7071").load()
    >>> results.select("r1.dest", "r2.size")
    """
    from dovetail.spark.sources.site_source import register as register_source

    register_source(spark)
