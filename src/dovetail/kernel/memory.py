"""The memory budget of one operator.

Every byte an operator keeps is reserved here *before* it is allocated, under the name of the
component that keeps it. What is counted: Arrow buffers of rows, code and timestamp arrays, the
block catalogue, one fixed reservation for working memory (sorting, merging, probing, output
batches), what this lacks for very wide rows, and the input batch: up to a third or so of the
budget. What is not counted: the rest of a larger input batch, which the caller of `push` has in
memory already (on Spark, `spark.sql.execution.arrow.maxBytesPerBatch` bounds it); the interpreter,
imported libraries, and allocator slack. `FIXED_OVERHEAD_BYTES` states the room the latter take, and
a test holds the process to it.

The process has to have called `use_frugal_allocator`: by default, allocators keep what an operator
has freed, as much as the budget again.
"""

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dovetail.errors import MemoryBudgetError

#: What the process may grow by beyond the budget: allocator slack and code loaded on first use.
FIXED_OVERHEAD_BYTES = 24 << 20

#: The working memory that the widest row of each input takes, of given sizes.
Needs = Callable[[Sequence[int]], int]

_UNBOUNDED_WORKING_BYTES = 64 << 20
_M_MMAP_THRESHOLD = -3  # glibc's malloc.h
_MMAP_THRESHOLD_BYTES = 256 << 10


def use_frugal_allocator() -> None:
    """Make this process return freed memory to the system.

    For a process of Dovetail's own, before it allocates much. Arrow's default pool keeps freed
    memory for long, so the system's takes its place. And glibc raises the size from which an
    allocation gets pages of its own, which go when it does, whenever such a one is freed; a fixed
    size puts an end to that. Where there is no glibc only the first is done.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def give_back_freed() -> None:
    """Return the holes between small allocations in the heap to the system.

    Call it after freeing many small allocations; it takes some milliseconds. Without glibc it does
    nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class Budget:
    """A number of bytes shared by named components. `None` means unbounded."""

    total_bytes: int | None
    used_bytes: int = 0
    shares: int = 1  #: of how many budgets of this size the user's is the sum
    peak_bytes: int = 0
    components: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    def try_reserve(self, component: str, nbytes: int) -> bool:
        """Take `nbytes` (>= 0) for a component, or refuse and change nothing."""
        if not self.has_room(nbytes):
            return False
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        held = self.components.get(component, 0) + nbytes
        self.components[component] = held
        self.peaks[component] = max(self.peaks.get(component, 0), held)
        return True

    def has_room(self, nbytes: int) -> bool:
        """Whether a reservation of this size would be granted."""
        return self.total_bytes is None or self.used_bytes + nbytes <= self.total_bytes

    def reserve(self, component: str, nbytes: int) -> None:
        """Like `try_reserve`, but a refusal is a `MemoryBudgetError`."""
        if not self.try_reserve(component, nbytes):
            raise MemoryBudgetError(
                f"{component} needs {format_bytes(nbytes)}, but {format_bytes(self.used_bytes)} of "
                f"the budget of {format_bytes(self.total_bytes or 0)} (this partition's share) are "
                f"taken; at least {format_bytes(self.used_bytes + nbytes)} a partition would do. "
                "Raise memory=, or lower partitions=."
            )

    def release(self, component: str, nbytes: int) -> None:
        """Give back what was reserved. Giving back more than is held is a programming error."""
        held = self.components.get(component, 0) - nbytes
        if held < 0 or nbytes < 0:
            raise AssertionError(f"{component} releases {nbytes} bytes more than it holds")
        self.components[component] = held
        self.used_bytes -= nbytes

    def reset_peaks(self) -> None:
        """Count the peaks from here on."""
        self.peak_bytes = self.used_bytes
        self.peaks = dict(self.components)


class Reservation:
    """One component's share of a budget, resized as the component grows and shrinks."""

    def __init__(self, budget: Budget, component: str) -> None:
        self._budget = budget
        self.component = component
        self.nbytes = 0

    def try_grow(self, nbytes: int) -> bool:
        if not self._budget.try_reserve(self.component, nbytes):
            return False
        self.nbytes += nbytes
        return True

    def grow(self, nbytes: int) -> None:
        self._budget.reserve(self.component, nbytes)
        self.nbytes += nbytes

    def shrink(self, nbytes: int) -> None:
        self._budget.release(self.component, nbytes)
        self.nbytes -= nbytes

    def resize(self, nbytes: int) -> None:
        """Hold exactly `nbytes` from now on."""
        if nbytes > self.nbytes:
            self.grow(nbytes - self.nbytes)
        else:
            self.shrink(self.nbytes - nbytes)


def _nothing_beside(_partition_bytes: int, _widest: Sequence[int]) -> int:
    return 0


@dataclass(frozen=True)
class MemorySplit:
    """The division of a partition's budget by one kind of operator."""

    working_share: float  #: set aside at the start for transient needs
    movable: frozenset[str]  #: the components that can be given up for rows that come
    wide_needs: Needs
    waiting_share: float = 0.0  #: for rows that wait while others come
    #: what an operator with a budget and the widest rows takes even if it keeps none
    beside: Callable[[int, Sequence[int]], int] = _nothing_beside

    def working_bytes(self, partition_bytes: int | None) -> int:
        """The working memory of a share of the budget."""
        if partition_bytes is None:
            return _UNBOUNDED_WORKING_BYTES
        return int(partition_bytes * self.working_share)

    def least_for(self, nbytes: int) -> int:
        """The share of a budget that has so many bytes beside its working memory."""
        return int(nbytes / (1 - self.working_share - self.waiting_share)) + 1


def require_share(partition_bytes: int | None, least: int, who: str) -> None:
    """Refuse a share of the budget that is less than `least`."""
    if partition_bytes is not None and partition_bytes < least:
        raise MemoryBudgetError(
            f"a partition's share of the budget is {format_bytes(partition_bytes)}, but {who} at "
            f"least {format_at_least(least)} a partition: raise memory= or lower partitions="
        )


_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_FACTORS = {"": 1, "B": 1}
for _power, _unit in enumerate(_UNITS[1:], 1):
    _FACTORS |= dict.fromkeys((_unit[0], _unit, f"{_unit[0]}IB"), 1 << 10 * _power)
_EXAMPLE = "write for example '64MB', '64m' or, in bytes, 67108864"


def parse_bytes(text: str | int) -> int:
    """Bytes from `"64MB"`, `"64m"`, `"1.5 GiB"` or a plain number. A bad text is a `ValueError`.

    Units are Spark's: each is 1024 times the one before, however it is spelled.
    """
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise ValueError(f"not a size: {text!r}; {_EXAMPLE}")
    stripped = str(text).strip()
    number = stripped.rstrip("BbKkMmGgTtPpIi ").strip()
    unit = stripped[len(number) :].strip().upper()
    try:
        value = (int(number) if number.isdecimal() else float(number)) * _FACTORS[unit]
    except (ValueError, KeyError):
        raise ValueError(f"not a size: {text!r}; {_EXAMPLE}") from None
    if value < 0:
        raise ValueError(f"a size cannot be negative: {text!r}; {_EXAMPLE}")
    if not value < 1 << 62:
        raise ValueError(f"size out of range: {text!r}; {_EXAMPLE}")
    return int(value)


def format_bytes(nbytes: int) -> str:
    """A size as people read it, in the units of `parse_bytes`: `1.5 MB`."""
    value, unit = float(nbytes), 0
    while abs(value) >= 1023.95 and unit < len(_UNITS) - 1:  # what would be printed as 1024.0
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{value:.0f} B"


def format_at_least(nbytes: int) -> str:
    """A size as people read it, rounded up: a budget of that size is enough."""
    unit = min(len(_UNITS) - 1, (max(nbytes, 1).bit_length() - 1) // 10)
    if not unit:
        return format_bytes(nbytes)
    return f"{-(-nbytes * 10 // 1024**unit) / 10:.1f} {_UNITS[unit]}"
