"""Two checkouts, compared."""

from pathlib import Path

import pytest

from dovetail.errors import ArgumentError
from dovetail_bench import compare


def test_quotients_when_a_ratio_is_new_or_gone_then_leave_it_out() -> None:
    before = [{"a": 2.0, "gone": 1.0}, {"a": 4.0, "gone": 1.0}]
    after = [{"a": 3.0, "new": 1.0}, {"a": 2.0, "new": 1.0}]
    assert compare.quotients(before, after) == {"a": [1.5, 0.5]}


def test_compare_when_turns_are_odd_and_even_then_each_checkout_goes_first_by_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[Path] = []

    def run(checkout: Path, name: str, options: list[str]) -> dict[str, float]:
        ran.append(checkout)
        return {"a": float(len(ran))}

    monkeypatch.setattr(compare, "ratios_in", run)
    said: list[str] = []
    found = compare.compare(tmp_path, "x", 3, [], said.append)
    assert ran == [tmp_path, compare.HERE, compare.HERE, tmp_path, tmp_path, compare.HERE]
    assert found == {"a": [2 / 1, 3 / 4, 6 / 5]}
    assert len(said) == 6


def test_ratios_when_there_is_no_checkout_then_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="not a checkout"):
        compare.ratios_in(tmp_path, "x", [])
