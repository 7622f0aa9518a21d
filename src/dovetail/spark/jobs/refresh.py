"""Refresh: a table that has changed is staged anew, beside the version that is in use.

A refresh stages a new version and makes it the one in use. A step that finds its operator on an
older one lets that finish the rows it holds and goes on with the new one, so a row is joined with
one version. Versions that no partition needs are deleted.
"""

import contextlib
import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.errors import ArgumentError, StateError, StateMismatchError
from dovetail.semistream.table.reading import StagedTable
from dovetail.spark.jobs.staging import (
    Shape,
    alone,
    check_staged,
    referred_to,
    shape_as_staged,
    stage,
    staged_facts,
)
from dovetail.spark.layout import arrow_types
from dovetail.spark.sources.tables import OpenTable, Table, open_table
from dovetail.spark.state import read_identity
from dovetail.spark.state.metrics import check_begun
from dovetail.spark.state.staged import CURRENT, TABLES, staged_version
from dovetail.specs import state_path

_log = logging.getLogger("dovetail")
_refreshers: dict[Path, threading.Event] = {}  # ends the thread that looks after a state


@dataclass(frozen=True)
class Refreshed:
    """The result of a refresh."""

    version: str  #: that new rows are joined with
    changed: bool  #: whether it was staged just now

    def __str__(self) -> str:
        return f"staged as {self.version}" if self.changed else f"unchanged, {self.version}"


def restage(
    state: str | Path, table: Table | None, session: SparkSession, *, verify: bool = True
) -> Refreshed:
    """Stage a changed table again.

    A copy that is damaged is staged again too; finding out means to `verify` all of it.
    """
    root = state_path(state)
    _check_has_table(root)
    with alone(root / TABLES):
        version = staged_version(root)
        facts = staged_facts(root / TABLES / version)
        given = facts["source"] if table is None else table
        if given is None:
            raise ArgumentError(
                f"the table staged in {root} was given as a DataFrame, so it cannot be read "
                "again: hand the new one over, dovetail.refresh(state, table=...)"
            )
        opened = open_table(session, given)
        _same_columns(opened, facts, root)
        fields = arrow_types("table", opened.schema)
        schema = pa.schema([fields.field(name) for name in facts["columns"]])
        shape = shape_as_staged(schema, facts)
        check_staged(root / TABLES / version, shape)
        if _unchanged(opened, facts) and not (verify and _damaged(root / TABLES / version, shape)):
            return Refreshed(version, changed=False)
        staged = stage(opened, shape, root)
        _delete_unused(root, {version, staged}, shape.partitions)
        return Refreshed(staged, changed=True)


def _check_has_table(root: Path) -> None:
    """Refuse a directory that is not the state of an enrichment; makes nothing there."""
    if (root / TABLES / CURRENT).exists():
        return
    check_begun(root)
    job = read_identity(root)["job"]
    if job != "enrich":
        raise StateMismatchError(
            f"{root} is the state of a {job}, which has no table to refresh. Name the state "
            "directory of an enrich."
        )
    staged_version(root)  # says that it was lost


def _unchanged(table: OpenTable, facts: dict[str, Any]) -> bool:
    """Whether the table is the one that was staged."""
    found = table.version()
    if found is None or table.plan() != facts.get("plan"):
        return False
    return bool(found == facts["fingerprint"])


def _damaged(directory: Path, shape: Shape) -> bool:
    """Whether any page of a staged version is lost, or has another checksum than it had."""
    try:
        for number in range(shape.partitions):
            part = StagedTable(directory / f"p{number:05d}", shape.schema)
            with contextlib.closing(part) as table:
                table.verify()
    except StateError:
        return True
    return False


def _same_columns(table: OpenTable, facts: dict[str, Any], state: Path) -> None:
    missing = [name for name in facts["columns"] if name not in table.schema.names]
    if missing:
        raise StateMismatchError(
            f"the new table lacks {', '.join(map(repr, missing))}, which the one staged in {state} "
            "has. Add the columns, or start over with a new state directory and a new checkpoint."
        )


def _delete_unused(state: Path, keep: set[str], partitions: int) -> None:
    """Delete the versions that no committed state refers to."""
    keep = keep | referred_to(state, partitions)
    for path in (state / TABLES).glob("v*"):
        if path.name not in keep:
            shutil.rmtree(path, ignore_errors=True)


def refresh_regularly(session: SparkSession, state: Path, seconds: float) -> None:
    """Look for changes of the table from time to time, while there are session and state.

    A query that is started again takes over from the one before.
    """
    over = threading.Event()
    before = _refreshers.pop(state, None)
    if before is not None:
        before.set()
    _refreshers[state] = over

    def look() -> None:
        while not over.wait(seconds) and not _stopped(session) and state.exists():
            try:
                restage(state, None, session, verify=False)
            except Exception as error:  # noqa: BLE001  the stream goes on with what it has
                if not _stopped(session):
                    _log.warning("the table of %s was not refreshed: %s", state, error)

    threading.Thread(target=look, name=f"refresh {state}", daemon=True).start()


def _stopped(session: SparkSession) -> bool:
    jsc = session.sparkContext._jsc  # no public call tells
    return jsc is None or bool(jsc.sc().isStopped())
