"""The ends of messages between hosts: the streams of a plan, and whatever a tree makes of them.

A site knows the others by their places in its own query. A linear plan has one; a tree has one for
each level, so on the way between hosts the ends are numbered through, level after level.
"""

from dataclasses import replace
from itertools import accumulate

import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.sites.messages import MOST_OPEN, PLANNER, Header, Kind, Message
from dovetail.sites.query import Stream
from dovetail.sites.tree import Level

# whether a message is of the planner, and whether it is to it; of others it is neither
_PLANNERS_END = {
    Kind.STATISTICS: (False, True), Kind.READY: (False, True),
    Kind.PREPARE: (True, False), Kind.COMMIT: (True, False),
}  # fmt: skip
# of each of these sets of parts, a message must have one
_PARTS = {
    Kind.PROBE: [{"probe", "rows", "refs"}], Kind.KEYS: [{"keys", "bloom"}],
    Kind.PREPARE: [{"plan"}], Kind.PASSED: [{"passed"}],
}  # fmt: skip


class Ends:
    """All ends of the messages of a plan. The planner is at the host of the first stream."""

    def __init__(self, levels: tuple[Level, ...], planner: str) -> None:
        sizes = [len(level.query.streams) for level in levels]
        self._firsts = [0, *accumulate(sizes[:-1])]
        self._levels = levels
        self._streams = [
            (index, stream) for index, level in enumerate(levels) for stream in level.query.streams
        ]
        self._planner = planner

    def host(self, number: int) -> str:
        return self._planner if number == PLANNER else self.stream(number).site

    def stream(self, number: int) -> Stream:
        return self._streams[number][1]

    def numbered(self, message: Message, index: int) -> Message:
        """A message of a site of a level, for the way between hosts."""
        return _moved(message, self._firsts[index])

    def as_sent(self, message: Message) -> Message:
        """The same as the site that gets it is to see it."""
        receiver = message.header.receiver
        return message if receiver == PLANNER else _moved(message, -self._first_of(receiver))

    def _first_of(self, number: int) -> int:
        return self._firsts[self._streams[number][0]]

    def check(self, peer: str, host: str, message: Message) -> None:
        """Refuse what the sites of a host could not take, before it is in the journal."""
        header = message.header
        count = len(self._streams)
        if not (PLANNER <= header.sender < count and PLANNER <= header.receiver < count):
            raise ArgumentError(f"a message between streams that are not there: {header}")
        if self.host(header.receiver) != host or self.host(header.sender) != peer:
            raise ArgumentError(
                f"a message of {peer!r} to {host!r} is between streams elsewhere: {header}"
            )
        ends = header.sender == PLANNER, header.receiver == PLANNER
        if ends != _PLANNERS_END.get(header.kind, (False, False)):
            raise ArgumentError(f"a message of a kind that does not go this way: {header}")
        if missing := [n for n in _PARTS.get(header.kind, ()) if not n & set(message.parts)]:
            raise ArgumentError(f"a message without {' or '.join(sorted(missing[0]))}: {header}")
        levels = {self._streams[n][0] for n in (header.sender, header.receiver) if n != PLANNER}
        if len(levels) > 1:
            raise ArgumentError(f"a message between streams that no join has: {header}")
        level = self._levels[levels.pop()] if levels else self._levels[0]
        self._check_rows(level, message)

    def _check_rows(self, level: Level, message: Message) -> None:
        """The step, and the columns of rows, must be of the level's query."""
        header, names = message.header, level.query.names
        steps = MOST_OPEN + 1 if header.kind == Kind.UPDATE else max(1, len(names) - 1)
        if not (0 <= header.head < len(names) and 0 <= header.step < steps):
            raise ArgumentError(f"a message of a step that no plan has: {header}")
        if "rows" in message.parts and header.sender != PLANNER:
            _check_columns(message.parts["rows"].schema, [self.stream(header.sender)])
        if "probe" in message.parts:
            found = message.parts["probe"].schema
            parts = {name.partition(".")[0] for name in found.names}
            joined = [stream for stream in level.query.streams if stream.name in parts]
            if names[header.head] not in parts or len(joined) != header.step + 1:
                raise ArgumentError(
                    f"a message with rows of {', '.join(sorted(parts))} for step {header.step} of "
                    f"{names[header.head]!r}"
                )
            _check_columns(found, joined)


def _moved(message: Message, by: int) -> Message:
    header: Header = message.header
    if not by:
        return message
    moved = replace(header, sender=header.sender + by, receiver=header.receiver + by)
    return Message(moved, message.parts)


def _check_columns(found: pa.Schema, streams: list[Stream]) -> None:
    """Rows must have the columns of these streams, in whichever order the streams are."""
    wanted = pa.schema([field for stream in streams for field in stream.qualified])
    fields = ({(field.name, field.type) for field in schema} for schema in (wanted, found))
    if len(found) != len(wanted) or next(fields) != next(fields):
        raise ArgumentError(
            f"a message with rows of {found.names} ({found.types}), but stream "
            f"{' and '.join(repr(s.name) for s in streams)} has {wanted.names} ({wanted.types})"
        )
