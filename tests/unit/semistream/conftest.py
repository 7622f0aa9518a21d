"""Operators to drive by hand."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.semistream import Bench


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Each call stages a table and opens an operator; all are closed in the end."""
    opened: list[Bench] = []

    def make(algorithm: str, table: Sequence[int], **arguments: Any) -> Bench:
        directory = tmp_path / f"bench{len(list(tmp_path.iterdir()))}"
        bench = Bench(directory, algorithm, table, **arguments)
        opened.append(bench)
        return bench

    yield make
    for bench in opened:
        bench.close()
