"""The yield of a relation's rows in memory, by which the relation to flush from is chosen.

The paper flushes from the relation with the most rows in memory, which keeps all of them at one
size. With many inputs that can be far from what is best: a relation that has each key once and is
joined with skewed ones yields almost everything with a few of its rows, and the others would make
better use of the memory (section 5.5 has such relations).

Beyond the paper, then: the rows of a relation are halved at their middle code, for each of its join
attributes, and the results that rows *in memory* took part in are counted for either half; rows
that are just arriving would have done so anyway. The counts fade by `_FADING` with each flush of
any relation, so that those of all relations are of one span of time. If there is a relation whose
poorer half yields far less for each of its rows than that of the largest one, rows are flushed from
it. A foreign key's relation that has got smaller has its more frequent keys left and yields more,
so sizes settle. Codes that are hashes have halves that are alike; what is compared are then means.

No relation is drained: one with less than `_LEAST_SHARE` of an equal share of the rows is left
alone, for nothing would be found without it and nothing would tell that it was wanted again. And as
long as results are few, the largest relation is the victim, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.multiway.keyindex import KeyIndex

_FADING = 1 - 1 / 64
_ENOUGH = 1.0  # results a row that tell something
_FAR_LESS = 2.0  # times
_LEAST_SHARE = 1 / 4


@dataclass
class AttributeYield:
    """The results of one attribute's rows in memory, by half."""

    middle: int = 0  #: the last code of the lower half
    found: list[float] = field(default_factory=lambda: [0.0, 0.0])  #: lower half, upper half

    def count(self, codes: Codes, times: NDArray[np.int64] | None) -> None:
        """Rows in memory with these codes took part in a result each, or in so many."""
        lower = codes <= self.middle
        whole = len(codes) if times is None else int(times.sum())
        below = int(np.count_nonzero(lower) if times is None else times[lower].sum())
        self.found[0] += below
        self.found[1] += whole - below

    def fade(self) -> None:
        self.found = [_FADING * some for some in self.found]

    def halve(self, index: KeyIndex) -> None:
        """Set the middle anew, for the rows in memory."""
        if len(index):
            self.middle = index.middle()

    def of_poorer_half(self, index: KeyIndex) -> float:
        """The results of a mean row in the poorer half of the rows in memory, of one at least.

        Where many rows have the middle code, the halves are not of one size; the poorer one is then
        filled up from the other, or cut.
        """
        lower = index.count_up_to(self.middle)
        parts = [
            (gain / rows, rows)
            for gain, rows in zip(self.found, (lower, len(index) - lower), strict=True)
            if rows
        ]
        left = wanted = len(index) / 2
        total = 0.0
        for gain, rows in sorted(parts):
            taken = min(left, rows)
            total += gain * taken
            left -= taken
        return total / wanted

    def facts(self) -> list[Any]:
        return [self.middle, *self.found]


def victim(
    relations: Sequence[Sequence[KeyIndex]], counted: Sequence[Sequence[AttributeYield]]
) -> int:
    """The relation to flush from, of those with these indexes of each attribute."""
    sizes = [len(indexes[0]) for indexes in relations]
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    usual = _yield_of(relations[largest], counted[largest])
    if usual < _ENOUGH:
        return largest
    least = _LEAST_SHARE * sum(sizes) / len(sizes)
    yields = {
        relation: _yield_of(indexes, counted[relation])
        for relation, indexes in enumerate(relations)
        if sizes[relation] > least
    }
    poorest = min(yields, key=yields.__getitem__)
    return poorest if _FAR_LESS * yields[poorest] < usual else largest


def _yield_of(indexes: Sequence[KeyIndex], counted: Sequence[AttributeYield]) -> float:
    return min(known.of_poorer_half(index) for known, index in zip(counted, indexes, strict=True))
