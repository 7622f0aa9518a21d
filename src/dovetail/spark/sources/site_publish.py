"""Publishes a DataFrame as the input of a stream at a site, each row exactly once.

A streaming query writes every micro-batch down before it puts it (see `site_staging`), under a
producer's name that belongs to the checkpoint, and numbered by micro-batch and put. A site takes
each number once. Rows are put by the driver, which alone has the token.
"""

import datetime as dt
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from dovetail.errors import ArgumentError, StateMismatchError
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.client import Description, SiteClient
from dovetail.multisite.query import Stream
from dovetail.spark.layout import quoted
from dovetail.spark.session import check_session
from dovetail.spark.sources.site_columns import check_columns
from dovetail.spark.sources.site_source import register
from dovetail.spark.sources.site_staging import StagedBatches
from dovetail.specs import checked_span, state_path

_log = logging.getLogger(__name__)
_WATERMARK = "spark.watermarkDelayMs"  # in the metadata of the column that withWatermark names

Lateness = str | dt.timedelta | None


@dataclass(frozen=True)
class PublishOptions:
    """The arguments of `dovetail.sites.publish`, unchecked."""

    site: str
    query: str
    stream: str
    checkpoint: str | Path
    access: Access | None = None
    lateness: Lateness = None
    trigger: Mapping[str, object] | None = None
    name: str | None = None
    timeout: str | dt.timedelta = "10 minutes"


@dataclass
class Publisher:
    """Puts micro-batches, one after another."""

    client: SiteClient
    query: str
    stream: str
    producer: str
    staged: StagedBatches
    lateness: int | None  #: in the unit of the time column; None if the wall clock ends intervals
    timeout_s: float
    late: int = 0

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Put a micro-batch, or what is missing of it."""
        puts = self.staged.load(number)
        fresh = puts is None
        if puts is None:
            puts = self.staged.stage(frame, number, self.lateness)
        for part, put in enumerate(puts):
            ack = self.client.put(
                self.query, self.stream, self.staged.rows(number, put), producer=self.producer,
                batch=number, part=part, until=put.until, timeout=self.timeout_s,
            )  # fmt: skip
            if fresh and part == 0 and ack.duplicate and not ack.repeated:
                self.staged.forget(number)
                raise StateMismatchError(
                    f"micro-batch {number} has just been computed, but the site has had one of "
                    "that number: the checkpoint was restored from an earlier time, or is used "
                    "twice. Which rows are missing is not known; publish with a new checkpoint."
                )
            self._look_at(ack.late)
        self.staged.done(number)

    def _look_at(self, late: int) -> None:
        if late > self.late:
            _log.warning(
                "stream %s of query %s: %d rows were left out so far, their interval was over",
                self.stream, self.query, late,
            )  # fmt: skip
        self.late = late


def publish(frame: DataFrame, options: PublishOptions) -> StreamingQuery | None:
    """Start to publish a stream; or publish a batch DataFrame, and return None when it is done."""
    session = frame.sparkSession
    check_session(session)
    register(session)
    access = options.access or Access.from_env()
    with SiteClient(options.site, access) as known:
        described = known.describe(options.query)
    stream = _stream_of(described, options.stream)
    check_columns(frame.schema, stream)
    lateness = _lateness(frame, stream, described, options.lateness)
    checkpoint = state_path(options.checkpoint, "checkpoint")
    with SiteClient(described.addresses[stream.site], access) as home:
        # what one site takes at once is its own setting
        put_bytes = home.describe(options.query).max_put_bytes
    staged = StagedBatches(checkpoint / "rows", stream, put_bytes)
    # micro-batches are numbered from 0, and a batch is number 0: they must not be taken for one
    kind = "streaming" if frame.isStreaming else "batch"
    facts = {"query": options.query, "stream": options.stream, "kind": kind}
    producer = staged.producer(facts, begun=(checkpoint / "query").exists())
    publisher = Publisher(
        SiteClient(described.addresses[stream.site], access), options.query, options.stream,
        producer, staged, lateness,
        checked_span(options.timeout, "timeout").total_seconds(),
    )  # fmt: skip
    if not frame.isStreaming:
        # in the order of their times: so intervals end while rows still come
        publisher(frame.orderBy(quoted(stream.time)), 0)
        publisher.client.close()
        return None
    writer = frame.writeStream.foreachBatch(publisher)
    writer = writer.option("checkpointLocation", str(checkpoint / "query"))
    if options.name:
        writer = writer.queryName(options.name)
    if options.trigger:
        writer = writer.trigger(**options.trigger)  # type: ignore[call-overload]
    return writer.start()


def _stream_of(described: Description, name: str) -> Stream:
    if name not in described.query.names:
        raise ArgumentError(
            f"query {described.deployment.name!r} has no stream {name!r}; it has "
            f"{', '.join(described.query.names)}"
        )
    return described.query.stream(name)


def _lateness(
    frame: DataFrame, stream: Stream, described: Description, given: Lateness
) -> int | None:
    """The lateness, in the unit of the time column: how much older than the newest a row may be."""
    if described.clock == "wall":
        if given is not None:
            raise ArgumentError(
                "lateness= is for a query whose time the rows make; the intervals of "
                f"{described.deployment.name!r} end by the wall clock"
            )
        return None
    if given is None:
        delay = frame.schema[stream.time].metadata.get(_WATERMARK)
        if delay is not None:
            given = dt.timedelta(milliseconds=delay)
        elif frame.isStreaming:
            raise ArgumentError(
                f"how far is the stream complete? The rows of {described.deployment.name!r} make "
                f"its time: use df.withWatermark({stream.time!r}, ...), or say how much older than "
                "the newest row one may be that follows, lateness="
            )
        else:
            given = dt.timedelta(0)
    span = checked_span(given, "lateness", or_zero=True)
    return described.deployment.units(span.total_seconds())
