"""Rows that wait at a site, on their way through the sequence of their stream.

Some wait until a copy has all rows of their interval, some for the answer to a question.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dovetail.kernel.keys import Codes
from dovetail.multisite.matching import select
from dovetail.multisite.plan import PlacedStep
from dovetail.multisite.windows import Mask, Numbers


@dataclass(frozen=True)
class Task:
    """The rows of one interval of one head stream, joined as far as step `index`."""

    head: str
    index: int
    interval: int
    rows: pa.RecordBatch
    numbers: Numbers | None = None  #: of the rows, while they are the head stream's own
    asked: Codes | None = None  #: the keys of the question whose answer is waited for

    def reduced(self, keep: Mask) -> "Task":
        """The task with these rows only."""
        if keep.all():
            return self
        numbers = None if self.numbers is None else self.numbers[keep]
        return replace(self, rows=select(self.rows, keep), numbers=numbers)


class Waiting:
    """The tasks that wait at one site."""

    def __init__(self) -> None:
        self.for_copies: list[Task] = []  #: until a copy is complete
        self._asking: dict[tuple[str, int, int], Task] = {}

    def __len__(self) -> int:
        return len(self._tasks())

    @property
    def nbytes(self) -> int:
        return sum(int(task.rows.nbytes) for task in self._tasks())

    @property
    def first_interval(self) -> int | None:
        """The first interval of which there are rows; None if there are none."""
        return min((task.interval for task in self._tasks()), default=None)

    def take_for_copies(self) -> list[Task]:
        """Whatever waits for a copy, to be tried again."""
        taken, self.for_copies = self.for_copies, []
        return taken

    def for_answer(self, task: Task) -> None:
        """Keep rows until the answer to a question comes."""
        self._asking[task.head, task.index, task.interval] = task

    def answered(self, step: PlacedStep, interval: int) -> Task | None:
        """The rows whose answer has come; None if there was no question."""
        return self._asking.pop((step.head, step.index, interval), None)

    def give_up(self, keep: Callable[[int], bool]) -> int:
        """Drop rows whose answer is late, all but those of some intervals; how many tasks."""
        kept = {key: task for key, task in self._asking.items() if keep(task.interval)}
        given_up = len(self._asking) - len(kept)
        self._asking = kept
        return given_up

    def snapshot(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "parked": [vars(task) for task in self._asking.values()],
            "waiting": [vars(task) for task in self.for_copies],
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Make a new one what it was."""
        for kept in data["parked"]:
            self.for_answer(Task(**kept))
        self.for_copies = [Task(**kept) for kept in data["waiting"]]

    def _tasks(self) -> list[Task]:
        return [*self._asking.values(), *self.for_copies]
