"""What waits for a driver's next round, and who is held up."""

import threading
from concurrent.futures import Future

import pytest

from dovetail.errors import SiteError, SiteRefusedError, SiteUnavailableError
from dovetail.multisite.live.events import Job, What
from dovetail.multisite.live.jobs import Jobs


def rows_of(nbytes: int) -> Job:
    return Job(What.INPUT, {}, b"x" * nbytes, None, Future())


def stopping() -> SiteError:
    return SiteUnavailableError("being stopped")


def test_jobs_when_rows_wait_then_room_comes_back_with_the_interval_that_takes_them() -> None:
    jobs = Jobs(100, held_bytes=0)
    job = rows_of(100)
    jobs.add([job])
    assert not jobs.has_room()
    assert not jobs.wait_for_room("a", "p", 0.01)
    assert jobs.take(0) == [job]
    assert jobs.nbytes == 100, "the round is still under way"
    jobs.taken_in([job], held_bytes=100, awaited={("a", "p")}, more=False)
    assert jobs.nbytes == 100
    assert jobs.wait_for_room("a", "p", 0.01), "an interval waits for these rows"
    assert not jobs.wait_for_room("a", "q", 0.01)
    jobs.taken_in([], held_bytes=0, awaited=set(), more=False)
    assert jobs.wait_for_room("a", "q", 0.01)


def test_take_when_nothing_comes_then_waits_and_is_woken() -> None:
    jobs = Jobs(100, held_bytes=0)
    assert jobs.take(60) == [], "the first round begins at once"
    assert jobs.take(0.01) == []
    jobs.taken_in([], held_bytes=0, awaited=set(), more=True)
    assert jobs.take(60) == [], "there was more to do"
    threading.Timer(0.01, jobs.wake).start()
    assert jobs.take(60) == []


def test_jobs_when_closed_then_refuse_for_the_first_reason_and_fail_what_waits() -> None:
    jobs = Jobs(100, held_bytes=200)
    job = rows_of(1)
    jobs.add([job])
    jobs.close(stopping)
    jobs.close(lambda: SiteRefusedError("another reason"))
    assert jobs.closed
    assert jobs.has_room(), "nobody waits to be refused"
    assert jobs.wait_for_room("a", "p", 60)
    with pytest.raises(SiteUnavailableError, match="being stopped"):
        jobs.add([rows_of(1)])
    jobs.fail(stopping())
    assert isinstance(job.done.exception(0), SiteUnavailableError)
    assert jobs.take(0) == []
