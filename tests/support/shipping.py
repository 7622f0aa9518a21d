"""Who was sent which row, read off the messages: while a plan holds, none goes twice over a link.

Rows are told apart by a column `id` of their stream. A row that is made of several streams is
another row in the sequence of another head, and at another step of it.
"""

from collections import Counter

from dovetail.multisite.messages import Message

_FULL_ROWS = ("rows", "probe")  # parts of a message; others refer to rows, or have keys only


class Shipped:
    """Takes every message that goes from host to host."""

    def __init__(self) -> None:
        self.rows = 0
        self.times: Counter[tuple[object, ...]] = Counter()  #: by link and row

    def take(self, message: Message) -> None:
        """Count a message; an `AssertionError` if a row in it was sent before."""
        header = message.header
        self.count(message)
        for batch in (message.parts[name] for name in _FULL_ROWS if name in message.parts):
            ids = [name for name in batch.schema.names if name.endswith(".id")]
            purpose = (header.head, header.step) if len(ids) > 1 else ()
            columns = [batch.column(name).to_pylist() for name in ids]
            for numbers in zip(*columns, strict=True):
                row = (header.sender, header.receiver, *purpose, *zip(ids, numbers, strict=True))
                self.times[row] += 1
                assert self.times[row] == 1, f"sent twice: {row} in {header}"

    def count(self, message: Message) -> None:
        self.rows += sum(b.num_rows for n, b in message.parts.items() if n in _FULL_ROWS)
