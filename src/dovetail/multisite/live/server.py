"""The Flight service of a host."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dovetail.errors import SiteAccessError, SiteRefusedError
from dovetail.multisite.encoded import TooLargeError, read_batch
from dovetail.multisite.live.access import (
    Access,
    TokenGate,
    check_free,
    check_plain,
    is_tls,
)
from dovetail.multisite.live.deployment import Deployment, Shape
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.faults import answering, facts_of, optional, seconds_of
from dovetail.multisite.live.host import Host
from dovetail.multisite.live.wire import MESSAGES, MOST_CALL_BYTES, PUT, opened, unpacked
from dovetail.multisite.query import Stream, check_times

# what a call has to say; if nothing is written here, of which query it is
_WANTED: dict[str, dict[str, type]] = {
    PUT: {"query": str, "stream": str, "producer": str, "batch": int, "part": int},
    MESSAGES: {"query": str, "digest": str, "peer": str, "first": int, "last": int},
    "start": {}, "queries": {},
    "advance": {"query": str, "stream": str, "until": int},
    "trim": {"query": str, "through": int},
    "shape": {"query": str, "peer": str, "shape": dict},
}  # fmt: skip
_WAIT_SECONDS = 20.0  # a call that cannot be served is answered after so long
_LONGEST_POLL = 30.0


class SiteServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens as soon as it is made. Calls without the token do not get here."""

    def __init__(
        self, host: Host, address: str, access: Access, *, verify_clients: bool = False
    ) -> None:
        self.host = host
        self.secure = is_tls(address)
        if not self.secure:
            check_plain(address)
        settings = _tls_settings(address, access, verify_clients) if self.secure else {}
        check_free(address)
        super().__init__(address, middleware={"token": TokenGate(access)}, **settings)
        self._actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "start": self._start,
            "stop": self._stop,
            "queries": lambda _: {"host": host.name, "queries": host.queries},
            "describe": self._describe,
            "status": lambda facts: host.part(facts["query"]).status(),
            "advance": self._advance,
            "range": lambda facts: {"range": host.part(facts["query"]).driver.results.range()},
            "trim": self._trim,
            "shape": self._shape,
        }
        self._puts = {PUT: self._put, MESSAGES: self._messages}

    # --- what Flight calls ----------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        return iter(())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with answering():
            if action.type in self._puts:
                data, put = unpacked(action.body)
                facts = facts_of(data, _WANTED[action.type])
                answer = self._puts[action.type](facts, put)
            elif action.type in self._actions:
                wanted = _WANTED.get(action.type, {"query": str})
                facts = facts_of(action.body.to_pybytes() or b"{}", wanted)
                answer = self._actions[action.type](facts)
            else:
                known = ", ".join([*self._puts, *self._actions])
                raise SiteRefusedError(f"there is no action {action.type!r}; actions are {known}")
        return iter([json.dumps(answer).encode()])

    def do_get(self, context: Any, ticket: Any) -> Any:
        with answering():
            facts = facts_of(ticket.ticket, {"query": str, "after": int})
            through, wait = optional(facts, "through", int), seconds_of(facts, "wait")
            part = self.host.part(facts["query"])
            log = part.driver.results
            if wait:
                log.wait(facts["after"], min(wait, _LONGEST_POLL))
            found = log.read(facts["after"], through)
            # the first is read here, so that a complaint about the range is made in time
            first = next(found, None)
        schema = part.driver.deployment.query.result_schema

        def batches() -> Iterator[Any]:
            with answering():
                if first is not None:
                    yield _labelled(first)
                for result in found:
                    yield _labelled(result)

        return flight.GeneratorStream(schema, batches())

    # --- put ------------------------------------------------------------------------------------

    def _put(self, facts: dict[str, Any], data: pa.Buffer) -> dict[str, Any]:
        driver = self.host.part(facts["query"]).driver
        stream = facts["stream"]
        self._check_stream(driver, stream)
        described = driver.deployment.query.stream(stream)
        rows = rows_put(data, described, self.host.limits.put_bytes)
        kept = {name: facts[name] for name in ("producer", "batch", "part")}
        until = optional(facts, "until", int)
        duplicate, late = driver.put(stream, rows, {**kept, "until": until}, _WAIT_SECONDS)
        return {"duplicate": duplicate, "late": late}

    def _messages(self, facts: dict[str, Any], data: pa.Buffer) -> dict[str, Any]:
        driver = self.host.part_for_peer(facts["query"], facts["digest"]).driver
        # a call has several messages; one that is too large itself is refused by the driver
        most = MOST_CALL_BYTES + self.host.limits.message_bytes
        if data.size > most:
            raise SiteRefusedError(
                f"more than {most:,} bytes in one call (message_bytes): send them in several parts"
            )
        return {"through": driver.receive(facts["peer"], opened(data), facts, _WAIT_SECONDS)}

    def _check_stream(self, driver: Driver, stream: str) -> None:
        here = driver.deployment.streams_of(self.host.name)
        if stream not in here:
            raise SiteRefusedError(
                f"query {driver.deployment.name!r} has no stream {stream!r} at "
                f"{self.host.name!r}; it has {', '.join(here)}"
            )

    # --- actions --------------------------------------------------------------------------------

    def _start(self, facts: dict[str, Any]) -> dict[str, Any]:
        deployment = Deployment.from_json(facts)
        return {"started": self.host.start(deployment), "digest": deployment.digest}

    def _stop(self, facts: dict[str, Any]) -> dict[str, Any]:
        self.host.stop(facts["query"], forget=bool(optional(facts, "forget", bool)))
        return {}

    def _describe(self, facts: dict[str, Any]) -> dict[str, Any]:
        deployment = self.host.part(facts["query"]).driver.deployment
        return {
            "deployment": deployment.to_json(),
            "host": self.host.name,
            "put_bytes": self.host.limits.put_bytes,
        }

    def _advance(self, facts: dict[str, Any]) -> dict[str, Any]:
        driver = self.host.part(facts["query"]).driver
        self._check_stream(driver, facts["stream"])
        if driver.deployment.clock != "rows":
            raise SiteRefusedError(
                "the intervals of this query end by the wall clock: nothing else advances them"
            )
        driver.put(facts["stream"], None, {"until": facts["until"]}, _WAIT_SECONDS)
        return {}

    def _trim(self, facts: dict[str, Any]) -> dict[str, Any]:
        driver = self.host.part(facts["query"]).driver
        driver.results.trim(facts["through"])
        driver.wake()  # it may have waited for that
        return {}

    def _shape(self, facts: dict[str, Any]) -> dict[str, Any]:
        self.host.shape(facts["query"], facts["peer"], Shape.from_json(facts["shape"]))
        return {}


def _tls_settings(address: str, access: Access, verify_clients: bool) -> dict[str, Any]:
    shown = access.certificate
    if shown is None:
        raise SiteAccessError(
            f"{address} asks for TLS, but there is no certificate: name one, with its key"
        )
    settings = {"tls_certificates": [(shown.chain, shown.key)]}
    if not verify_clients:
        return settings
    if access.ca is None:
        raise SiteAccessError(
            f"{address} asks its callers for certificates, but there is no CA: name the one that "
            "signs them (ca)"
        )
    return {**settings, "verify_client": True, "root_certificates": access.ca}


def rows_put(data: pa.Buffer, stream: Stream, most_bytes: int) -> pa.RecordBatch | None:
    """The rows of a put, as the stream's; refuses all that cannot be taken in."""
    try:
        rows = read_batch(data, most_bytes)
    except TooLargeError as error:
        raise SiteRefusedError(
            f"more than {most_bytes:,} bytes in one call (put_bytes): {error}. Send them in "
            "several parts"
        ) from error
    found, wanted = rows.schema, stream.schema
    if found.names != wanted.names or found.types != wanted.types:
        raise SiteRefusedError(
            f"stream {stream.name!r} has columns {_columns(wanted)}, but was given "
            f"{_columns(found)}: select and cast them"
        )
    check_times(stream, rows.column(stream.time))
    return pa.RecordBatch.from_arrays(rows.columns, schema=wanted) if rows.num_rows else None


def _labelled(result: tuple[int, int, pa.RecordBatch]) -> tuple[pa.RecordBatch, bytes]:
    number, interval, rows = result
    return rows, json.dumps({"seq": number, "interval": interval}).encode()


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
