"""State that a snapshot keeps: fields by their names, and what they consist of by theirs."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class Kept:
    """Something whose state is in the fields that `KEPT` names, as data or as something kept.

    A name is that of the data; it stands for the attribute `_name` if there is one, else `name`.
    What is not kept as it is, a subclass adds.
    """

    KEPT: ClassVar[tuple[str, ...]] = ()

    def snapshot(self) -> Any:
        """The state as data: numbers, texts, arrays and batches."""
        values = {name: getattr(self, self._attribute(name)) for name in self.KEPT}
        return {n: v.snapshot() if isinstance(v, Kept) else v for n, v in values.items()}

    def restore(self, data: Mapping[str, Any]) -> Self:
        """Make a new one what the one was that gave the snapshot; returns it."""
        for name in self.KEPT:
            attribute, value = self._attribute(name), data[name]
            part = getattr(self, attribute)
            if isinstance(part, Kept):
                part.restore(value)
            else:
                setattr(self, attribute, value.copy() if isinstance(value, list | dict) else value)
        return self

    def _attribute(self, name: str) -> str:
        return f"_{name}" if hasattr(self, f"_{name}") else name
