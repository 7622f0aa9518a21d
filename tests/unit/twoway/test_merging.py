"""How wide merges are, and how large the blocks that they read."""

import pytest

from dovetail.twoway.rivals.merging import merge_width
from dovetail.twoway.rivals.segments import block_size


@pytest.mark.parametrize("fan_in", [2, 3, 5, 10])
def test_width_when_merges_follow_each_other_then_only_the_first_is_narrow(fan_in: int) -> None:
    for segments in range(1, 60):
        widths, left = [], segments
        while left > fan_in:
            widths.append(merge_width(left, fan_in))
            left += 1 - widths[-1]
        assert merge_width(left, fan_in) == left
        assert left == min(segments, fan_in), "the last merge is as wide as can be"
        assert all(2 <= width <= fan_in for width in widths)
        assert all(width == fan_in for width in widths[1:])


@pytest.mark.parametrize("working_bytes", [24 << 10, 150 << 10, 3 << 20, 64 << 20])
def test_block_when_memory_is_any_size_then_a_merge_has_room_for_several(
    working_bytes: int,
) -> None:
    assert working_bytes // 32 <= block_size(working_bytes) <= working_bytes // 6
