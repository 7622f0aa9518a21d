"""`semi-pace`: what it costs, and what it is worth, to go beyond the paper in keeping time.

Three streams in a chain, joined by a greedy plan over links of 25 ms. The paper goes by `delta`: it
trusts that no message takes longer. Heartbeats wait for what they need to know. Both run

- with messages that take as long as they should: bytes sent, and how long after its end the last
  result of an interval is there;
- with some messages that take up to four times `delta`: the results that are found.

And one row in ten comes out of order, by up to so many milliseconds: with a `lateness` of as many,
and without any, where a row that comes after its interval is left out.

Group by group, a ratio is the paper's bytes or delay over ours, and our results over the paper's.
The number of our results is always checked against a run in which nothing is late.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.sites import CostModel, Message, Plan, Simulation, greedy
from dovetail_bench.measure import expect_rows
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, significant
from dovetail_bench.runner import Points, over_points
from dovetail_bench.semi.runs import (
    Feed,
    Net,
    Rng,
    Span,
    Streams,
    carried,
    draw,
    make_query,
    statistics_of,
    times_and_keys,
)

NAME = "semi-pace"
COUNTED = 30  #: intervals: three seconds
NET = Net()
FEEDS = dict.fromkeys(("S1", "S2", "S3"), Feed(rate=100, row_bytes=500, keys=100, window=1000))
SLOW_SHARES = (0.01, 0.1, 0.3)
LATE = (100, 300, 1000)  #: milliseconds
LATE_SHARE = 0.1  #: of the rows
ON_TIME, SLOW, UNORDERED = "on time", "slow", "unordered"
_TIMES_DELTA = 4


@dataclass(frozen=True)
class Played:
    """What a run sent and found, of the intervals that count."""

    nbytes: int
    results: int
    delay: float  #: milliseconds from an interval's end to its last result, the median interval
    late: int  #: messages and rows that came too late


class _Watched(Simulation):
    """Counts what belongs to the intervals that count."""

    def __init__(
        self, plan: Plan, latency: Callable[[Message], int], warm: int, *, heartbeats: bool
    ) -> None:
        super().__init__(plan, latency, heartbeats=heartbeats)
        self._warm = warm
        self.nbytes = self.found = 0
        self.network.log = self._count

    def _count(self, message: Message) -> None:
        if message.header.interval > self._warm:
            self.nbytes += carried(message, {name: feed.row_bytes for name, feed in FEEDS.items()})

    def _emit(self, interval: int, rows: pa.RecordBatch) -> None:
        if interval > self._warm:
            self.found += rows.num_rows
            self.last_result[interval] = self.network.now - self.query.boundary(interval)

    @property
    def late(self) -> int:
        rows = sum(arrivals.late for arrivals in self._arrivals.values())
        return rows + sum(site.late for site in self.sites.values())


class Stage:
    """The streams of one repetition, and the plan."""

    def __init__(self, seed: list[int], counted: int) -> None:
        self._seed = seed
        query = make_query(FEEDS, "chain", NET)
        self.plan = greedy(CostModel(query, statistics_of(query, FEEDS), NET.prices))
        self.span = Span.of(query, counted)
        self.streams: Streams = draw(FEEDS, np.random.default_rng(seed), self.span.end)

    def play(
        self, *, heartbeats: bool, slow: float = 0.0, late: int = 0, lateness: int = 0
    ) -> Played:
        """Run the plan; `slow`: a share of the messages, `late`: by how much rows may be."""
        plan = Plan(replace(self.plan.query, lateness=lateness), self.plan.sequences)
        latency = _latency(np.random.default_rng([*self._seed, 1]), slow)
        simulation = _Watched(plan, latency, self.span.warm, heartbeats=heartbeats)
        arrivals = self._arrivals(late)
        come = 0
        for interval in range(1, self.span.intervals + 1):
            before, come = come, plan.query.tick_time(interval)
            simulation.offer(
                {name: _between(*arriving, before, come) for name, arriving in arrivals.items()}
            )
            simulation.step()
        simulation.drain()
        delays = simulation.last_result.values()
        delay = statistics.median(delays) if delays else float("nan")
        return Played(simulation.nbytes, simulation.found, delay, simulation.late)

    def _arrivals(self, late: int) -> dict[str, tuple[pa.RecordBatch, Any]]:
        """The rows of each stream in the order in which they come, and when."""
        rng = np.random.default_rng([*self._seed, 2])
        found = {}
        for name, rows in self.streams.items():
            times, _ = times_and_keys(rows)
            delayed = rng.random(len(times)) < LATE_SHARE
            moments = times + np.where(delayed, rng.integers(0, late + 1, len(times)), 0)
            order = np.argsort(moments, kind="stable")
            found[name] = rows.take(pa.array(order)), moments[order]
        return found


def _latency(rng: Rng, slow: float) -> Callable[[Message], int]:
    def delay(_: Message) -> int:
        if slow and rng.random() < slow:
            return int(rng.integers(NET.latency, _TIMES_DELTA * NET.latency + 1))
        return NET.latency

    return delay


def _between(rows: pa.RecordBatch, moments: Any, begin: int, end: int) -> pa.RecordBatch:
    first, last = np.searchsorted(moments, [begin, end])
    return rows.slice(first, last - first)


def run_repetition(seed: list[int], counted: int, wants: Callable[[str], bool]) -> dict[str, float]:
    """The ratios of one drawing of the streams, by label."""
    stage = Stage(seed, counted)
    paper, ours = (stage.play(heartbeats=heartbeats) for heartbeats in (False, True))
    expect_rows(ours.results, paper.results)
    found: dict[str, float] = {}
    if wants(ON_TIME):
        found[f"delta/{ON_TIME}, bytes"] = paper.nbytes / ours.nbytes
        found[f"delta/{ON_TIME}, delay"] = paper.delay / ours.delay
    for share in SLOW_SHARES if wants(SLOW) else ():
        trusting, waiting = (stage.play(heartbeats=h, slow=share) for h in (False, True))
        expect_rows(waiting.results, paper.results)
        label = f"{SLOW}={share:.0%}"
        found[f"delta/{label}, results"] = waiting.results / max(1, trusting.results)
        found[f"delta/{label}, delay"] = trusting.delay / waiting.delay
    for late in LATE if wants(UNORDERED) else ():
        left_out = stage.play(heartbeats=True, late=late)
        sorted_in = stage.play(heartbeats=True, late=late, lateness=late)
        expect_rows(sorted_in.results, paper.results)
        label = f"{UNORDERED}={late}"
        found[f"no lateness/{label}, results"] = sorted_in.results / max(1, left_out.results)
        found[f"no lateness/{label}, delay"] = left_out.delay / sorted_in.delay
    return found


def run(config: Config, reporter: Reporter) -> Result:
    """All groups, or the one that is asked for."""

    def once(_: str, repetition: int) -> dict[str, float]:
        return run_repetition([config.seed, repetition], config.rows, config.wants)

    # one drawing of the streams is for all groups
    found = over_points(Points((NAME,), group=lambda _: None), once, config, reporter)
    ratios = found.at[NAME]
    labels = list(ratios[0]) if ratios else []
    spreads = {label: Spread.of(one[label] for one in ratios) for label in labels}
    facts = {
        "streams": "three in a chain, each 100 rows/s of 500 bytes, 100 keys, windows of 1 s",
        "links": f"{NET.latency} ms; slow messages take up to {_TIMES_DELTA} times that",
        "intervals that count": config.rows,
        "share of the results that the paper's pace, or no lateness, finds": {
            label.removesuffix(", results"): significant(1 / (spread.median or 1))
            for label, spread in spreads.items()
            if label.endswith(", results")
        },
    }
    return found.result(NAME, spreads, facts)


BENCHMARK = Benchmark(
    NAME,
    "heartbeats and rows out of order, against the pace of the semijoin paper",
    COUNTED,
    "intervals of 100 ms that count",
    (ON_TIME, SLOW, UNORDERED),
    run,
)
