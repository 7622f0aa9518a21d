"""Flushes by hand."""

from dovetail.twoway import Diner


def flush(operator: Diner, side: int) -> None:
    """Flush a block of a side's rows, whichever side's turn it is."""
    operator.arriving.flush(side, operator._flush_bytes(), operator)
