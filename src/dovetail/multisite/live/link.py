"""Sends an outbox to another host, again and again until it is acknowledged.

One call carries as many messages as there are, up to what travels in about a second, and is
answered when they are safe at the other end. After a failure all that is not acknowledged is sent
again, from a call without messages on, which only asks what the other end has. Calls also carry
what is known of the delays of all links (`delays`).
"""

import logging
import random
import threading
import time
from typing import Any

from pyarrow import flight

from dovetail.errors import (
    DovetailError,
    SiteAccessError,
    SiteRefusedError,
    SiteUnavailableError,
)
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.faults import asking
from dovetail.multisite.live.wire import MESSAGES, MOST_CALL_BYTES, call, envelopes, packed

_log = logging.getLogger(__name__)
_LEAST_BYTES, _FIRST_BYTES = 64 << 10, 1 << 20  # of one call
_SHORT_SECONDS, _LONG_SECONDS = 0.5, 2.0  # of a call: the next may be larger, or is smaller
_CALL_SECONDS = 30.0  # and what the messages take at this rate; then the link counts as broken
_SLOWEST = 8 << 10  # bytes a second
_IDLE_SECONDS = 0.5
_BEAT_SECONDS = 1.0  # a link that has nothing to send is tried so often, where delays matter
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts
_STOP_SECONDS = 2.0  # a call that takes longer is left to itself
_ADVICE = " (all sites of a query need the same token, and TLS or not)"


class CallSize:
    """How much goes into one call. A link that is slow must not be given more than it can carry in
    time, or the same would be sent for ever.
    """

    def __init__(self) -> None:
        self.nbytes = _FIRST_BYTES

    def took(self, seconds: float) -> None:
        if seconds > _LONG_SECONDS:
            self.failed()
        elif seconds < _SHORT_SECONDS:
            self.nbytes = min(2 * self.nbytes, MOST_CALL_BYTES)

    def failed(self) -> None:
        self.nbytes = max(self.nbytes // 2, _LEAST_BYTES)


class Link:
    """The way from a host to another. A thread of its own."""

    def __init__(self, driver: Driver, peer: str, access: Access) -> None:
        self.peer = peer
        self.error: str | None = None  #: why the last attempt failed
        self.calls = 0
        self.resent = 0  #: messages
        self._driver = driver
        self._outbox = driver.outboxes[peer]
        self._access = access
        self._client: flight.FlightClient | None = None
        self._connected_to = ""
        self._stop = threading.Event()
        self._size = CallSize()
        self._called = 0.0  # when it last worked
        self._highest = 0  # number that was ever sent from here
        self._thread = threading.Thread(target=self._run, name=f"link to {peer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._outbox.close()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        if not self._thread.is_alive():
            self._disconnect()

    @property
    def connected(self) -> bool:
        return self._client is not None and self.error is None

    @property
    def refused(self) -> bool:
        """Whether the other end will not take it, however often it is tried."""
        return self._outbox.refusal is not None

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._exchange()
                pause = _FIRST_PAUSE
            except Exception as error:  # noqa: BLE001 - without its thread a link would be silent
                self._report(error)
                self._disconnect()
                self._size.failed()
                again = isinstance(error, SiteUnavailableError)
                wait = pause if again else _LONGEST_PAUSE
                self._stop.wait(wait * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _report(self, error: Exception) -> None:
        """Say it once, not with every attempt."""
        text = str(error) if isinstance(error, DovetailError) else repr(error)
        if isinstance(error, SiteAccessError):
            text += _ADVICE
        refusal = text if isinstance(error, SiteAccessError | SiteRefusedError) else None
        if self.error is None or (refusal and not self.refused):
            _log.warning("%s cannot send to %s: %s", self._driver.host, self.peer, text)
        self.error, self._outbox.refusal = text, refusal

    def _exchange(self) -> None:
        """Send what is ready and take the answer, once."""
        address = self._driver.deployment.addresses[self.peer]
        if self._client is None or address != self._connected_to:
            if self._outbox.shape.cut:
                self._stop.wait(_FIRST_PAUSE)
                return
            self._disconnect()
            with asking(address, self._access):
                self._client = self._access.connect(address)
            self._connected_to = address
            self._call(address, [])
            if self.error is not None:
                _log.info("%s can send to %s again", self._driver.host, self.peer)
            self.error = self._outbox.refusal = None
        posted = self._outbox.take(self._size.nbytes, _IDLE_SECONDS)
        begin = time.monotonic()
        if posted:
            self._call(address, [(p.seq, p.body) for p in posted])
            self._size.took(time.monotonic() - begin)
            self._driver.delays.measured(self.peer, time.monotonic() - posted[0].posted)
        elif self._is_to_beat(begin):
            self._call(address, [])
            delay = time.monotonic() - begin + self._outbox.shape.latency
            self._driver.delays.measured(self.peer, delay)

    def _is_to_beat(self, now: float) -> bool:
        """Whether to call for nothing, so that every link is measured, and told of."""
        if not self._driver.deployment.follows_delays or self._outbox.shape.cut:
            return False
        return now - self._called > _BEAT_SECONDS

    def _call(self, address: str, messages: list[tuple[int, bytes]]) -> None:
        driver, outbox = self._driver, self._outbox
        deployment = driver.deployment
        facts = {
            "query": deployment.name,
            "digest": deployment.digest,
            "peer": driver.host,
            "first": outbox.acknowledged + 1,
            "last": outbox.last,
            "delays": driver.delays.reports(),
        }
        self.resent += sum(1 for seq, _ in messages if seq <= self._highest)
        self._highest = max(self._highest, messages[-1][0] if messages else 0)
        patience = _CALL_SECONDS + sum(len(body) for _, body in messages) / _SLOWEST
        with asking(address, self._access):
            client, access = self._client, self._access
            answer = call(client, access, MESSAGES, packed(facts, *envelopes(messages)), patience)
        self.calls += 1
        self._called = time.monotonic()
        outbox.acknowledge(self._through(answer))
        driver.wake()

    def _through(self, answer: dict[str, Any]) -> int:
        """Up to which message all are safe at the other end, if that can be."""
        through = answer.get("through")
        if not isinstance(through, int) or not 0 <= through <= self._outbox.last:
            raise SiteRefusedError(
                f"{self.peer!r} acknowledges message {through!r}, of {self._outbox.last} that it "
                "can have been sent: its state is of another query, or damaged"
            )
        return through

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
