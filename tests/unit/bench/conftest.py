"""What every benchmark's tiny run is held to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail_bench.report import write_report
from dovetail_bench.result import Result


@pytest.fixture
def assert_sound(tmp_path: Path) -> Callable[[Result], None]:
    """Nothing failed, every ratio is a number, and a report can be drawn of it."""

    def check(result: Result) -> None:
        assert result.ok, result.failures
        medians = [ratio.median for ratio in result.ratios.values()]
        assert all(median is not None and median > 0 for median in medians)
        written = write_report([Result.from_json(result.to_json(), "here")], tmp_path)
        assert all(path.stat().st_size for path in written)

    return check
