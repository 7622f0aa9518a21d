"""What all tests share: how many cases are generated, which are left out, and their order."""

import pytest
from hypothesis import HealthCheck, settings

from support import depth

# A case joins two relations, so it is slower than Hypothesis expects; how long one takes says
# nothing about whether it is right. Cases differ from run to run, by the seed that is printed.
settings.register_profile(
    "dovetail",
    max_examples=depth.EXAMPLES,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,  # of a dozen cases, by chance
    ],
)
settings.load_profile("dovetail")


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--hypothesis-seed", None)
    again = "" if seed is None else f"; the same cases again: make test SEED={seed}"
    return f"depth: {depth.DEPTH}{again}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-full` runs; slow tests go first.

    A test of minutes that came last would keep one process busy and the others waiting.
    """
    if not depth.FULL:
        left_out = [item for item in items if item.get_closest_marker("full")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
