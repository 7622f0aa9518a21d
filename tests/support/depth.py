"""How much the tests do: what a change can break (`make test`), all of it, or more than that.

`TEST_DEPTH` says which: `change` (the default), `full` (`make test-full`) or `fuzz` (`make fuzz`).
Every test runs at every depth, but for the cases that are marked `full`; what differs is how many
cases are generated and how often processes are killed.
"""

import os
from typing import Any

import pytest

DEPTH = os.environ.get("TEST_DEPTH", "change")
#: Hypothesis examples of a test that says nothing else: 2,000 cases an operator are 125 a theme.
EXAMPLES = {"change": 12, "full": 125, "fuzz": 2_500}[DEPTH]
#: Enough cases that what is rare has happened, too: only then do tests insist on it.
FULL = DEPTH != "change"


def full_or(full: int, change: int) -> int:
    """A number of cases in full, or where a change is tested."""
    return full if FULL else change


def only_full(*cases: Any) -> list[Any]:
    """Cases of a parametrized test that only `make test-full` runs."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
        for case in cases
    ]
