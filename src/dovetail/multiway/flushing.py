"""Which rows of a relation are flushed: those of the area with the least benefit.

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
from dovetail.multiway.areas import LOWER, MIDDLE, TIES, Areas, Densities
from dovetail.multiway.keyindex import Slots
from dovetail.multiway.rows import Table

Mask = NDArray[np.bool_]


def choose(
    table: Table, areas: Sequence[Areas], count: int, rng: np.random.Generator, *, tie_breaks: bool
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
            slots = _turn_hand(areas[attribute], codes, table.bits, eligible, count, rng)
        else:
            slots = _outermost(codes, eligible, count, lowest=area == LOWER)
        chosen[slots] = True
        count -= len(slots)
        taken.append((attribute, area))
    slots = np.flatnonzero(chosen)
    order = np.argsort(table.codes[taken[0][0]].take(slots), kind="stable")
    return slots[order], taken


def move_bounds(
    table: Table,
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
            known.carry(table.codes[attribute], count, densities[attribute])
            continue
        flushed = [area for from_attribute, area in taken if from_attribute == attribute]
        known.move(table.codes[attribute], count, flushed)


def _victims(areas: Sequence[Areas], table: Table | None) -> list[tuple[int, int]]:
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


def _mean_ticks(table: Table, area: NDArray[np.int8]) -> list[float]:
    """The mean ATS of the rows in each area."""
    counts = np.maximum(np.bincount(area, minlength=3), 1)
    means: list[float] = (np.bincount(area, weights=table.ats, minlength=3) / counts).tolist()
    return means


def _outermost(codes: Codes, eligible: Mask, count: int, *, lowest: bool) -> Slots:
    slots = np.flatnonzero(eligible)
    if len(slots) <= count:
        return slots
    at = count - 1 if lowest else len(slots) - count
    order = np.argpartition(codes.take(slots), at)
    return slots[order[:count] if lowest else order[at:]]


def _turn_hand(
    areas: Areas, codes: Codes, bits: Mask, eligible: Mask, count: int, rng: np.random.Generator
) -> Slots:
    slots = np.flatnonzero(eligible)
    if not len(slots):
        return slots
    if areas.hand is None:
        areas.hand = int(codes[slots[int(rng.integers(len(slots)))]])
    taken: list[Slots] = []
    above = codes >= areas.hand
    # a first round may only clear bits; the second then finds none set
    for side in (above, ~above, above, ~above):
        passed = eligible & side
        unset = np.flatnonzero(passed & ~bits)
        if len(unset) < count:
            bits[passed] = False
            eligible[unset] = False
            taken.append(unset)
            count -= len(unset)
            continue
        some = unset[np.argpartition(codes.take(unset), count - 1)[:count]]
        areas.hand = int(codes.take(some).max())
        # others with that very code may not have been passed: the hand stays on it
        bits[passed & (codes < areas.hand)] = False
        taken.append(some)
        break
    return np.concatenate(taken)
