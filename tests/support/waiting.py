"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def until_true(
    condition: Callable[[], bool], seconds: float = 30, what: str = "it does not happen"
) -> None:
    """Look again and again; fails and says `what` when it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}, in {seconds:g} s"
        time.sleep(0.02)
