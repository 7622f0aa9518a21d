"""Fits the factors of a linear cost model to measurements."""

from itertools import chain, combinations

import numpy as np

from dovetail.costs.storage import Floats


def fit(features: Floats, seconds: Floats) -> Floats:
    """The factors, none below 0, with the least squares of relative errors.

    A row of `features` says how often each step was done in the seconds beside it. Every set of
    steps that may cost something is tried, so there should be few kinds of them.
    """
    relative = features / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    relative = relative / np.where(scale > 0, scale, 1.0)
    count = features.shape[1]
    best, least = np.zeros(count), float(len(seconds))
    everything = range(count)
    for columns in chain.from_iterable(combinations(everything, n + 1) for n in everything):
        some = relative[:, columns]
        found, *_ = np.linalg.lstsq(some, np.ones(len(seconds)), rcond=None)
        error = float(np.square(some @ found - 1).sum())
        if (found >= 0).all() and error < least:
            best, least = np.zeros(count), error
            best[list(columns)] = found
    factors: Floats = np.divide(best, scale, out=np.zeros(count), where=scale > 0)
    return factors
