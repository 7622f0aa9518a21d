"""Bloom filters: nothing that was put in is missed, and few others pass."""

import numpy as np
import pytest

from dovetail.multisite.bloom import Bloom


@pytest.mark.parametrize("keys", [1, 5, 100, 10_000])
@pytest.mark.parametrize("error", [0.01, 0.0001])
def test_bloom_when_asked_then_misses_nothing_and_errs_as_promised(keys: int, error: float) -> None:
    rng = np.random.default_rng(keys)
    codes = np.unique(rng.integers(0, 1 << 50, keys))
    sent = Bloom.of(codes, error)
    received = Bloom.received(sent.part(), len(codes))
    assert received.contains(codes).all()
    others = rng.integers(1 << 51, 1 << 52, 400_000)
    assert received.contains(others).mean() < 2 * error


def test_bloom_when_keys_are_neighbours_then_errs_no_more() -> None:
    bloom = Bloom.of(np.arange(4))
    assert bloom.contains(np.arange(4)).all()
    assert bloom.contains(np.arange(4, 10_004)).mean() < 0.02
