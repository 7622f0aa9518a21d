"""Errors over the wire: what a site says is what its client raises."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dovetail.errors import (
    DovetailError,
    SiteAccessError,
    SiteError,
    SiteRefusedError,
    SiteUnavailableError,
)

_MOST_CHARACTERS = 2000  # of a message; it travels in a header


@contextmanager
def answering() -> Iterator[None]:
    """In a server: an error of ours becomes one that Flight can carry."""
    try:
        yield
    except DovetailError as error:
        again = isinstance(error, SiteUnavailableError)
        message = str(error)[:_MOST_CHARACTERS]
        info = json.dumps({"again": again, "message": message}).encode()
        kind = flight.FlightUnavailableError if again else flight.FlightServerError
        raise kind(message, info) from error


@contextmanager
def asking(address: str) -> Iterator[None]:
    """In a client: an error of Flight becomes one of ours."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise translated(error, address) from error


def translated(error: BaseException, address: str) -> SiteError:
    """What a site, or the way to it, has said."""
    info = getattr(error, "extra_info", b"")
    if info:
        try:
            said = json.loads(info)
            kind = SiteUnavailableError if said["again"] else SiteRefusedError
            return kind(f"{address}: {said['message']}")
        except (ValueError, KeyError, TypeError):
            pass  # not one of ours
    text = str(error).partition(". gRPC client debug context")[0].partition("\n")[0]
    if isinstance(error, flight.FlightUnauthenticatedError):
        return SiteAccessError(f"{address} does not let us in: the token is missing or wrong")
    lower = str(error).lower()
    if "ssl" in lower or "certificate" in lower or "handshake" in lower:
        return SiteAccessError(
            f"{address}: no TLS connection ({text}). Do both ends use TLS, and is its certificate "
            "signed by the CA that is named here, for this host name?"
        )
    if isinstance(
        error,
        flight.FlightUnavailableError | flight.FlightTimedOutError | flight.FlightCancelledError,
    ):
        return SiteUnavailableError(f"{address} cannot be reached: {text}")
    return SiteError(f"{address} failed: {text}")


def facts_of(metadata: bytes, wanted: Mapping[str, type]) -> dict[str, Any]:
    """JSON that came with a call, with at least these facts."""
    try:
        facts = json.loads(metadata)
        for name, kind in wanted.items():
            if not isinstance(facts[name], kind) or isinstance(facts[name], bool):
                raise TypeError(f"{name} is {facts[name]!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise SiteRefusedError(
            f"a call without what belongs to it ({type(error).__name__}: {error}); do both ends "
            "run the same version?"
        ) from error
    return dict(facts)
