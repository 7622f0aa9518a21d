"""The files of a staged table: what is read of them first, and which parts have been checked."""

import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import StateMismatchError, StateMissingError
from dovetail.semistream.table.mapping import damaged, reading
from dovetail.semistream.table.recordfile import RECORDS, STARTS

FORMAT = 3
CODES, ROWS, FENCES, META = "codes.bin", "rows.arrows", "fences.bin", "table.json"
_REMEMBERED_TABLES = 16
Flags = NDArray[np.bool_]


def checked(directory: Path, pages: int, chunks: int) -> tuple[Flags, Flags, Flags]:
    """Which pages, chunks and chunks of records this process has checked before.

    In the very files that are there.
    """
    paths = [directory / name for name in (CODES, ROWS, RECORDS, STARTS)]
    files = [path.stat() for path in paths if path.exists()]
    written = tuple((file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns) for file in files)
    return _known(str(directory), written, pages, chunks)


@lru_cache(maxsize=_REMEMBERED_TABLES)
def _known(
    _directory: str, _written: tuple[Any, ...], pages: int, chunks: int
) -> tuple[Flags, Flags, Flags]:
    flags = [np.zeros(count, dtype=np.bool_) for count in (pages, chunks, chunks)]
    return flags[0], flags[1], flags[2]


def read_meta(directory: Path) -> dict[str, Any]:
    path = directory / META
    try:
        with reading(path):
            checksum, _, body = path.read_bytes().partition(b"\n")
        if int(checksum) != zlib.crc32(body):
            raise ValueError("checksum")
        meta = cast("dict[str, Any]", json.loads(body))
    except StateMissingError:
        raise StateMissingError(
            f"{directory} holds no staged table: {META} is not there. Stage the table again "
            "(dovetail.refresh), or restore the directory from a backup."
        ) from None
    except ValueError:
        raise damaged(path, 0) from None
    if meta.get("format") != FORMAT:
        raise StateMismatchError(
            f"{directory} was staged by another version of Dovetail, in format "
            f"{meta.get('format', 1)}; this one reads format {FORMAT}. Stage the table again "
            "(dovetail.refresh)."
        )
    return meta
