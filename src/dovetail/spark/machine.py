"""The default of `memory=`: a share of the machine's memory, or of an executor's."""

import os
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext

from dovetail.kernel.memory import format_bytes, parse_bytes

SHARE = 4  #: one part of so many
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_EXECUTOR_MEMORY = "spark.executor.memory"


@dataclass(frozen=True)
class DefaultMemory:
    """The budget of a job without `memory=`."""

    nbytes: int
    words: str  #: for explanations


def default_memory(context: SparkContext) -> DefaultMemory:
    """A quarter of the machine's memory; on a cluster, of what one executor has."""
    if (context.master or "").startswith("local"):
        total = machine_bytes()
        whose = f"the {format_bytes(total)} that this machine has"
    else:
        asked = context.getConf().get(_EXECUTOR_MEMORY, "1g") or "1g"
        total = parse_bytes(f"{asked}m" if asked.isdecimal() else asked)
        whose = f"the {format_bytes(total)} that an executor has ({_EXECUTOR_MEMORY})"
    return DefaultMemory(total // SHARE, f"a quarter of {whose}, as memory= was left out")


def machine_bytes() -> int:
    """The memory of this machine, or of the container that the process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, _CGROUPS):
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # there is none, or no limit
            continue
    return total
