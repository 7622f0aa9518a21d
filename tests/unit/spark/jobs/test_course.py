"""When the inputs of a step count as ended."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.spark.endings import Silence
from dovetail.spark.jobs.course import Course, Leg, Loaded

LONG = [(0, []), (1, []), (2, []), (3, [0, 1]), (9, [0, 1])]
LAST = [(0, []), (1, []), (2, [0, 1])]


@pytest.mark.parametrize(
    ("last_rows", "silent", "ended"),
    [*((False, *case) for case in LONG), *((True, *case) for case in LAST)],
)
def test_step_when_silence_lasts_then_inputs_count_as_ended(
    last_rows: bool, silent: int, ended: list[int]
) -> None:
    """Cleanup is not to wait until the Reactive phase has let every block meet every other."""
    finished: list[int] = []
    operator = SimpleNamespace(finish=finished.append)
    spec: Any = SimpleNamespace(slice_ms=250, inputs=("", ""))
    course = Course(spec, Leg.__new__(Leg), Loaded(operator, ExitStack()))  # type: ignore[arg-type]
    course.last_rows = last_rows
    course.work_off = lambda _: None  # type: ignore[method-assign]
    course.defer(Silence(silent, ((0, 0), (0, 0))))
    assert finished == ended
