"""Bytes that were changed at random, given to what takes rows and messages in.

Each run is a process of its own, as what goes wrong is that it ends by a signal.
"""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings

from support import malformed
from support.depth import DEPTH
from support.processes import finding_support

pytestmark = pytest.mark.fuzz

FUZZ = DEPTH == "fuzz"
CASES = {"rows": 16, "messages": 4}  #: for each example of the profile
FUZZ_CASES = 40  #: 100,000 of each kind


@pytest.mark.parametrize("kind", malformed.KINDS)
def test_bytes_when_changed_at_random_then_are_refused_or_harmless(
    kind: str, request: pytest.FixtureRequest
) -> None:
    asked = request.config.getoption("--hypothesis-seed")
    seed = int(asked or np.random.SeedSequence().generate_state(1)[0])
    count = settings.default.max_examples * (FUZZ_CASES if FUZZ else CASES[kind])
    command = [sys.executable, "-m", "support.malformed", kind, str(count), str(seed)]
    done = subprocess.run(
        command, env=finding_support(), capture_output=True, text=True, timeout=7000, check=False
    )
    *_, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, (
        f"{' '.join(command[1:])} ended with {done.returncode} after case {last}:\n"
        f"{done.stderr[-4000:]}"
    )
    found = Counter(json.loads(last))
    assert found.total() == count
    # of all kinds there are some, or nothing was tried
    assert found["ArgumentError"] > count / 4, found
    assert found["taken"] > count / 40, found
    assert found.total() - found["ArgumentError"] < count, found


def test_change_when_it_is_of_a_seed_then_is_the_same_again() -> None:
    data = bytes(range(256))
    made = [malformed.changed(data, np.random.default_rng([7, n])) for n in range(50)]
    again = [malformed.changed(data, np.random.default_rng([7, n])) for n in range(50)]
    assert made == again
    assert len(set(made)) > 40
