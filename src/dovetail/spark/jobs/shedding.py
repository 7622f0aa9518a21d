"""Publishes shed rows as Parquet files, each row exactly once.

An attempt writes the rows that it leaves out to an outbox of their own, and the manifest that
commits the attempt names it. After the commit the rows are published: written to a hidden file in
`shed_to`, which then gets its name, fixed by query, batch and partition. The name appears with all
of the rows or not at all, and the first attempt sets it: every attempt publishes the winner's rows.

    commit v(N) -> hidden file -> link shed-<query>-b<N>-p<P>.parquet -> outbox is renamed -> emit

The renamed outbox says that its rows were published, so a file that has been taken away is not
made again by a replay. A step that was killed on the way leaves the outbox as it was; the replay of
its batch publishes it, and at the latest the next step does, before it deletes it.

Take files away only while the query runs on or is stopped in good order: a crash between the link
and the renaming is repaired by looking whether the file is there.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.errors import ArgumentError, StateMissingError
from dovetail.kernel.blocks import storage_problem
from dovetail.spark import faults
from dovetail.spark.grouping import grouped
from dovetail.spark.state import Manifest, PartitionState, replay
from dovetail.spark.state.durable import sync

_PUBLISHED = ".published"
_GROUP_BYTES = 16 << 20  # of a row group, at most


def check_target(to: Path) -> None:
    """Refuse a directory that cannot be made or written to; makes nothing."""
    found = next(place for place in (to, *to.parents) if place.exists())
    if not found.is_dir():
        raise ArgumentError(f"shed_to={str(to)!r}: {found} is a file; name a directory")
    if not os.access(found, os.W_OK | os.X_OK):
        raise ArgumentError(
            f"shed_to={str(to)!r}: {found} cannot be written to; name another directory, or change "
            "its permissions"
        )


def publish(
    state: PartitionState, manifest: Manifest, schema: pa.Schema, query: str, group_bytes: int,
    *, ended: bool,
) -> None:  # fmt: skip
    """See to it that what a version left out is where it was to go.

    `ended`: a later step has begun, so the outbox may be gone because it was published long ago.
    `group_bytes`: the memory to be used for it.
    """
    shed = manifest.shed
    if shed is None:
        return
    box = state.directory / shed.name
    published = box.with_suffix(_PUBLISHED)
    name = f"shed-{query}-b{manifest.version:012d}-p{state.partition:05d}.parquet"
    target = Path(shed.to) / name
    try:
        if box.exists() and not target.exists():
            # many small batches would make a slow file
            rows = grouped(replay(state.directory, shed, schema), min(group_bytes, _GROUP_BYTES))
            _write_once(target, map(pa.Table.from_batches, rows), schema)
        with contextlib.suppress(FileNotFoundError):
            box.rename(published)
    except StateMissingError:
        pass  # another attempt was quicker, or the outbox is lost: see below
    except OSError as error:
        raise storage_problem(error, target, "write rows that were left out to") from error
    if not ended and not published.exists():
        raise StateMissingError(
            f"{box} is gone, and with it {shed.rows} rows that were left out and are to go to "
            f"{target}. Restore it from a backup, or start over with a new state directory and a "
            "new checkpoint."
        )
    faults.fault_point("after-publish")


def _write_once(target: Path, groups: Iterator[pa.Table], schema: pa.Schema) -> None:
    """A file that appears whole or not at all, and is never changed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}")
    try:
        with pq.ParquetWriter(hidden, schema, store_schema=False) as writer:
            for group in groups:
                writer.write_table(group)
        sync(hidden)
        faults.fault_point("mid-publish")
        os.link(hidden, target)
    except FileExistsError:
        pass
    except FileNotFoundError:  # tidied up by another attempt, which has published
        if not target.exists():
            raise
    sync(target.parent)
    for left in target.parent.glob(f".{target.name}.*"):  # also of attempts that were killed
        left.unlink(missing_ok=True)
