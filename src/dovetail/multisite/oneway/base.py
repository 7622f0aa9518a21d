"""The base of one-way joins, and the rows that they work on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dovetail.kernel.keys import Codes
from dovetail.multisite.matching import probe_codes, select
from dovetail.multisite.messages import Message
from dovetail.multisite.plan import PlacedStep
from dovetail.multisite.windows import Mask, Numbers

if TYPE_CHECKING:
    from dovetail.multisite.site import Site


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

    def snapshot(self) -> dict[str, Any]:
        """The rows as data."""
        return vars(self)

    @classmethod
    def restored(cls, data: Mapping[str, Any]) -> "Task":
        return cls(**data)


def keyed(task: Task, step: PlacedStep) -> tuple[Task, Codes]:
    """The rows that have a key, and their codes."""
    codes, valid = probe_codes(step, task.rows)
    if valid is None:
        return task, codes
    return task.reduced(valid), codes[valid]


class OneWay:
    """One algorithm."""

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        """At the source: rows have come, at least one."""
        raise NotImplementedError

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        """At the source: the copy that the rows wait for is complete."""
        raise AssertionError(f"{step.algorithm} waits for no copy")

    def asked(self, site: "Site", step: PlacedStep, message: Message) -> None:
        """At the destination: keys have come."""
        raise AssertionError(f"{step.algorithm} sends no keys")

    def answered(self, site: "Site", step: PlacedStep, task: Task, message: Message) -> None:
        """At the source: the answer has come."""
        raise AssertionError(f"{step.algorithm} expects no answer")
