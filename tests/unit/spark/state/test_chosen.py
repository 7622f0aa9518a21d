"""The record of the algorithm that was chosen."""

from pathlib import Path

import pytest

from dovetail.errors import StateCorruptError
from dovetail.spark.state.chosen import CHOSEN, read_chosen


@pytest.mark.parametrize("text", ["", "{}", '{"choice": 1}', "[]"])
def test_chosen_when_damaged_then_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / CHOSEN).write_text(text)
    with pytest.raises(StateCorruptError, match=r"chosen\.json is damaged"):
        read_chosen(tmp_path)
