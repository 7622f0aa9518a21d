"""The Flight service of a host."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dovetail.errors import SiteAccessError, SiteRefusedError
from dovetail.sites.live.access import (
    Access,
    Certificate,
    TokenGate,
    check_free,
    check_plain,
    is_tls,
)
from dovetail.sites.live.deployment import Deployment, Shape
from dovetail.sites.live.faults import answering, facts_of
from dovetail.sites.live.host import Host
from dovetail.sites.live.wire import ENVELOPE, INPUT, MESSAGES, MOST_CALL_BYTES, opened
from dovetail.sites.query import Stream

_WAIT_SECONDS = 20.0  # a call that cannot be served is answered after so long
_LONGEST_POLL = 30.0


class SiteServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens as soon as it is made. Calls without the token do not get here."""

    def __init__(
        self, host: Host, address: str, access: Access, certificate: Certificate | None = None
    ) -> None:
        secure = is_tls(address)
        if secure and certificate is None:
            raise SiteAccessError(
                f"{address} asks for TLS, but there is no certificate: name one, with its key"
            )
        if not secure:
            check_plain(address)
        check_free(address)
        self.host = host
        self.secure = secure
        super().__init__(
            address,
            middleware={"token": TokenGate(access)},
            tls_certificates=[(certificate.chain, certificate.key)]
            if secure and certificate
            else None,
        )
        self._actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "start": self._start,
            "stop": self._stop,
            "queries": lambda _: {"host": host.name, "queries": host.queries},
            "describe": self._describe,
            "status": lambda facts: host.part(facts["query"]).status(),
            "advance": self._advance,
            "range": lambda facts: {"range": self._results(facts).range()},
            "trim": self._trim,
            "shape": self._shape,
        }

    # --- what Flight calls ----------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        return iter(())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with answering():
            if action.type not in self._actions:
                raise SiteRefusedError(
                    f"there is no action {action.type!r}; actions are {', '.join(self._actions)}"
                )
            wanted = {} if action.type in ("start", "queries") else {"query": str}
            facts = facts_of(action.body.to_pybytes() or b"{}", wanted)
            answer = self._actions[action.type](facts)
        return iter([json.dumps(answer).encode()])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with answering():
            path = [part.decode("utf-8", "replace") for part in descriptor.path or []]
            match path:
                case [kind, query, stream] if kind == INPUT:
                    answer = self._put_rows(query, stream, reader)
                case [kind, query, digest, peer] if kind == MESSAGES:
                    answer = self._put_messages(query, digest, peer, reader)
                case _:
                    raise SiteRefusedError(f"nothing can be put at {'/'.join(path)!r}")
        writer.write(json.dumps(answer).encode())

    def do_get(self, context: Any, ticket: Any) -> Any:
        with answering():
            facts = facts_of(ticket.ticket, {"query": str, "after": int})
            part = self.host.part(facts["query"])
            log, through = part.driver.results, facts.get("through")
            if facts.get("wait"):
                log.wait(facts["after"], min(float(facts["wait"]), _LONGEST_POLL))
            found = log.read(facts["after"], through)
            # the first is read here, so that a complaint about the range is made in time
            first = next(found, None)
        schema = part.driver.deployment.result_schema

        def batches() -> Iterator[Any]:
            with answering():
                if first is not None:
                    yield _labelled(first)
                for result in found:
                    yield _labelled(result)

        return flight.GeneratorStream(schema, batches())

    # --- put ------------------------------------------------------------------------------------

    def _put_rows(self, query: str, stream: str, reader: Any) -> dict[str, Any]:
        driver = self.host.part(query).driver
        here = driver.deployment.streams_of(self.host.name)
        if stream not in here:
            raise SiteRefusedError(
                f"query {query!r} has no stream {stream!r} at {self.host.name!r}; it has "
                f"{', '.join(here)}"
            )
        described = driver.deployment.query.stream(stream)
        _check_schema(described, reader.schema)
        batches, metadata = _read(reader, self.host.limits.put_bytes, "put_bytes")
        facts = facts_of(metadata, {"producer": str, "batch": int, "part": int})
        rows = _as_one(batches, described)
        until = facts.get("until")
        if until is not None and (not isinstance(until, int) or isinstance(until, bool)):
            raise SiteRefusedError(f"until={until!r}: a whole number, in the unit of the times")
        kept = {name: facts[name] for name in ("producer", "batch", "part")} | {"until": until}
        duplicate, late = driver.put(stream, rows, kept, _WAIT_SECONDS)
        return {"duplicate": duplicate, "late": late}

    def _put_messages(self, query: str, digest: str, peer: str, reader: Any) -> dict[str, Any]:
        driver = self.host.part_for_peer(query, digest).driver
        if not reader.schema.equals(ENVELOPE):
            raise SiteRefusedError(
                f"messages come as {ENVELOPE.names} ({ENVELOPE.types}), not as "
                f"{reader.schema.names} ({reader.schema.types})"
            )
        # a call has several messages; one that is too large itself is refused by the driver
        most = MOST_CALL_BYTES + self.host.limits.message_bytes
        batches, metadata = _read(reader, most, "message_bytes")
        facts = facts_of(metadata, {"first": int, "last": int})
        messages = [message for batch in batches for message in opened(batch)]
        return {"through": driver.receive(peer, messages, facts, _WAIT_SECONDS)}

    # --- actions --------------------------------------------------------------------------------

    def _start(self, facts: dict[str, Any]) -> dict[str, Any]:
        deployment = Deployment.from_json(facts)
        return {"started": self.host.start(deployment), "digest": deployment.digest}

    def _stop(self, facts: dict[str, Any]) -> dict[str, Any]:
        self.host.stop(facts["query"], forget=bool(facts.get("forget")))
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
        stream, until = facts.get("stream"), facts.get("until")
        if stream not in driver.deployment.streams_of(self.host.name) or not isinstance(until, int):
            raise SiteRefusedError(
                f"a stream of {self.host.name!r} and a time are needed, not {stream!r}, {until!r}"
            )
        if driver.deployment.clock != "rows":
            raise SiteRefusedError(
                "the intervals of this query end by the wall clock: nothing else advances them"
            )
        driver.put(stream, None, {"until": until}, _WAIT_SECONDS)
        return {}

    def _results(self, facts: dict[str, Any]) -> Any:
        return self.host.part(facts["query"]).driver.results

    def _trim(self, facts: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(facts.get("through"), int):
            raise SiteRefusedError("trim takes the number of the last result not needed (through)")
        driver = self.host.part(facts["query"]).driver
        driver.results.trim(facts["through"])
        driver.wake()  # it may have waited for that
        return {}

    def _shape(self, facts: dict[str, Any]) -> dict[str, Any]:
        try:
            shape = Shape.from_json(facts["shape"])
        except (KeyError, TypeError) as error:
            raise SiteRefusedError(f"shape takes latency, bandwidth and cut ({error!r})") from error
        self.host.shape(facts["query"], str(facts.get("peer")), shape)
        return {}


def _labelled(result: tuple[int, int, pa.RecordBatch]) -> tuple[pa.RecordBatch, bytes]:
    number, interval, rows = result
    return rows, json.dumps({"seq": number, "interval": interval}).encode()


def _check_schema(stream: Stream, found: pa.Schema) -> None:
    wanted = stream.schema
    if found.names != wanted.names or found.types != wanted.types:
        raise SiteRefusedError(
            f"stream {stream.name!r} has columns {_columns(wanted)}, but was given "
            f"{_columns(found)}: select and cast them"
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _read(reader: Any, most_bytes: int, limit: str) -> tuple[list[pa.RecordBatch], bytes]:
    """The batches of a put, and what came with the first of them."""
    batches, metadata, size = [], b"", 0
    for chunk in reader:
        if chunk.data is not None:
            size += chunk.data.nbytes
            batches.append(chunk.data)
        if chunk.app_metadata is not None and not metadata:
            metadata = chunk.app_metadata.to_pybytes()
        if size > most_bytes:
            raise SiteRefusedError(
                f"more than {most_bytes:,} bytes in one call ({limit}): send them in several parts"
            )
    return batches, metadata


def _as_one(batches: list[pa.RecordBatch], stream: Stream) -> pa.RecordBatch | None:
    batches = [batch for batch in batches if batch.num_rows]
    if not batches:
        return None
    rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    if rows.column(stream.time).null_count:
        raise SiteRefusedError(
            f"stream {stream.name!r} was given rows without a time ({stream.time} is null): leave "
            "them out"
        )
    return pa.RecordBatch.from_arrays(rows.columns, schema=stream.schema)
