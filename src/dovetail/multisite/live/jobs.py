"""The jobs of a driver: what other threads bring, until the next round takes it in.

Rows are held up where too many wait for their interval to end; messages never are. Once closed, no
job comes in; what is there already is run by the round that is under way, or fails.
"""

import threading
from collections.abc import Callable, Sequence

from dovetail.errors import SiteError
from dovetail.multisite.live.events import Job

Awaited = set[tuple[str, str]]  #: streams, and producers whose rows an interval waits for


class Jobs:
    """A queue of jobs for one thread that works in rounds. Any thread may call."""

    def __init__(self, most_bytes: int, held_bytes: int) -> None:
        self._most_bytes = most_bytes  # before rows are held up
        self._changed = threading.Condition()
        self._queue: list[Job] = []
        self._queued_bytes = 0  # of the queue, and of the round that is under way
        self._held_bytes = held_bytes  # rows that came in, and wait for their interval to end
        self._awaited: Awaited = set()
        self._again = True
        self._refusal: Callable[[], SiteError] | None = None

    @property
    def nbytes(self) -> int:
        """Rows and messages that wait, as bytes."""
        return self._held_bytes + self._queued_bytes

    @property
    def closed(self) -> bool:
        return self._refusal is not None

    # --- whoever brings jobs --------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether rows may come in; so they may when closed, to be refused at once."""
        return self.closed or self.nbytes < self._most_bytes

    def wait_for_room(self, stream: str, producer: str, seconds: float) -> bool:
        """Wait until rows may come in: there is room, or the interval that would make it waits for
        these very rows. False if there is none for so long.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self.has_room() or (stream, producer) in self._awaited, seconds
            )

    def add(self, jobs: Sequence[Job]) -> None:
        """Put jobs into the queue, or raise why none is taken any more."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal()
            self._queue += jobs
            self._queued_bytes += sum(len(job.body) for job in jobs)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a round begin soon, also without a job."""
        with self._changed:
            self._again = True
            self._changed.notify_all()

    def close(self, refusal: Callable[[], SiteError]) -> None:
        """Take no more jobs; a refusal of before stays."""
        with self._changed:
            self._refusal = self._refusal or refusal
            self._changed.notify_all()

    # --- whoever runs rounds --------------------------------------------------------------------

    def take(self, seconds: float) -> list[Job]:
        """The jobs of the next round, as soon as there is a reason for one or the time is over."""
        with self._changed:
            if not self._again:
                self._changed.wait_for(lambda: self._queue or self._again or self.closed, seconds)
            self._again = False
            jobs, self._queue = self._queue, []
            return jobs

    def taken_in(self, jobs: Sequence[Job], held_bytes: int, awaited: Awaited, more: bool) -> None:
        """A round is over; `more`: the next one has something to do even without jobs."""
        with self._changed:
            self._held_bytes, self._awaited = held_bytes, awaited
            self._queued_bytes -= sum(len(job.body) for job in jobs)
            self._again = self._again or more
            self._changed.notify_all()

    def fail(self, error: SiteError) -> None:
        """Let the jobs that wait fail."""
        with self._changed:
            jobs, self._queue = self._queue, []
            self._changed.notify_all()
        for job in jobs:
            job.done.set_exception(error)
