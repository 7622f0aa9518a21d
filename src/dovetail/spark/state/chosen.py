"""The choice of an algorithm, as a state directory keeps it.

`chosen.json` says which algorithm it is and why, what it is predicted to do, and what was measured
of the machine for that. It is written when a query is planned and its table staged, whose size is
then known and not guessed. Once a step has claimed the directory it stays as it is.
"""

import contextlib
import json
from pathlib import Path

from dovetail.costs.choice import Recorded
from dovetail.spark.state.durable import make_directory, reading, replace_durably, storing
from dovetail.spark.state.identity import IDENTITY

CHOSEN = "chosen.json"


def record(state: Path, choice: Recorded) -> None:
    """Keep the choice, unless it is that of a directory in use."""
    path = state / CHOSEN
    if (state / IDENTITY).exists() and path.exists():
        return
    with storing(path, "write to"):
        make_directory(state)
        replace_durably(path, json.dumps(choice.facts(), indent=1).encode())


def read_chosen(state: Path) -> Recorded | None:
    """The recorded choice of a state directory; None if it is new."""
    path = state / CHOSEN
    damaged = (
        f"{path} is damaged: it does not say which algorithm was chosen. Restore it from a "
        f"backup; or delete it, if {IDENTITY} beside it still names the algorithm."
    )
    with contextlib.suppress(FileNotFoundError), reading(path, damaged=damaged):
        return Recorded.read(json.loads(path.read_text()))
    return None
