"""Flushing of MINER: picks the area of a relation with the least benefit.

Section 4.1: of the relation with the most rows in memory, rows are flushed from the area with the
smallest benefit among the areas of all its join attributes; every other index and all counters of
the relation follow. How rows are taken out of an area is section 3.3 (Algorithm 2): from the lower
or the upper one its outermost rows; in the middle one, a clock hand goes round by code and takes
the rows whose join bit is not set, clearing the bits that it passes. An area that cannot fill the
block is followed by the one with the next least benefit.

Of areas with the same benefit, Algorithm 2 takes the upper one before the lower one and that before
the middle one. With many inputs results are rare, and ties are not: before the first combination is
complete, all benefits are 0. Where values grow with time, the upper area has the rows that have
just come; flushed first, they never find partners, and the benefits stay 0. With `tie_breaks`
(beyond the paper) the area goes first whose rows have the fewest partial matches, that is, partners
in the relations next to theirs, and then the one whose rows have been in memory the longest.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.multiway.keyindex import Slots
from dovetail.multiway.miner.areas import LOWER, MIDDLE, TIES, UPPER, Areas, Densities
from dovetail.multiway.rows import RelationRows

Mask = NDArray[np.bool_]
_PIECE = 1 << 13  # rows whose codes are looked at together


def slots_to_flush(
    table: RelationRows,
    areas: Sequence[Areas],
    count: int,
    rng: np.random.Generator,
    *,
    tie_breaks: bool,
) -> tuple[Slots, list[tuple[int, int]]]:
    """The slots of `count` rows to flush, and the attributes and areas that they are from.

    The rows are in the order of the first of these attributes. Join bits that the clock hand
    passes are cleared.
    """
    chosen = np.zeros(len(table), dtype=np.bool_)
    taken: list[tuple[int, int]] = []
    for attribute, area in _victims(areas, table if tie_breaks else None):
        if count <= 0:
            break
        codes = table.codes[attribute]
        eligible = (areas[attribute].areas_of(codes) == area) & ~chosen
        if area == MIDDLE:
            some = _turn_hand(areas[attribute], codes, table.bits, eligible, count, rng)
        else:
            some = _outermost(codes, eligible, count, lowest=area == LOWER)
        chosen |= some
        count -= int(np.count_nonzero(some))
        taken.append((attribute, area))
    slots = np.flatnonzero(chosen)
    order = np.argsort(table.codes[taken[0][0]].take(slots), kind="stable")
    return slots[order], taken


def move_bounds(
    table: RelationRows,
    areas: Sequence[Areas],
    taken: Sequence[tuple[int, int]],
    count: int,
    densities: Sequence[Densities] | None = None,
) -> None:
    """Let the areas that were flushed from hold about `count` rows again; count all rows anew.

    With densities, which are those before the flush, this is done for all lower and upper areas,
    and the statistics stay with the rows.
    """
    for attribute, known in enumerate(areas):
        if densities is not None:
            known.carry(table.index(attribute), count, densities[attribute])
            continue
        flushed = [area for from_attribute, area in taken if from_attribute == attribute]
        known.move(table.index(attribute), count, flushed)


def _victims(areas: Sequence[Areas], table: RelationRows | None) -> list[tuple[int, int]]:
    """The areas that hold rows, with their attributes, the least benefit first.

    With a table, ties are resolved by the partial matches and the age of the rows.
    """
    held = [
        (attribute, area)
        for attribute, known in enumerate(areas)
        for area in TIES
        if known.rows[area]
    ]
    benefits = {at: areas[at[0]].benefit(at[1]) for at in held}
    if table is None or len(set(benefits.values())) == len(held):
        return sorted(held, key=benefits.__getitem__)
    ticks = {
        (attribute, area): tick
        for attribute, known in enumerate(areas)
        for area, tick in enumerate(_mean_ticks(table, known.areas_of(table.codes[attribute])))
    }
    return sorted(
        held, key=lambda at: (benefits[at], areas[at[0]].partial_benefit(at[1]), ticks[at])
    )


def _mean_ticks(table: RelationRows, area: NDArray[np.int8]) -> list[float]:
    """The mean ATS of the rows in each area."""
    return [table.ats.mean(area == number) for number in (LOWER, MIDDLE, UPPER)]


def _outermost(codes: Codes, eligible: Mask, count: int, *, lowest: bool) -> Mask:
    """Marks on `count` of the eligible rows, those with the lowest or the highest codes.

    Here and below, rows are marked rather than numbered, and their codes not copied: there may be
    as many as in memory, and what is made of them has to fit beside them.
    """
    if np.count_nonzero(eligible) <= count:
        return eligible
    bound = _last_of(codes, eligible, count, lowest=lowest)
    chosen = eligible & (codes < bound if lowest else codes > bound)
    ties = np.flatnonzero(eligible & (codes == bound))
    chosen[ties[: count - int(np.count_nonzero(chosen))]] = True
    return chosen


def _last_of(codes: Codes, eligible: Mask, count: int, *, lowest: bool) -> int:
    """The last of the `count` lowest, or highest, codes of the eligible rows, which are more."""
    best = np.zeros(0, dtype=np.int64)
    for start in range(0, len(codes), _PIECE):
        piece = slice(start, start + _PIECE)
        best = np.concatenate([best, codes[piece][eligible[piece]]])
        if len(best) > count:
            best.partition(count - 1 if lowest else len(best) - count)
            best = best[:count] if lowest else best[-count:]
    return int(best.max() if lowest else best.min())


def _turn_hand(
    areas: Areas, codes: Codes, bits: Mask, eligible: Mask, count: int, rng: np.random.Generator
) -> Mask:
    """Marks on `count` of the eligible rows, or on all; uses up the marks on those."""
    rows = int(np.count_nonzero(eligible))
    if not rows:
        return eligible
    if areas.hand is None:
        areas.hand = int(codes[np.flatnonzero(eligible)[int(rng.integers(rows))]])
    taken = np.zeros(len(codes), dtype=np.bool_)
    # a first round may only clear bits; the second then finds none set
    for above in (True, False, True, False):
        passed = codes >= areas.hand if above else codes < areas.hand
        passed &= eligible
        unset = passed & ~bits
        found = int(np.count_nonzero(unset))
        if found < count:
            bits[passed] = False
            eligible &= ~unset
            taken |= unset
            count -= found
            continue
        some = _outermost(codes, unset, count, lowest=True)
        areas.hand = int(codes[some].max())
        # others with that very code may not have been passed: the hand stays on it
        bits[passed & (codes < areas.hand)] = False
        taken |= some
        break
    return taken
