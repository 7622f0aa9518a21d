"""The stream of the kernel benchmarks of `enrich`."""

import numpy as np

from dovetail_bench.enrich.contenders import KEY
from dovetail_bench.enrich.load import Stream

ROWS = 4_000


def test_stream_when_a_batch_is_made_again_then_it_is_the_same_and_skewed() -> None:
    stream = Stream(ROWS, 500, 1)
    assert stream.batch(4).equals(Stream(ROWS, 500, 1).batch(4))
    assert not stream.batch(4).equals(stream.batch(5))
    keys = np.concatenate([np.asarray(stream.batch(n).column(KEY)) for n in range(20)])
    counts = np.sort(np.bincount(keys, minlength=ROWS))[::-1]
    assert counts[0] > 5 * counts[20] > 0  # the first of a Zipfian domain leads by far
