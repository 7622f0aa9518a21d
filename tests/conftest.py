"""Hypothesis profiles: a stable one for every run, and one that looks further (`make fuzz`)."""

import os

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
