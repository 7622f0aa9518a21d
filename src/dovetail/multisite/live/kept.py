"""Snapshots as bytes: data only, so that reading one can do nothing but make data.

A tree of objects, lists and scalars is JSON; arrays, batches and bytes lie before it, one after
another, and the tree says where. An array is its numbers, a batch an Arrow stream, which is
validated when it is read.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.multisite.encoded import batch_bytes, read_batch

_END = struct.Struct("<Q")  # bytes of the tree before it
_DTYPES = frozenset(
    np.dtype(kind).str for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
)


class _Sink(Protocol):
    def write(self, data: Any) -> int:
        """Add bytes."""


def write_tree(file: _Sink, tree: Mapping[str, Any]) -> None:
    """Write data; piece by piece, so that no second copy of it is in memory."""
    at = 0

    def place(data: Any) -> list[int]:
        nonlocal at
        begin = at
        if len(data):
            at += file.write(data)
        return [begin, at - begin]

    def packed(value: Any) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case dict():
                return ["object", {_name(key): packed(inner) for key, inner in value.items()}]
            case list() | tuple():
                return ["list", [packed(inner) for inner in value]]
            case np.ndarray():
                return ["array", value.dtype.str, *place(_flat(value))]
            case pa.RecordBatch():
                return ["rows", *place(batch_bytes(value))]
            case bytes():
                return ["bytes", *place(value)]
            case np.generic():
                return packed(value.item())
        raise TypeError(f"{type(value).__name__} is no data")

    data = json.dumps(packed(tree), allow_nan=False).encode()
    file.write(data)
    file.write(_END.pack(len(data)))


def read_tree(file: BinaryIO, nbytes: int) -> Any:
    """What `write_tree` wrote; so many bytes from where the file is. Else a `ValueError`."""
    base = file.tell()
    file.seek(base + nbytes - _END.size)
    (length,) = _END.unpack(file.read(_END.size))
    end = nbytes - _END.size - length  # of what lies before the tree
    if end < 0:
        raise ValueError("it has no tree")
    file.seek(base + end)
    tree = json.loads(file.read(length))

    def taken(begin: int, size: int) -> bytearray:
        if not 0 <= begin <= begin + size <= end:
            raise ValueError("a piece of it lies elsewhere")
        file.seek(base + begin)
        data = bytearray(size)
        if file.readinto(data) != size:  # type: ignore[attr-defined]
            raise ValueError("it is too short")
        return data

    def unpacked(value: Any) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case ["object", dict(inner)]:
                return {key: unpacked(one) for key, one in inner.items()}
            case ["list", list(inner)]:
                return [unpacked(one) for one in inner]
            case ["array", str(kind), int(begin), int(size)] if kind in _DTYPES:
                return np.frombuffer(taken(begin, size), dtype=np.dtype(kind))
            case ["rows", int(begin), int(size)]:
                return read_batch(taken(begin, size), size)
            case ["bytes", int(begin), int(size)]:
                return bytes(taken(begin, size))
        raise ValueError(f"it holds what is no data: {str(value)[:60]}")

    return unpacked(tree)


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{key!r} is no name")
    return key


def _flat(array: NDArray[Any]) -> bytes | memoryview:
    if array.ndim != 1 or array.dtype.str not in _DTYPES:
        raise TypeError(f"an array of {array.dtype} in {array.ndim} dimensions is not kept")
    return np.ascontiguousarray(array).view(np.uint8).data
