"""What section 5.5 of the DINER paper leaves open of its data, and what could be found online.

Two things are not said. How do the two attributes of a row of R2, or of R3, depend on each other?
They may be drawn one by one, or have the same value (Fig. 22 joins "the same datasets" on a single
attribute). And are the values that are frequent in R2 frequent in R3 as well? In Fig. 10 they are;
else each relation has frequent values of its own. For each reading there is a bound on what any
policy could find (`bound`), with a budget that holds rows and nothing else. A paper's number
above it rules the reading out.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dovetail_bench.diner.streams import Rng
from dovetail_bench.miner.bound import share_online
from dovetail_bench.miner.runs import Inputs, chain, star
from dovetail_bench.result import significant

READINGS: dict[str, Callable[[Rng, int], Inputs]] = {
    "2 inputs": partial(chain, inputs=2),
    "2 inputs, own frequent values": partial(chain, inputs=2, own_ranks=True),
    "4 inputs": partial(chain, inputs=4),
    "4 inputs, own frequent values": partial(chain, inputs=4, own_ranks=True),
    "4 inputs, one value a row": star,
    "4 inputs, one value a row, own frequent values": partial(star, own_ranks=True),
}


def bounds(seed: int, rows: int, percents: Sequence[int]) -> dict[str, dict[str, float | None]]:
    """By reading and budget, the share of the results that any policy could find online."""
    found: dict[str, dict[str, float | None]] = {}
    for place, (reading, draw) in enumerate(READINGS.items()):
        inputs = draw(np.random.default_rng([seed, place]), rows)
        found[reading] = {
            f"{percent}%": significant(share_online(inputs, inputs.rows * percent // 100))
            for percent in percents
        }
    return found
