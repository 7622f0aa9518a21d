"""What the runtime has to know of any job."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from dovetail.kernel.protocol import Context, Operator, Snapshot


@dataclass(frozen=True)
class JobSpec(ABC):
    """A checked job, whatever its algorithm."""

    algorithm: str
    memory_bytes: int | None  #: over all partitions; None is unbounded
    partitions: int
    state: Path | None  #: None for a batch join, which keeps nothing
    slice_ms: int
    eager: ClassVar[bool] = False  #: deferred work is due at once, not only in a silence

    @property
    def partition_bytes(self) -> int | None:
        """One partition's share of the budget."""
        return None if self.memory_bytes is None else self.memory_bytes // self.partitions

    @property
    @abstractmethod
    def inputs(self) -> tuple[pa.Schema, ...]:
        """The schemas of the rows that are pushed, by side."""

    @property
    @abstractmethod
    def kept(self) -> tuple[pa.Schema, ...]:
        """The schemas of the rows that an operator puts on disk."""

    @property
    @abstractmethod
    def output(self) -> pa.Schema: ...

    @abstractmethod
    def operator(self, context: Context, partition: int, snapshot: Snapshot | None) -> Operator:
        """One partition's operator, new or as of a snapshot."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What must not change during the life of a state directory."""

    def outdated(self, operator: Operator) -> bool:
        """Whether the operator should be drained and made anew."""
        return False

    def expendable(self, snapshot: Snapshot, pending: int) -> bool:
        """Whether an operator of this snapshot would be outdated and has nothing to finish."""
        return False

    def release(self, operator: Operator) -> None:
        """Close what an operator that is used no more holds open, its block store aside."""
        return

    def retune(
        self, operator: Operator, known: dict[str, Any] | None, rows: int, now: float
    ) -> dict[str, Any] | None:
        """Before `rows` rows are pushed that came by `now`: settings that follow the arrivals.

        `known` is what this returned last, also in an earlier step; None for settings that stay.
        """
        return None

    @property
    def predicted(self) -> dict[str, float] | None:
        """What one partition is expected to do, for its records; None if nothing is."""
        return None


def describe(schema: pa.Schema) -> Mapping[str, str]:
    """A schema as `identity` has it."""
    return {field.name: str(field.type) for field in schema}
