"""Staged tables in a state directory: their paths, and the version in use (`jobs.staging`)."""

from pathlib import Path

from dovetail.spark.state.durable import reading

TABLES = "table"  #: where a state directory keeps its staged tables
CURRENT = "current"  #: and in there, the name of the version in use


def staged_version(state: Path) -> str:
    """The version of the staged table that new rows are joined with."""
    path = state / TABLES / CURRENT
    gone = (
        f"{path} is gone: the state directory has no staged table. Restore {state / TABLES} from "
        "a backup, or start over with a new state directory and a new checkpoint."
    )
    with reading(path, gone=gone):
        return path.read_text().strip()


def staged_partition(state: Path, version: str, partition: int) -> Path:
    """Where one partition of a version is."""
    return state / TABLES / version / f"p{partition:05d}"
