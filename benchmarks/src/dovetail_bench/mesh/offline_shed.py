"""The least loss that any shedding could have: a yardstick for `semistream.shedding`.

OPTOFFLINESHED of Polyzotis et al., "Meshing Streaming Updates with Persistent Data in an Active
Data Warehouse", section 4.2. It knows the whole stream. It fills a buffer of `w` rows; when the
join has asked for rows and the buffer is full, all of it goes over, and the join asks again
`c_loop` time units later. One row arrives in a time unit. Unlike the strategies that can be used,
it may keep the join waiting.

The recurrences are those in the paper's text, with `optloss(i, lt, sb)` the least loss from row `i`
onward when the join asks next at time `lt` and `sb` rows are in the buffer:

    sb < w           min(optloss(i + 1, lt, sb + 1), optloss(i + 1, lt, sb) + f_R(i))
    sb = w, i < lt   optloss(i + 1, lt, w) + f_R(i)
    sb = w, i >= lt  optloss(i, i + c_loop, 0)

The pseudo-code printed in Fig. 9 departs from them: its line 5 runs up to `sb = w`, where there is
no `sb + 1`, and its line 8 leaves `+ f_R(i)` out, so that rows dropped while the join is busy would
cost nothing. The text is followed here.

Memory is `O(c_loop * w)` where the paper has `O(|S| * w)`. All `lt <= i` are one state, a join
that is waiting. And `lt` is never above `i + c_loop`: it is set to that at a transfer, and `i`
only grows. So the time left until the next request, `max(lt - i, 0)`, takes `c_loop + 1` values.
Time is `O(|S| * c_loop * w)`: a step for each row of the stream, which depends on the step before
and so cannot be vectorised away, and in it one numpy operation over all states of all streams.
"""

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import ArgumentError

Losses = NDArray[np.int64]


def optimal_loss(
    frequencies: NDArray[np.int64], w: int, c_loop: int, first_request: int = 0
) -> int:
    """The least loss on one stream; `frequencies` holds f_R of its rows in their order."""
    return int(optimal_losses(frequencies[np.newaxis], w, c_loop, first_request)[0])


def optimal_losses(
    frequencies: NDArray[np.int64], w: int, c_loop: int, first_request: int = 0
) -> Losses:
    """The least loss on each of several streams of one length, one in each row of the array.

    `first_request` is when the join asks for the first time, from 0, as in the paper, to `c_loop`.
    The strategies of `semistream.shedding` hand over their first rows at `c_loop`; with 0, the
    optimum has one buffer of rows more than they over the whole stream. Rows that are in the buffer
    when the stream ends are not lost.
    """
    if w < 1 or c_loop < 1:
        raise ArgumentError(f"w and c_loop must be at least 1, not {w} and {c_loop}")
    if not 0 <= first_request <= c_loop:
        raise ArgumentError(f"first_request must be from 0 to c_loop, not {first_request}")
    streams, length = frequencies.shape
    by_time = np.ascontiguousarray(frequencies.T, dtype=np.int64)
    # [time left until the next request, rows in the buffer, stream]
    after = np.zeros((c_loop + 1, w + 1, streams), dtype=np.int64)
    now = np.empty_like(after)
    for i in range(length - 1, -1, -1):
        lost = by_time[i]
        # a unit of time passes, but a request that is due stays due
        np.add(after[:-1], lost, out=now[1:])
        np.minimum(now[1:, :w], after[:-1, 1:], out=now[1:, :w])
        np.add(after[0, :w], lost, out=now[0, :w])
        np.minimum(now[0, :w], after[0, 1:], out=now[0, :w])
        now[0, w] = now[c_loop, 0]
        after, now = now, after
    losses: Losses = after[first_request, 0].copy()
    return losses
