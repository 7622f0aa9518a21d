"""The ends of messages between hosts: the streams of a plan, and whatever a tree makes of them.

A site knows the others by their places in its own query. A linear plan has one; a tree has one for
each level, so on the way between hosts the ends are numbered through, level after level.
"""

from dataclasses import replace
from itertools import accumulate

from dovetail.errors import ArgumentError
from dovetail.multisite.contents import check_header, check_parts
from dovetail.multisite.messages import PLANNER, Kind, Message
from dovetail.multisite.query import Stream
from dovetail.multisite.tree import Level

# whether a message is of the planner, and whether it is to it; of others it is neither
_PLANNERS_END = {
    Kind.STATISTICS: (False, True), Kind.READY: (False, True),
    Kind.PREPARE: (True, False), Kind.COMMIT: (True, False),
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
        level = 0 if receiver == PLANNER else self._streams[receiver][0]
        return _moved(message, -self._firsts[level])

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
        levels = {self._streams[n][0] for n in (header.sender, header.receiver) if n != PLANNER}
        if len(levels) > 1:
            raise ArgumentError(f"a message between streams that no join has: {header}")
        level = self._levels[levels.pop()] if levels else self._levels[0]
        check_header(header, level.query)
        sender = None if header.sender == PLANNER else self.stream(header.sender)
        check_parts(message, level.query, sender)


def _moved(message: Message, by: int) -> Message:
    header = message.header
    moved = replace(header, sender=header.sender + by, receiver=header.receiver + by)
    return Message(moved, message.parts) if by else message
