"""The names in the signatures are those that there are."""

from typing import Any, get_args

import pytest

from dovetail import multiway, semistream, specs, twoway
from dovetail.semistream.shedding import SHEDDERS


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (specs.JoinAlgorithm, ["auto", *twoway.ALGORITHMS]),
        (specs.JoinAllAlgorithm, ["auto", *multiway.ALGORITHMS]),
        (specs.EnrichAlgorithm, ["auto", *semistream.ALGORITHMS]),
        (specs.EnrichHow, semistream.HOWS),
        (specs.Shed, SHEDDERS),
    ],
)
def test_names_when_signatures_have_them_then_are_all_that_are_known(
    names: Any, known: Any
) -> None:
    assert sorted(get_args(names)) == sorted(known)
