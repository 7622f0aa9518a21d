"""Spark on both ends of sites: DataFrames in, results out, each row once whatever fails."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import dovetail
from dovetail.errors import (
    ArgumentError,
    SiteAccessError,
    SiteRefusedError,
    SiteUnavailableError,
    StateMismatchError,
    StateMissingError,
    UnknownColumnError,
)
from dovetail.multisite.live import client as client_module
from dovetail.multisite.live import wire
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.local import LocalSites
from dovetail.multisite.plan import Algorithm
from dovetail.sites import Plan, Query, Step, Stream, TimeWindow
from dovetail.spark.sources.site_columns import result_type
from dovetail.spark.sources.site_source import Settings, Span, StreamReader
from dovetail.spark.sources.site_staging import Piece, StagedBatches
from support.waiting import until_true

pytestmark = pytest.mark.spark

SECOND = 1_000_000
WINDOW = 20 * SECOND
TYPES = [pa.timestamp("us", "UTC"), pa.int64(), pa.string(), pa.int32()]
SCHEMA = pa.schema(list(zip(("ts", "k", "text", "id"), TYPES, strict=True)))
BEYOND = 300 * SECOND  # a time that is past all rows, and all that follows from them
ONCE = {"availableNow": True}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSites]:
    """Two sites that take little at once, so that a micro-batch needs several puts."""
    limits = {"durable": False, "put_bytes": "16 KB"}
    made = LocalSites(tmp_path_factory.mktemp("sites"), ("h0", "h1"), limits)
    for host in made.hosts:
        made.start(host)
    made.addresses()
    yield made
    made.stop()


class Running:
    """A query of streams `left` and `right`, each at its site, seen from Spark."""

    def __init__(self, sites: LocalSites, bench: Any, name: str) -> None:
        self.bench, self.spark, self.name = bench, bench.spark, name
        self.sites, self.access = sites, sites.access
        streams = tuple(
            Stream(stream, SCHEMA, TimeWindow(WINDOW), site=host)
            for stream, host in zip(("left", "right"), sites.hosts, strict=True)
        )
        self.query = Query(streams, (("left.k", "right.k"),), tau=5 * SECOND, delta=SECOND)
        plan = Plan(
            self.query,
            {"left": [Step("right", Algorithm.SM_S1)], "right": [Step("left", Algorithm.SM_S2)]},
        )
        deployment = Deployment(name, plan, sites.addresses(), clock="rows", unit="us")
        self.clients = {h: SiteClient(a, self.access) for h, a in sites.addresses().items()}
        for client in self.clients.values():
            client.start(deployment)

    def publish(self, stream: str, frame: DataFrame, **options: Any) -> StreamingQuery | None:
        # the address is of the other site: any will do
        options = {"access": self.access, "checkpoint": self.bench.root / f"in-{stream}", **options}
        address = self.sites.address("h0" if stream == "right" else "h1")
        return dovetail.sites.publish(frame, address, query=self.name, stream=stream, **options)

    def source(self, **options: Any) -> DataFrame:
        dovetail.sites.register(self.spark)
        return self.reader(self.spark.readStream, **options).load()

    def reader(self, reader: Any, **options: Any) -> Any:
        known = {
            "address": self.sites.address("h1"),
            "query": self.name,
            "token_file": str(self.sites.directory / "token"),
        }
        return reader.format("dovetail_site").options(**{**known, **options})

    def taken_in(self, stream: str) -> int:
        statuses = (client.status(self.name) for client in self.clients.values())
        return next(s.streams[stream].rows for s in statuses if stream in s.streams)

    def finish(self) -> None:
        """No more rows will follow: let all results come out."""
        wanted = BEYOND // (5 * SECOND)
        beyond = BEYOND

        def advanced() -> bool:
            nonlocal beyond
            beyond += 5 * SECOND
            for stream, client in zip(("left", "right"), self.clients.values(), strict=True):
                client.advance(self.name, stream, beyond)
            statuses = [client.status(self.name) for client in self.clients.values()]
            assert [status.error for status in statuses] == [None, None]
            return min(s.settled for status in statuses for s in status.streams.values()) >= wanted

        until_true(advanced, 60)

    def results(self) -> list[int]:
        """How many each site has emitted."""
        return [client.result_range(self.name)[1] for client in self.clients.values()]

    def expected(self) -> Counter[Any]:
        """Spark's own join of all rows in one place; both windows are equally long."""
        left, right = (self.bench.batch(side).alias(side) for side in ("left", "right"))
        apart = F.abs(F.unix_micros("left.ts") - F.unix_micros("right.ts"))
        joined = left.join(right, (F.col("left.k") == F.col("right.k")) & (apart <= WINDOW))
        return pairs(joined)

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


def pairs(results: DataFrame) -> Counter[Any]:
    """Results by what identifies them, and a column that has been all the way."""
    found = results.select("left.id", "right.id", F.unix_micros("left.ts"), "right.text")
    return Counter(tuple(row) for row in found.collect())


@pytest.fixture
def running(sites: LocalSites, bench: Any) -> Iterator[Running]:
    made = Running(sites, bench, f"q{next(NUMBERS)}")
    yield made
    for query in bench.spark.streams.active:
        query.stop()
    made.close()


def rows(seed: int, count: int, first: int, seconds: int, disorder: int = 0) -> pa.Table:
    """Rows in the order of their times, or up to so many microseconds late."""
    rng = np.random.default_rng(seed)
    times = (first + rng.random(count) * seconds) * SECOND
    arrival = np.argsort(times + rng.random(count) * disorder, kind="stable")
    columns = [
        pa.array(times[arrival].astype(np.int64), SCHEMA.field("ts").type),
        pa.array(rng.integers(0, 40, count), mask=rng.random(count) < 0.05),
        pa.array([f"{seed} {n} " + "x" * 20 for n in range(count)]),
        pa.array(np.arange(count) + first * 1000, pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def write_in_order(bench: Any, name: str, table: pa.Table, files: int) -> None:
    """Files that a stream reads in this order: it goes by when they were written."""
    bench.write(name, table, files)
    paths = sorted((bench.root / name).glob("*.parquet"))
    for age, path in enumerate(reversed(paths)):
        os.utime(path, times=(path.stat().st_atime, time.time() - age))


def late_by(frame: DataFrame, seconds: int) -> DataFrame:
    return frame.withWatermark("ts", f"{seconds} seconds")


def test_sites_when_streams_are_published_in_two_runs_then_results_are_as_in_one_place(
    running: Running,
) -> None:
    bench = running.bench
    for first in (0, 60):  # the second run goes on where the first has ended, on both ends
        for seed, side in enumerate(("left", "right")):
            write_in_order(bench, side, rows(seed, 400, first, 60, disorder=2 * SECOND), files=2)
        frames = {side: late_by(bench.stream(side), 3) for side in ("left", "right")}
        queries = [running.publish(side, f, trigger=ONCE) for side, f in frames.items()]
        for query in queries:
            assert query is not None
            query.awaitTermination()
        if first:
            running.finish()
        bench.run(running.source(maxResultsPerTrigger=8))
    assert running.taken_in("left") == running.taken_in("right") == 800
    results = bench.results()
    assert pairs(results) == running.expected()
    assert results.count() > 1000
    # nothing is read twice: what was committed is gone from the sites
    assert any(c.result_range(running.name)[0] > 1 for c in running.clients.values())


def failing_put(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The connection is lost for good after so many puts."""
    put, done = SiteClient.put, []

    def lost(self: SiteClient, *arguments: Any, **options: Any) -> Any:
        if len(done) == after:
            raise SiteUnavailableError("the line is dead")
        done.append(1)
        return put(self, *arguments, **options)

    monkeypatch.setattr(SiteClient, "put", lost)


def test_publish_when_a_micro_batch_fails_half_way_then_its_rows_are_put_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = running.bench
    bench.write("left", rows(1, 500, 0, 60), files=2)
    bench.write("right", rows(2, 300, 0, 60), files=2)

    def publish(keys: list[str], partitions: int) -> None:
        # other partitions, another order and other values each time it is computed
        frame = bench.stream("left", 2).withColumn("text", F.expr("uuid()"))
        frame = frame.repartition(partitions, *keys)
        query = running.publish("left", frame, lateness=timedelta(0), trigger=ONCE)
        assert query is not None
        query.awaitTermination()

    with monkeypatch.context() as patch:
        failing_put(patch, after=2)
        with pytest.raises(StreamingQueryException, match="the line is dead"):
            publish(["k"], 3)
    assert 0 < running.taken_in("left") < 500
    publish(["id", "ts"], 2)
    assert running.taken_in("left") == 500

    for _ in range(2):  # the second time has no effect
        assert running.publish("right", bench.batch("right")) is None
    assert running.taken_in("right") == 300
    running.finish()
    dovetail.sites.register(bench.spark)
    results = running.reader(bench.spark.read).load()
    assert pairs(results) == running.expected()
    assert not list((bench.root / "in-left" / "rows").glob("b*/*")), "rows are left on disk"


def test_publish_when_an_answer_is_lost_then_the_rows_are_put_once_and_it_goes_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.bench.write("left", rows(1, 500, 0, 60), files=2)
    calls = 0

    def lossy(*arguments: Any) -> Any:
        nonlocal calls
        answer = wire.call(*arguments)
        if arguments[2] != wire.PUT:
            return answer
        calls += 1
        if calls in (1, 3):
            raise SiteUnavailableError("the line is dead")
        return answer

    monkeypatch.setattr(client_module, "call", lossy)
    assert running.publish("left", running.bench.batch("left")) is None
    assert calls > 4
    assert running.taken_in("left") == 500


def test_staging_when_partitions_overlap_in_time_then_puts_follow_the_time(
    running: Running,
) -> None:
    """Else no interval would end before the last put, and a site would be full before."""
    running.bench.write("left", rows(1, 20_000, 0, 600))
    frame = running.bench.batch("left").repartition(8)
    staged = StagedBatches(running.bench.root / "rows", running.query.stream("left"), 64 << 10)
    puts = staged.stage(frame, 0, lateness=0)
    waiting: list[Piece] = []
    most = 0
    for put in puts:
        assert put.until is not None
        waiting = [piece for piece in (*waiting, *put.pieces) if piece.newest >= put.until]
        most = max(most, sum(piece.nbytes for piece in waiting))
    assert sum(piece.nbytes for put in puts for piece in put.pieces) > 8 * most


def test_source_when_restarted_after_a_failure_then_reads_the_same_rows_again(
    running: Running,
) -> None:
    bench = running.bench
    for seed, side in enumerate(("left", "right")):
        bench.write(side, rows(seed, 200, 0, 60))
        running.publish(side, bench.batch(side))
    until_true(lambda: min(running.results()) > 6, 60)  # the last rows have not been joined yet
    seen: list[tuple[int, Counter[Any]]] = []

    def sink(fail_at: int) -> Callable[[DataFrame, int], None]:
        def take(frame: DataFrame, number: int) -> None:
            seen.append((number, pairs(frame)))
            if number == fail_at:
                raise RuntimeError("the sink is full")

        return take

    def run(fail_at: int) -> None:
        writer = running.source(maxResultsPerTrigger=3).writeStream.foreachBatch(sink(fail_at))
        writer = writer.option("checkpointLocation", str(bench.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run(fail_at=1)
    before = running.results()
    running.finish()
    assert running.results() > before, "nothing has come meanwhile"
    run(fail_at=-1)
    assert seen[1] == seen[2], "micro-batch 1 has other rows the second time"
    assert [number for number, _ in seen[2:]] == list(range(1, len(seen) - 1))
    found: Counter[Any] = Counter()
    for _, part in [seen[0], *seen[2:]]:
        found.update(part)
    assert found == running.expected()
    assert found.total() > 100


def test_sites_when_killed_while_spark_publishes_and_reads_then_results_are_exact(
    running: Running,
) -> None:
    bench, sides, often = running.bench, ("left", "right"), {"processingTime": "0 seconds"}

    def write(part: int) -> None:
        for seed, side in enumerate(sides):
            table = rows(3 * seed + part, 120, 20 * part, 20, disorder=2 * SECOND)
            write_in_order(bench, side, table, files=2)

    def taken_in() -> int:
        failed = [query.exception() for query in queries if query.exception() is not None]
        assert not failed, failed
        return min(map(running.taken_in, sides))

    write(0)
    queries: list[Any] = [bench.start(running.source(maxResultsPerTrigger=8), **often)]
    frames = {side: late_by(bench.stream(side), 3) for side in sides}
    queries += [running.publish(side, frame, trigger=often) for side, frame in frames.items()]
    for part, host in ((1, "h0"), (2, "h1")):
        until_true(lambda part=part: taken_in() > 120 * (part - 1), 300, "no row comes in")
        write(part)
        running.sites.kill(host)  # SIGKILL, while these rows are put and results are read
        running.clients[host].wait_until_there(300)
    until_true(lambda: taken_in() == 360, 300, "not all rows come in")
    running.finish()
    queries[0].processAllAvailable()
    assert taken_in() == 360
    found = bench.results()
    assert pairs(found) == running.expected()
    assert found.count() > 100


def test_source_when_the_checkpoint_is_ahead_of_the_sites_then_says_so(running: Running) -> None:
    settings = Settings(
        running.sites.address("h0"), running.name, running.access, None, True, timeout=5
    )
    reader = StreamReader(settings, result_type(running.query))
    assert reader.latestOffset(reader.initialOffset(), None) == {"h0": 0, "h1": 0}
    for other in ({"h0": 3, "h1": 0}, {"h0": 0}):
        with pytest.raises(SiteRefusedError, match=r"was started anew.*new checkpoint"):
            reader.latestOffset(other, None)
    with pytest.raises(SiteRefusedError, match=r"results 1 to 2 .* are not at h0"):
        list(reader.read(Span("h0", settings.address, 0, 2)))
    reader.stop()


WRONG = {
    "k cast to string": (ArgumentError, ["'k' is string, but int64", "cast('bigint')"]),
    "ts cast to bigint": (ArgumentError, ["'ts' is bigint", "cast('timestamp')"]),
    "without text": (UnknownColumnError, ["no column 'text'", "text: string"]),
    "with more": (ArgumentError, ["'more' too many", "select"]),
    "ts null": (ArgumentError, ["rows without a time", "isNotNull"]),
    "a long text": (ArgumentError, ["a row of", "put_bytes"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_publish_when_columns_do_not_fit_then_says_which(
    running: Running, spark: SparkSession, case: str
) -> None:
    frame = spark.range(1).selectExpr(
        "timestamp_seconds(id) as ts", "id as k", "'x' as text", "1 as id"
    )
    change = {
        "k cast to string": lambda: frame.withColumn("k", frame.k.cast("string")),
        "ts cast to bigint": lambda: frame.withColumn("ts", frame.ts.cast("bigint")),
        "without text": lambda: frame.drop("text"),
        "with more": lambda: frame.withColumn("more", F.lit(1)),
        "ts null": lambda: frame.withColumn("ts", F.lit(None).cast("timestamp")),
        "a long text": lambda: frame.withColumn("text", F.repeat(F.lit("x"), 20_000)),
    }[case]
    kind, said = WRONG[case]
    with pytest.raises(kind) as raised:
        running.publish("left", change())
    running.bench.says(str(raised.value), *said)
    assert running.taken_in("left") == 0
    # what was refused does not stand in the way of what is right
    running.publish("left", frame)
    assert running.taken_in("left") == 1


def test_publish_when_arguments_do_not_fit_then_says_so(running: Running) -> None:
    bench = running.bench
    bench.write("left", rows(1, 50, 0, 10))
    stream = bench.stream("left")
    with pytest.raises(ArgumentError, match="withWatermark"):
        running.publish("left", stream)
    with pytest.raises(ArgumentError, match="0 or more"):
        running.publish("left", stream, lateness=timedelta(seconds=-1))
    with pytest.raises(ArgumentError, match="lateness=5 is not an interval"):
        running.publish("left", stream, lateness=5)
    with pytest.raises(ArgumentError, match="has no stream 'middle'; it has left, right"):
        running.publish("middle", stream)
    with pytest.raises(ArgumentError, match="every executor mounts"):
        running.publish("left", stream, lateness="0 seconds", checkpoint="s3://bucket/in")
    running.publish("left", bench.batch("left"))
    with pytest.raises(StateMismatchError, match="is of kind 'batch', not of 'streaming'"):
        running.publish("left", stream, lateness="0 seconds")
    with pytest.raises(StateMismatchError, match="is of stream 'left', not of 'right'"):
        running.publish("right", bench.batch("left"), checkpoint=bench.root / "in-left")
    (bench.root / "in-left" / "query").mkdir()
    (bench.root / "in-left" / "rows" / "producer").unlink()
    with pytest.raises(StateMissingError, match="which rows have been put is not known"):
        running.publish("left", bench.batch("left"))


def test_token_when_wrong_or_given_in_the_open_then_nobody_gets_in(
    running: Running, tmp_path: Path
) -> None:
    bench = running.bench
    bench.write("left", rows(1, 50, 0, 10))
    stranger = Access("0123456789abcdef-not-the-token")
    with pytest.raises(SiteAccessError, match="the token is missing or wrong"):
        running.publish("left", bench.batch("left"), access=stranger)
    (tmp_path / "other").write_text(stranger.token)
    with pytest.raises(AnalysisException, match="the token is missing or wrong"):
        running.source(token_file=str(tmp_path / "other"))
    with pytest.raises(AnalysisException, match="the token cannot be an option"):
        running.source(token=running.access.token)
    with pytest.raises(AnalysisException, match="needs the option 'query'"):
        running.source(query="")
    source = running.source()
    assert running.access.token not in source._jdf.queryExecution().toString()
