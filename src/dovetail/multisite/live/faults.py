"""Errors over the wire: what a site says is what its client raises."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dovetail.errors import (
    ArgumentError,
    DovetailError,
    SiteAccessError,
    SiteError,
    SiteRefusedError,
    SiteUnavailableError,
)
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.handshake import tls_problem

_log = logging.getLogger(__name__)
_MOST_NUMBER = (1 << 63) - 1
_YEAR = 366 * 24 * 3600
_MOST_SHOWN = 60
_KINDS = {
    str: "a text", int: "a whole number", dict: "an object", list: "a list", bool: "true or false",
}  # fmt: skip
_MOST_CHARACTERS = 2000  # of a message; it travels in a header


@contextmanager
def answering() -> Iterator[None]:
    """In a server: an error of ours becomes one that Flight can carry.

    Of any other, the caller hears its kind only; the site's log has the rest.
    """
    try:
        yield
    except DovetailError as error:
        again = isinstance(error, SiteUnavailableError)
        raise _carried(str(error), again=again) from error
    except flight.FlightError:
        raise
    except Exception as error:  # noqa: BLE001 - its traceback is for the log, not for a caller
        _log.exception("a call has failed")
        text = f"the site failed inside ({type(error).__name__}): its log says where"
        raise _carried(text, again=False) from None


def _carried(message: str, *, again: bool) -> Exception:
    message = message[:_MOST_CHARACTERS]
    info = json.dumps({"again": again, "message": message}).encode()
    kind = flight.FlightUnavailableError if again else flight.FlightServerError
    error: Exception = kind(message, info)
    return error


@contextmanager
def asking(address: str, access: Access) -> Iterator[None]:
    """In a client: an error of Flight becomes one of ours."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise translated(error, address, access) from error


@contextmanager
def understanding(address: str) -> Iterator[None]:
    """In a client: an answer that is none becomes an error of ours."""
    try:
        yield
    except (pa.ArrowException, AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        if isinstance(e, DovetailError) and not isinstance(e, ArgumentError):
            raise
        text = str(e).partition("\n")[0]
        raise SiteRefusedError(
            f"{address} has answered as no site does ({type(e).__name__}: {text}). Nothing of the "
            "answer was used; do both ends run the same version?"
        ) from e


def translated(error: BaseException, address: str, access: Access) -> SiteError:
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
    broken = isinstance(error, flight.FlightUnavailableError)
    if broken and "Connection refused" not in str(error):
        problem = tls_problem(address, access)
        if problem is not None:
            return SiteAccessError(f"{address}: no connection, because of TLS: {problem}")
    if isinstance(
        error,
        flight.FlightUnavailableError | flight.FlightTimedOutError | flight.FlightCancelledError,
    ):
        return SiteUnavailableError(f"{address} cannot be reached: {text}")
    return SiteError(f"{address} failed: {text}")


def facts_of(data: bytes, wanted: Mapping[str, type]) -> dict[str, Any]:
    """JSON that came with a call, with at least these facts."""
    try:
        facts = json.loads(data)
        if not isinstance(facts, dict):
            raise TypeError(f"{type(facts).__name__} instead of an object")
        for name, kind in wanted.items():
            if name not in facts:
                raise TypeError(f"{name} is missing")
            _check_fact(name, facts[name], kind)
    except (ValueError, TypeError, RecursionError) as error:
        raise SiteRefusedError(
            f"a call without what belongs to it ({error}); do both ends run the same version?"
        ) from error
    return facts


def _check_fact(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name}={_shown(value)} has to be {_KINDS[kind]}")
    if isinstance(value, int) and abs(value) > _MOST_NUMBER:
        raise TypeError(f"{name}={_shown(value)} does not fit into 64 bits")


def optional(facts: Mapping[str, Any], name: str, kind: type) -> Any:
    """A fact that may be missing or null."""
    value = facts.get(name)
    if value is not None:
        try:
            _check_fact(name, value, kind)
        except TypeError as error:
            raise SiteRefusedError(str(error)) from None
    return value


def seconds_of(facts: Mapping[str, Any], name: str) -> float:
    """A fact that is a span of time; 0 if it is missing."""
    value: Any = facts.get(name)
    if value is None:
        return 0.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 <= value <= _YEAR:  # so that NaN is refused, too
        return float(value)
    raise SiteRefusedError(f"{name}={_shown(value)} has to be seconds, from 0 to {_YEAR:,}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
