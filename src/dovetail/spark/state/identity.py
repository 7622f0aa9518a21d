"""The identity of a state directory, `identity.json`: written by the first step of all."""

import json
from pathlib import Path
from typing import Any

from dovetail.errors import StateMismatchError, StateMissingError
from dovetail.spark.state.durable import link_durably, reading, storing
from dovetail.spark.state.manifest import FORMAT, RESTORE_BOTH

IDENTITY = "identity.json"


def claim(root: Path, identity: dict[str, Any], query: str, batch: int) -> None:
    """Make sure that the state directory is this query's; the first step of all claims it."""
    path = root / IDENTITY
    if not path.exists():
        prepared, used = any(root.glob("p*/latest")), any(root.glob("p*/v*"))
        if (used or not prepared) and not path.exists():  # another task may just have claimed it
            raise StateMissingError(
                f"the state directory {root} is missing or lacks its {IDENTITY}, but the query's "
                f"checkpoint is at batch {batch}. Put the state back where it was, or start over "
                "with a new state directory and a new checkpoint."
            )
        with storing(root, "write to"):
            claim = {"format": FORMAT, "query": query, **identity}
            link_durably(path, json.dumps(claim, indent=1).encode(), "mid-claim")
    known = read_identity(root)
    if known["query"] == query and any(known.get(name) != identity[name] for name in identity):
        # settings that were changed are refused when a query is planned
        raise StateMismatchError(
            f"two joins of this query share the state directory {root}. Give each a state= of its "
            "own, and start over with a new checkpoint."
        )
    compare_identity(root, known, identity)
    if known["query"] != query:
        raise StateMismatchError(
            f"the state directory {root} belongs to another query ({known['query']}, this one is "
            f"{query}). Give this query a state= of its own; or, if its checkpoint was deleted to "
            "start over, delete the state directory too."
        )


def read_identity(root: Path) -> dict[str, Any]:
    path = root / IDENTITY
    gone = f"{root} is not a Dovetail state directory: it has no {IDENTITY}. Check the path."
    damaged = f"{path} is damaged: it does not say whose state this is. {RESTORE_BOTH}"
    with reading(path, gone=gone, damaged=damaged):
        known = json.loads(path.read_text())
        if not isinstance(known, dict):
            raise ValueError("not an object")
        return known


def compare_identity(root: Path, known: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse a state directory whose join was set up differently."""
    if known.get("format") != FORMAT:
        raise StateMismatchError(
            f"{root} was written in format {known.get('format')}, this version reads {FORMAT}"
        )
    for name, value in identity.items():
        if known.get(name) != value:
            what = f"the state directory {root} was made with"
            raise other_setting(what, name, known.get(name), value)


def other_setting(what: str, name: str, known: object, asked: object) -> StateMismatchError:
    """The error that something was made with another setting than is asked for."""
    return StateMismatchError(
        f"{what} {name}={known!r}, but now {name}={asked!r} is asked for. Go back to the old "
        "setting, or start over with a new state directory and a new checkpoint."
    )
