"""A sample of whole-number keys as `spark.sampling` takes one of DataFrames, without Spark."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.costs.keysample import BUCKETS, KeySample, SampledSide, bucket_of, heavy_buckets
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES

Keys = NDArray[np.int64]

_BANDS_IN_A_CELL = 8
_MATCHING_IN_CELL = 2 / (_BANDS_IN_A_CELL + 2)


def draw_sample(
    keys: tuple[Keys, Keys],
    rows: int,
    within: int | None = None,
    seed: int = 0,
    turn_rows: int | None = None,
) -> KeySample:
    """About `rows` rows of the larger side, and as large a share of the other.

    turn_rows: how many rows of a side come in a micro-batch, if that is to be known.
    """
    rng = np.random.default_rng(seed)
    fraction = min(1.0, rows / max(map(len, keys)))
    whole = [_side(rng, keys[side], side, within) for side in SIDES]
    counts = [np.bincount(bucket_of(side.hashes)[side.exists], minlength=BUCKETS) for side in whole]
    matching = 1.0 if within is None else _MATCHING_IN_CELL
    heavy = heavy_buckets((counts[LEFT], counts[RIGHT]), fraction, rows, matching)
    everything = KeySample(whole[LEFT], whole[RIGHT], heavy, fraction)
    left, right = (
        SampledSide(
            side.keys.take(pa.array(chosen.rows)),
            side.hashes[chosen.rows],
            side.exists[chosen.rows],
            side.lots[chosen.rows],
            side.input_rows,
            None if turn_rows is None else chosen.rows // turn_rows,
        )
        for side, chosen in zip(whole, everything.part(0.0, fraction), strict=True)
    )
    return KeySample(left, right, heavy, fraction)


def _side(rng: np.random.Generator, keys: Keys, side: int, within: int | None) -> SampledSide:
    tokens = [keys]
    if within is not None:
        reach = 0 if side == LEFT else within
        tokens = [(keys + offset) // (_BANDS_IN_A_CELL * within) for offset in (-reach, reach)]
    hashes = np.stack([_hashed(token) for token in tokens], axis=1)
    exists = np.ones(hashes.shape, dtype=np.bool_)
    exists[:, 1:] = hashes[:, 1:] != hashes[:, :1]
    return SampledSide(pa.array(keys), hashes, exists, rng.random(len(keys)), len(keys))


def _hashed(tokens: Keys) -> NDArray[np.uint64]:
    """SplitMix64."""
    mixed = tokens.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
