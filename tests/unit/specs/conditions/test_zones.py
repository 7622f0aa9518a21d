"""Zones count as fixed only if their names say so."""

import pytest

from dovetail.specs.conditions import has_fixed_offset


@pytest.mark.parametrize("zone", ["UTC", "Z", "+01:00", "-08:30", "GMT+2", "Etc/UTC", "Etc/GMT-3"])
def test_zone_when_it_is_an_offset_then_is_fixed(zone: str) -> None:
    assert has_fixed_offset(zone)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Phoenix", "GMT0BST", "PST", ""])
def test_zone_when_it_is_a_place_then_is_not_fixed(zone: str) -> None:
    assert not has_fixed_offset(zone)
