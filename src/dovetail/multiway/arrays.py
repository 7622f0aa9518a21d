"""Arrays of all rows in memory, grown and shrunk in place, without a copy of the whole.

Nobody else may hold an array, or a view of it, that grows or shrinks where it is.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 13  # elements that are copied at once


def extend(array: NDArray[Any], more: NDArray[Any]) -> None:
    """Put more elements behind the others."""
    length = len(array)
    array.resize(length + len(more), refcheck=False)
    array[length:] = more


def compact(array: NDArray[Any], kept: NDArray[np.bool_]) -> None:
    """Leave only the elements that are marked."""
    stop = 0
    for start in range(0, len(array), _PIECE):
        some = array[start : start + _PIECE][kept[start : start + _PIECE]]
        array[stop : stop + len(some)] = some
        stop += len(some)
    array.resize(stop, refcheck=False)


def count_marks(marked: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The number of marked values up to and including each place."""
    counts = np.empty(len(marked), dtype=np.int32)
    before = np.int32(0)
    for start in range(0, len(marked), _PIECE):
        some = counts[start : start + _PIECE]
        np.cumsum(marked[start : start + _PIECE], out=some)  # numpy casts all of it at once
        some += before
        before = some[-1]
    return counts
