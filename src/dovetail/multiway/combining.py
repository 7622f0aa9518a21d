"""Combines rows of several relations, relation after relation, in pieces of bounded size.

A *plan* starts with one relation and walks the edges of the join tree, each from a relation that is
already in to one that is not. A set of partial combinations is held as an array of slots for each
relation that is in. Walking an edge looks the codes of all of them up at once in the index of the
relation that comes in, and cuts what is found into pieces of at most `limit` combinations, each of
which goes on alone. So there is never more than one piece for each relation, however many results
there are; and combinations that find no row go no further (early stop, section 4.1).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.probing import Span
from dovetail.multiway.keyindex import Slots
from dovetail.multiway.rows import JoinRows
from dovetail.multiway.spec import MultiWaySpec, Reach

Combinations = dict[int, Slots]  #: the slots of each relation, all of one length


def bytes_each(inputs: int) -> int:
    """The bytes of a combination, if every relation has a piece that is full.

    The slots of each relation that is in, once more with each edge that is walked, and what it
    takes to enumerate the pairs of each edge.
    """
    return 4 * (inputs * (inputs + 1) // 2) + 64 * (inputs - 1)


class Matches:
    """The pairs of rows that matched in one call of `Combiner.combine`, counted by edge."""

    def __init__(self, edges: int) -> None:
        self.by_edge = [0] * edges

    def count(
        self, reach: Reach, sources: Sequence[JoinRows], parents: Slots, children: Slots
    ) -> None:
        """Count pairs: the edge as it was walked, and the rows at its two ends."""
        self.by_edge[reach.edge] += len(children)


class Combiner:
    """Joins rows of the inputs of one spec."""

    def __init__(self, spec: MultiWaySpec, limit: int) -> None:
        self._spec = spec
        self._limit = limit
        self._compared = [_has_to_be_compared(codec) for codec in spec.codecs]
        self._columns = [
            tuple(
                [spec.schemas[end].get_field_index(name) for name in names]
                for end, names in zip(edge.ends, edge.columns, strict=True)
            )
            for edge in spec.edges
        ]

    def combine(
        self, sources: Sequence[JoinRows], first: int, plan: Sequence[Reach],
        matches: Matches | None = None,
    ) -> Iterator[Combinations]:  # fmt: skip
        """All combinations of the rows of each relation, which begin with relation `first`.

        Pairs that match on the way are counted in `matches`.
        """
        if not all(len(source) for source in sources):
            return
        rows = len(sources[first])
        for start in range(0, rows, self._limit):
            stop = min(start + self._limit, rows)
            begin: Combinations = {first: np.arange(start, stop, dtype=np.int32)}
            yield from self._extend(sources, begin, plan, matches)

    def _extend(
        self, sources: Sequence[JoinRows], partial: Combinations, plan: Sequence[Reach],
        matches: Matches | None,
    ) -> Iterator[Combinations]:  # fmt: skip
        if not plan:
            yield partial
            return
        reach, rest = plan[0], plan[1:]
        hits = self._probe(sources, partial, reach)
        if hits is None:
            return
        slots, span = hits
        for probing, positions in span.pairs(self._limit):
            wider = self._widen(sources, partial, reach, (probing, slots.take(positions)))
            del probing, positions  # while others go on, this one waits
            if wider is None:
                continue
            if matches is not None:
                matches.count(reach, sources, wider[reach.parent], wider[reach.child])
            yield from self._extend(sources, wider, rest, matches)

    def _probe(
        self, sources: Sequence[JoinRows], partial: Combinations, reach: Reach
    ) -> tuple[Slots, Span] | None:
        """Look the combinations' codes up in the index of the relation that comes in."""
        codes = sources[reach.parent].codes[reach.parent_attribute].take(partial[reach.parent])
        low, high = self._spec.codecs[reach.edge].candidates(codes)
        return sources[reach.child].index(reach.child_attribute).probe(low, high)

    def _widen(
        self, sources: Sequence[JoinRows], partial: Combinations, reach: Reach,
        pairs: tuple[Slots, Slots],
    ) -> Combinations | None:  # fmt: skip
        """Combinations with one relation more, of those and the slots that may match them."""
        probing, found = pairs
        matching = self._verify(sources, reach, partial[reach.parent].take(probing), found)
        if matching is not None:
            probing, found = probing[matching], found[matching]
        if not len(found):
            return None
        wider = {number: some.take(probing) for number, some in partial.items()}
        wider[reach.child] = found
        return wider

    def _verify(
        self, sources: Sequence[JoinRows], reach: Reach, parents: Slots, children: Slots
    ) -> NDArray[np.bool_] | None:
        """Which candidates really match; None when all of them do."""
        if not self._compared[reach.edge]:
            return None
        turned = self._spec.edges[reach.edge].ends[0] != reach.parent
        columns = self._columns[reach.edge]
        one = sources[reach.parent].payload.gather(parents, columns[turned])
        two = sources[reach.child].payload.gather(children, columns[not turned])
        return self._spec.codecs[reach.edge].verify(one.columns, two.columns)


def _has_to_be_compared(codec: KeyCodec) -> bool:
    """Whether candidates have to be verified: hashed keys, and bands of floats."""
    if codec.within is None:
        return not codec.exact
    return bool(pa.types.is_floating(codec.types[0]))
