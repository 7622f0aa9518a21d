"""Folders and files of a site, which are its own: nobody else may write there, nor read.

Whoever can write there decides what the site believes; what it reads is data only and is checked,
but a journal can be made to say anything.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dovetail.errors import StateCorruptError, StateMissingError, StorageError
from dovetail.kernel.files import storage_problem

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ADVICE = "Restore the folder from a backup, or stop the query at all sites and start it anew."


@contextlib.contextmanager
def storing(path: Path, doing: str) -> Iterator[None]:
    """An error of the operating system becomes one that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise storage_problem(error, path, doing) from error


def private_folder(path: Path) -> None:
    """Make a folder of our own, or take one that is; then check all that lies in it."""
    with storing(path, "open"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(path)
        for inner in path.iterdir():
            check_own(inner)


def check_own(path: Path) -> None:
    """Refuse a folder or file that somebody else could have written; close it to readers."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise StorageError(
            f"{path} is a link to another place: a site keeps its files in a folder of its own. "
            "Name the place itself in the site's file (data)"
        )
    if found.st_uid != os.geteuid():
        raise StorageError(
            f"{path} belongs to user {found.st_uid}, but this site runs as user {os.geteuid()}: "
            "run it as the same, or give it the folder with chown -R"
        )
    if found.st_mode & _OTHERS_WRITE:
        raise StorageError(
            f"others may write to {path}, and could make this site believe anything. Look who has "
            f"done so; then chmod -R go-rwx {path if path.is_dir() else path.parent}"
        )
    if found.st_mode & _OTHERS:
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def missing(path: Path, why: str) -> StateMissingError:
    """A file of a site that is gone."""
    return StateMissingError(f"the file {path} is gone: {why}. {_ADVICE}")


def corrupt(what: str) -> StateCorruptError:
    """Something in the folder of a site is not what was written there."""
    return StateCorruptError(f"{what}. {_ADVICE}")
