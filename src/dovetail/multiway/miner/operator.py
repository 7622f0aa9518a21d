"""MINER: a multi-way join that keeps the rows in memory that are likeliest to produce results.

Source: Bornea, Vassalos, Kotidis and Deligiannakis, "Adaptive Join Operators for Result Rate
Optimization on Streaming Inputs", section 4, which builds on DINER (section 3). Any number of
inputs, joined by equalities and bands that form a tree.

Vocabulary. Each join attribute of each relation has an index of the rows in memory (`keyindex`) and
three areas with statistics (`areas`): `UpJoins` and so on count results, `LocalJoins` of an edge
(`probing`) count pairs of rows that matched, whether that led to a result or not.

Arriving phase. A row is stored, indexed by each of its attributes, and joined with the rows in
memory of all other relations, the most selective edge first; what finds no partner goes no further.
Each result counts in the area of every attribute of every row that it is made of, and sets the join
bits of these rows.

Flushing (`flushing`). The victim is the relation with the most rows in memory, and of the areas of
all its attributes the one with the least benefit. The rows leave every index, and the areas of the
other attributes lose what they held of them. The first flush of a relation takes from all rows as
if they were middle, and sets the bounds of all its attributes.

Beyond the paper (`fading`, see `areas` and `flushing`): statistics fade instead of being forgotten,
partial matches break ties between areas, and they set join bits, too. And (`weighing`, see
`relation_yield`) rows are flushed from the relation whose rows yield the least.

Reactive phase and Cleanup. See `cells` for what has to be joined and why each combination comes
once, `odometer` for the order, `blockjoins` for the work and for what goes beyond the paper.
`miner-paper` does without that.

Degenerate cases. One relation that stays empty: nothing is deferred, and nothing is ever emitted.
Keys that are hashed have areas of hashes, which say little, and the join bits do what can be done.
"""

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from dovetail.kernel.keys import Codes
from dovetail.multiway.base import MultiWayJoin
from dovetail.multiway.blockjoins import MinerOptions
from dovetail.multiway.combining import Combinations, Matches
from dovetail.multiway.keyindex import Slots
from dovetail.multiway.miner.areas import Areas, Times
from dovetail.multiway.miner.flushing import move_bounds, slots_to_flush
from dovetail.multiway.miner.relation_yield import AttributeYield
from dovetail.multiway.miner.relation_yield import victim as poorest
from dovetail.multiway.rows import Arriving, JoinRows, RelationRows
from dovetail.multiway.spec import Reach


class Miner(MultiWayJoin):
    """Joins of several inputs of any size within a budget."""

    name: ClassVar[str] = "miner"

    def _build(self) -> None:
        self.areas = [[Areas() for _ in attributes] for attributes in self.spec.attributes]
        self._stale = [False] * len(self.spec)  # whose joins the next row sets to 0
        self.yields = [
            [AttributeYield() for _ in attributes] for attributes in self.spec.attributes
        ]

    # -- statistics -------------------------------------------------------------------------

    def _began_anew(self) -> None:
        for relation, stale in enumerate(self._stale):
            if stale:
                for known in self.areas[relation]:
                    known.begin_anew(fading=self.options.fading)
        self._stale = [False] * len(self.spec)

    def _new_matches(self) -> Matches:
        if self.options.fading:
            return PartialMatches(len(self.spec.edges), self.areas)
        return super()._new_matches()

    def _combined(self, sources: Sequence[JoinRows], found: Combinations) -> None:
        for relation, source in enumerate(sources):
            slots, times = _each_once(source, found[relation])
            for known, codes in zip(self.areas[relation], source.codes, strict=True):
                known.joined(codes.take(slots), times)
            if isinstance(source, RelationRows | Arriving):
                source.bits[slots] = True
            if self.options.weighing and isinstance(source, RelationRows):
                for yields, codes in zip(self.yields[relation], source.codes, strict=True):
                    yields.count(codes.take(slots), times)

    def _inserted(self, side: int, codes: list[Codes]) -> None:
        for known, some in zip(self.areas[side], codes, strict=True):
            known.arrived(some)

    def _removed(self, relation: int) -> None:
        for known, index in zip(self.areas[relation], self.tables[relation].indexes, strict=True):
            known.count_rows(index)

    # -- flushing ---------------------------------------------------------------------------

    def _make_room(self, wanted: int = 0) -> bool:
        if self._drop_copies():
            return True
        if not any(map(len, self.tables)):
            return False
        victim = self._victim()
        table, areas = self.tables[victim], self.areas[victim]
        count = self._rows_to_flush(victim, wanted)
        # the next flush may come at once, and nothing else would tell the new areas apart
        first = self.options.fading and areas[0].lower is None
        matched = table.bits.copy() if first else None
        slots, taken = slots_to_flush(
            table, areas, count, self.ctx.rng, tie_breaks=self.options.fading
        )
        self._stale[victim] = True
        known = [area.densities() for area in areas] if self.options.fading else None
        self._flush(self.cells[0], victim, slots, taken[0][0])
        move_bounds(table, areas, taken, self._rows_of(victim, self.block_bytes), known)
        if matched is not None:
            matched = np.delete(matched, slots)
        if matched is not None and len(matched) == len(table):  # else more had to go at once
            for area, codes in zip(areas, table.codes, strict=True):
                area.matched(codes[matched])
        if self.options.weighing:
            self._weigh(victim)
        return True

    def _victim(self) -> int:
        """The relation that rows are flushed from."""
        if self.options.weighing:
            return poorest([table.indexes for table in self.tables], self.yields)
        return max(range(len(self.spec)), key=lambda relation: len(self.tables[relation]))

    def _weigh(self, victim: int) -> None:
        """Rows of a relation have been flushed."""
        for yields in chain(*self.yields):
            yields.fade()
        for yields, index in zip(self.yields[victim], self.tables[victim].indexes, strict=True):
            yields.halve(index)

    # -- state ------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        areas = [[known.facts() for known in areas] for areas in self.areas]
        yields = [[known.facts() for known in yields] for yields in self.yields]
        return {"areas": areas, "stale": list(self._stale), "gains": yields}

    def _restore_facts(self, facts: dict[str, Any]) -> None:
        self._stale = list(facts["stale"])
        self.yields = [
            [AttributeYield(known[0], known[1:]) for known in yields] for yields in facts["gains"]
        ]
        known_areas = copy.deepcopy(facts["areas"])  # someone may restore from it again
        self.areas = [[Areas(**known) for known in areas] for areas in known_areas]
        for relation in range(len(self.spec)):
            self._removed(relation)

    def check(self) -> None:
        super().check()
        for areas, table in zip(self.areas, self.tables, strict=True):
            for known, codes in zip(areas, table.codes, strict=True):
                known.check(codes)
            assert table.bits.dtype == np.bool_


class PartialMatches(Matches):
    """Pairs that count in the areas of their rows as well, and set their join bits."""

    def __init__(self, edges: int, areas: Sequence[Sequence[Areas]]) -> None:
        super().__init__(edges)
        self._areas = areas

    def count(
        self, reach: Reach, sources: Sequence[JoinRows], parents: Slots, children: Slots
    ) -> None:
        super().count(reach, sources, parents, children)
        for relation, attribute, slots in (
            (reach.parent, reach.parent_attribute, parents),
            (reach.child, reach.child_attribute, children),
        ):
            source = sources[relation]
            some, times = _each_once(source, slots)
            self._areas[relation][attribute].matched(source.codes[attribute].take(some), times)
            if isinstance(source, RelationRows | Arriving):
                source.bits[some] = True


class PaperMiner(Miner):
    """MINER as the paper has it, without what was added."""

    name: ClassVar[str] = "miner-paper"
    default_options: ClassVar[MinerOptions] = MinerOptions(
        zone_maps=False, reduce=False, fading=False, weighing=False, keep_copies=False
    )


def _each_once(source: JoinRows, slots: Slots) -> tuple[Slots, Times | None]:
    """The slots without repetition, and how often each occurs, if they have to repeat.

    With skew, a few rows make up most results, and it is these few that are then looked at.
    """
    if len(slots) <= len(source):
        return slots, None
    times = np.bincount(slots, minlength=len(source))
    some = np.flatnonzero(times)
    return some, times.take(some)
