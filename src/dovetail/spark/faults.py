"""Named points of the commit protocol at which a test may stop the task.

Set `DOVETAIL_FAULT=<directory>` in the environment of the workers. A file in that directory with
the name of a point arms it: the first task that reaches the point renames the file to
`<point>.fired` and exits at once, as if it had been killed. Unset, a point costs one look at a
module variable.
"""

import os
from pathlib import Path

_DIRECTORY = os.environ.get("DOVETAIL_FAULT", "")


def fault_point(name: str) -> None:
    """Die here if a test asked for it."""
    if not _DIRECTORY:
        return
    armed = Path(_DIRECTORY) / name
    try:
        armed.rename(armed.with_suffix(".fired"))
    except FileNotFoundError:
        return
    os._exit(86)
