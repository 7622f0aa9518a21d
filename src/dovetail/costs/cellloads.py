"""Loads of the grid cells of a multi-way join, by a sample of each input's rows.

`shares` takes keys to be spread evenly, and then chooses by the mean load. Where they are not, a
value that many rows have fills one part of its dimension, however many parts there are, and cutting
another dimension may help more. A sample has the hashes by which rows find their parts, so it tells
for any shares how full each cell would be: what an input brings is counted over its own dimensions,
and is the same for all parts of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.costs.shares import CLEARLY, Dimension, Grid, likely_grids

CANDIDATES = 64  #: shares that are looked at; those after them bring far more on average

Loads = NDArray[np.float64]


@dataclass(frozen=True)
class HashSample:
    """Rows of one input, and for each dimension the hashes that tell their parts."""

    rows: int  #: in the sample
    #: a row each, with a column, or two where it may go to two parts; None: it goes to all of them
    hashes: tuple[NDArray[np.int32] | None, ...]


def choose_by_sample(
    dimensions: Sequence[Dimension],
    weights: Sequence[float],
    partitions: int,
    samples: Sequence[HashSample],
) -> Grid:
    """The shares whose fullest cell is smallest, of those that bring the least on average.

    weights: the bytes of each input.
    """
    best, *others = likely_grids(dimensions, weights, partitions, CANDIDATES)
    least = fullest(best, weights, samples)
    for grid in others:
        load = fullest(grid, weights, samples)
        if load < least * CLEARLY:
            best, least = grid, load
    return best


def fullest(grid: Grid, weights: Sequence[float], samples: Sequence[HashSample]) -> float:
    """The load of the fullest cell."""
    return float(cell_loads(grid, weights, samples).max())


def cell_loads(grid: Grid, weights: Sequence[float], samples: Sequence[HashSample]) -> Loads:
    """The load of each cell, in the order of their numbers; `weights` are those of the inputs."""
    loads = np.zeros(grid.shares)
    for weight, sample in zip(weights, samples, strict=True):
        loads += _cell_rows(grid, sample) * (weight / max(1, sample.rows))
    return loads.ravel(order="F")  # the first dimension's parts follow each other


def _cell_rows(grid: Grid, sample: HashSample) -> Loads:
    """The sampled rows of each cell; a dimension that the input has no part in has length 1."""
    cells = np.zeros((sample.rows, 1), dtype=np.int64)
    counts = np.ones((sample.rows, 1), dtype=np.bool_)
    shape, stride = [], 1
    for share, hashes in zip(grid.shares, sample.hashes, strict=True):
        if hashes is None or share == 1:
            shape.append(1)
            continue
        parts = hashes % share  # never negative, as Spark's pmod
        new = np.ones(parts.shape, dtype=np.bool_)
        new[:, 1:] = parts[:, 1:] != parts[:, :1]  # a row goes to a part once
        every = (sample.rows, cells.shape[1] * parts.shape[1])
        cells = (cells[:, :, None] + stride * parts[:, None, :]).reshape(every)
        counts = (counts[:, :, None] & new[:, None, :]).reshape(every)
        shape.append(share)
        stride *= share
    found = np.bincount(cells[counts], minlength=stride)
    return found.astype(np.float64).reshape(shape, order="F")
