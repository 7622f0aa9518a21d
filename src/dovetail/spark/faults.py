"""Named points of the commit protocol at which a test may stop the task.

Set `DOVETAIL_FAULT=<point>[:<directory>]` in the environment of the workers: the first task that
reaches the point exits at once, as if it had been killed, and leaves a file of that name in the
directory so that no later task does. Unset, a point costs one look at a module variable.
"""

import os
from pathlib import Path

POINTS = (
    "before-load",
    "after-load",
    "after-push",
    "after-poll",
    "after-snapshot",
    "after-outbox",
    "before-manifest",
    "before-link",
    "after-link",
    "after-commit",
    "mid-emit",
    "after-emit",
)
_ARMED = os.environ.get("DOVETAIL_FAULT", "")


def fault_point(name: str) -> None:
    """Die here if a test asked for it."""
    if not _ARMED:
        return
    point, _, directory = _ARMED.partition(":")
    if point != name:
        return
    try:
        (Path(directory) / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os._exit(86)
