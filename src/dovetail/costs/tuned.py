"""AMESHJOIN's settings as they are remembered between steps; `retune` says how they change.

They are small, and part of the state, so a step that is repeated has the settings of the first
attempt. They are apart from the cost models, which a process that only reads state does not need.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Tuned:
    """Settings, the average rate that they were made for, and how it has been since."""

    w: int
    b: int
    rate: float  #: of arrival, averaged
    tuned_rate: float
    at: float  #: when rows came last

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None) -> Self | None:
        """From what `facts` gave; None for None."""
        return None if facts is None else cls(**facts)

    def facts(self) -> dict[str, Any]:
        return asdict(self)
