"""Results of a multi-way join counted, not gathered: with many, that takes most of the time."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from dovetail.multiway import MultiWayJoin
from dovetail.multiway.combining import Combinations
from dovetail.multiway.output import CombinationEmitter
from dovetail.multiway.rows import JoinRows


class CountingEmitter(CombinationEmitter):
    """Emits as many rows as there are results, but of one column of nulls."""

    def __init__(self) -> None:
        super().__init__(pa.schema([("result", pa.null())]), 0)
        self._counted = 0

    def add(
        self, sources: Sequence[JoinRows], combinations: Combinations
    ) -> Iterator[pa.RecordBatch]:
        self._counted += len(combinations[0])
        return iter(())

    def drain(self) -> Iterator[pa.RecordBatch]:
        counted, self._counted = self._counted, 0
        if counted:
            yield pa.RecordBatch.from_arrays([pa.nulls(counted)], ["result"])


def count_only(join: MultiWayJoin) -> None:
    """From now on, a join's results are counted only."""
    join._emitter = join.joins._emitter = CountingEmitter()
