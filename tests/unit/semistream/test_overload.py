"""Rates, waits and the pace of scans, from made-up observations."""

import json
from itertools import pairwise

import numpy as np
import pytest

from dovetail.semistream.overload import HORIZON_SECONDS, Load, Pace, Rates, Waits


def observed(load: Load, steps: list[tuple[float, int, int, float]]) -> Load:
    """After steps that began then, with rows that came and were served, and seconds of work."""
    for started, arrived, served, busy in steps:
        load = load.after(started, arrived, served, busy, rows_waited=False)
    return load


def steady(arrival: float, service: float, steps: int = 8) -> Load:
    """Steps a second apart: so many rows came, and as many were served at that rate."""
    rows = int(arrival)
    return observed(Load(), [(float(n), rows, rows, rows / service) for n in range(steps)])


def test_rates_when_a_stream_is_steady_then_are_its_own() -> None:
    rates = steady(300, 200).rates(turns=1)
    assert rates is not None
    assert (rates.arrival, rates.service) == pytest.approx((300, 200))
    assert rates.ratio == pytest.approx(1.5)


def test_rates_when_partitions_share_a_core_then_each_has_its_part_of_the_service() -> None:
    rates = steady(300, 200).rates(turns=2)
    assert rates is not None
    assert rates.service == pytest.approx(100)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_rates_when_few_steps_were_seen_then_are_not_known(steps: int) -> None:
    assert steady(300, 200, steps).rates(1) is None


def test_rates_when_a_step_brings_more_rows_than_before_then_are_known_before_it_ends() -> None:
    """Twice as many as ever for twice the horizon: all of them at the latest."""
    load, later = steady(100, 200), 7 + 2 * HORIZON_SECONDS
    seen = [load.during(later, rows, 1) for rows in (10, 2000, 4000)]
    assert seen[0] == load.rates(1), "a step that has just begun says nothing yet"
    assert seen[2] is not None
    assert seen[2].arrival == pytest.approx(200, rel=0.15)
    assert seen[2].service == pytest.approx(200)
    assert load.during(-5.0, 10**9, 1) == load.rates(1), "the clock was set back"
    assert Load().during(1.0, 10**9, 1) is None


def test_rates_when_batches_are_of_one_size_then_slow_steps_are_no_overload() -> None:
    """A step takes as long as it takes, and the next begins a little later with as many rows."""
    rng = np.random.default_rng(5)
    load, now = Load(), 0.0
    for busy in rng.lognormal(0, 2, 300).tolist():
        rates = load.during(now, 1000, 1)
        assert rates is None or rates.ratio < 1
        load = load.after(now, 1000, 1000, busy, rows_waited=False)
        now += busy + 0.01 * busy


def test_rates_when_no_row_was_served_yet_then_are_not_known() -> None:
    assert observed(Load(), [(float(n), 50, 0, 0.5) for n in range(9)]).rates(1) is None


def test_rates_when_the_stream_speeds_up_then_follow_within_the_horizon() -> None:
    load = steady(100, 200)
    later = [(8 + n, 400, 400, 2.0) for n in range(int(3 * HORIZON_SECONDS))]
    rates = observed(load, later).rates(1)
    assert rates is not None
    assert rates.arrival == pytest.approx(400, rel=0.1)


def test_rates_when_the_stream_was_silent_for_long_then_the_silence_fades_like_the_rest() -> None:
    """An hour of silence weighs no more than the horizon does."""
    load = observed(steady(100, 200), [(3600.0, 10, 10, 0.1)])
    rates = observed(load, [(3601.0 + n, 400, 400, 2.0) for n in range(20)]).rates(1)
    assert rates is not None
    assert rates.arrival > 300


def test_rates_when_the_clock_is_set_back_then_the_step_says_nothing() -> None:
    before = steady(300, 200)
    after = observed(before, [(-1000.0, 5, 5, 9.0)])
    assert after.rates(1) == before.rates(1)


def test_load_when_written_as_json_then_is_read_back_the_same() -> None:
    load = steady(300, 200).share(10, 1.7)[1]
    assert Load.of(json.loads(json.dumps(load.facts()))) == load
    assert Load.of(None) == Load()


@pytest.mark.parametrize("ratio", [1.0, 1.1, 1.5, 2.0, 7.3, 1000.0])
def test_share_when_batches_are_small_then_is_exact_over_all_of_them(ratio: float) -> None:
    rng = np.random.default_rng(3)
    load, total, kept = Load(), 0, 0
    for rows in rng.integers(1, 5, 4000).tolist():
        part, load = load.share(rows, ratio)
        assert 0 <= part <= rows
        total, kept = total + rows, kept + part
    assert kept == pytest.approx(total / ratio, abs=1.01)


def test_share_when_the_join_keeps_up_then_is_everything() -> None:
    assert Load(carry=0.9).share(10, 0.5) == (10, Load(carry=0.9))


@pytest.mark.parametrize("ratio", [1.2, 4.0, 30.0])
def test_shedding_when_a_stream_is_too_fast_for_long_then_steps_get_short_again(
    ratio: float,
) -> None:
    """A stream and a join in made-up time: each step has what came during the one before."""
    service, overhead, slices = 1000.0, 0.2, 20
    load, now, seconds, steps = Load(), 0.0, 5.0, []
    for _ in range(120):
        rows, kept = int(ratio * service * seconds), 0
        for number in range(slices):
            rates = load.during(now, rows * (number + 1) // slices, 1)
            part, load = load.share(rows // slices, 1.0 if rates is None else rates.relief)
            kept += part
        busy = kept / service
        load = load.after(now, rows, kept, busy, rows_waited=False)
        seconds = busy + overhead
        now += seconds
        steps.append((rows, kept, seconds))
    lately = steps[-20:]
    rate = sum(kept for _, kept, _ in lately) / sum(seconds for _, _, seconds in lately)
    assert max(seconds for _, _, seconds in lately) < 20 * overhead
    assert 0.7 * service < rate <= service, "what could be served is left out"
    # two steps pass before anything is known, and in the third it shows while rows come
    most = (1 + np.log(ratio)) * max(seconds for _, _, seconds in steps[:2])
    assert max(seconds for _, _, seconds in steps[2:]) <= 1.1 * most


def test_waits_when_rows_are_settled_in_order_then_tell_the_wait_of_each_step() -> None:
    waits = Waits().joined_by(0, 100.0).joined_by(50, 102.0).joined_by(80, 105.0)
    waits, none = waits.settled(oldest=49, now=106.0)
    assert none is None, "a row of the first step still waits"
    waits, first = waits.settled(oldest=50, now=107.0)
    assert (first, waits.age(107.0)) == (7.0, 5.0)
    waits, both = waits.settled(oldest=None, now=110.0)
    assert (both, waits.steps, waits.age(110.0)) == (8.0, (), 0.0)


def test_waits_when_later_rows_are_settled_first_then_the_oldest_row_decides() -> None:
    waits = Waits().joined_by(0, 1.0).joined_by(10, 2.0)
    assert waits.settled(oldest=3, now=9.0) == (waits, None)


def test_waits_when_written_as_json_then_are_read_back_the_same() -> None:
    waits = Waits().joined_by(0, 100.5).joined_by(50, 102.25)
    assert Waits.of(json.loads(json.dumps(waits.facts()))) == waits


@pytest.mark.parametrize("pages", [1, 7, 100, 12_345])
@pytest.mark.parametrize("interval", [0.1, 0.24, 1.0, 2.4, 9.0])
def test_quota_when_steps_come_regularly_then_a_whole_turn_ends_within_the_bound(
    pages: int, interval: float
) -> None:
    pace = Pace(5.0)
    quota = pace.quota(pages, interval)
    steps = -(-pages // quota)
    assert 1 <= quota <= pages
    # the step during which a row arrives, and those of a turn; or all of the table in one step
    assert (steps + 1) * interval <= pace.seconds + 1e-9 or steps == 1


def test_quota_when_steps_come_more_often_then_is_no_more() -> None:
    quotas = [Pace(5.0).quota(1000, interval) for interval in (2.0, 1.0, 0.5, 0.1, 0.01)]
    assert all(later <= earlier for earlier, later in pairwise(quotas))
    assert quotas[-1] < quotas[0]


def test_quota_when_nothing_is_known_of_steps_then_is_as_planned() -> None:
    assert Pace(5.0, pages=30).quota(100, None) == 30
    assert Pace(5.0, pages=300).quota(100, None) == 100
    assert Pace(5.0).quota(100, None) == 100


def test_ratio_when_arrivals_exceed_service_then_is_above_one() -> None:
    assert Rates(300, 200).ratio == 1.5
