"""What Python processes that a test starts need, to find this package."""

import os
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]


def finding_support() -> dict[str, str]:
    """The environment of this process, in which `import support` works, too."""
    known = os.environ.get("PYTHONPATH")
    paths = [str(_TESTS), *([known] if known else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
