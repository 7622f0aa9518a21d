"""About the most that any policy could find online, of the joins of section 5.5 of the DINER paper.

A yardstick for Figs. 20 and 22, as `diner.clairvoyant` is for joins of two inputs. R2 and R3 have
many rows for a value of the attribute that joins them, R1 and R4 have one for each value of theirs,
and have come by the time that a tenth of the others has.

At any moment, a row of R3 that comes completes a result with each matching row of R2 in memory
whose partner in R1 is in memory too, if its own partner in R4 is; and the other way round. With `k`
rows of R1 in memory, those of the most frequent values are best: they leave a share `P1(k)` of the
rows of R2 worth keeping. A row of R2 with the value v is then worth `P4 * f3(v)`, where f3 counts
the rows of R3, and so on; and the best rows that have come by then fill what memory is left. The
bound adds up, over the time, the best that can be had at each moment for any k.

What is relaxed: rows may come back from disk at no cost from one moment to the next, all of R1 and
R4 is at hand before a tenth of the time, and memory holds nothing but rows. What is simplified: as
many rows of each value have come as are to be expected, and R1 and R4 get equal shares, for their
roles are alike. So it is a bound but for chance; measured results stay below it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dovetail_bench.miner.runs import FEWER, Inputs

_MOMENTS = 60
_CUTS = 12  # numbers of rows of R1 and R4 to try

Shares = NDArray[np.float64]


def share_online(inputs: Inputs, rows: int) -> float:
    """The share of all results that can be found with so many rows in memory."""
    columns = dict(zip(inputs.spec.names, inputs.relations, strict=True))
    middle = "a2" if "a2" in columns["r2"].schema.names else "a"
    left, right = (columns[name].column(middle).to_numpy() for name in ("r2", "r3"))
    size = 1 + int(max(left.max(), right.max()))
    f2, f3 = (np.bincount(keys, minlength=size).astype(np.float64) for keys in (left, right))
    foreign = {
        name: _covered(columns[large].column(key).to_numpy())
        for name, large, key in (("r1", "r2", "a1"), ("r4", "r3", "a3"))
        if middle == "a2" and name in columns
    }
    found = 0.0
    for moment in (np.arange(_MOMENTS) + 0.5) / _MOMENTS:
        if foreign and moment < 1 / FEWER:
            found += 2 * moment * float(f2 @ f3)
        else:
            found += max(
                _at(float(moment), f2, f3, shares, rows - kept)
                for kept, shares in _cuts(foreign, rows)
            )
    return float(found / _MOMENTS / (f2 @ f3))


def _covered(keys: NDArray[np.int64]) -> Shares:
    """What share of the rows have one of the k most frequent values, for k = 0, 1, ..."""
    counts = np.sort(np.bincount(keys))[::-1]
    return np.concatenate([[0.0], np.cumsum(counts) / len(keys)])


def _cuts(foreign: dict[str, Shares], rows: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """How many rows R1 and R4 may have in memory, and the shares of R2 and R3 that are of use."""
    if not foreign:
        yield 0, (1.0, 1.0)
        return
    most = min(len(covered) - 1 for covered in foreign.values())
    for k in np.unique(
        np.geomspace(1, max(1, min(most, rows // len(foreign))), _CUTS).astype(np.int64)
    ):
        p1, p4 = (float(foreign[name][k]) if name in foreign else 1.0 for name in ("r1", "r4"))
        yield int(k) * len(foreign), (p1, p4)


def _at(moment: float, f2: Shares, f3: Shares, shares: tuple[float, float], rows: int) -> float:
    """Results for each unit of time, with the best of the rows that have come in memory."""
    p1, p4 = shares
    have = moment * np.concatenate([f2 * p1, f3 * p4])
    worth = np.concatenate([f3 * p4, f2 * p1])
    order = np.argsort(-worth, kind="stable")
    room = rows - np.cumsum(have[order]) + have[order]
    return float(np.clip(room, 0, have[order]) @ worth[order])
