"""A machine by the clock: the journal first, then the machine, then the world.

One thread lets events happen, in rounds. A round takes in what has come, lets intervals end whose
time is over, then messages, then whatever waits for the time; the order that the sites ask for.
Everything goes into the journal, which is synced once a round; only then is anything released that
follows from it: messages to other hosts, results, and acknowledgements.

Back-pressure. No interval is begun while an outbox is full, while too many results wait to be
read, or while a stream is too far ahead of what all sites are done with; then rows wait, and
whoever sends more of them. Messages are always taken in, so that two hosts never wait for each
other. Where the wall clock ends intervals, those that ended while rows had to wait, or while the
host was away, are held until these have come (`holds`).

Memory. Rows that wait and outboxes are bounded by that; what has come and waits its turn, by the
one call that each host has under way. Windows are as large as the query makes them: a host whose
windows and copies outgrow `state_bytes` stops with an error, before memory is used up.
"""

import logging
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa

from dovetail.errors import SiteError, SiteRefusedError, SiteUnavailableError
from dovetail.multisite.live.delays import Delays
from dovetail.multisite.live.deployment import UNITS, Deployment, Shape
from dovetail.multisite.live.events import Event, Job, What
from dovetail.multisite.live.holds import Holds
from dovetail.multisite.live.inbox import Inbox
from dovetail.multisite.live.jobs import Jobs
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.machine import Machine, rows_bytes
from dovetail.multisite.live.outbox import Outbox
from dovetail.multisite.live.restoring import journal_of, restored
from dovetail.multisite.live.results import ResultLog
from dovetail.multisite.messages import Message, decode
from dovetail.multisite.query import MOST_TIME

_log = logging.getLogger(__name__)
_LONGEST_WAIT = 0.5  # seconds
_MOST_INTERVALS = 1_000_000_000  # that `until` may be ahead
_TICKS_IN_A_ROUND = 8  # messages are not to wait while many intervals end at once
_ADVICE = {
    "rows": "if nothing changes, say how far the rows of all streams are complete (until)",
    "wall": "rows must not be of a time that is still far away",
}


class Driver:
    """Runs a host's part of a query. Any thread may call; `start` begins."""

    def __init__(
        self, deployment: Deployment, host: str, directory: Path, limits: Limits | None = None
    ) -> None:
        self.deployment = deployment
        self.host = host
        self.limits = limits or Limits()
        self.error: str | None = None
        self._journal = journal_of(deployment, host, directory, self.limits)
        self.results = ResultLog(directory)
        others = [other for other in deployment.hosts if other != host]
        self.delays = Delays(host, others)
        shapes = deployment.shapes
        self.outboxes = {other: Outbox(shapes.get((host, other), Shape())) for other in others}
        self._machine = restored(
            deployment, host, self._journal, self.results, self.outboxes, self._release
        )
        early_bytes = self.limits.outbox_bytes
        self.inboxes = {o: Inbox(o, self._machine.received[o], early_bytes) for o in others}
        self._lock = threading.Lock()  # the machine
        self._inbox_lock = threading.Lock()
        self._jobs = Jobs(self.limits.input_bytes, self._machine.waiting_bytes())
        self._newest: dict[str, Future[bool]] = {}  # of each host's messages, the last to be safe
        self._last_now = 0
        self._holds = Holds(deployment.query)
        self._hold_ended()
        self._thread = threading.Thread(
            target=self._run, name=f"{deployment.name}@{host}", daemon=True
        )

    def _hold_ended(self) -> None:
        """Wait for rows of the intervals that ended while nobody could put any."""
        now = self._now()
        if self.deployment.clock == "wall":
            for name, feed in self._machine.feeds.items():
                if self._machine.is_behind(name, now):
                    self._holds.begin(name, feed.producers, now)

    # --- called from outside --------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop between two rounds; what was acknowledged is in the journal."""
        self._jobs.close(self._stopping)
        if self._thread.is_alive():
            self._thread.join()
        self._jobs.fail(self._stopping())
        self._journal.close()
        self.results.close()

    def put(
        self, stream: str, rows: pa.RecordBatch | None, facts: dict[str, Any], timeout: float
    ) -> tuple[bool, int]:
        """Rows of a stream: whether they had been put before, and how many were late in all."""
        facts = {**facts, "stream": stream}
        self._check_until(stream, facts.get("until"))
        body = rows_bytes(rows)
        deadline = time.monotonic() + timeout
        if body and not self._jobs.has_room():
            self._hold_for(stream, facts, timeout)
        if body and not self._jobs.wait_for_room(stream, facts.get("producer", ""), timeout):
            raise SiteUnavailableError(
                f"site {self.host!r} is behind: {self._jobs.nbytes:,} bytes of rows wait there for "
                "their interval to end. Try again later; " + self._reason()
            )
        job = Job(What.INPUT, facts, body, rows, Future())
        self._jobs.add([job])
        happened = self._result(job.done, deadline)
        return not happened, self._machine.feeds[stream].arrivals.late

    def _check_until(self, stream: str, until: int | None) -> None:
        """Refuse a time up to which nobody can be: it would make all rows late, for good.

        Intervals end one by one, so a stream cannot be that far ahead of itself: to get there would
        take a day or more.
        """
        if until is None:
            return
        query = self.deployment.query
        reached = self._machine.feeds[stream].next_interval
        most = min(query.boundary(reached + _MOST_INTERVALS), MOST_TIME)
        if not -MOST_TIME <= until <= most:
            raise SiteRefusedError(
                f"until={until} cannot be: stream {stream!r} is at {query.boundary(reached)}, and "
                f"nothing is complete up to more than {_MOST_INTERVALS:,} intervals later, nor "
                f"beyond {MOST_TIME}. Is it in the unit of the times ({self.deployment.unit})?"
            )

    def _hold_for(self, stream: str, facts: dict[str, Any], seconds: float) -> None:
        """A producer has to wait: if that is because of us, intervals will wait for it in turn."""
        with self._lock:
            now = self._now()
            if self.deployment.clock == "wall" and self._machine.is_behind(stream, now):
                self._holds.begin(stream, [facts["producer"]], now, seconds)

    def receive(
        self, peer: str, messages: list[tuple[int, bytes]], facts: dict[str, Any], timeout: float
    ) -> int:
        """Messages of another host; returns the last number up to which all are safe here."""
        if peer not in self.inboxes:
            raise SiteRefusedError(
                f"query {self.deployment.name!r} has no other host {peer!r}; it has "
                f"{', '.join(self.inboxes)}"
            )
        inbox = self.inboxes[peer]
        jobs = []
        with self._inbox_lock:
            if self.error is not None:
                raise self._failure()
            inbox.check(int(facts["first"]), int(facts["last"]))
            self.delays.told(facts.get("delays", {}))
            decoded = {seq: self._checked(peer, body) for seq, body in messages}
            for seq, body in inbox.take(messages):
                message = decoded.get(seq)  # else it came early, in an earlier call
                jobs.append(Job(What.MESSAGE, {"peer": peer, "seq": seq}, body, message, Future()))
            through = inbox.last
            self._jobs.add(jobs)
            if jobs:
                self._newest[peer] = jobs[-1].done
            newest = self._newest.get(peer)
        if newest is not None:  # also if all had come before: that call may still be waiting
            self._result(newest, time.monotonic() + timeout)
        return through

    def _checked(self, peer: str, body: bytes) -> Message:
        self.limits.check_received(self.host, len(body))
        message = decode(body)
        self._machine.check_message(peer, message)
        return message

    def wake(self) -> None:
        """Something has changed that the next round should know of."""
        self._jobs.wake()

    def status(self) -> dict[str, Any]:
        """How far it has come, as JSON has it."""
        with self._lock:
            facts = self._machine.facts()
        links = {
            peer: {
                **facts["links"][peer],
                "acknowledged": outbox.acknowledged,
                "waiting_bytes": outbox.nbytes,
                "repeated": self.inboxes[peer].repeated,
                "delay": self.delays.of(peer),
            }
            for peer, outbox in self.outboxes.items()
        }
        return {
            **facts,
            "host": self.host,
            "error": self.error,
            "results": list(self.results.range()),
            "measured_delta": self.deployment.units(self.delays.bound),
            "journal_bytes": self._journal.nbytes,
            "snapshots": self._journal.snapshots,
            "links": links,
        }

    def _result(self, done: "Future[bool]", deadline: float) -> bool:
        try:
            return done.result(max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            raise SiteUnavailableError(
                f"site {self.host!r} is busy; what was sent may have been taken in: send it again"
            ) from None

    def _stopping(self) -> SiteError:
        return SiteUnavailableError(f"site {self.host!r} is being stopped")

    def _failure(self) -> SiteError:
        return SiteError(f"query {self.deployment.name!r} at {self.host!r} failed: {self.error}")

    # --- rounds ---------------------------------------------------------------------------------

    def _run(self) -> None:
        jobs: list[Job] = []
        try:
            while not self._jobs.closed:
                jobs = self._jobs.take(self._seconds_left())
                self._round(jobs)
                if self._journal.wants_snapshot:
                    self._snapshot()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            _log.exception("query %s at %s has failed", self.deployment.name, self.host)
            self.error = f"{error}" if isinstance(error, SiteError) else f"{error!r}"
            self._jobs.close(self._failure)
            failed = self._failure()
            for job in jobs:
                if not job.done.done():
                    job.done.set_exception(failed)
            self._jobs.fail(failed)

    def _seconds_left(self) -> float:
        """Until something has to happen by the clock."""
        with self._lock:
            at = self._machine.next_time(self._last_now) if not self._halted() else None
        if at is None:
            return _LONGEST_WAIT
        nanoseconds = at * UNITS[self.deployment.unit] - time.time_ns()
        return min(_LONGEST_WAIT, max(0.0, nanoseconds / 1e9))

    def _now(self) -> int:
        if self.deployment.clock == "rows":
            return self._machine.event_time()
        now = time.time_ns() // UNITS[self.deployment.unit]
        self._last_now = max(self._last_now, now)  # a clock that was set back stands still
        return self._last_now

    def _hindrance(self) -> str | None:
        """Why no interval may be begun now."""
        waiting = {peer: box.nbytes for peer, box in self.outboxes.items()}
        return self.limits.hindrance(waiting, self.results.nbytes)

    def _reason(self) -> str:
        """Why intervals do not end, or what to do about it."""
        for peer, box in self.outboxes.items():
            if box.refusal is not None:
                return f"{self.host!r} cannot send to {peer!r}: {box.refusal}"
        return self._hindrance() or _ADVICE[self.deployment.clock]

    def _halted(self) -> bool:
        return self._hindrance() is not None

    def _round(self, jobs: list[Job]) -> None:
        with self._lock:
            now = self._now()
            happened = {}
            for job in jobs:
                if job.what is What.INPUT:
                    happened[id(job)] = self._take_in(job, now)
            more = self._tick(now)
            for job in jobs:
                if job.what is What.MESSAGE:
                    self._happen(Event(job.what, now, job.facts, job.body), job.decoded)
            self._adjust_delta(now)
            if self._machine.is_due(now):
                self._happen(Event(What.ADVANCE, now))
            self._journal.sync()
            self._release(self._machine)
            self.limits.check_state(self._machine.nbytes)
            more = more or self._machine.next_tick(now, self._halted(), self._holds) is not None
            held = self._machine.waiting_bytes()
            awaited = self._machine.awaited(self._holds) if not self._halted() else set()
        self._jobs.taken_in(jobs, held, awaited, more)
        for job in jobs:
            job.done.set_result(happened.get(id(job), True))

    def _take_in(self, job: Job, now: int) -> bool:
        """Let rows come in, unless they have before."""
        facts = job.facts
        known = self._machine.feeds[facts["stream"]].producers.get(facts.get("producer") or "")
        if known is not None and (facts["batch"], facts["part"]) <= known:
            return False
        self._happen(Event(What.INPUT, now, facts, job.body), job.decoded)
        return True

    def _tick(self, now: int) -> bool:
        """Let intervals end; whether more of them could."""
        for _ in range(_TICKS_IN_A_ROUND):
            found = self._machine.next_tick(now, self._halted(), self._holds)
            if found is None:
                return False
            self._happen(Event(What.TICK, found[1], {"stream": found[0]}))
        return True

    def _happen(self, event: Event, decoded: Any = None) -> None:
        at = self._journal.append(event, self._machine.outputs)
        try:
            self._machine.apply(event, decoded)
        except Exception as error:
            self._journal.take_back(at)
            what = f"{event.what.name.lower()} {event.facts}"
            raise SiteError(f"{what} failed, and is not in the journal: {error!r}") from error

    def _release(self, machine: Machine) -> None:
        """Let out what the machine has made."""
        outputs = machine.take()
        for peer, seq, body in outputs.messages:
            self.limits.check_sent(peer, seq, len(body))
            self.outboxes[peer].add(seq, body)
        for number, interval, rows in outputs.results:
            self.results.append(number, interval, rows)

    def _snapshot(self) -> None:
        self.results.sync()
        with self._lock:
            kept = {peer: outbox.kept() for peer, outbox in self.outboxes.items()}
            self._journal.snapshot({"machine": self._machine.snapshot(), "kept": kept})
        _log.info(
            "query %s at %s: snapshot %d", self.deployment.name, self.host, self._journal.number
        )

    def _adjust_delta(self, now: int) -> None:
        """Go by what was measured: at once if it is longer, else when it is less than half."""
        if not self.deployment.follows_delays:
            return
        measured, current = self.deployment.units(self.delays.bound), self._machine.delta
        shorter = 0 < 2 * measured < current and self.delays.complete
        if measured > current or shorter:
            self._happen(Event(What.DELTA, now, {"delta": measured}))
