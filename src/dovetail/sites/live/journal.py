"""The journal of a host's part of a query: events, and now and then a snapshot in their place.

A snapshot is the machine, pickled, with the messages that were not acknowledged; the events before
it are deleted. One is made when the events since the last are more than it and `snapshot_bytes`:
so the journal is at most about as large as twice the state, and writing snapshots costs about as
much as writing events.

The folder is the host's own. A pickle can run code when it is read, so whoever can write there can
run code as this host; the checksum protects against damage only.
"""

import contextlib
import json
import pickle
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dovetail.errors import StateMismatchError
from dovetail.sites.live.events import Event
from dovetail.sites.live.records import RecordFile, opened_whole, scan, sync_directory, whole

_FORMAT = 2


class Journal:
    """Snapshot `n` is followed by the events of segment `n`; there is no snapshot 0."""

    def __init__(
        self, directory: Path, digest: str, *, snapshot_bytes: int, durable: bool = True
    ) -> None:  # fmt: skip
        self._directory = directory
        self._facts = {"format": _FORMAT, "version": version("dovetail"), "digest": digest}
        self._durable = durable
        self._snapshot_bytes = snapshot_bytes
        self._last_snapshot_bytes = 0
        self._unsynced = False
        self.snapshots = 0  #: that were made by this process
        directory.mkdir(parents=True, exist_ok=True)
        found = self._numbers("snapshot-*.bin")
        self.number = found[-1] if found else 0
        self._file: RecordFile | None = None

    def _numbers(self, pattern: str) -> list[int]:
        return sorted(int(path.stem.rpartition("-")[2]) for path in self._directory.glob(pattern))

    def _snapshot_path(self, number: int) -> Path:
        return self._directory / f"snapshot-{number:012}.bin"

    def _segment_path(self, number: int) -> Path:
        return self._directory / f"events-{number:012}.log"

    def load(self) -> Any:
        """What the last snapshot holds; None if there is none."""
        if not self.number:
            return None
        path = self._snapshot_path(self.number)
        self._last_snapshot_bytes = path.stat().st_size
        with opened_whole(path) as file:
            self._check(path, json.loads(file.readline()))
            return pickle.load(file)

    def _check(self, path: Path, facts: dict[str, Any]) -> None:
        if facts == self._facts:
            return
        different = [name for name, value in self._facts.items() if facts.get(name) != value]
        raise StateMismatchError(
            f"{path} was written with another {' and '.join(different)} "
            f"({', '.join(str(facts.get(name)) for name in different)} instead of "
            f"{', '.join(str(self._facts[name]) for name in different)}). Use the same again, or "
            "stop the query at all sites and start it anew."
        )

    def replay(self) -> Iterator[tuple[Event, int]]:
        """The events since the snapshot, with the number of outputs before each."""
        path = self._segment_path(self.number)
        if path.exists():
            for index, (_, body) in enumerate(scan(path)):
                if index == 0:
                    self._check(path, json.loads(body))
                else:
                    yield Event.parse(body)

    def open(self) -> None:
        """Begin to write, after `replay`."""
        self._file = RecordFile(self._segment_path(self.number))
        if not self._file.nbytes:
            self._file.append(json.dumps(self._facts).encode())
        # also what a killed process has left: from now on what follows from it leaves the host
        self._file.sync()
        sync_directory(self._directory)
        self._clear()

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

    def snapshot(self, state: Any) -> None:
        """Keep this in place of all events so far."""
        with whole(self._snapshot_path(self.number + 1)) as file:
            file.write(json.dumps(self._facts).encode() + b"\n")
            pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL)
            self._last_snapshot_bytes = file.nbytes
        self.close()
        self.number += 1
        self.snapshots += 1
        self.open()

    def _clear(self) -> None:
        """Delete what the newest snapshot has made needless."""
        for pattern, path_of in (
            ("snapshot-*.bin", self._snapshot_path),
            ("events-*.log", self._segment_path),
        ):
            for number in self._numbers(pattern):
                if number < self.number:
                    path_of(number).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._snapshot_path(self.number + 1).with_suffix(".bin.new").unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
