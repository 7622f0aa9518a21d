"""Rows of very different widths: of a few bytes, and of a large part of a budget, in one batch.

Where a relation is wide, its bytes are in one column of any kind, or spread over hundreds of them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Kind = Literal["text", "binary", "list", "struct", "columns"]
KINDS: tuple[Kind, ...] = ("text", "text", "binary", "list", "struct", "columns")
_COLUMNS = 150
_SHARES = (0.0, 0.0, 0.0, 0.01, 0.1, 0.4)  # of the widest row, that others have


@dataclass(frozen=True)
class WideRelation:
    """Rows with keys `k` from a small domain, one or a few of them as wide as said."""

    rows: int
    widest_bytes: int
    kind: Kind = "text"
    domain: int = 8
    wide_share: float = 0.1  #: how many of the rows are as wide as the widest

    def make(self, rng: np.random.Generator, name: str) -> pa.RecordBatch:
        """Columns besides the key are named after the input."""
        widths = rng.choice(_SHARES, self.rows) * self.widest_bytes
        widths[rng.random(self.rows) < self.wide_share] = self.widest_bytes
        if self.rows:
            widths[rng.integers(0, self.rows)] = self.widest_bytes
        columns = {
            "k": pa.array(rng.integers(0, self.domain, self.rows)),
            f"{name}_id": pa.array(np.arange(self.rows)),
        }
        parts = wide_columns(self.kind, widths.astype(np.int64))
        columns |= {f"{name}_{number}": part for number, part in enumerate(parts)}
        return pa.RecordBatch.from_pydict(columns)


def wide_columns(kind: Kind, widths: NDArray[np.int64]) -> list[pa.Array]:
    """Columns whose rows take up about so many bytes."""
    letters = [chr(97 + number % 26) for number in range(len(widths))]
    texts = [letter * int(width) for letter, width in zip(letters, widths, strict=True)]
    if kind == "text":
        return [pa.array(texts, pa.string())]
    if kind == "binary":
        return [pa.array([text.encode() for text in texts], pa.large_binary())]
    if kind == "list":
        halves = [[text[: len(text) // 2], text[len(text) // 2 :]] for text in texts]
        return [pa.array(halves, pa.list_(pa.string()))]
    if kind == "struct":
        type_ = pa.struct([("a", pa.string()), ("n", pa.int32())])
        return [pa.array([{"a": text, "n": len(text)} for text in texts], type_)]
    pieces = [text[number::_COLUMNS] for number in range(_COLUMNS) for text in texts]
    count = len(texts)
    return [
        pa.array(pieces[number * count : (number + 1) * count], pa.string())
        for number in range(_COLUMNS)
    ]
