"""Groups of things that have bytes."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)


def grouped(things: Iterable[T], most_bytes: int) -> Iterator[list[T]]:
    """Things that follow each other, put together up to so many bytes; a larger one is alone."""
    held: list[T] = []
    nbytes = 0
    for one in things:
        if held and nbytes + one.nbytes > most_bytes:
            yield held
            held, nbytes = [], 0
        held.append(one)
        nbytes += one.nbytes
    if held:
        yield held
