"""The versions of a partition, of which none may be missing."""

from pathlib import Path

import pytest

from dovetail.errors import StateMissingError
from dovetail.spark.state import PartitionState, prepare


@pytest.fixture
def state(tmp_path: Path) -> PartitionState:
    """A partition that is at batch 5."""
    prepare(tmp_path, 1)
    known = PartitionState(tmp_path, 0)
    (known.directory / "latest").write_text("5")
    return known


def test_parent_when_the_newest_version_is_gone_then_says_which_and_for_what(
    state: PartitionState,
) -> None:
    with pytest.raises(StateMissingError, match=r"v0{11}5 is gone.* needed for batch 6"):
        state.parent_of(6)


def test_parent_when_a_batch_is_asked_for_again_whose_version_is_gone_then_says_so(
    state: PartitionState,
) -> None:
    with pytest.raises(StateMissingError, match=r"v0{11}4 is gone.* asks for batch 4 again"):
        state.parent_of(4)


def test_parent_when_nothing_has_been_committed_then_there_is_none(tmp_path: Path) -> None:
    prepare(tmp_path, 1)
    assert PartitionState(tmp_path, 0).parent_of(0) is None
