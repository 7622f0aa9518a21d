"""The bases of options and of specs of jobs: values, which read nothing."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class JobOptions:
    """The arguments that all calls have, as the caller gave them."""

    on: Any
    how: str = "inner"
    memory: str | int | None = None
    state: str | Path | None = None
    algorithm: str = "auto"
    partitions: int | None = None
    slice_ms: int = 250


@dataclass(frozen=True)
class JobSpec(ABC):
    """A checked job, whatever its algorithm."""

    algorithm: str
    memory_bytes: int | None  #: over all partitions; None is unbounded
    partitions: int
    state: Path | None  #: None for a batch join, which keeps nothing
    slice_ms: int

    @property
    def partition_bytes(self) -> int | None:
        """One partition's share of the budget."""
        return None if self.memory_bytes is None else self.memory_bytes // self.partitions

    @property
    @abstractmethod
    def inputs(self) -> tuple[pa.Schema, ...]:
        """The schemas of the rows that are pushed, by side."""

    @property
    def kept(self) -> tuple[pa.Schema, ...]:
        """The schemas of the rows that an operator puts on disk: those that are pushed, or more."""
        return self.inputs

    @property
    @abstractmethod
    def output(self) -> pa.Schema: ...

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """The facts that must not change during the life of a state directory."""


def describe(schema: pa.Schema) -> Mapping[str, str]:
    """A schema as `identity` has it."""
    return {field.name: str(field.type) for field in schema}
