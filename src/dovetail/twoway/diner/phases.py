"""DINER's deferred phases: Reactive while inputs are silent, Cleanup once both have ended.

Each yields pieces of work, in order, until blocks have nothing left to meet. What joins blocks is
shared: `joins` (ReactiveNL) and `sweep` (by ranges of codes). A sweep that was begun is carried on
in either phase, as an input may re-open before its end. `Host` is the operator: it lends memory to
blocks, and is passed with the call.
"""

from collections.abc import Iterator
from typing import ClassVar, Protocol

import pyarrow as pa

from dovetail.kernel.protocol import SIDES
from dovetail.kernel.room import Lender
from dovetail.twoway.diner.arriving import Arriving, Reservations
from dovetail.twoway.diner.joins import BlockJoins, DinerOptions
from dovetail.twoway.diner.sweep import Sweeper

Work = Iterator[Iterator[pa.RecordBatch]]


class Host(Lender, Reservations, Protocol):
    """The operator, to its phases."""


class Reactive:
    """The Reactive phase (Algorithm 4): an outer chunk of limited size meets inner blocks."""

    name: ClassVar[str] = "reactive"

    def __init__(self, joins: BlockJoins, sweeper: Sweeper, options: DinerOptions) -> None:
        self._joins = joins
        self._sweeper = sweeper
        self._options = options

    def work(self, host: Host) -> Work:
        while self._sweeper.state is not None:
            yield self._sweeper.step(host)
        while self._joins.rectangle.advance(self._joins.sizes):
            yield self._joins.react(self._options.max_outer_blocks, host)


class Cleanup:
    """The Cleanup phase: rows in memory are written, and all blocks meet that have not.

    By a sweep over ranges of codes, or as a nested loop where that reads less.
    """

    name: ClassVar[str] = "cleanup"

    def __init__(
        self, arriving: Arriving, joins: BlockJoins, sweeper: Sweeper, options: DinerOptions
    ) -> None:
        self._arriving = arriving
        self._joins = joins
        self._sweeper = sweeper
        self._options = options
        self._looping = False  # as a nested loop

    def leave(self) -> None:
        """Rows have come: what the rest is joined by is decided anew."""
        self._looping = False

    def work(self, host: Host) -> Work:
        joins = self._joins
        while True:
            if self._sweeper.state is not None:
                yield self._sweeper.step(host)
            elif (side := next(filter(self._arriving.unmet, SIDES), None)) is not None:
                self._arriving.set_down(side, host, keep=self._options.cleanup != "loop")
                yield iter(())
            elif not joins.rectangle.advance(joins.sizes):
                self.leave()
                return
            elif not self._looping:
                self._sweeper.put_down()
                self._looping = not self._sweeper.begin(host)
            else:
                yield joins.react(sum(joins.sizes), host)


__all__ = ["Cleanup", "Host", "Reactive"]
