"""The life of a key in a window: what is derived against counting it out."""

import math

import numpy as np
import pytest

from dovetail.multisite.estimates import Flow, Meeting

TAU = 10.0


def meeting(rate_1: float, keys_1: float, rate_2: float, keys_2: float, retained: float) -> Meeting:
    flow, stored = (Flow(rate, 100.0, name, rate) for rate, name in ((rate_1, "A"), (rate_2, "B")))
    return Meeting(flow, stored, keys_1, keys_2, min(keys_1, keys_2), TAU, retained, draws=rate_1)


@pytest.mark.parametrize(("keys_1", "keys_2"), [(10, 10), (10, 50), (50, 10)])
def test_meeting_when_every_key_is_always_there_then_is_table_4(
    keys_1: float, keys_2: float
) -> None:
    full = meeting(100, keys_1, 100, keys_2, 1000)
    assert full.f_12 == pytest.approx(min(1, keys_2 / keys_1))
    assert full.f_21 == pytest.approx(min(1, keys_1 / keys_2))
    assert full.f_21_filled == pytest.approx(min(1, keys_1 / keys_2))
    assert full.window_keys == pytest.approx(keys_2)
    assert full.births == full.fills == pytest.approx(0)


def counted_out(asks: float, rows: float, retained: float, end: float) -> dict[str, float]:
    """One key: rows and questions at random; each row stays so long.

    In a unit of time: how often the key comes into the window, and how often it is then asked for
    the first time; and the share of its rows that SM-S1 and SM-S2 send.
    """
    rng = np.random.default_rng(3)
    times, asked = (np.sort(rng.uniform(0, end, rng.poisson(rate * end))) for rate in (rows, asks))
    begins = np.concatenate([[True], np.diff(times) > retained])
    born, life = times[begins], np.cumsum(begins) - 1
    gone = np.append(times[np.flatnonzero(begins)[1:] - 1], times[-1]) + retained
    first = np.append(asked, math.inf)[np.searchsorted(asked, born)]  # after the key came
    filled = first < gone
    sent_1 = np.searchsorted(asked, times + retained) > np.searchsorted(asked, times)
    before = first[life] <= times
    return {
        "births": len(born) / end,
        "fills": np.count_nonzero(filled) / end,
        "SM-S1": float(sent_1.mean()),
        "SM-S2": float((sent_1 | before).mean()),
    }


@pytest.mark.parametrize(
    ("asks", "rows", "retained"), [(0.2, 0.5, 3.0), (0.02, 0.4, 5.0), (1.0, 0.1, 4.0), (0.1, 2, 1)]
)
def test_meeting_when_a_key_comes_and_goes_then_is_what_counting_it_out_gives(
    asks: float, rows: float, retained: float
) -> None:
    keys = 20.0
    derived = meeting(asks * keys, keys, rows * keys, keys, retained)
    found = counted_out(asks, rows, retained, end=200_000)
    assert derived.births / keys == pytest.approx(found["births"], rel=0.03)
    assert derived.fills / keys == pytest.approx(found["fills"], rel=0.04)
    assert derived.f_21 == pytest.approx(found["SM-S1"], rel=0.03)
    assert derived.f_21_filled == pytest.approx(found["SM-S2"], rel=0.03)
    assert derived.f_12 == pytest.approx(-math.expm1(-rows * retained), rel=1e-6)
