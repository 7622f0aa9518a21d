"""The results of a query over sites as a DataFrame: `format("dovetail_site")`.

Results come out at every host of the query, and each host numbers its own. So an offset is
`{host: number}`, and a micro-batch reads what comes after the numbers of its start, up to those of
its end: the same rows however often it is run. When Spark has committed it, the hosts may forget
them.

Options: `address` of any host of the `query`; `token_file`, `ca`, `certificate` and `key`, files
that the driver can read (or the environment says, see `live.access`); `maxResultsPerTrigger`, of
each host; `trim`, "false" if others read the same results; `timeout`, how many seconds a host may
be away. The token itself is never an option, as plans show these.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dovetail.errors import ArgumentError, SiteAccessError, SiteRefusedError, SiteUnavailableError
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.client import SiteClient
from dovetail.spark.session import choose_worker_python
from dovetail.spark.sources.register import register_once
from dovetail.spark.sources.site_columns import result_rows, result_type
from dovetail.spark.worker_errors import plain_errors, with_plain_errors

NAME = "dovetail_site"
_log = logging.getLogger(__name__)

Offset = dict[str, int]  #: by host, the number of the last result that was read


T = TypeVar("T")


def register(session: SparkSession) -> None:
    """Let a session know the format."""
    choose_worker_python(session.sparkContext)
    register_once(session, SiteSource)


@dataclass(frozen=True)
class Settings:
    """The options, checked."""

    address: str
    query: str
    access: Access
    most: int | None  #: results of each host in a micro-batch
    trim: bool
    timeout: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Settings":
        if "token" in options:
            raise SiteAccessError(
                "the token cannot be an option, plans would show it: name a file that holds it "
                '(option "token_file"), or set DOVETAIL_SITE_TOKEN before the session is made'
            )
        if missing := [name for name in ("address", "query") if not options.get(name)]:
            raise ArgumentError(
                f"format({NAME!r}) needs the option {' and '.join(map(repr, missing))}: the "
                "address of one of the sites, and the name of the query"
            )
        most = options.get("maxResultsPerTrigger")
        trim = options.get("trim", "true").lower()
        try:
            numbers = None if most is None else int(most), float(options.get("timeout", "60"))
        except ValueError as error:
            raise ArgumentError(f"maxResultsPerTrigger and timeout are numbers: {error}") from None
        if (numbers[0] is not None and numbers[0] < 1) or trim not in ("true", "false"):
            raise ArgumentError(
                f"maxResultsPerTrigger={most}, trim={trim}: a number above 0, and true or false"
            )
        files = (options.get(name) for name in ("token_file", "ca", "certificate", "key"))
        access = Access.from_files(*files)
        return cls(
            options["address"], options["query"], access, numbers[0], trim == "true", numbers[1]
        )

    def client(self, address: str) -> SiteClient:
        return SiteClient(address, self.access)


@dataclass
class Span(InputPartition):
    """Results of one host with numbers after one and up to another."""

    host: str
    address: str
    after: int
    through: int


class Hosts:
    """All hosts of a query."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _clients(self) -> dict[str, SiteClient]:
        settings = self._settings
        with settings.client(settings.address) as one:
            found = _patiently(one, settings.timeout, partial(one.describe, settings.query))
        return {host: settings.client(address) for host, address in found.addresses.items()}

    def ends(self) -> tuple[Offset, Offset]:
        """Before the first result that each host has, and its last."""
        query, timeout = self._settings.query, self._settings.timeout
        ranges = {
            host: _patiently(client, timeout, partial(client.result_range, query))
            for host, client in self._clients.items()
        }
        before = {host: first - 1 for host, (first, _) in ranges.items()}
        return before, {host: last for host, (_, last) in ranges.items()}

    def spans(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [
            Span(host, client.address, start[host], end[host])
            for host, client in self._clients.items()
            if end[host] > start[host]
        ]

    def trim(self, end: Offset) -> None:
        for host, client in self._clients.items():
            try:
                client.trim(self._settings.query, end[host])
            except SiteUnavailableError as error:  # the next commit does it
                _log.warning("results at %s were not trimmed: %s", host, error)

    def close(self) -> None:
        for client in self.__dict__.get("_clients", {}).values():
            client.close()


class SpanReader:
    """Reads spans in tasks; all else runs in the driver's Python."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        return read_span(self._settings, partition, self._schema)


class StreamReader(SpanReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Results as they come."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self._hosts = Hosts(settings)
        self._target: Offset | None = None

    @plain_errors()
    def initialOffset(self) -> Offset:
        return self._hosts.ends()[0]

    def getDefaultReadLimit(self) -> ReadAllAvailable:
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._hosts.ends()[1]

    def reportLatestOffset(self) -> None:
        return None

    @plain_errors()
    def latestOffset(self, start: Offset, limit: object) -> Offset:
        target, most = self._target or self._hosts.ends()[1], self._settings.most
        self._check(start, target)
        if most is None:
            return target
        return {host: min(last, start[host] + most) for host, last in target.items()}

    def _check(self, start: Offset, target: Offset) -> None:
        """Whether the checkpoint is of this very query."""
        if start.keys() != target.keys() or any(target[host] < start[host] for host in start):
            raise SiteRefusedError(
                f"the checkpoint says that results up to {start} were read, but query "
                f"{self._settings.query!r} has them up to {target}: it was started anew since. "
                "Start with a new checkpoint, too."
            )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return self._hosts.spans(start, end)

    def commit(self, end: Offset) -> None:
        if self._settings.trim:
            self._hosts.trim(end)

    def stop(self) -> None:
        self._hosts.close()


class BatchReader(SpanReader, DataSourceReader):
    """All results that are there now; they stay there."""

    def partitions(self) -> list[InputPartition]:
        hosts = Hosts(self._settings)
        found = hosts.spans(*hosts.ends())
        hosts.close()
        return found or [Span("", "", 0, 0)]  # of no partition at all Spark makes one of its own


class SiteSource(DataSource):
    """Registered with a session under `NAME`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        settings = Settings.of(self.options)
        with settings.client(settings.address) as client:
            return result_type(client.describe(settings.query).query)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(Settings.of(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(Settings.of(self.options), schema)


@with_plain_errors
def read_span(settings: Settings, span: Span, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a span, each result once; goes on where a broken connection left off."""
    after, failed_at = span.after, -1
    if after == span.through:
        return
    with settings.client(span.address) as client:
        while after < span.through:
            before = after
            try:
                for result in client.results(settings.query, after, span.through):
                    if result.seq != after + 1:
                        raise SiteRefusedError(
                            f"{span.host} has no result {after + 1}, but {result.seq}"
                        )
                    if result.rows.num_rows:
                        yield result_rows(result.rows, schema)
                    after = result.seq
            except SiteUnavailableError:
                if after == failed_at:
                    raise
                failed_at = after
                client.wait_until_there(settings.timeout)
                continue
            if after == before:
                raise SiteRefusedError(
                    f"results {after + 1} to {span.through} of query {settings.query!r} are not at "
                    f"{span.host}: it was started anew. Start with a new checkpoint, too."
                )


def _patiently(client: SiteClient, timeout: float, call: Callable[[], T]) -> T:
    """Call once more when a site that is away has come back."""
    try:
        return call()
    except SiteUnavailableError:
        client.wait_until_there(timeout)
        return call()
