"""The least memory that keeps up with a rate, of each cost model: `best_rate` the other way round.

What a budget can do, the product asks; how much a rate needs, only the tests of the models do, to
hold the two searches against each other and against the theorems of the papers.
"""

import math

import numpy as np

from dovetail.costs.inl import InlModel, InlPlan
from dovetail.costs.meshjoin import MeshModel, MeshPlan, _rows_for_rate, try_least_memory
from dovetail.costs.ssbj import _JUST_ABOVE, SsbjModel, SsbjState
from dovetail.errors import ArgumentError


def mesh_least_memory(model: MeshModel, rate: float, latency: float | None = None) -> MeshPlan:
    """The settings that keep up with `rate` stream rows a second in the least memory.

    With `latency`, no row may wait longer than so many seconds. Raises `ArgumentError` if no
    memory would do.
    """
    plan = try_least_memory(model, rate, latency)
    if plan is not None:
        return plan
    if rate * model.seconds_per_row >= 1:
        raise ArgumentError(
            f"no memory is enough for {rate:,.0f} rows a second: a row alone takes "
            f"{model.seconds_per_row:.3g} s, which limits the rate to "
            f"{1 / model.seconds_per_row:,.0f}; split the stream over more partitions"
        )
    pages = model.workload.page_choices()
    batch_rows = _rows_for_rate(model, rate, pages)
    shortest = float(model.wait_seconds(batch_rows, pages).min())
    raise ArgumentError(
        f"at {rate:,.0f} rows a second a row waits {shortest:.3g} s or longer, however much memory "
        f"there is; latency={latency} cannot be kept"
    )


def ssbj_least_memory(model: SsbjModel, rate: float) -> SsbjState:
    """The steady state that keeps up with `rate` stream rows a second in the least memory.

    Exact, and never less for a higher rate, with the balanced switching factor or a smaller one;
    with a larger one, values stay out of the cache that would take less memory in it. Raises
    `ArgumentError` if no memory would do.
    """
    if not (0 <= rate < math.inf):
        raise ArgumentError(f"rate={rate}: must be 0 or more rows a second")
    if rate >= rate_limit(model):
        raise ArgumentError(
            f"no memory is enough for {rate:,.0f} rows a second: even with the whole table cached "
            f"the rate is below {rate_limit(model):,.0f}; split the stream over more partitions"
        )
    ladder = model._ladder
    pages = model.workload.page_choices()
    loops = model.workload.loops(pages)
    # rate * loop_seconds <= batch_rows, solved for the window: fixed <= window_rows * idle
    idle = 1 - rate * model._seconds_per_row(ladder.disk_share)
    # all chunks of a read: where rows are so few that they ask for fewer, it is too much
    chunks = loops * model.workload.chunks(pages) * model.factors.chunk
    fixed = rate * (model._fixed_seconds(pages) + chunks) * loops
    ends = np.append(ladder.threshold, np.inf)
    reach = np.full_like(idle, -np.inf)
    np.multiply(ends, idle, out=reach, where=idle > 0)
    step = np.searchsorted(np.maximum.accumulate(reach), fixed, side="left")
    starts = np.insert(ladder.threshold, 0, 0.0) * _JUST_ABOVE
    window_rows = np.maximum(np.maximum(fixed / idle[step], starts[step]), loops)
    batch_rows = window_rows / loops
    best = int(model.memory_bytes(batch_rows, pages).argmin())
    return model.steady_state(float(batch_rows[best]), int(pages[best]))


def main_memory_bytes(model: SsbjModel) -> float:
    """A cache of everything that the stream can ask for: a main-memory join (Theorem 3)."""
    return float(model._ladder.cached_bytes[-1])


def main_memory_rate(model: SsbjModel, pages: int) -> float:
    """The rate above which everything is cached with this many pages, λ_max of Theorem 3."""
    window_rows = float(model._ladder.threshold[-1])
    least_batch = _JUST_ABOVE * window_rows / model.workload.loops(float(pages))
    return float(model.rate(least_batch, float(pages)))


def rate_limit(model: SsbjModel) -> float:
    """The rate that no memory exceeds: that of rows that are all cached."""
    return 1 / model._seconds_per_row(0.0) if model._seconds_per_row(0.0) else math.inf


def inl_least_memory(model: InlModel, rate: float) -> InlPlan:
    """The smallest cache that keeps up with `rate` stream rows a second.

    Raises `ArgumentError` if even a cache of the whole table does not.
    """
    if not (0 <= rate < math.inf):
        raise ArgumentError(f"rate={rate}: must be 0 or more rows a second")
    pages = len(model.page_probability)
    if rate > model.rate(pages):
        raise ArgumentError(
            f"no memory is enough for {rate:,.0f} rows a second: even with every page cached the "
            f"rate is {model.rate(pages):,.0f}; split the stream over more partitions"
        )
    seconds = model._compute_seconds + model._misses * model._read_seconds
    enough = rate * seconds <= 1
    cached = int(enough.argmax()) if enough.any() else pages  # any: but for rounding
    return model.plan(cached)
