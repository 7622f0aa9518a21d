"""The journal of a host's part of a query: events, and now and then a snapshot in their place.

A snapshot is what the machine knows, as data (`kept`), with the messages that were not
acknowledged; the events before it are deleted. One is made when the events since the last are more
than it and `snapshot_bytes`: so the journal is at most about as large as twice the state, and
writing snapshots costs about as much as writing events.

Snapshot `n` is followed by the events of segment `n`; there is no snapshot 0. Of the two files the
segment is made first. So when there is a snapshot there is its segment, and a segment after it has
no events; anything else is a file that was lost. A journal that was closed says where it ended
(`closed`): until it is opened again, it must not be shorter. What a crash leaves can be shorter by
what was not synced, and was not acknowledged to anybody.
"""

import contextlib
import itertools
import json
import re
import struct
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError, StateCorruptError, StateMismatchError
from dovetail.multisite.live.events import Event
from dovetail.multisite.live.folders import corrupt, missing, private_folder
from dovetail.multisite.live.kept import read_tree, write_tree
from dovetail.multisite.live.records import (
    RecordFile,
    opened_whole,
    read_whole,
    scan,
    sync_directory,
    whole,
    write_whole,
)

_FORMAT = 3
_ENDINGS = {"snapshot": "bin", "events": "log"}
_NUMBERED = re.compile(r"(snapshot|events)-(\d{12})\.(bin|log)")


class Journal:
    """Of one query at one host."""

    def __init__(
        self, directory: Path, digest: str, host: str, *, snapshot_bytes: int, durable: bool = True
    ) -> None:  # fmt: skip
        self._directory = directory
        self._facts = {
            "format": _FORMAT, "version": version("dovetail"), "digest": digest, "host": host,
        }  # fmt: skip
        self._durable = durable
        self._snapshot_bytes = snapshot_bytes
        self._last_snapshot_bytes = 0
        self._unsynced = False
        self.snapshots = 0  #: that were made by this process
        private_folder(directory)
        self.number = max(self._numbers("snapshot"), default=0)
        self._file: RecordFile | None = None
        self._closed_file = directory / "closed"

    def _numbers(self, kind: str) -> list[int]:
        names = (_NUMBERED.fullmatch(path.name) for path in self._directory.glob(f"{kind}-*"))
        return sorted(int(name[2]) for name in names if name)

    def _path(self, kind: str, number: int) -> Path:
        return self._directory / f"{kind}-{number:012}.{_ENDINGS[kind]}"

    @property
    def path(self) -> Path:
        """The file of the newest events."""
        return self._path("events", self.number)

    @property
    def is_new(self) -> bool:
        """Whether nothing has ever been written here, by the journal or by others."""
        return not any(self._directory.iterdir())

    def begin(self) -> None:
        """Make the journal of a query that is new here; the files are there when it returns."""
        for number in self._numbers("events"):
            self._path("events", number).unlink()
        self.open()
        self.close()

    def check(self) -> None:
        """Refuse a journal of which a file is missing, or the end."""
        for number in self._numbers("events"):
            segment = self._path("events", number)
            if number > self.number and _has_events(segment):
                raise missing(self._path("snapshot", number), f"{segment} is there")
        if not self.path.exists():
            raise missing(self.path, "it has the events since the last snapshot")
        if self._closed_file.exists():
            at = self._said_when_closed()
            found = [self.number, self.path.stat().st_size]
            if at != found:
                raise corrupt(
                    f"the journal in {self._directory} ends at byte {found[1]:,} of segment "
                    f"{found[0]}, but it was closed at byte {at[1]:,} of segment {at[0]}: it is "
                    "damaged, or of another time"
                )

    def _said_when_closed(self) -> list[int]:
        try:
            segment, size = json.loads(read_whole(self._closed_file))
            return [int(segment), int(size)]
        except (ValueError, TypeError) as error:
            raise _unreadable(self._closed_file, error) from error

    def load(self) -> Any:
        """What the last snapshot holds; None if there is none."""
        if not self.number:
            return None
        path = self._path("snapshot", self.number)
        self._last_snapshot_bytes = path.stat().st_size
        with opened_whole(path) as file:
            self._check(path, _facts(path, file.readline()))
            try:
                return read_tree(file, self._last_snapshot_bytes - file.tell())
            except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
                raise _unreadable(path, error) from error

    def _check(self, path: Path, facts: Mapping[str, Any]) -> None:
        wanted = {**self._facts, "number": self.number}
        different = [name for name, value in wanted.items() if facts.get(name) != value]
        if not different:
            return
        raise StateMismatchError(
            f"{path} was written with another {' and '.join(different)} "
            f"({', '.join(str(facts.get(name)) for name in different)} instead of "
            f"{', '.join(str(wanted[name]) for name in different)}). Use the same again: let that "
            "version end the query, or stop it at all sites, and start it anew with this one."
        )

    def replay(self) -> Iterator[tuple[Event, int]]:
        """The events since the snapshot, with the number of outputs before each."""
        if not self.path.exists():
            return
        first = True
        for _, body in scan(self.path):
            if first:
                self._check(self.path, _facts(self.path, body))
                first = False
            else:
                yield Event.parse(body)
        if first:
            raise _unreadable(self.path, "it has no beginning")

    def open(self) -> None:
        """Begin to write, after `replay`."""
        self._file = self._begun(self.number)
        self._closed_file.unlink(missing_ok=True)
        # also what a killed process has left: from now on what follows from it leaves the host
        self._file.sync()
        sync_directory(self._directory)
        self._clear()

    def _begun(self, number: int) -> RecordFile:
        """A segment that has its beginning."""
        file = RecordFile(self._path("events", number))
        if not file.nbytes:
            file.append(json.dumps({**self._facts, "number": number}).encode())
        return file

    def append(self, event: Event, outputs: int) -> int:
        """Write an event down; returns what `take_back` takes."""
        assert self._file is not None
        self._unsynced = True
        return self._file.append(*event.pieces(outputs))

    def take_back(self, at: int) -> None:
        """The newest event did not happen: it must not fail again with every restart."""
        assert self._file is not None
        self._file.cut(at)

    def sync(self) -> None:
        """Nothing that follows from an event may leave the host before this."""
        if self._unsynced and self._durable:
            assert self._file is not None
            self._file.sync()
        self._unsynced = False

    @property
    def nbytes(self) -> int:
        """Of the events since the last snapshot."""
        return self._file.nbytes if self._file else 0

    @property
    def wants_snapshot(self) -> bool:
        return self.nbytes > max(self._snapshot_bytes, self._last_snapshot_bytes)

    def snapshot(self, state: Mapping[str, Any]) -> None:
        """Keep this in place of all events so far."""
        fresh = self._begun(self.number + 1)
        fresh.sync()
        fresh.close()
        sync_directory(self._directory)
        facts = {**self._facts, "number": self.number + 1}
        with whole(self._path("snapshot", self.number + 1)) as file:
            file.write(json.dumps(facts).encode() + b"\n")
            write_tree(file, state)
            self._last_snapshot_bytes = file.nbytes
        assert self._file is not None
        self._file.close()
        self.number += 1
        self.snapshots += 1
        self.open()

    def _clear(self) -> None:
        """Delete what the newest snapshot has made needless."""
        for kind in _ENDINGS:
            for number in self._numbers(kind):
                if number < self.number:
                    self._path(kind, number).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._path("snapshot", self.number + 1).with_suffix(".bin.new").unlink(missing_ok=True)

    def close(self) -> None:
        """End writing, and say where."""
        if self._file is not None:
            self.sync()
            end = self._file.nbytes
            self._file.close()
            self._file = None
            with contextlib.suppress(DovetailError):  # it is a help, and not needed
                write_whole(self._closed_file, json.dumps([self.number, end]).encode())


def happened(directory: Path) -> bool:
    """Whether a folder has a journal in which anything has happened."""
    events = directory.glob("events-*.log")
    return any(directory.glob("snapshot-*.bin")) or any(map(_has_events, events))


def _has_events(segment: Path) -> bool:
    """Whether a segment has more than its beginning."""
    return len(list(itertools.islice(scan(segment), 2))) > 1


def _facts(path: Path, line: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: object) -> StateCorruptError:
    return corrupt(f"the file {path} is not what a site writes: {error}")
