"""Hypothesis profiles: a stable one for every run, and one that looks further (`make fuzz`).

And the order of tests that run in several processes: slow ones first.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# A case joins two relations, so it is slower than Hypothesis expects; how long one takes says
# nothing about whether it is right.
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile("default", max_examples=125, derandomize=True, database=None, **_COMMON)
settings.register_profile("fuzz", max_examples=20 * 125, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of minutes that comes last would keep one process busy and the others waiting."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
