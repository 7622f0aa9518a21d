"""A planned job: a value that goes to the tasks of its query.

plan    `rows`, `routes` and `output` say how `planning` makes a DataFrame of it, on the driver
build   `load` makes an operator in a task, `build` a new one or one as of a snapshot
renew   a job whose operators go out of date leaves them out when it loads, and lets its course
tune    replace or adjust the one that a step works with (see `course`)
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import Context, Counters, Operator, Snapshot
from dovetail.spark.jobs.course import Course, Leg, Loaded
from dovetail.spark.layout import UnionLayout
from dovetail.spark.state import Manifest
from dovetail.specs import JobSpec


@dataclass(frozen=True)
class Route:
    """The partition, or partitions, that a row of an input goes to."""

    target: Column  #: the partition of a row, or an array of them
    several: bool = False  #: whether it is an array


@dataclass(frozen=True)
class Job(ABC):
    """The base of jobs: what planning and the step call."""

    spec: JobSpec

    # -- on the driver ----------------------------------------------------------------------

    @abstractmethod
    def rows(self, frames: Sequence[DataFrame]) -> list[DataFrame]:
        """The rows of each input that are worth sending."""

    @abstractmethod
    def routes(self, layout: UnionLayout, schemas: Sequence[StructType]) -> list[Route]:
        """The route of each input's rows, by their columns as they travel."""

    @abstractmethod
    def output(self, schemas: Sequence[StructType]) -> StructType:
        """The Spark types of the output, nested metadata and all, from the inputs' own schemas."""

    # -- in a task --------------------------------------------------------------------------

    @abstractmethod
    def build(
        self,
        context: Context,
        partition: int,
        snapshot: Snapshot | None,
        resources: contextlib.ExitStack,
    ) -> Operator:
        """One partition's operator, new or as of a snapshot; what it opens goes to `resources`."""

    def load(self, directory: Path, partition: int, stem: str, parent: Manifest | None) -> Loaded:
        """The operator that a step begins with: as its parent version left it, or a new one.

        stem: what the files that it writes are named after.
        """
        files = parent.files if parent else ()
        store = BlockStore(directory, self.spec.kept, stem, files)
        return self.loaded(store, Counters(), partition, parent.snapshot if parent else None)

    def loaded(
        self, store: BlockStore, counters: Counters, partition: int, snapshot: Snapshot | None
    ) -> Loaded:
        """An operator with one partition's share of the memory."""
        budget = Budget(self.spec.partition_bytes, shares=self.spec.partitions)
        resources = contextlib.ExitStack()
        try:
            context = Context(budget, store, counters=counters)
            return Loaded(self.build(context, partition, snapshot, resources), resources)
        except BaseException:
            resources.close()
            store.close()
            raise

    def course(self, leg: Leg, loaded: Loaded) -> Course:
        """The course that leads an operator from a step's rows to its snapshot."""
        return Course(self.spec, leg, loaded)
