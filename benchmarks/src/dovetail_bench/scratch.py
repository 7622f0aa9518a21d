"""Room on disk that a benchmark works in, and that goes away with what was measured there."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from dovetail.kernel.blocks import BlockStore

_PREFIX = "dovetail-bench-"


@contextmanager
def scratch() -> Iterator[Path]:
    """A new empty directory; what a stopping session of Spark still writes there may be left."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def block_store(schemas: Sequence[pa.Schema]) -> Iterator[BlockStore]:
    """A store of an operator by itself, in a directory of its own."""
    with scratch() as directory:
        store = BlockStore(directory, tuple(schemas), "bench")
        try:
            yield store
        finally:
            store.close()
