"""Outboxes: the results of one step on disk, kept until the next version replaces them."""

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dovetail.errors import StateCorruptError, StateMissingError
from dovetail.kernel.blocks import storage_problem
from dovetail.spark.state.durable import storing
from dovetail.spark.state.manifest import RESTORE_BOTH, Sealed


class Outbox:
    """The results of one step, on disk until the step is committed."""

    def __init__(self, directory: Path, attempt: str, schema: pa.Schema, kind: str = "out") -> None:
        self.name = f"{attempt}-{kind}.arrows"
        self._path = directory / self.name
        self._schema = schema
        self._handle: Any = None
        self.batches: list[tuple[int, int, int]] = []  # offset, length, checksum
        self.rows = self.nbytes = 0

    def put(self, batch: pa.RecordBatch) -> None:
        message = batch.serialize()
        try:
            if self._handle is None:
                self._handle = self._path.open("xb")
                self._handle.write(self._schema.serialize())
            offset = self._handle.tell()
            self._handle.write(message)
        except OSError as error:
            raise storage_problem(error, self._path, "write results to") from error
        self.batches.append((offset, message.size, zlib.crc32(message)))
        self.rows += batch.num_rows
        self.nbytes += message.size

    def seal(self) -> Sealed:
        """Make the results durable; returns what a manifest says of them."""
        if self._handle is not None:
            with storing(self._path, "write results to"):
                self._handle.flush()
                os.fsync(self._handle.fileno())
            self.close()
        return Sealed(self.name, tuple(self.batches), self.rows)

    def close(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):  # of a write that has failed before
                self._handle.close()
            self._handle = None


def replay(
    directory: Path, outbox: Sealed, schema: pa.Schema, *, own: bool = False
) -> Iterator[pa.RecordBatch]:
    """The results of a committed step; `own`: which has just written them, so they are whole."""
    if not outbox.batches:
        return
    path = directory / outbox.name
    try:
        with path.open("rb") as handle:
            for offset, length, checksum in outbox.batches:
                handle.seek(offset)
                data = handle.read(length)
                if len(data) != length or (not own and zlib.crc32(data) != checksum):
                    raise StateCorruptError(
                        f"the results in {path} are damaged at byte {offset}. {RESTORE_BOTH}"
                    )
                yield pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    except FileNotFoundError as error:
        raise StateMissingError(
            f"{path} is gone, but its batch is being replayed. {RESTORE_BOTH}"
        ) from error
