"""Memory for the blocks that deferred work reads; rows in memory are flushed to make room."""

import sys
from collections.abc import Callable
from typing import Protocol

import numpy as np

from dovetail.kernel.memory import Budget, Reservation
from dovetail.kernel.probing import Rows


class Lender(Protocol):
    """An operator with rows in memory. Passed with each call, as it owns the `Room` itself."""

    def require(self, held: Reservation, nbytes: int, what: str) -> None:
        """Have a reservation granted; rows in memory are flushed if need be."""

    def lend(self) -> bool:
        """Give up something that blocks need more; False if there is nothing of the kind."""


class Room:
    """The memory for blocks: a guaranteed part, and as much more as can be freed.

    Always there are `in_working` bytes of the working memory, and `least()` bytes that rows in
    memory have to make room for.
    """

    def __init__(
        self, budget: Budget, in_working: int = 0, least: Callable[[], int] = lambda: 0
    ) -> None:
        self._budget = budget
        self._in_working = in_working
        self._least = least
        self._held = Reservation(budget, "outer")

    @property
    def nbytes(self) -> int:
        return self._in_working + self._held.nbytes

    @property
    def least_bytes(self) -> int:
        """The guaranteed bytes; more of them once wide rows have come."""
        return self._in_working + self._least()

    def ask(self, nbytes: int, lender: Lender) -> int:
        """Have room for so many bytes, or for as many as can be spared; returns how many."""
        self.give_back()
        if least := self._least():
            lender.require(self._held, least, "room for blocks")
        excess = nbytes - self.least_bytes
        while excess > 0 and not self._held.try_grow(excess):
            if not lender.lend():
                free = (self._budget.total_bytes or 0) - self._budget.used_bytes
                self._held.try_grow(max(0, min(excess, free - self.least_bytes // 8)))
                break
        return self.nbytes

    def fit(self, lengths: Rows, lender: Lender) -> int:
        """The number of blocks of these lengths that fit, one at least."""
        ends = np.cumsum(lengths)
        return max(1, int(np.searchsorted(ends, self.ask(int(ends[-1]), lender), side="right")))

    def share(self, part: float) -> int:
        """This part of the budget, but not less than the guaranteed bytes."""
        total = self._budget.total_bytes
        return sys.maxsize if total is None else max(self.least_bytes, int(part * total))

    def give_back(self) -> None:
        self._held.resize(0)
