"""The skew of a stream's keys, from a sample of them.

What matters to a cache is how often a key comes again that came before. So the sample is cut in
two, and the share of one half is counted whose keys are in the other: what a cache of these would
have settled. The skew is the exponent of the Zipfian law, over as many values as the table has
rows, that leads to the same share. Frequent keys of a sample are not counted as such: of uniform
keys, too, some come twice, and would look hot.
"""

from dataclasses import dataclass

import numpy as np

from dovetail.kernel.keys import Codes

_MOST_SKEW = 4.0
_STEPS = 40  # of a bisection
_RANKS = 2000  # at which probabilities are looked at; those in between are like their neighbours
_SIGMAS = 3.0  # by which keys have to differ from uniform ones


@dataclass(frozen=True)
class Skew:
    """A Zipf exponent, and where it comes from."""

    exponent: float = 0.0  #: 0 is uniform
    rows: int = 0  #: of the sample; 0 if it was assumed
    repeated: float = 0.0  #: the share of a half whose keys are in the other half

    def __str__(self) -> str:
        keys = f"keys skewed like Zipf with exponent {self.exponent:.2g}"
        if not self.exponent:
            keys = "uniform keys"
        if not self.rows:
            return keys
        return f"{keys}, as in a sample of {self.rows:,} rows"


UNIFORM = Skew()


def measured_skew(codes: Codes, values: int) -> Skew:
    """The skew of keys of which these are some, in random order; `values` is how many there are."""
    half = len(codes) // 2
    if not half or values < 2:
        return Skew(rows=len(codes))
    repeated = float(np.isin(codes[half:], codes[:half]).mean())
    noise = _SIGMAS * float(np.sqrt(repeated / (len(codes) - half)))
    if repeated - noise <= expected_repeats(values, 0.0, half):
        return Skew(0.0, len(codes), repeated)
    low, high = 0.0, _MOST_SKEW
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if expected_repeats(values, middle, half) < repeated:
            low = middle
        else:
            high = middle
    return Skew(round(low, 2), len(codes), repeated)


def expected_repeats(values: int, exponent: float, rows: int) -> float:
    """The share of Zipfian rows whose key is among so many rows before."""
    ranks = np.unique(np.geomspace(1, values, _RANKS).round().astype(np.int64))
    counts = np.diff(ranks, append=values + 1)
    chances = (ranks + (counts - 1) / 2) ** -exponent
    chances = chances / float((counts * chances).sum())
    with np.errstate(divide="ignore"):  # a single value
        seen = -np.expm1(rows * np.log1p(-np.minimum(chances, 1.0)))
    return float((counts * chances * seen).sum())
